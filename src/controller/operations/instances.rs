//! What operators change of instances.

use serde_json::{Value, json};

use super::arguments::Arguments;
use super::{Refused, answers};
use crate::controller::core::{Adjustment, InstanceName, NodeType};
use crate::controller::driver::JobDriver;
use crate::controller::health::uncheckable;
use crate::controller::service::Service;
use crate::controller::store::{Audit, Error, InstanceRecord, Overview, Registry};

/// The largest adjustment. Above 1 an instance takes more than the larger of its two capacities.
const MOST_ADJUSTMENT: f64 = 1000.0;

fn named(overview: &Overview, driver: &JobDriver, name: &str) -> Result<Value, Refused> {
    let found = answers::instances(overview, driver).into_iter().find(|one| one["name"] == name);
    Ok(found.ok_or_else(|| Error::NoInstance(InstanceName::from(name)))?)
}

impl Service {
    pub(super) async fn instance(&self, name: &str) -> Result<Value, Refused> {
        named(&self.driver.store.overview().await?, &self.driver, name)
    }

    /// The instances; or, if asked so, the nodes that could become some.
    pub(super) async fn list_instances(&self, mut asked: Arguments) -> Result<Value, Refused> {
        let found = asked.flag("found")?.unwrap_or(false);
        asked.end()?;
        if found {
            let found: Vec<Value> = self.driver.found().iter().map(answers::candidate).collect();
            return Ok(json!({"found": found}));
        }
        let overview = self.driver.store.overview().await?;
        let found = self.driver.found().len();
        Ok(json!({"instances": answers::instances(&overview, &self.driver), "found": found}))
    }

    /// Lets jobs start on an instance; a node that discovery found becomes one.
    pub(super) async fn enable_instance(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        asked.end()?;
        let instance = InstanceName::from(name.as_str());
        let found = self.driver.found_as(&instance);
        let change = move |registry: &mut Registry, now| {
            if let Some(found) = found.as_ref().filter(|found| !registry.has_instance(&found.name)) {
                let record = InstanceRecord::register(found.name.clone(), found.node_type, true, now);
                registry.add_instance(record)?.instance.offer = found.offer;
            }
            registry.instance_mut(&instance)?.instance.set_enabled(true, now);
            Ok(())
        };
        let audit = Audit { target: name.clone(), ..audit };
        self.driver.store.change_registry(Some(audit), change).await?;
        // Whether it can be reached from here is in the store from then on.
        self.driver.taken.notify_one();
        self.instance(&name).await
    }

    pub(super) async fn disable_instance(
        &self,
        mut asked: Arguments,
        audit: Audit,
    ) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        asked.end()?;
        let instance = InstanceName::from(name.as_str());
        let change = move |registry: &mut Registry, now| {
            registry.instance_mut(&instance)?.instance.set_enabled(false, now);
            Ok(())
        };
        self.driver.store.change_registry(Some(Audit { target: name.clone(), ..audit }), change).await?;
        self.instance(&name).await
    }

    pub(super) async fn add_instance(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        let wanted = asked.text("node_type")?.unwrap_or_else(|| "execution".to_owned());
        let node_type = [NodeType::Execution, NodeType::Hop].into_iter().find(|one| one.name() == wanted);
        let node_type = node_type.ok_or_else(|| {
            Refused::bad("node_type: it is execution or hop: control nodes register themselves")
        })?;
        let enabled = asked.flag("enabled")?.unwrap_or(true);
        asked.end()?;
        let instance = InstanceName::from(name.as_str());
        let change = move |registry: &mut Registry, now| {
            if registry.instance_mut(&instance).is_ok() {
                return Err(Error::Conflict(format!("the instance {instance} exists")));
            }
            let record = InstanceRecord::register(instance.clone(), node_type, enabled, now);
            registry.add_instance(record).map(drop)
        };
        let audit = Audit { target: name.clone(), ..audit };
        self.driver.store.change_registry(Some(audit), change).await?;
        self.driver.taken.notify_one();
        self.instance(&name).await
    }

    /// Has an instance checked soon; or, with `store: false`, now, and only says what that would make of its record.
    pub(super) async fn check_health(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        let stores = asked.flag("store")?.unwrap_or(true);
        asked.end()?;
        let audit = Audit { target: name.clone(), ..audit };
        let instance = InstanceName::from(name.as_str());
        if stores {
            let change = move |registry: &mut Registry, now| {
                let one = &mut registry.instance_mut(&instance)?.instance;
                if let Some(why) = uncheckable(one) {
                    return Err(Error::Conflict(why));
                }
                one.request_health_check(now);
                Ok(())
            };
            self.driver.store.change_registry(Some(audit), change).await?;
            return self.instance(&name).await;
        }
        let checked = self.driver.try_health(&instance, audit).await?;
        let mut overview = self.driver.store.overview().await?;
        let records = overview.registry.instances.iter_mut().zip(&mut overview.loads.instances);
        for (record, load) in records.filter(|(record, _)| record.instance.name == instance) {
            load.capacity = checked.instance.capacity();
            record.clone_from(&checked);
        }
        named(&overview, &self.driver, &name)
    }

    pub(super) async fn set_instance(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        let managed = asked.flag("managed_by_policy")?;
        let adjustment = asked.take("capacity_adjustment");
        asked.end()?;
        let adjustment = adjustment.map(|value| {
            let share = value.as_f64().filter(|share| (0.0..=MOST_ADJUSTMENT).contains(share));
            let range = format!("capacity_adjustment: it is a number from 0 to {MOST_ADJUSTMENT}");
            share.ok_or_else(|| Refused::bad(range))
        });
        let adjustment = adjustment.transpose()?.map(|share| Adjustment((share * 100.0).round() as u32));
        let instance = InstanceName::from(name.as_str());
        let change = move |registry: &mut Registry, _| {
            let one = &mut registry.instance_mut(&instance)?.instance;
            one.managed_by_policy = managed.unwrap_or(one.managed_by_policy);
            one.adjustment = adjustment.unwrap_or(one.adjustment);
            Ok(())
        };
        self.driver.store.change_registry(Some(Audit { target: name.clone(), ..audit }), change).await?;
        self.instance(&name).await
    }
}
