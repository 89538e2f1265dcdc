//! The operations on groups.

use super::{answers, bad};
use crate::controller::core::{Backing, Group, GroupName, InstanceName, Member, Policy};
use crate::controller::service::Service;
use crate::controller::store::{Audit, Error, GroupRecord, InstanceRegistry};
use crate::rpc::operation::{ByName, GroupSettings, Membership, OperationCode, OperationRefusal, PolicyRun};
use crate::rpc::report::controller::{DeletedGroup, GroupReport, Groups, Policies, PolicyReport};

/// The longest `pod_spec_override`, in bytes.
const LONGEST_OVERRIDE: usize = 64 << 10;

/// Changes a setting of a group's pods; an empty text unsets it.
fn set(setting: &mut Option<String>, change: &Option<String>) {
    if let Some(text) = change {
        *setting = Some(text.clone()).filter(|text| !text.trim().is_empty());
    }
}

fn check(settings: &GroupSettings) -> Result<(), OperationRefusal> {
    if settings.policy_instance_percentage.is_some_and(|share| share > 100) {
        return Err(bad("policy_instance_percentage: it must be a number from 0 to 100"));
    }
    if settings.pod_spec_override.as_ref().is_some_and(|text| text.len() > LONGEST_OVERRIDE) {
        return Err(bad(format!("pod_spec_override: it is longer than {LONGEST_OVERRIDE} bytes")));
    }
    Ok(())
}

/// Makes or changes the group, and returns it as it was.
fn apply(
    settings: &GroupSettings,
    is_new: bool,
    registry: &mut InstanceRegistry,
) -> Result<Option<GroupRecord>, Error> {
    let name = GroupName::from(settings.name.as_str());
    let former = if is_new {
        registry.create_group(GroupRecord::from(Group::new(name.clone(), Policy::default())))?;
        None
    } else {
        Some(registry.group_mut(&name)?.clone())
    };
    let list = settings.policy_instance_list.as_ref();
    let list: Option<Vec<_>> =
        list.map(|names| names.iter().map(|name| InstanceName::from(name.as_str())).collect());
    for name in list.iter().flatten() {
        registry.instance_mut(name)?;
    }
    let record = registry.group_mut(&name)?;
    apply_kind(settings.is_container_group, &mut record.group)?;
    let group = &mut record.group;
    let policy = &mut group.policy;
    policy.percentage = settings.policy_instance_percentage.unwrap_or(policy.percentage);
    policy.minimum = settings.policy_instance_minimum.map_or(policy.minimum, |minimum| minimum as usize);
    policy.list = list.unwrap_or_else(|| std::mem::take(&mut policy.list));
    group.max_concurrent_jobs = settings.max_concurrent_jobs.unwrap_or(group.max_concurrent_jobs);
    group.max_forks = settings.max_forks.unwrap_or(group.max_forks);
    set(&mut record.cluster, &settings.cluster);
    set(&mut record.namespace, &settings.namespace);
    set(&mut record.pod_spec_override, &settings.pod_spec_override);
    set(&mut record.registry, &settings.registry);
    check_kind(record).map(|()| former)
}

fn apply_kind(is_container: Option<bool>, group: &mut Group) -> Result<(), Error> {
    match (is_container, &group.backing) {
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
                    "the group {name} has members, but a container group has none: first empty its \
                     policy_instance_list and set its percentage and minimum to 0"
                )));
            }
            group.backing = Backing::Containers;
        }
        (Some(false), Backing::Containers) => group.backing = Backing::Instances(Vec::new()),
        (None, _) | (Some(true), Backing::Containers) | (Some(false), Backing::Instances(_)) => {}
    }
    Ok(())
}

