//! What operators change of groups.

use serde_json::{Value, json};

use super::arguments::Arguments;
use super::{Refused, answers};
use crate::controller::core::{Backing, Group, GroupName, InstanceName, Member, Policy};
use crate::controller::service::Service;
use crate::controller::store::{Audit, Error, GroupRecord, Registry};

/// The longest `pod_spec_override`, in bytes.
const LONGEST_OVERRIDE: usize = 64 << 10;

/// What is to change of a group. `None` leaves a setting as it is.
#[derive(Debug, Clone)]
struct GroupChange {
    name: GroupName,
    is_new: bool,
    percentage: Option<u32>,
    minimum: Option<u32>,
    list: Option<Vec<InstanceName>>,
    max_concurrent_jobs: Option<u32>,
    max_forks: Option<u32>,
    is_container_group: Option<bool>,
    pods: PodSettings,
}

/// What is to change of a group's pods; an empty text unsets.
#[derive(Debug, Clone)]
struct PodSettings {
    cluster: Option<String>,
    namespace: Option<String>,
    pod_spec_override: Option<String>,
    registry: Option<String>,
}

impl PodSettings {
    fn read(asked: &mut Arguments) -> Result<Self, Refused> {
        let settings = Self {
            cluster: asked.text("cluster")?,
            namespace: asked.text("namespace")?,
            pod_spec_override: asked.text("pod_spec_override")?,
            registry: asked.text("registry")?,
        };
        if settings.pod_spec_override.as_ref().is_some_and(|text| text.len() > LONGEST_OVERRIDE) {
            return Err(Refused::bad(format!(
                "pod_spec_override: it is longer than {LONGEST_OVERRIDE} bytes"
            )));
        }
        Ok(settings)
    }

    fn apply(&self, record: &mut GroupRecord) {
        let set = |setting: &mut Option<String>, change: &Option<String>| {
            if let Some(text) = change {
                *setting = Some(text.clone()).filter(|text| !text.trim().is_empty());
            }
        };
        set(&mut record.cluster, &self.cluster);
        set(&mut record.namespace, &self.namespace);
        set(&mut record.pod_spec_override, &self.pod_spec_override);
        set(&mut record.registry, &self.registry);
    }
}

impl GroupChange {
    fn read(asked: &mut Arguments) -> Result<Self, Refused> {
        let name = asked.name("name")?;
        let percentage = asked.count("policy_instance_percentage")?;
        if percentage.is_some_and(|share| share > 100) {
            return Err(Refused::bad("policy_instance_percentage: it is a number from 0 to 100"));
        }
        let list = asked.left.contains_key("policy_instance_list");
        let list = if list { Some(asked.texts("policy_instance_list")?) } else { None };
        Ok(Self {
            name: GroupName::from(name.as_str()),
            is_new: asked.op == "group.create",
            percentage,
            minimum: asked.count("policy_instance_minimum")?,
            list: list.map(|names| names.iter().map(|name| InstanceName::from(name.as_str())).collect()),
            max_concurrent_jobs: asked.count("max_concurrent_jobs")?,
            max_forks: asked.count("max_forks")?,
            is_container_group: asked.flag("is_container_group")?,
            pods: PodSettings::read(asked)?,
        })
    }

    /// Changes the group, and returns it as it was.
    fn apply(&self, registry: &mut Registry) -> Result<Option<GroupRecord>, Error> {
        let former = if self.is_new {
            registry.create_group(GroupRecord::from(Group::new(self.name.clone(), Policy::default())))?;
            None
        } else {
            Some(registry.group_mut(&self.name)?.clone())
        };
        for name in self.list.iter().flatten() {
            registry.instance_mut(name)?;
        }
        let record = registry.group_mut(&self.name)?;
        self.apply_kind(&mut record.group)?;
        let group = &mut record.group;
        group.policy.percentage = self.percentage.unwrap_or(group.policy.percentage);
        group.policy.minimum = self.minimum.map_or(group.policy.minimum, |minimum| minimum as usize);
        if let Some(names) = &self.list {
            group.policy.list.clone_from(names);
        }
        group.max_concurrent_jobs = self.max_concurrent_jobs.unwrap_or(group.max_concurrent_jobs);
        group.max_forks = self.max_forks.unwrap_or(group.max_forks);
        self.pods.apply(record);
        check_kind(record).map(|()| former)
    }

    fn apply_kind(&self, group: &mut Group) -> Result<(), Error> {
        match (self.is_container_group, &group.backing) {
            (Some(true), Backing::Instances(members)) => {
                let name = &group.name;
                if Group::reserved().iter().any(|reserved| reserved.name == *name) {
                    let text = format!(
                        "the group {name} is reserved, and its jobs run on instances: create another group"
                    );
                    return Err(Error::Conflict(text));
                }
                if !members.is_empty() {
                    return Err(Error::Conflict(format!(
                        "the group {name} has members, and a container group has none: empty its \
                         policy_instance_list and set its percentage and minimum to 0 first"
                    )));
                }
                group.backing = Backing::Containers;
            }
            (Some(false), Backing::Containers) => group.backing = Backing::Instances(Vec::new()),
            (None, _) | (Some(true), Backing::Containers) | (Some(false), Backing::Instances(_)) => {}
        }
        Ok(())
    }
}

