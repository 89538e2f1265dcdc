//! The checks of a running node's links: what goes wrong on links that are up, why configured peers have no link, and
//! what is out of reach by lost ones. Owns the dial that finds out why, and the remedies. Knows nothing of the host.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::Duration;

use tokio::time::timeout;

use crate::backend::{self, DialFailure, DialSpec};
use crate::config::{Component, Config};
use crate::daemon::wiring;
use crate::mesh::MeshStatus;
use crate::node::{DialStatus, LinkEnd, LinkSpec, LinkStatus};
use crate::rpc::report::finding::{Finding, Severity};
use crate::rpc::report::outage::OutageReport;
use crate::tls::Profiles;
use crate::wire::NodeId;

/// The share of lost probes from which on jobs suffer.
const LOSSY: f64 = 0.1;
/// How long the other end of a session may take to say its first word, or to end it.
const SPEAKS_WITHIN: Duration = Duration::from_secs(3);
/// How long an operator is told of updates that others have sent in this node's name.
const SPOKEN_LATELY: Duration = Duration::from_secs(600);
/// The most outages that are reported, and the most broken links that are named of each.
const MOST_OUTAGES: usize = 20;
const MOST_BROKEN: usize = 3;
/// So many waiting bytes show that a link is too slow for what is sent.
const LONG_QUEUE: u64 = 1 << 20;

/// What is wrong with a link that is up.
pub(super) fn of_session(link: &LinkStatus) -> Vec<Finding> {
    let LinkStatus { node_id, address, dropped, .. } = link;
    let place = format!("link to {node_id} by {} {address}", link.transport);
    let mut found = Vec::new();
    if link.probe_loss > 0.0 {
        let severity = if link.probe_loss >= LOSSY { Severity::Error } else { Severity::Warning };
        let what = format!("{:.0} % of its probes are lost", link.probe_loss * 100.0);
        let remedy = format!(
            "check the network in between: ping -c 100 {}, ip -s link; then: meshctl link test {node_id}",
            host(address)
        );
        found.push(Finding::new(severity, &place, what, remedy));
    }
    if *dropped > 0 && link.queued_bytes >= LONG_QUEUE {
        let waiting = link.queued_bytes >> 20;
        let what = format!(
            "the link is too slow: {waiting} MiB wait, and {dropped} datagrams were dropped for lack of room"
        );
        let remedy = format!(
            "meshctl link test {node_id} measures it; a second route with its own cost takes load off it"
        );
        found.push(Finding::advice(&place, what, remedy));
    }
    found
}

/// Whether others send updates in this node's name.
pub(super) fn of_name(node: &NodeId, status: &MeshStatus) -> Option<Finding> {
    let lately = status.spoken_for.iter().filter(|(_, since)| *since < SPOKEN_LATELY);
    let by: Vec<String> = lately.map(|(by, since)| format!("{by} ({} s ago)", since.as_secs())).collect();
    let (first, _) = status.spoken_for.first().filter(|_| !by.is_empty())?;
    let by = by.join(", ");
    let what = format!("another node uses this node's ID: updates that this node had not sent came by {by}");
    let remedy = format!(
        "give each node an ID of its own; if no other node is called {node}, somebody in the mesh forges updates: \
         close the mesh (docs/security.md), and remove links until this ends, those of {first} first"
    );
    Some(Finding::fault(format_args!("node {node}"), what, remedy))
}

/// What is out of reach, the largest outages first. `idle` are the instances that get no jobs because of it. A single
/// node is reported by its neighbour, and by [`of_peers`] if this node dials it. Here it is reported if it was linked to
/// `own`, which does not dial it, or if it is an instance that should get jobs.
pub(super) fn of_outages(
    own: &NodeId,
    outages: &[OutageReport],
    idle: &BTreeSet<String>,
    dials: &[DialStatus],
) -> Vec<Finding> {
    let is_dialled =
        |node: &str| dials.iter().any(|dial| dial.node_id.as_ref().is_some_and(|id| id.as_str() == node));
    let is_told = |outage: &&OutageReport| match (outage.lost.as_slice(), outage.behind.as_slice()) {
        ([node], []) => {
            let was_ours = outage.links.iter().any(|[near, _]| near == own.as_str());
            idle.contains(node) || (was_ours && !is_dialled(node))
        }
        _ => true,
    };
    let mut all: Vec<&OutageReport> = outages.iter().filter(is_told).collect();
    all.sort_by_key(|outage| Reverse(outage.nodes().count()));
    let more = all.split_off(all.len().min(MOST_OUTAGES));
    let mut found: Vec<Finding> = all.into_iter().map(|outage| of_outage(outage, idle)).collect();
    if !more.is_empty() {
        let what = format!("{} more nodes or groups of nodes are out of reach", more.len());
        found.push(Finding::advice("mesh", what, "meshctl status --links shows all"));
    }
    found
}

