//! Health checks. A check is a unit on the instance, in which the runner tells the machine's size.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::base::Base;
use super::lease::LeaseKeeper;
use super::world::{ChildInput, ChildNews, ChildRequest};
use crate::controller::core::{ChildEnd, Cpus, HealthResult, Instance, InstanceName, NodeState, Rates, Time};
use crate::controller::health::{
    CHECK_LIMIT, CheckEnd, PARAMS, Silence, Surroundings, is_checked_by, next_checks, output_bound,
    uncheckable,
};
use crate::controller::options::RUNNER_TYPE;
use crate::controller::store::{Audit, Error, InstanceRecord, InstanceRegistry};
use crate::work::Leftovers;

/// The pause between two requests to release a check's unit.
const PAUSE: Duration = Duration::from_secs(1);
const RELEASES: u32 = 5;

/// A check that has ended.
struct Examined {
    unit: String,
    report: Result<HealthResult, Vec<String>>,
    /// It is proven that the answer came from the instance.
    is_proven: bool,
}

/// The checks of this control node. Clones share them.
#[derive(Clone)]
pub(in crate::controller) struct Checks {
    base: Arc<Base>,
    lease: Arc<LeaseKeeper>,
    /// The instances whose check runs. Locked only to read or change entries.
    running: Arc<Mutex<BTreeSet<InstanceName>>>,
}

impl Checks {
    pub(super) fn new(base: Arc<Base>, lease: Arc<LeaseKeeper>) -> Self {
        Self { base, lease, running: Arc::default() }
    }

    /// The prefix of the IDs of checks' units.
    pub(in crate::controller) fn prefix(&self) -> String {
        format!("c{:08x}h", self.base.install)
    }

    /// Starts the checks that are due.
    pub(super) async fn start_due(&self) -> Result<(), Error> {
        let mut registry = self.base.store.registry().await?;
        let now = self.base.store.now().await?;
        // An instance that is seen but does not answer is checked again, because a node in between may forward its
        // advertisements but none of its streams. The instance's record then shows the result.
        let lost_after = self.base.options().timers.lost_after;
        for name in self.base.children.unanswering(lost_after) {
            let found = registry.instance_mut(&name).ok();
            let is_due = |last: Option<Time>| last.is_none_or(|last| now.since(last) >= lost_after);
            if let Some(record) = found.filter(|record| is_due(record.last_health_check))
                && record.instance.node_state == NodeState::Ready
            {
                record.instance.request_health_check(now);
            }
        }
        let running = self.running.lock().clone();
        for name in next_checks(&registry.plain_instances(), &self.base.node, &running, now) {
            self.running.lock().insert(name.clone());
            let this = self.clone();
            tokio::spawn(async move {
                this.check(&name).await;
                this.running.lock().remove(&name);
                this.base.wake.notify_one();
            });
        }
        Ok(())
    }

    async fn check(&self, name: &InstanceName) {
        let Examined { unit, report, is_proven } = self.examine(name).await;
        let errors = report.as_ref().err().cloned();
        match (self.save_health(name, report, is_proven).await, errors) {
            (Ok(true), Some(errors)) => {
                tracing::warn!(instance = %name, ?errors, "the health check failed");
            }
            (Ok(_), errors) => tracing::debug!(instance = %name, ?errors, "checked"),
            (Err(error), _) => {
                tracing::warn!(instance = %name, %error, "cannot save the result of a health check");
            }
        }
        self.remove_check(unit).await;
    }

