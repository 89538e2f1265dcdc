//! What operators change of groups.

use serde_json::Value;

use super::arguments::Arguments;
use super::{Refused, answers};
use crate::controller::core::{Group, GroupName, InstanceName, Policy};
use crate::controller::service::Service;
use crate::controller::store::{Audit, Error, GroupRecord, Registry};

impl Service {
    pub(super) async fn group(&self, name: &str) -> Result<Value, Refused> {
        let overview = self.driver.store.overview().await?;
        let found = answers::groups(&overview).into_iter().find(|one| one["name"] == name);
        Ok(found.ok_or_else(|| Error::NoGroup(GroupName::from(name)))?)
    }

    pub(super) async fn change_group(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        let percentage = asked.count("policy_instance_percentage")?;
        if percentage.is_some_and(|share| share > 100) {
            return Err(Refused::bad("policy_instance_percentage: it is a number from 0 to 100"));
        }
        let minimum = asked.count("policy_instance_minimum")?;
        let list = asked.left.contains_key("policy_instance_list");
        let list = if list { Some(asked.texts("policy_instance_list")?) } else { None };
        let (jobs, forks) = (asked.count("max_concurrent_jobs")?, asked.count("max_forks")?);
        let is_new = asked.op == "group.create";
        asked.end()?;
        let group = GroupName::from(name.as_str());
        let change = move |registry: &mut Registry, _| {
            if is_new {
                registry.create_group(GroupRecord::from(Group::new(group.clone(), Policy::default())))?;
            }
            let names: Option<Vec<InstanceName>> =
                list.as_ref().map(|list| list.iter().map(|name| InstanceName::from(name.as_str())).collect());
            for name in names.iter().flatten() {
                registry.instance_mut(name)?;
            }
            let group = &mut registry.group_mut(&group)?.group;
            group.policy.percentage = percentage.unwrap_or(group.policy.percentage);
            group.policy.minimum = minimum.map_or(group.policy.minimum, |minimum| minimum as usize);
            if let Some(names) = names {
                group.policy.list = names;
            }
            group.max_concurrent_jobs = jobs.unwrap_or(group.max_concurrent_jobs);
            group.max_forks = forks.unwrap_or(group.max_forks);
            Ok(())
        };
        self.driver.store.change_registry(Some(Audit { target: name.clone(), ..audit }), change).await?;
        self.group(&name).await
    }
}
