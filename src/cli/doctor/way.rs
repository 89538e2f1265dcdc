//! The way from one node to another: what anybody may ask (status, ping, traceroute), and what each node on it answers to a
//! signed request. Gathers that, and makes findings of it; the checks themselves are pure.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use jiff::Timestamp;

use super::{OTHER_MAKE, is_unknown};
use crate::cli::Context;
use crate::cli::exit::Failure;
use crate::cli::{status, traceroute};
use crate::config::nearest;
use crate::rpc::report::doctor::{DoctorReport, NoAnswer, NoAnswerCause};
use crate::rpc::report::finding::{Finding, Severity};
use crate::rpc::report::node::NodeReport;
use crate::rpc::request::Request;

/// Pings for each node on the way, and the time between two of them.
const PINGS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Nodes on the way that are examined at a time.
const AT_ONCE: usize = 4;
/// The error of a ping that nobody answers.
const TIMEOUT: &str = "timeout";
/// A share of lost pings that jobs feel.
const LOSSY: f64 = 0.1;
/// Seconds by which clocks may differ before tokens suffer (docs/protocol.md#signatures), and before logs are hard to read.
const WRONG_CLOCK: i64 = 60;
const BAD_CLOCK: i64 = 5;

/// All that was learnt.
#[derive(Debug, Default)]
pub(super) struct Way {
    from: String,
    to: String,
    /// A work type that the far node ought to have.
    work_type: Option<String>,
    /// Whether the near node can sign.
    signs: bool,
    /// The mesh as the near node sees it.
    mesh: NodeReport,
    /// The nodes behind the near one, as far as they answer.
    pub(super) hops: Vec<Hop>,
    /// What ended the trace before the far node.
    broken: Option<String>,
}

/// One node on the way.
#[derive(Debug, Default)]
pub(super) struct Hop {
    pub(super) node: String,
    /// Pings that came back.
    answered: u32,
    /// The fastest answer, in nanoseconds.
    fastest: Option<u64>,
    /// Seconds by which its clock is ahead of ours, at least.
    ahead: i64,
    pub(super) report: DoctorReport,
}

impl Way {
    /// Asks for everything.
    pub(super) async fn explore(
        context: &Context,
        signs: bool,
        to: String,
        tls: Option<String>,
        work_type: Option<String>,
    ) -> Result<Self, Failure> {
        let answer = context.client.command(&Request::Status { fields: None }).await?;
        let mesh = status::read(&answer)?;
        let from = mesh.node_id.clone().unwrap_or_default();
        let mut way = Self { from, to, work_type, signs, mesh, ..Self::default() };
        if way.is_here() || !way.has_route() {
            return Ok(way);
        }
        let answer = context.client.command(&Request::Traceroute { target: way.to.clone() }).await?;
        let mut nodes = Vec::new();
        for (_, hop) in traceroute::hops(&answer)? {
            let name = hop["From"].as_str().unwrap_or_default();
            match hop["Error"].as_str() {
                Some(error) => way.broken = Some(error.to_owned()),
                None if name != way.from => nodes.push(name.to_owned()),
                None => {}
            }
        }
        let examined = stream::iter(nodes).map(|node| Hop::explore(context, node, tls.clone()));
        way.hops = examined.buffered(AT_ONCE).collect().await;
        Ok(way)
    }

    /// The far node is the near one.
    fn is_here(&self) -> bool {
        self.to == self.from
    }

    fn has_route(&self) -> bool {
        self.mesh.routing_table.as_ref().is_some_and(|routes| routes.contains_key(&self.to))
    }

    /// The nodes with their round trips.
    pub(super) fn title(&self) -> String {
        let time = |nanos: u64| format!(" {:.1?}", Duration::from_nanos(nanos));
        let hops =
            self.hops.iter().map(|hop| format!("{}{}", hop.node, hop.fastest.map(time).unwrap_or_default()));
        let all: Vec<String> = std::iter::once(self.from.clone()).chain(hops).collect();
        format!("the way to {}: {}", self.to, all.join(", "))
    }