    /// Checks an instance now without changing its record, and returns the record as the check would leave it. The
    /// audit records the request before the check begins.
    ///
    /// # Errors
    /// There is no such instance, this node is not the one to check it, or it cannot be reached from here.
    pub(in crate::controller) async fn try_health(
        &self,
        name: &InstanceName,
        audit: Audit,
    ) -> Result<InstanceRecord, Error> {
        let mut registry = self.base.store.registry().await?;
        let now = self.base.store.now().await?;
        let instance = &registry.instance_mut(name)?.instance;
        if let Some(why) = uncheckable(instance) {
            return Err(Error::Conflict(why));
        }
        if !is_checked_by(instance, &self.base.node) {
            return Err(Error::Conflict(format!("control node {name} checks itself: ask there")));
        }
        if !instance.is_reachable_from(&self.base.node) {
            return Err(Error::Conflict(format!("{name} cannot be reached from {}", self.base.node)));
        }
        if !self.lease.may_act() {
            return Err(Error::Unready("the lease of this control node could not be renewed".into()));
        }
        self.base.store.record(audit).await?;
        let (this, checked) = (self.clone(), name.clone());
        // A task of its own removes the unit even if nobody waits for the report any more.
        let examined = tokio::spawn(async move {
            let Examined { unit, report, is_proven } = this.examine(&checked).await;
            this.remove_check(unit).await;
            (report, is_proven)
        });
        let (report, is_proven) = examined.await.map_err(|error| Error::Away(error.to_string()))?;
        self.health_change(name, report, is_proven)(&mut registry, now)?;
        registry.instance_mut(name).cloned()
    }

    /// Lets the runner of an instance measure its machine. The caller has to remove the unit.
    async fn examine(&self, name: &InstanceName) -> Examined {
        let options = self.base.options();
        let is_own = *name == self.base.node;
        let unit = format!("{}{:016x}", self.prefix(), rand::random::<u64>());
        let offer = match self.base.store.offer_of(name.clone()).await {
            Ok(offer) => offer.unwrap_or_default(),
            Err(error) => {
                return Examined { unit, report: Err(vec![error.to_string()]), is_proven: false };
            }
        };
        let work_type = if is_own { &options.runner.name } else { RUNNER_TYPE };
        let request = ChildRequest {
            unit: unit.clone(),
            node: name.clone(),
            work_type: work_type.to_owned(),
            params: PARAMS.to_owned(),
            run_dir: None,
            signed: offer.secure && !is_own,
            tls: options.tls_client.clone().filter(|_| offer.tls && !is_own),
            ttl: (!is_own).then_some(CHECK_LIMIT),
            max_stdout: output_bound("health check"),
            far: None,
            pod: None,
        };
        // The answer is proven to come from the instance if the instance is this node or a certificate names it.
        let is_proven =
            is_own || request.tls.as_ref().is_some_and(|profile| self.base.mesh.proves_names(profile));
        let (work_type, mut is_accepted) = (request.work_type.clone(), false);
        let ended = tokio::time::timeout(CHECK_LIMIT, self.ask(request, &mut is_accepted)).await;
        let report = match ended {
            Ok(end) => end.report(),
            Err(_) => {
                let detail = self.base.children.detail(&unit);
                let (observer, work_type) = (&self.base.node, work_type.as_str());
                let silence = Silence { instance: name, observer, work_type, is_accepted, detail };
                Err(vec![silence.to_string()])
            }
        };
        Examined { unit, report, is_proven }
    }

