//! The operations on instances.

use super::{answers, bad, conflict};
use crate::controller::core::{Adjustment, InstanceName, NodeType, Time};
use crate::controller::driver::JobDriver;
use crate::controller::health::uncheckable;
use crate::controller::service::Service;
use crate::controller::store::{Audit, Error, InstanceRecord, InstanceRegistry, Overview};
use crate::rpc::operation::{
    ByName, HealthCheck, InstanceFilter, InstanceRemoval, InstanceSettings, NewInstance, OperationRefusal,
};
use crate::rpc::report::controller::{CandidateReport, Candidates, InstanceReport, Instances, Removed};

/// The largest adjustment. Above 1 an instance takes more than the larger of its two capacities.
const MOST_ADJUSTMENT: f64 = 1000.0;

fn named(overview: &Overview, driver: &JobDriver, name: &str) -> Result<InstanceReport, OperationRefusal> {
    let found = answers::instances(overview, driver).into_iter().find(|one| one.name == name);
    Ok(found.ok_or_else(|| Error::NoInstance(InstanceName::from(name)))?)
}

impl Service {
    pub(super) async fn instance(&self, name: &str) -> Result<InstanceReport, OperationRefusal> {
        named(&self.driver.store.overview().await?, &self.driver, name)
    }

    /// Changes an instance, and returns the changed one.
    async fn change_instance(
        &self,
        name: String,
        audit: Audit,
        change: impl Fn(&mut InstanceRegistry, &InstanceName, Time) -> Result<(), Error> + Send + 'static,
    ) -> Result<InstanceReport, OperationRefusal> {
        let instance = InstanceName::from(name.as_str());
        let change = move |registry: &mut InstanceRegistry, now| change(registry, &instance, now);
        self.driver.store.change_registry(Some(audit), change).await?;
        self.instance(&name).await
    }

    /// The instances; or, if the filter says so, the nodes that could become instances.
    pub(super) async fn list_instances(&self, filter: InstanceFilter) -> Result<Instances, OperationRefusal> {
        let found = self.driver.placer.found();
        if filter.found {
            let found = Candidates::These(found.iter().map(CandidateReport::from).collect());
            return Ok(Instances { instances: None, found });
        }
        let instances = answers::instances(&self.driver.store.overview().await?, &self.driver);
        Ok(Instances { instances: Some(instances), found: Candidates::Count(found.len() as u64) })
    }

    /// Lets jobs start on an instance. A node that the mesh knows is registered first if it is no instance yet.
    pub(super) async fn enable_instance(
        &self,
        asked: ByName,
        audit: Audit,
    ) -> Result<InstanceReport, OperationRefusal> {
        let known = self.driver.placer.known_as(&InstanceName::from(asked.name.as_str())).await;
        let enable = move |registry: &mut InstanceRegistry, instance: &InstanceName, now| {
            if let Some((node_type, offer)) = known.filter(|_| !registry.has_instance(instance)) {
                let record = InstanceRecord::register(instance.clone(), node_type, true, now);
                registry.add_instance(record)?.instance.offer = offer;
            }
            registry.instance_mut(instance)?.instance.set_enabled(true, now);
            Ok(())
        };
        let enabled = self.change_instance(asked.name, audit, enable).await?;
        // Looks at the mesh again, so that the store says soon whether this node reaches the instance.
        self.driver.placer.look_at_mesh();
        Ok(enabled)
    }

    pub(super) async fn disable_instance(
        &self,
        asked: ByName,
        audit: Audit,
    ) -> Result<InstanceReport, OperationRefusal> {
        let disable = |registry: &mut InstanceRegistry, instance: &InstanceName, now| {
            registry.instance_mut(instance)?.instance.set_enabled(false, now);
            Ok(())
        };
        self.change_instance(asked.name, audit, disable).await
    }