/// Refuses settings that mean nothing for this kind of group.
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
    pub(super) async fn list_groups(&self) -> Result<Groups, OperationRefusal> {
        Ok(Groups { groups: answers::groups(&self.driver.store.overview().await?) })
    }

    pub(super) async fn group(&self, name: &str) -> Result<GroupReport, OperationRefusal> {
        let found = self.list_groups().await?.groups.into_iter().find(|one| one.name == name);
        Ok(found.ok_or_else(|| Error::NoGroup(GroupName::from(name)))?)
    }

    /// Computes the members of each group. Policies also run after each change, so this normally changes nothing.
    pub(super) async fn run_policies(
        &self,
        asked: PolicyRun,
        audit: Audit,
    ) -> Result<Policies, OperationRefusal> {
        let dry_run = asked.dry_run;
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
            PolicyReport { name: group.name.to_string(), members, was }
        });
        Ok(Policies { groups: groups.collect(), dry_run })
    }

    pub(super) async fn change_group(
        &self,
        settings: GroupSettings,
        is_new: bool,
        audit: Audit,
    ) -> Result<GroupReport, OperationRefusal> {
        check(&settings)?;
        let name = settings.name.clone();
        // Checked on a copy first, because the check of its pods reads files, which must not happen while the store is
        // locked.
        let mut trial = self.driver.store.registry().await?;
        apply(&settings, is_new, &mut trial)?;
        let record = trial.group_mut(&GroupName::from(name.as_str()))?.clone();
        if record.group.is_container_group() {
            self.driver.attempts.pods.check_group(record).await.map_err(bad)?;
        }
        let change = move |registry: &mut InstanceRegistry, _| apply(&settings, is_new, registry);
        let former = self.driver.store.change_registry(Some(audit), change).await?;
        if let Some(former) = former {
            self.remove_secret(former, "changed").await?;
        }
        self.group(&name).await
    }

    /// Puts an instance on a group's list, or takes it off.
    pub(super) async fn change_member(
        &self,
        asked: Membership,
        is_add: bool,
        audit: Audit,
    ) -> Result<GroupReport, OperationRefusal> {
        let Membership { name, instance } = asked;
        let (group, member) = (GroupName::from(name.as_str()), InstanceName::from(instance.as_str()));
        let change = move |registry: &mut InstanceRegistry, _| match is_add {
            true => registry.add_to_group(&group, &member),
            false => registry.remove_from_group(&group, &member),
        };
        self.driver.store.change_registry(Some(audit), change).await?;
        self.group(&name).await
    }

    pub(super) async fn delete_group(
        &self,
        asked: ByName,
        audit: Audit,
    ) -> Result<DeletedGroup, OperationRefusal> {
        let name = asked.name;
        let group = GroupName::from(name.as_str());
        let former = self.driver.store.registry().await?.group_mut(&group)?.clone();
        self.driver.store.delete_group(audit, group).await?;
        self.remove_secret(former, "deleted").await?;
        Ok(DeletedGroup { name, deleted: true })
    }

    /// Deletes the secret that a changed or deleted group does not need any more. A failure is an error although the
    /// group has changed, because an operator must then delete the secret.
    async fn remove_secret(&self, former: GroupRecord, done: &str) -> Result<(), OperationRefusal> {
        let group = former.group.name.clone();
        let Some(registry) = former.registry.clone() else { return Ok(()) };
        let refused = |name: &str, place: &str, cause: String| {
            let message = format!(
                "the group {group} is {done}, but the secret {name}{place} is still there: {cause}. Delete it with kubectl"
            );
            OperationRefusal::new(OperationCode::Refused, message)
        };
        match self.driver.attempts.pods.unneeded_secret(former).await? {
            Ok(None) => Ok(()),
            Ok(Some((place, name))) => {
                let shown =
                    place.namespace.as_ref().map(|it| format!(" in namespace {it}")).unwrap_or_default();
                let deleted = self.driver.attempts.pods.delete_secret(place, name.clone()).await;
                deleted.map_err(|cause| refused(&name, &shown, cause.to_string()))
            }
            Err(fault) => Err(refused(&format!("of its registry {registry}"), "", fault.to_string())),
        }
    }
}