    async fn remove_check(&self, unit: String) {
        self.base.children.cancel(unit.clone()).await;
        for _ in 0..RELEASES {
            if self.base.children.release(unit.clone(), Leftovers::End).await {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(&self, request: ChildRequest, is_accepted: &mut bool) -> CheckEnd {
        let unit = request.unit.clone();
        if let Err(detail) = self.base.children.send(request, ChildInput::default()).await {
            return CheckEnd { child: ChildEnd::Failed, detail, output: Vec::new() };
        }
        let mut stream = self.base.children.follow(unit, 0).await;
        let mut output = Vec::new();
        loop {
            match stream.next().await {
                ChildNews::Accepted => *is_accepted = true,
                // Nobody else sends the unit, so this is no news.
                ChildNews::Missing => {}
                ChildNews::Output(bytes) => output.extend_from_slice(&bytes),
                ChildNews::Ended { end: child, detail } => return CheckEnd { child, detail, output },
            }
        }
    }

    /// Computes the capacity of every measured instance again, with these rates.
    pub(super) async fn measure_again(&self, rates: Rates) -> Result<(), Error> {
        let measure = move |registry: &mut InstanceRegistry| {
            let measured = registry.instances.iter_mut().filter(|record| record.cpu > 0);
            measured.fold(false, |changed, record| {
                let former = record.instance.capacities;
                record.instance.measure(Cpus::of_tenths(record.cpu), record.memory, &rates);
                changed | (former != record.instance.capacities)
            })
        };
        if !measure(&mut self.base.store.registry().await?) {
            return Ok(());
        }
        self.base.store.change_registry(None, move |registry, _| Ok(measure(registry))).await.map(drop)
    }

    async fn save_health(
        &self,
        name: &InstanceName,
        report: Result<HealthResult, Vec<String>>,
        is_proven: bool,
    ) -> Result<bool, Error> {
        self.base.store.change_registry(None, self.health_change(name, report, is_proven)).await
    }

    /// Changes an instance's record as a check demands; returns whether its errors have changed.
    fn health_change(
        &self,
        name: &InstanceName,
        report: Result<HealthResult, Vec<String>>,
        is_proven: bool,
    ) -> impl Fn(&mut InstanceRegistry, Time) -> Result<bool, Error> + Send + use<> {
        let surroundings = Surroundings::of_process();
        let report = report.map(|it| if *name == self.base.node { surroundings.correct(it) } else { it });
        let (name, rates) = (name.clone(), self.base.rates());
        move |registry: &mut InstanceRegistry, now| {
            let former = report.as_ref().ok().and_then(|report| former_name(registry, &name, report));
            let record = registry.instance_mut(&name)?;
            record.last_health_check = Some(now);
            let before = record.instance.errors.clone();
            match report.clone() {
                Ok(report) => {
                    let size = (report.cpus.tenths(), report.memory);
                    // A machine with a new UUID but the same size counts as the same machine: its runner may have
                    // another home directory, as under another user or in a new container.
                    let is_vouched = is_proven || size == (record.cpu, record.memory);
                    (record.cpu, record.memory) = size;
                    record.instance.on_healthy(report, &rates, is_vouched);
                    former.into_iter().for_each(|former| record.instance.on_renamed(former));
                }
                Err(errors) => record.instance.on_unhealthy(errors, now),
            }
            Ok(record.instance.errors != before)
        }
    }
}

/// The instance that had this machine before and is not seen any more. Instances that are seen do not count, because
/// several nodes may share a machine.
fn former_name(
    registry: &InstanceRegistry,
    name: &InstanceName,
    report: &HealthResult,
) -> Option<InstanceName> {
    let uuid = report.uuid.as_ref()?;
    let records = registry.instances.iter().map(|record| &record.instance);
    let was_it = |other: &&Instance| {
        other.name != *name && other.node_state == NodeState::Unavailable && other.uuid.as_ref() == Some(uuid)
    };
    records.filter(was_it).map(|other| other.name.clone()).next()
}

/// Marks an instance as unhealthy because it did not prove its identity to an attempt, which was therefore not sent.
/// The instance starts no more jobs until a health check succeeds.
pub(super) async fn note_unanswering(base: &Base, name: InstanceName, why: String) -> Result<(), Error> {
    let change = move |registry: &mut InstanceRegistry, now| {
        // The instance may be gone. If several attempts end like this at once, only the first one counts.
        let found = registry.instance_mut(&name).ok().map(|record| &mut record.instance);
        if let Some(instance) = found.filter(|instance| instance.node_state == NodeState::Ready) {
            instance.on_unhealthy(vec![why.clone()], now);
        }
        Ok(())
    };
    base.store.change_registry(None, change).await
}