fn of_outage(outage: &OutageReport, idle: &BTreeSet<String>) -> Finding {
    let links = outage.links.iter().take(MOST_BROKEN).map(|[near, far]| format!("{near} - {far}"));
    let links = links.collect::<Vec<_>>().join(", ");
    let broken = match outage.links.len() {
        0 => String::new(),
        count @ ..=MOST_BROKEN => format!(" (broken link{}: {links})", if count == 1 { "" } else { "s" }),
        count => format!(" ({count} broken links: {links}, ...)"),
    };
    let (severity, jobs) = match outage.nodes().filter(|node| idle.contains(*node)).count() {
        0 => (Severity::Warning, String::new()),
        1 => (Severity::Error, "; 1 instance gets no jobs".to_owned()),
        count => (Severity::Error, format!("; {count} instances get no jobs")),
    };
    let node = outage.nodes().next().map_or("", String::as_str);
    let place = format!("node {node}");
    let remedy = format!(
        "on {node}: systemctl status meshd, then meshctl doctor; if it is gone for good: meshctl node forget {node}"
    );
    Finding::new(severity, place, format!("{outage}{broken}{jobs}"), remedy)
}

/// The peers of the configuration that have no session. Each is dialled once to learn why, unless its node has another
/// link.
pub(super) async fn of_peers(
    config: &Config,
    profiles: &Profiles,
    sessions: &[LinkStatus],
    dials: &[DialStatus],
) -> Vec<Finding> {
    let peers = config.components().into_iter().filter_map(|component| {
        let Component::Link(link) = &component else { return None };
        match wiring::link_spec(link, profiles) {
            Ok(LinkSpec::Dial { spec, .. }) => Some((component.to_string(), spec)),
            Ok(LinkSpec::Listen { .. }) | Err(_) => None,
        }
    });
    let is_up = |spec: &DialSpec| sessions.iter().any(|link| link.address == spec.address());
    let down = peers.filter(|(_, spec)| !is_up(spec));
    let asked = down.map(|(place, spec)| async move {
        let status = dials.iter().find(|dial| dial.address == spec.to_string());
        let node = status.and_then(|status| status.node_id.as_ref());
        match sessions.iter().find(|link| Some(&link.node_id) == node) {
            Some(LinkStatus { node_id, transport, address, .. }) => Finding::advice(
                &place,
                format_args!(
                    "{node_id} is linked already, by {transport} {address}: this dial is kept in reserve"
                ),
                "nothing is wrong; where both ends dial, one of the two directives is enough",
            ),
            None => {
                let ended = status.and_then(|status| status.ended.as_ref());
                of_peer(&place, &spec, &dial(&spec).await, ended)
            }
        }
    });
    futures_util::future::join_all(asked).await
}

/// The result of one dial.
#[derive(Debug)]
enum Dialled {
    /// The other end speaks.
    Speaks,
    /// The other end says nothing.
    Silent,
    /// The other end ends the session at once, for instance because it refuses a certificate.
    Ends(String),
    Fails(DialFailure),
}

async fn dial(spec: &DialSpec) -> Dialled {
    let late = || DialFailure::TimedOut { address: spec.address(), limit: backend::DIAL_LIMIT };
    // In addition to the dial's own limit, because a resolver may hang.
    let dialled = timeout(backend::DIAL_LIMIT * 2, backend::dial(spec)).await;
    let mut session = match dialled.unwrap_or_else(|_| Err(late())) {
        Ok(session) => session,
        Err(failure) => return Dialled::Fails(failure),
    };
    match timeout(SPEAKS_WITHIN, session.reader.read_batch(&mut Vec::new())).await {
        Ok(Ok(())) => Dialled::Speaks,
        Ok(Err(end)) => Dialled::Ends(end.to_string()),
        Err(_) => Dialled::Silent,
    }
}

