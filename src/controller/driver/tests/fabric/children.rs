//! What the driver does to the fabric's units, and what it learns about them.

use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::{Fabric, Local, OWN};
use crate::controller::core::{ChildEnd, ChildId, InstanceName, JobId, Known};
use crate::controller::driver::world::{
    ChildInput, ChildNews, ChildRequest, ChildStream, Children, PodChild,
};
use crate::pods::place::{ClusterError, PodPlace};
use crate::work::jobs::{Act, JobUnit};
use crate::work::{ChildUnit, Leftovers, Registry};

const NO_CLUSTER: &str = "there is no cluster";
/// How long the answer to a release waits for its node.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the driver does to units.
pub(in super::super) struct FakeChildren {
    pub(in super::super) fabric: Arc<Fabric>,
    /// The node's unit registry, which makes the units of jobs that were submitted elsewhere.
    pub(in super::super) registry: Registry,
}

impl Children for FakeChildren {
    fn known(&self, unit: &str) -> Known {
        self.fabric.look(|units| match units.local.get(unit) {
            None => Known::Unknown,
            Some(Local { input: None, .. }) => Known::Unsent,
            Some(_) => Known::Here,
        })
    }

    fn detail(&self, unit: &str) -> Option<String> {
        let waits = |local: &Local| !local.is_sent && ChildId::parse(unit).is_none();
        let is_waiting = self.fabric.look(|units| units.local.get(unit).is_some_and(waits));
        is_waiting.then(|| "the way there is long".to_owned())
    }

    fn send(&self, request: ChildRequest, input: ChildInput) -> Act<'_, Result<bool, String>> {
        Box::pin(async move {
            let unit = request.unit.clone();
            self.fabric.change(|units| {
                assert!(!units.local.contains_key(&unit), "{unit} is sent twice");
                units.local.insert(unit.clone(), Local::new(request));
            });
            // Lets a test end the process here.
            tokio::task::yield_now().await;
            let mut bytes = input.head;
            for (path, from) in input.files {
                let mut file = std::fs::File::open(path).map_err(|error| error.to_string())?;
                file.seek(SeekFrom::Start(from)).map_err(|error| error.to_string())?;
                file.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
            }
            self.fabric.change(|units| {
                if let Some(local) = units.local.get_mut(&unit) {
                    local.input = Some(bytes);
                }
            });
            Ok(true)
        })
    }

    fn adopt(&self, request: ChildRequest) -> Act<'_, Result<bool, String>> {
        let adopted = self.fabric.change(|units| {
            if let Some(left) = units.adopt_failures.checked_sub(1) {
                units.adopt_failures = left;
                return Err("no space left on device".to_owned());
            }
            let unit = request.unit.clone();
            let input = Some(Vec::new());
            let local = Local { input, is_sent: true, is_inherited: true, ..Local::new(request) };
            units.local.entry(unit).or_insert(local);
            Ok(true)
        });
        Box::pin(async { adopted })
    }

    fn disclaim(&self, unit: String) -> Act<'_, Result<bool, String>> {
        let is_absent = self.fabric.change(|units| {
            let is_absent = !units.there.contains_key(&unit);
            units.disclaimed.extend(is_absent.then_some(unit));
            is_absent
        });
        Box::pin(async move { Ok(is_absent) })
    }

    fn unanswering(&self, _limit: Duration) -> BTreeSet<InstanceName> {
        self.fabric.look(|units| units.unanswering.iter().map(|node| node.as_str().into()).collect())
    }

    fn room(&self) -> Act<'_, ()> {
        let mut news = self.fabric.unit_news.subscribe();
        Box::pin(async move {
            while self.fabric.look(|units| units.is_full) {
                let _never = news.changed().await;
            }
        })
    }

    fn follow(&self, unit: String, from: u64) -> Act<'_, Box<dyn ChildStream>> {
        let news = self.fabric.unit_news.subscribe();
        let fabric = self.fabric.clone();
        let stream = FakeStream { fabric, news, unit, at: from as usize, told: 0, is_missing: false };
        Box::pin(async move { Box::new(stream) as Box<dyn ChildStream> })
    }

    fn cancel(&self, unit: String) -> Act<'_, bool> {
        let is_taken = self.fabric.change(|units| match units.cancel_failures.checked_sub(1) {
            Some(left) => {
                units.cancel_failures = left;
                false
            }
            None => {
                units.note_cancel(&unit);
                true
            }
        });
        Box::pin(async move { is_taken })
    }

    fn of_job(&self, child: &ChildId) -> Vec<ChildId> {
        let all: Vec<_> =
            self.fabric.look(|units| units.local.keys().filter_map(|unit| ChildId::parse(unit)).collect());
        all.into_iter().filter(|other| other.job == child.job).collect()
    }

    fn release(&self, unit: String, _leftovers: Leftovers) -> Act<'_, bool> {
        if self.fabric.look(|units| units.keeps_released) {
            return Box::pin(async { false });
        }
        let may_act = self.fabric.look(|units| units.may_act);
        self.fabric.change(|units| {
            if let Some(local) = units.local.get_mut(&unit) {
                local.is_released = true;
            }
        });
        Box::pin(async move {
            if !may_act {
                // The unit's node is not asked until the lease is valid.
                tokio::time::sleep(PATIENCE).await;
            }
            // A unit that runs here needs no answer, because its release is on this node's disk.
            let is_pending = |local: &Local| local.is_released && local.request.node.as_str() != OWN;
            !self.fabric.look(|units| units.local.get(&unit).is_some_and(is_pending))
        })
    }

    fn list(&self) -> Vec<ChildUnit<ChildId>> {
        let child = |(unit, _): (&String, &Local)| {
            let id = ChildId::parse(unit)?;
            Some(ChildUnit { id, is_elsewhere: true })
        };
        self.fabric.look(|units| units.local.iter().filter_map(child).collect())
    }

    fn forget(&self, unit: String) -> Act<'_, ()> {
        self.fabric.change(|units| drop(units.local.remove(&unit)));
        Box::pin(async {})
    }

    fn withhold(&self, unit: String) -> Act<'_, ()> {
        self.fabric.change(|units| units.note_cancel(&unit));
        Box::pin(async {})
    }

    fn let_act(&self, may_act: bool) {
        if self.fabric.look(|units| units.may_act) != may_act {
            self.fabric.change(|units| units.may_act = may_act);
        }
    }

    fn check_pod(&self, _place: &PodPlace) -> Act<'_, Result<(), String>> {
        Box::pin(async { Err(NO_CLUSTER.to_owned()) })
    }

    fn prepare_pod(&self, _pod: &PodChild) -> Act<'_, Result<(), ClusterError>> {
        unreachable!("{NO_CLUSTER}")
    }

    fn delete_secret(&self, _place: PodPlace, _name: String) -> Act<'_, Result<(), ClusterError>> {
        unreachable!("{NO_CLUSTER}")
    }

    fn job_unit(&self, unit: &str) -> Option<JobUnit> {
        self.registry.job_unit(unit)
    }

    fn adopt_job(&self, job: JobId) -> Act<'_, Option<JobUnit>> {
        let is_full = self.fabric.change(|units| {
            let is_full = units.unit_failures > 0;
            units.unit_failures = units.unit_failures.saturating_sub(1);
            is_full
        });
        Box::pin(async move { if is_full { None } else { self.registry.adopt_job(job.0).await.ok() } })
    }
}

