//! The checks of a running node's links: what goes wrong on those that are up, and why configured peers are not. Owns the
//! dial that finds it out, and the remedies.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;

use crate::backend::{self, DialFailure, DialSpec};
use crate::config::{Component, Config};
use crate::daemon::wiring;
use crate::mesh::Status;
use crate::node::{DialStatus, LinkEnd, LinkSpec, LinkStatus};
use crate::rpc::report::finding::{Finding, Severity};
use crate::tls::Profiles;
use crate::wire::NodeId;

/// A share of lost probes that jobs feel.
const LOSSY: f64 = 0.1;
/// How long the other end of a session may take to say its first word, or to end it.
const SPEAKS_WITHIN: Duration = Duration::from_secs(3);
/// For how long an operator is told that somebody has spoken in the node's name.
const SPOKEN_LATELY: Duration = Duration::from_secs(600);
/// Former neighbours that are named.
const MOST_LOST: usize = 20;
/// Bytes that wait on a link that is too slow for what is sent.
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
            "look at the network in between: ping -c 100 {}, ip -s link; then: meshctl link test {node_id}",
            host(address)
        );
        found.push(Finding::new(severity, &place, what, remedy));
    }
    if *dropped > 0 && link.queued_bytes >= LONG_QUEUE {
        let waiting = link.queued_bytes >> 20;
        let what = format!("{waiting} MiB wait, and {dropped} datagrams found no room: it is too slow");
        let remedy = format!(
            "meshctl link test {node_id} measures it; a second way with its own cost takes load off it"
        );
        found.push(Finding::advice(&place, what, remedy));
    }
    found
}

/// Whether others speak in the node's name.
pub(super) fn of_name(node: &NodeId, status: &Status) -> Option<Finding> {
    let lately = status.spoken_for.iter().filter(|(_, since)| *since < SPOKEN_LATELY);
    let by: Vec<String> = lately.map(|(by, since)| format!("{by} ({} s ago)", since.as_secs())).collect();
    let (first, _) = status.spoken_for.first().filter(|_| !by.is_empty())?;
    let by = by.join(", ");
    let what = format!("somebody speaks in this node's name: updates that it had not sent came by {by}");
    let remedy = format!(
        "give each node an ID of its own; if no other node is {node}, somebody in the mesh lies: close it \
         (docs/security.md), and take links away until this ends, those of {first} first"
    );
    Some(Finding::fault(format_args!("node {node}"), what, remedy))
}

/// Former neighbours that are out of reach, until they are forgotten. Those that this node dials are told by their dials.
pub(super) fn of_lost(
    lost: &BTreeMap<NodeId, Timestamp>,
    status: &Status,
    dials: &[DialStatus],
) -> Vec<Finding> {
    let is_away =
        |node| status.known_connection_costs.contains_key(node) && !status.routing_table.contains_key(node);
    let is_dialled = |node| dials.iter().any(|dial| dial.node_id.as_ref() == Some(node));
    let away = lost.iter().filter(|(node, _)| is_away(*node) && !is_dialled(*node)).take(MOST_LOST);
    let told = |(node, since): (&NodeId, &Timestamp)| {
        let what = format!("{node}, which was linked to this node, is out of reach since {since:.0}");
        let remedy = format!(
            "on {node}: systemctl status meshd, then meshctl doctor; if it is gone for good: meshctl node forget {node}"
        );
        Finding::advice(format_args!("node {node}"), what, remedy)
    };
    away.map(told).collect()
}

/// The peers of the configuration that have no session. Each is dialled once to learn why, unless the node there is linked
/// otherwise.
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
                    "{node_id} is linked already, by {transport} {address}: this dial is in reserve"
                ),
                "nothing is wrong; where both ends dial, one of the two lines is enough",
            ),
            None => {
                let ended = status.and_then(|status| status.ended.as_ref());
                of_peer(&place, &spec, &dial(&spec).await, ended)
            }
        }
    });
    futures_util::future::join_all(asked).await
}

/// What comes of one dial.
#[derive(Debug)]
enum Dialled {
    /// The other end speaks.
    Speaks,
    /// It says nothing.
    Silent,
    /// It ends the session at once, as one does that refuses a certificate.
    Ends(String),
    Fails(DialFailure),
}

async fn dial(spec: &DialSpec) -> Dialled {
    let late = || DialFailure::TimedOut { address: spec.address(), limit: backend::DIAL_LIMIT };
    // Beside the dial's own limit: a resolver may hang.
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

/// Why a peer without a session has none.
fn of_peer(place: &str, spec: &DialSpec, dialled: &Dialled, ended: Option<&LinkEnd>) -> Finding {
    let address = spec.address();
    let (host, port) = (host(&address), port(&address));
    let protocol = if matches!(spec, DialSpec::Udp(_) | DialSpec::Quic(_)) { "udp" } else { "tcp" };
    let listens = format!("there: ss -ln 'sport = :{port}', and firewall-cmd --add-port={port}/{protocol}");
    let verify = "meshctl cert verify NAME --ca FILE --node ID";
    let (what, remedy) = match dialled {
        // Datagrams are sent whether somebody is there or not.
        Dialled::Silent if matches!(spec, DialSpec::Udp(_)) => (
            format!("no session: nothing comes back from {address}"),
            format!("see that meshd runs and its port is open {listens}"),
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
                    "its log says why: another node with this ID is in the mesh: one bundle is for one host; or its \
                     allowedpeers do not name this node",
                ),
                Some(LinkEnd::Lost(why) | LinkEnd::Failed(why)) => {
                    (format!("there is no session, the last one: {why}"), AGAIN)
                }
                Some(LinkEnd::InReserve(_)) | None => ("there is no session".to_owned(), AGAIN),
            };
            return Finding::new(severity, place, format_args!("{address} answers, and {what}"), remedy);
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
                format!("look for a route and a firewall: ip route get {host}"),
            ),
        },
        Dialled::Fails(DialFailure::Tls { source, .. }) => (
            format!("TLS with {address} fails: {source}"),
            format!("compare the certificates of both ends: {verify}"),
        ),
        Dialled::Fails(DialFailure::TimedOut { limit, .. }) => (
            format!("{address} does not answer within {} s: packets are dropped on the way", limit.as_secs()),
            format!("look for a firewall on the way and open the port {listens}"),
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