const AGAIN: &str = "look again in a moment; if it stays so, the logs of both ends say why";

/// Why a configured peer has no session.
fn of_peer(place: &str, spec: &DialSpec, dialled: &Dialled, ended: Option<&LinkEnd>) -> Finding {
    let address = spec.address();
    let (host, port) = (host(&address), port(&address));
    let protocol = if matches!(spec, DialSpec::Udp(_) | DialSpec::Quic(_)) { "udp" } else { "tcp" };
    let listens = format!("there: ss -ln 'sport = :{port}', and firewall-cmd --add-port={port}/{protocol}");
    let verify = "meshctl cert verify NAME --ca FILE --node ID";
    let (what, remedy) = match dialled {
        // A UDP dial succeeds even if nobody is there.
        Dialled::Silent if matches!(spec, DialSpec::Udp(_)) => (
            format!("no session: nothing comes back from {address}"),
            format!("check that meshd runs and its port is open {listens}"),
        ),
        Dialled::Speaks | Dialled::Silent => {
            let is_refusal = matches!(ended, Some(LinkEnd::Refused(_) | LinkEnd::RefusedByPeer));
            let severity = if is_refusal { Severity::Error } else { Severity::Warning };
            let (what, remedy) = match ended {
                Some(LinkEnd::Refused(why)) => {
                    (format!("this node refuses it: {why}"), "correct it here or there, then: meshctl reload")
                }
                Some(LinkEnd::RefusedByPeer) => (
                    "it refuses this node".to_owned(),
                    "its log says why: another node with this ID is in the mesh (one bundle is for one host), or \
                     its allowedpeers do not name this node",
                ),
                Some(LinkEnd::Lost(why) | LinkEnd::Failed(why)) => {
                    (format!("there is no session, the last one: {why}"), AGAIN)
                }
                Some(LinkEnd::InReserve(_)) | None => ("there is no session".to_owned(), AGAIN),
            };
            return Finding::new(severity, place, format_args!("{address} answers, but {what}"), remedy);
        }
        Dialled::Ends(why) => (
            format!("{address} ends each session at once: {why}"),
            format!("on its host: journalctl -u meshd -n 50; if it refuses a certificate: {verify}"),
        ),
        Dialled::Fails(DialFailure::Resolve { source, .. }) => (
            format!("the name in {address} has no address: {source}"),
            format!("correct the name, or its entry in DNS or /etc/hosts: getent hosts {host}"),
        ),
        Dialled::Fails(DialFailure::Connect { source, .. }) => match source.kind() {
            ErrorKind::ConnectionRefused => (
                format!("nobody listens at {address}: connection refused"),
                format!("start meshd there (systemctl start meshd), or correct the port {listens}"),
            ),
            _ => (
                format!("{address} cannot be reached: {source}"),
                format!("check the route and firewalls: ip route get {host}"),
            ),
        },
        Dialled::Fails(DialFailure::Tls { source, .. }) => (
            format!("TLS with {address} fails: {source}"),
            format!("compare the certificates of both ends: {verify}"),
        ),
        Dialled::Fails(DialFailure::TimedOut { limit, .. }) => (
            format!("{address} does not answer within {} s: packets are dropped on the way", limit.as_secs()),
            format!("check the firewalls on the way and open the port {listens}"),
        ),
    };
    Finding::fault(place, what, remedy)
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').map_or("", |(_, port)| port)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::backend::{TcpDialOptions, UdpDialOptions};
    use crate::tls::HandshakeError;

    fn told(dialled: Dialled) -> Finding {
        let options = TcpDialOptions { address: "hop:27199".to_owned(), tls: None, congestion: None };
        of_peer("tcp-peer hop:27199", &DialSpec::Tcp(options), &dialled, None)
    }

    #[test]
    fn of_a_peer_that_answers_it_is_known_who_refuses_whom_and_why() {
        let spec = DialSpec::Tcp(TcpDialOptions { address: "hop:1".to_owned(), tls: None, congestion: None });
        let told = |ended| of_peer("", &spec, &Dialled::Speaks, Some(&ended));
        for (ended, what, severity) in [
            (LinkEnd::Refused("b".into()), "this node refuses it: b", Severity::Error),
            (LinkEnd::RefusedByPeer, "it refuses this node", Severity::Error),
            (LinkEnd::Failed("closed".into()), "the last one: closed", Severity::Warning),
        ] {
            let found = told(ended);
            assert!(found.what.contains(what) && found.severity == severity, "{found}");
        }
    }

    #[test]
    fn a_lost_hop_is_one_finding_for_all_behind_it_and_a_fault_if_instances_are_among_them() {
        let own = NodeId::new("a").unwrap();
        let outage = |lost: &str, behind: usize| OutageReport {
            lost: vec![lost.to_owned()],
            behind: (0..behind).map(|number| format!("{lost}-{number}")).collect(),
            links: vec![["a".to_owned(), lost.to_owned()]],
            since: Some("2026-11-27T13:35:00Z".parse().unwrap()),
        };
        let idle = BTreeSet::from(["hop-1".to_owned(), "hop-2".to_owned()]);
        let dial = DialStatus {
            address: String::new(),
            host_and_port: String::new(),
            node_id: Some(NodeId::new("peer").unwrap()),
            ended: None,
        };
        let far = OutageReport { links: vec![["b".to_owned(), "far".to_owned()]], ..outage("far", 0) };
        let all = [outage("laptop", 0), outage("peer", 0), outage("hop", 33), far];
        let found = of_outages(&own, &all, &idle, &[dial]);
        let what: Vec<&str> = found.iter().map(|one| one.what.as_str()).collect();
        let expected = [
            "hop is out of reach since 2026-11-27T13:35:00Z; 33 nodes behind it (broken link: a - hop); 2 instances get no jobs",
            "laptop is out of reach since 2026-11-27T13:35:00Z (broken link: a - laptop)",
        ];
        assert_eq!(what, expected);
        assert_eq!([found[0].severity, found[1].severity], [Severity::Error, Severity::Warning]);
        let many: Vec<OutageReport> = (0..30).map(|number| outage(&format!("n{number}"), 0)).collect();
        let found = of_outages(&own, &many, &idle, &[]);
        assert!(found.len() == 21 && found[20].what.starts_with("10 more"), "{found:?}");
    }

    #[test]
    fn each_failed_dial_has_its_cause_and_remedy() {
        let address = || "hop:27199".to_owned();
        let connect =
            |kind: ErrorKind| DialFailure::Connect { address: address(), source: io::Error::from(kind) };
        let tls = HandshakeError::Failed { profile: "p".to_owned(), reason: "bad certificate".to_owned() };
        let resolve = DialFailure::Resolve { address: address(), source: io::Error::other("no such host") };
        for (failure, what, remedy) in [
            (connect(ErrorKind::ConnectionRefused), "nobody listens at hop:27199", "systemctl start meshd"),
            (connect(ErrorKind::HostUnreachable), "cannot be reached: host unreachable", "ip route get hop"),
            (resolve, "the name in hop:27199 has no address", "getent hosts hop"),
            (DialFailure::Tls { address: address(), source: tls }, "bad certificate", "meshctl cert verify"),
            (
                DialFailure::TimedOut { address: address(), limit: Duration::from_secs(10) },
                "does not answer within 10 s",
                "firewall-cmd --add-port=27199/tcp",
            ),
        ] {
            let found = told(Dialled::Fails(failure));
            assert!(found.what.contains(what) && found.severity == Severity::Error, "{found}");
            assert!(found.remedy.as_ref().is_some_and(|text| text.contains(remedy)), "{found}");
        }
        assert_eq!(told(Dialled::Speaks).severity, Severity::Warning);
        let found = told(Dialled::Ends("received fatal alert: CertificateExpired".to_owned()));
        assert!(found.severity == Severity::Error && found.what.contains("CertificateExpired"), "{found}");
        let found = told(Dialled::Ends("(CertificateExpired); its log says why".to_owned()));
        assert_eq!(found.to_string().matches("its log says why").count(), 1, "{found}");
        let udp = DialSpec::Udp(UdpDialOptions { address: "hop:27199".to_owned() });
        let found = of_peer("", &udp, &Dialled::Silent, None);
        assert!(found.what.contains("nothing comes back") && found.severity == Severity::Error, "{found}");
    }
}