    pub(super) async fn add_instance(
        &self,
        asked: NewInstance,
        audit: Audit,
    ) -> Result<InstanceReport, OperationRefusal> {
        let NewInstance { name, node_type: wanted, enabled } = asked;
        let wanted = wanted.as_deref().unwrap_or(NodeType::Execution.name());
        let node_type = [NodeType::Execution, NodeType::Hop].into_iter().find(|one| one.name() == wanted);
        let node_type = node_type.ok_or_else(|| {
            bad("node_type: it must be execution or hop: control nodes register themselves")
        })?;
        let enabled = enabled.unwrap_or(true);
        let add = move |registry: &mut InstanceRegistry, instance: &InstanceName, now| {
            if registry.has_instance(instance) {
                return Err(Error::Conflict(format!("the instance {instance} exists")));
            }
            let record = InstanceRecord::register(instance.clone(), node_type, enabled, now);
            registry.add_instance(record).map(drop)
        };
        let added = self.change_instance(name, audit, add).await?;
        self.driver.placer.look_at_mesh();
        Ok(added)
    }

    /// Requests a health check of an instance; with `store: false`, checks it now and returns its record as it would
    /// become.
    pub(super) async fn check_health(
        &self,
        asked: HealthCheck,
        audit: Audit,
    ) -> Result<InstanceReport, OperationRefusal> {
        let name = asked.name;
        if asked.store.unwrap_or(true) {
            let request = |registry: &mut InstanceRegistry, instance: &InstanceName, now| {
                let one = &mut registry.instance_mut(instance)?.instance;
                if let Some(why) = uncheckable(one) {
                    return Err(Error::Conflict(why));
                }
                one.request_health_check(now);
                Ok(())
            };
            return self.change_instance(name, audit, request).await;
        }
        let instance = InstanceName::from(name.as_str());
        let checked = self.driver.checks.try_health(&instance, audit).await?;
        let mut overview = self.driver.store.overview().await?;
        let records = overview.registry.instances.iter_mut().zip(&mut overview.loads.instances);
        for (record, load) in records.filter(|(record, _)| record.instance.name == instance) {
            load.capacity = checked.instance.capacity();
            record.clone_from(&checked);
        }
        named(&overview, &self.driver, &name)
    }

    pub(super) async fn set_instance(
        &self,
        asked: InstanceSettings,
        audit: Audit,
    ) -> Result<InstanceReport, OperationRefusal> {
        let InstanceSettings { name, capacity_adjustment, managed_by_policy: managed } = asked;
        if capacity_adjustment.is_some_and(|share| !(0.0..=MOST_ADJUSTMENT).contains(&share)) {
            return Err(bad(format!("capacity_adjustment: it must be a number from 0 to {MOST_ADJUSTMENT}")));
        }
        let adjustment = capacity_adjustment.map(|share| Adjustment((share * 100.0).round() as u32));
        let set = move |registry: &mut InstanceRegistry, instance: &InstanceName, _| {
            let one = &mut registry.instance_mut(instance)?.instance;
            one.managed_by_policy = managed.unwrap_or(one.managed_by_policy);
            one.adjustment = adjustment.unwrap_or(one.adjustment);
            Ok(())
        };
        self.change_instance(name, audit, set).await
    }

    /// Removes an instance once its last jobs have ended, or at once if it is dead.
    pub(super) async fn remove_instance(
        &self,
        asked: InstanceRemoval,
        audit: Audit,
    ) -> Result<Removed, OperationRefusal> {
        let InstanceRemoval { name, dead } = asked;
        let instance = InstanceName::from(name.as_str());
        let removed = match dead {
            true if instance == self.driver.node => {
                let alive = "this control node answers, so it is not dead: ask another one, or drain it";
                return Err(conflict(alive));
            }
            true => {
                self.driver.store.declare_dead(audit, instance).await?;
                self.driver.publisher.show_open().await?;
                true
            }
            false => self.driver.store.drain_instance(Some(audit), instance).await?,
        };
        Ok(Removed { name, removed })
    }
}