    /// What is wrong on the way, and with what the far node offers.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let found = [self.route(), self.trace(), self.loss(), self.large(), self.offers()];
        found.into_iter().flatten().collect()
    }

    fn route(&self) -> Option<Finding> {
        let (known, to) = (status::known(&self.mesh), &self.to);
        if self.is_here() || self.has_route() {
            return None;
        }
        if known.contains(to.as_str()) {
            let what =
                format!("no route leads to {to}, which was part of the mesh: it is down, or its links are");
            let remedy = format!(
                "on {to}: systemctl status meshd; meshctl doctor, which says what is wrong with its links"
            );
            return Some(Finding::fault("", what, remedy));
        }
        let remedy = match nearest(to, &Vec::from_iter(known)) {
            Some(near) => format!("did you mean {near}? meshctl status lists all nodes"),
            None => {
                format!("meshctl status lists all nodes; if {to} is right, see on its host: meshctl doctor")
            }
        };
        Some(Finding::fault("", format_args!("the mesh knows no node {to}"), remedy))
    }

    fn trace(&self) -> Option<Finding> {
        let error = self.broken.as_ref()?;
        let last = self.hops.last().map_or(&self.from, |hop| &hop.node);
        let next = self.behind(last).filter(|_| error == TIMEOUT);
        let (what, remedy) = match next {
            Some(next) => (
                format!("{next}, which is behind {last}, does not answer: {error}"),
                format!("on {next}: systemctl status meshd, as it may hang; on {last}: meshctl doctor"),
            ),
            None => (
                format!("behind {last} no answer comes: {error}"),
                format!("on {last}: meshctl doctor; meshctl status --links shows its links"),
            ),
        };
        Some(Finding::fault("", what, remedy))
    }

    /// The node that the way passes behind this one, if the links that are known leave no doubt.
    fn behind(&self, node: &str) -> Option<&str> {
        let next = self.mesh.known_connection_costs.as_ref()?.get(node)?.keys();
        let is_passed = |one: &str| one == self.from || self.hops.iter().any(|hop| hop.node == one);
        let next: Vec<&str> = next.map(String::as_str).filter(|one| !is_passed(one)).collect();
        match next[..] {
            [only] => Some(only),
            _ => next.into_iter().find(|one| *one == self.to),
        }
    }

    /// The first node of this kind, and the one before it.
    fn first(&self, is: impl Fn(&Hop) -> bool) -> Option<(&Hop, &str)> {
        let at = self.hops.iter().position(is)?;
        let before = at.checked_sub(1).map_or(&self.from, |before| &self.hops[before].node);
        Some((&self.hops[at], before))
    }

    /// The first link on which pings get lost: it is the one before the first node that misses some.
    fn loss(&self) -> Option<Finding> {
        let (Hop { node, answered, .. }, before) = self.first(|hop| hop.answered < PINGS)?;
        let lost = PINGS - answered;
        let is_bad = f64::from(lost) >= LOSSY * f64::from(PINGS);
        let severity = if is_bad { Severity::Error } else { Severity::Warning };
        let what = format!("{lost} of {PINGS} pings are lost between {before} and {node}");
        let remedy = format!("look at the network under that link: on {before}: meshctl link test {node}");
        Some(Finding::new(severity, "", what, remedy))
    }

    /// Pings are small, and what opens a stream is not.
    fn large(&self) -> Option<Finding> {
        let lacks_stream = |hop: &Hop| hop.cause() == Some(NoAnswerCause::NoStream) && hop.answered > 0;
        let (Hop { node, .. }, before) = self.first(lacks_stream)?;
        let what = format!(
            "{node} answers pings, and no stream to it opens: large packets are lost between {before} and it (MTU)"
        );
        let remedy = format!(
            "on {before}: ping -M do -s 1372 HOST, smaller until it is answered; then set that MTU on the interface (ip link \
             set dev DEV mtu N), or let ICMP `fragmentation needed` through"
        );
        Some(Finding::fault("", what, remedy))
    }

    fn offers(&self) -> Option<Finding> {
        let (to, wanted) = (&self.to, self.work_type.as_ref()?);
        let advertised = self.mesh.advertisements.iter().flatten().filter(|one| one.node_id.as_str() == to);
        let offered: Vec<_> = advertised.flat_map(|one| one.work_commands.iter().flatten()).collect();
        if let Some(found) = offered.iter().find(|one| one.work_type == *wanted) {
            let what = format!("work type {wanted} of {to} demands signatures, and this node has no key");
            let lacks_key = found.secure && !self.signs;
            return lacks_key.then(|| Finding::fault("", what, "configure work-signing here"));
        }
        let names: Vec<&str> = offered.iter().map(|one| one.work_type.as_str()).collect();
        let what = match names.is_empty() {
            true => format!("{to} offers no work type at all"),
            false => format!("{to} has no work type {wanted}: it has {}", names.join(", ")),
        };
        let near = nearest(wanted, &names).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
        let remedy = format!("{near}configure work-command {wanted} there, then: meshctl reload");
        Some(Finding::fault("", what, remedy))
    }
}