struct FakeStream {
    fabric: Arc<Fabric>,
    news: watch::Receiver<u64>,
    unit: String,
    at: usize,
    told: u64,
    is_missing: bool,
}

impl FakeStream {
    fn now(&mut self) -> Option<ChildNews> {
        let (unit, at, told) = (self.unit.clone(), self.at, self.told);
        let mut units = self.fabric.units.lock();
        let Some(local) = units.local.get(&unit).filter(|local| !local.is_released) else {
            let detail = format!("unit {unit} is gone");
            return Some(ChildNews::Ended { end: ChildEnd::Released, detail });
        };
        let (contacts, end) = (local.contacts, local.end.clone());
        let was_missing = std::mem::replace(&mut self.is_missing, local.is_missing);
        match (was_missing, local.is_missing) {
            (false, true) => return Some(ChildNews::Missing),
            (true, false) if end.is_none() => return Some(ChildNews::Accepted),
            (true, _) | (false, false) => {}
        }
        // Only the unit's node keeps output that was read already.
        let (is_handed, node) = (at < local.handed, local.request.node.to_string());
        let rest = Bytes::copy_from_slice(local.output.get(at..).unwrap_or_default());
        if contacts > told && end.is_none() && local.in_contact && !local.is_missing {
            self.told = contacts;
            return Some(ChildNews::Accepted);
        }
        if is_handed && !units.reaches(&node) {
            return None;
        }
        if !rest.is_empty() {
            let piece = units.piece(rest.len());
            self.at += piece;
            let local = units.local.get_mut(&unit)?;
            local.handed = local.handed.max(self.at);
            return Some(ChildNews::Output(rest.slice(..piece)));
        }
        end.map(|(end, detail)| ChildNews::Ended { end, detail })
    }
}

impl ChildStream for FakeStream {
    fn next(&mut self) -> Act<'_, ChildNews> {
        Box::pin(async move {
            loop {
                self.news.mark_unchanged();
                if let Some(news) = self.now() {
                    return news;
                }
                let _never = self.news.changed().await;
            }
        })
    }
}
