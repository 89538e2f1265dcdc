//! The way from one node to another: what anybody may ask (status, ping, traceroute), and what each node on it answers
//! to a signed request. Gathers these answers and makes findings of them; the checks themselves are pure.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use jiff::Timestamp;

use super::is_unknown;
use crate::cli::CliContext;
use crate::cli::exit::Failure;
use crate::cli::{status, traceroute};
use crate::rpc::report::doctor::{DoctorReport, NoAnswer, NoAnswerCause};
use crate::rpc::report::finding::{Finding, Severity};
use crate::rpc::report::node::{NodeReport, Section};
use crate::rpc::request::Request;
use crate::yaml::nearest;

/// Pings for each node on the way, and the time between two of them.
const PINGS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Nodes on the way that are examined at the same time.
const AT_ONCE: usize = 4;
/// The error of a ping that nobody answers.
const TIMEOUT: &str = "timeout";
/// Share of lost pings from which jobs suffer.
const LOSSY: f64 = 0.1;
/// Seconds by which clocks may differ before tokens suffer (docs/protocol.md#signatures), and before logs are hard to read.
const WRONG_CLOCK: i64 = 60;
const BAD_CLOCK: i64 = 5;

/// Everything learnt about the way.
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
    /// The nodes after the near one, as far as they answer.
    pub(super) hops: Vec<Hop>,
    /// The error that ended the trace before the far node.
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
    /// Least seconds by which its clock can be ahead of ours; below zero if it is behind.
    ahead: i64,
    pub(super) report: DoctorReport,
}

impl Way {
    /// Asks the near node for the way, and every node on it.
    pub(super) async fn explore(
        context: &CliContext,
        signs: bool,
        to: String,
        tls: Option<String>,
        work_type: Option<String>,
    ) -> Result<Self, Failure> {
        let sections = Section::USUAL.into_iter().chain([Section::Outages]);
        let fields = Some(sections.map(|section| section.to_string()).collect());
        let answer = context.client.command(&Request::Status { fields }).await?;
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

    /// Whether the far node is the near one.
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
            let outage =
                self.mesh.outages.iter().flatten().find(|outage| outage.nodes().any(|node| node == to));
            let why = outage.map_or("it is down, or its links are".to_owned(), ToString::to_string);
            let lost = outage.and_then(|outage| outage.lost.first()).unwrap_or(to);
            let what = format!("no route leads to {to}, which was part of the mesh: {why}");
            let remedy = format!(
                "on {lost}: systemctl status meshd; then meshctl doctor, which shows what is wrong with its links"
            );
            return Some(Finding::fault("", what, remedy));
        }
        let remedy = match nearest(to, &Vec::from_iter(known)) {
            Some(near) => format!("did you mean {near}? meshctl status lists all nodes"),
            None => {
                format!("meshctl status lists all nodes; if {to} is right, run on its host: meshctl doctor")
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
                format!("on {next}: systemctl status meshd, because it may hang; on {last}: meshctl doctor"),
            ),
            None => (
                format!("no answer comes from behind {last}: {error}"),
                format!("on {last}: meshctl doctor; meshctl status --links shows its links"),
            ),
        };
        Some(Finding::fault("", what, remedy))
    }

    /// The node that follows this one on the way, if the known links leave no doubt.
    fn behind(&self, node: &str) -> Option<&str> {
        let next = self.mesh.known_connection_costs.as_ref()?.get(node)?.keys();
        let is_passed = |one: &str| one == self.from || self.hops.iter().any(|hop| hop.node == one);
        let next: Vec<&str> = next.map(String::as_str).filter(|one| !is_passed(one)).collect();
        match next[..] {
            [only] => Some(only),
            _ => next.into_iter().find(|one| *one == self.to),
        }
    }

    /// The first node for which `is` holds, and the node before it.
    fn first(&self, is: impl Fn(&Hop) -> bool) -> Option<(&Hop, &str)> {
        let at = self.hops.iter().position(is)?;
        let before = at.checked_sub(1).map_or(&self.from, |before| &self.hops[before].node);
        Some((&self.hops[at], before))
    }

    /// The first link that loses pings: the one before the first node that did not answer all.
    fn loss(&self) -> Option<Finding> {
        let (Hop { node, answered, .. }, before) = self.first(|hop| hop.answered < PINGS)?;
        let lost = PINGS - answered;
        let is_bad = f64::from(lost) >= LOSSY * f64::from(PINGS);
        let severity = if is_bad { Severity::Error } else { Severity::Warning };
        let what = format!("{lost} of {PINGS} pings were lost between {before} and {node}");
        let remedy = format!("check the network under that link: on {before}: meshctl link test {node}");
        Some(Finding::new(severity, "", what, remedy))
    }

    /// If pings are answered but no stream opens, large packets are lost: pings are small, but opening a stream is not.
    fn large(&self) -> Option<Finding> {
        let lacks_stream = |hop: &Hop| hop.cause() == Some(NoAnswerCause::NoStream) && hop.answered > 0;
        let (Hop { node, .. }, before) = self.first(lacks_stream)?;
        let what = format!(
            "{node} answers pings, but no stream to it opens: large packets are lost between {before} and {node} (MTU)"
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
            let what = format!("work type {wanted} of {to} demands signatures, but this node has no key");
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
    async fn explore(context: &CliContext, node: String, tls: Option<String>) -> Self {
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
                true => "this node does not know how to ask it".to_owned(),
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

    /// What is wrong between the asking node and this one, besides what it says of itself.
    pub(super) fn findings(&self, signs: bool) -> Vec<Finding> {
        let refused = self.report.refused.as_ref().map(|refused| refused.finding(&self.node, signs));
        [self.clock(), refused].into_iter().flatten().collect()
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
}

/// Least seconds by which a clock is ahead that showed `time` at some moment from `before` to `after`.
fn ahead(time: Timestamp, before: Timestamp, after: Timestamp) -> i64 {
    match time {
        _ if time > after => time.duration_since(after).as_secs(),
        _ if time < before => time.duration_since(before).as_secs(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