impl Hop {
    async fn explore(context: &Context, node: String, tls: Option<String>) -> Self {
        let ping = Request::Ping { target: node.clone() };
        let pings = join_all((0..PINGS).map(|number| {
            let ping = &ping;
            async move {
                tokio::time::sleep(PAUSE * number).await;
                let answer = context.client.command(ping).await.ok()?;
                (answer["Success"] == true).then(|| answer["Time"].as_u64().unwrap_or_default())
            }
        }));
        let times: Vec<u64> = pings.await.into_iter().flatten().collect();
        let before = Timestamp::now();
        let asked = super::ask(context, Some(node.clone()), tls).await;
        let after = Timestamp::now();
        let report = asked.unwrap_or_else(|error| {
            let text = match is_unknown(&error) {
                true => "the node here does not know how to ask it".to_owned(),
                false => error.to_string(),
            };
            let refused = Some(NoAnswer::new(NoAnswerCause::Other, text));
            DoctorReport { refused, ..DoctorReport::default() }
        });
        let ahead = report.time.map(|time| ahead(time, before, after)).unwrap_or_default();
        let (answered, fastest) = (u32::try_from(times.len()).unwrap_or(PINGS), times.into_iter().min());
        Self { node, answered, fastest, ahead, report }
    }

    fn cause(&self) -> Option<NoAnswerCause> {
        self.report.refused.as_ref()?.cause.known()
    }

    /// What is wrong between the asking node and this one, beside what it says of itself.
    pub(super) fn findings(&self, signs: bool) -> Vec<Finding> {
        [self.clock(), self.right(signs)].into_iter().flatten().collect()
    }

    fn clock(&self) -> Option<Finding> {
        let apart = self.ahead.abs();
        let refused = self.report.refused.as_ref().filter(|_| self.cause() == Some(NoAnswerCause::Clock));
        let severity = match apart {
            _ if refused.is_some() || apart > WRONG_CLOCK => Severity::Error,
            _ if apart > BAD_CLOCK => Severity::Warning,
            _ => return None,
        };
        let way = if self.ahead < 0 { "behind" } else { "ahead of" };
        let refusal = refused.map(|refused| format!("; it refuses work: {}", refused.text));
        let what = format!(
            "its clock is {apart} s {way} this node's: tokens and certificates end at the wrong time{}",
            refusal.unwrap_or_default()
        );
        let remedy = "compare both with: chronyc tracking, or timedatectl; then: systemctl restart chronyd";
        Some(Finding::new(severity, "clock", what, remedy))
    }

    /// What follows from its refusal.
    fn right(&self, signs: bool) -> Option<Finding> {
        let NoAnswer { cause, text } = self.report.refused.as_ref()?;
        let (node, is_other) = (&self.node, cause.known() == Some(NoAnswerCause::OtherMake));
        let more = match cause.known() {
            Some(NoAnswerCause::WrongKey) => {
                return Some(Finding::fault(
                    "work-verification",
                    format_args!("{text}: it refuses all signed work from here"),
                    format_args!(
                        "put the public half of this node's work-signing key into the work-verification of {node}"
                    ),
                ));
            }
            Some(NoAnswerCause::NoKey) => "; or, to be asked from here, configure work-verification there",
            Some(NoAnswerCause::Unsigned) if !signs => "; or configure work-signing here",
            Some(NoAnswerCause::NoService) => "; it has no control-service in the mesh, or runs no jobs",
            Some(NoAnswerCause::Firewall) => "; a firewallrule rejects its control service",
            Some(NoAnswerCause::Tls) => {
                "; or give --tls-client with a profile of this node that its control service accepts"
            }
            // The way says it, or the clock.
            Some(
                NoAnswerCause::Unsigned
                | NoAnswerCause::Clock
                | NoAnswerCause::NoRoute
                | NoAnswerCause::NoStream
                | NoAnswerCause::OtherMake
                | NoAnswerCause::Other,
            )
            | None => "",
        };
        let what = match cause.known() == Some(NoAnswerCause::NoKey) {
            true => "it has no key by which to know who asks: a hop needs none",
            false if is_other => OTHER_MAKE,
            false => text,
        };
        Some(Finding::not_asked("", what, format_args!("on the host of {node}: meshctl doctor{more}")))
    }
}

/// Seconds by which a clock is ahead that said `time` between `before` and `after`: as few as explain it.
fn ahead(time: Timestamp, before: Timestamp, after: Timestamp) -> i64 {
    match time {
        _ if time > after => time.duration_since(after).as_secs(),
        _ if time < before => time.duration_since(before).as_secs(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