/// The settings of one kind of group mean nothing for the other.
fn check_kind(record: &GroupRecord) -> Result<(), Error> {
    let GroupRecord { group, cluster, namespace, pod_spec_override, registry } = record;
    let conflict = |text: &str| Err(Error::Conflict(format!("the group {} {text}", group.name)));
    if group.is_container_group() && group.policy != Policy::default() {
        return conflict(
            "is a container group, which has no instances: leave out policy_instance_percentage, \
             policy_instance_minimum and policy_instance_list, or set them to 0 and to an empty list",
        );
    }
    let pods = [cluster, namespace, pod_spec_override, registry];
    if !group.is_container_group() && pods.into_iter().any(Option::is_some) {
        return conflict(
            "is not a container group, and only those have cluster, namespace, pod_spec_override and registry: \
             set is_container_group, or set these to empty texts",
        );
    }
    Ok(())
}

impl Service {
    pub(super) async fn group(&self, name: &str) -> Result<Value, Refused> {
        let overview = self.driver.store.overview().await?;
        let found = answers::groups(&overview).into_iter().find(|one| one["name"] == name);
        Ok(found.ok_or_else(|| Error::NoGroup(GroupName::from(name)))?)
    }

    /// Computes who belongs to each group. Policies run after each change, too; by themselves they change nothing twice.
    pub(super) async fn run_policies(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let dry_run = asked.flag("dry_run")?.unwrap_or(false);
        asked.end()?;
        let before = self.driver.store.registry().await?;
        let changes = before.policy_changes();
        match dry_run {
            true => self.driver.store.record(audit).await?,
            false => drop(self.driver.store.change_registry(Some(audit), |_, _| Ok(())).await?),
        }
        let names = |members: &[Member]| members.iter().map(|one| one.name.to_string()).collect::<Vec<_>>();
        let groups = before.plain_groups().into_iter().map(|group| {
            let was = names(group.members());
            let change = changes.iter().find(|change| change.group == group.name);
            let members = change.map_or_else(|| was.clone(), |change| names(&change.members));
            json!({"name": group.name.to_string(), "members": members, "was": was})
        });
        Ok(json!({"groups": groups.collect::<Vec<_>>(), "dry_run": dry_run}))
    }

    pub(super) async fn change_group(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let change = GroupChange::read(&mut asked)?;
        asked.end()?;
        let name = change.name.to_string();
        // What speaks against its pods is found on disk, which is not read while the store is locked.
        let mut trial = self.driver.store.registry().await?;
        change.apply(&mut trial)?;
        let record = trial.group_mut(&change.name)?.clone();
        if record.group.is_container_group() {
            self.driver.check_group(record).await.map_err(Refused::bad)?;
        }
        let audit = Audit { target: name.clone(), ..audit };
        let apply = move |registry: &mut Registry, _| change.apply(registry);
        let former = self.driver.store.change_registry(Some(audit), apply).await?;
        if let Some(former) = former {
            self.remove_secret(former, "changed").await?;
        }
        self.group(&name).await
    }

    pub(super) async fn delete_group(&self, name: String, audit: Audit) -> Result<Value, Refused> {
        let group = GroupName::from(name.as_str());
        let former = self.driver.store.registry().await?.group_mut(&group)?.clone();
        self.driver.store.delete_group(audit, group).await?;
        self.remove_secret(former, "deleted").await?;
        Ok(json!({"name": name, "deleted": true}))
    }

    /// Deletes the secret of a group that needs it no more. Where that fails an operator has to, so it is an error
    /// although the group has changed.
    async fn remove_secret(&self, former: GroupRecord, done: &str) -> Result<(), Refused> {
        let group = former.group.name.clone();
        let Some(registry) = former.registry.clone() else { return Ok(()) };
        let refused = |name: &str, place: &str, cause: String| Refused {
            code: "refused",
            message: format!(
                "the group {group} is {done}, but the secret {name}{place} is still there: {cause}. Delete it by kubectl"
            ),
        };
        match self.driver.unneeded_secret(former).await? {
            Ok(None) => Ok(()),
            Ok(Some((place, name))) => {
                let shown =
                    place.namespace.as_ref().map(|it| format!(" in namespace {it}")).unwrap_or_default();
                let deleted = self.driver.delete_secret(place, name.clone()).await;
                deleted.map_err(|cause| refused(&name, &shown, cause.to_string()))
            }
            Err(fault) => Err(refused(&format!("of its registry {registry}"), "", fault.to_string())),
        }
    }
}
