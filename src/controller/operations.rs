//! What operators ask of a controller: lists, explanations, cancels, and changes of instances and groups. Owns the names
//! of operations and their arguments; the shapes of answers are `answers`'.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answers;
use super::core::{
    Adjustment, Group, GroupName, InstanceName, JobId, JobKind, JobState, NodeType, Policy, Time,
};
use super::service::Service;
use super::store::{Audit, Error, GroupRecord, InstanceRecord, JobFilter, PAGE_MAX};

/// Rows of a list, unless asked otherwise.
const PAGE: u32 = 50;

/// Why an operation was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl Refused {
    fn bad(message: impl Into<String>) -> Self {
        Self { code: "bad_request", message: message.into() }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Away(_) => "store_away",
            Error::Fenced(_) => "owner_away",
            Error::NoJob(_) | Error::NoInstance(_) | Error::NoGroup(_) | Error::NoDependency(_) => {
                "not_found"
            }
            Error::Conflict(_) | Error::Job(_) | Error::KeyTaken { .. } => "conflict",
            Error::Full(_)
            | Error::TooOld { .. }
            | Error::Held { .. }
            | Error::Settings(_)
            | Error::File { .. }
            | Error::Corrupt(_)
            | Error::Raced => "refused",
        };
        Self { code, message: error.to_string() }
    }
}

/// The arguments of an operation; each is taken once.
struct Arguments {
    op: String,
    left: Map<String, Value>,
}

impl Arguments {
    fn take(&mut self, key: &str) -> Option<Value> {
        self.left.remove(key).filter(|value| !value.is_null())
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, Refused> {
        self.take(key)
            .map(|value| {
                value.as_str().map(str::to_owned).ok_or_else(|| Refused::bad(format!("{key}: it is a text")))
            })
            .transpose()
    }

    fn name(&mut self, key: &str) -> Result<String, Refused> {
        let name = self.text(key)?.ok_or_else(|| Refused::bad(format!("{key}: it is missing")))?;
        let is_name = !name.is_empty() && name.len() <= 255 && !name.contains(char::is_control);
        if is_name { Ok(name) } else { Err(Refused::bad(format!("{key}: it is no name"))) }
    }

    fn number(&mut self, key: &str) -> Result<Option<i64>, Refused> {
        self.take(key)
            .map(|value| value.as_i64().ok_or_else(|| Refused::bad(format!("{key}: it is a whole number"))))
            .transpose()
    }

    fn count(&mut self, key: &str) -> Result<Option<u32>, Refused> {
        self.number(key)?
            .map(|number| {
                u32::try_from(number).map_err(|_| Refused::bad(format!("{key}: it is a number from 0 on")))
            })
            .transpose()
    }

    fn flag(&mut self, key: &str) -> Result<Option<bool>, Refused> {
        self.take(key)
            .map(|value| value.as_bool().ok_or_else(|| Refused::bad(format!("{key}: it is true or false"))))
            .transpose()
    }

    fn texts(&mut self, key: &str) -> Result<Vec<String>, Refused> {
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let texts =
            value.as_array().map(|list| list.iter().map(|one| one.as_str().map(str::to_owned)).collect());
        texts.flatten().ok_or_else(|| Refused::bad(format!("{key}: it is a list of texts")))
    }

    fn job(&mut self) -> Result<JobId, Refused> {
        self.number("id")?.map(JobId).ok_or_else(|| Refused::bad("id: it is missing"))
    }

    fn time(&mut self, key: &str) -> Result<Option<Time>, Refused> {
        let parse = |text: String| {
            let time: Result<jiff::Timestamp, _> = text.parse();
            time.map(|time| Time(time.as_millisecond()))
                .map_err(|_| Refused::bad(format!("{key}: it is a time such as 2026-01-31T12:00:00Z")))
        };
        self.text(key)?.map(parse).transpose()
    }

    fn end(self) -> Result<(), Refused> {
        let unknown = self.left.keys().next();
        unknown.map_or(Ok(()), |key| Err(Refused::bad(format!("{} takes no `{key}`", self.op))))
    }
}

impl Service {
    /// Carries out one operation for a caller with all rights.
    ///
    /// # Errors
    /// [`Refused`]
    pub async fn operate(&self, mut request: Map<String, Value>, who: &str) -> Result<Value, Refused> {
        let Some(Value::String(op)) = request.remove("op") else {
            return Err(Refused::bad("op: it is missing"));
        };
        let mut asked = Arguments { op: op.clone(), left: request };
        let audit = |target: &str| Audit { who: who.to_owned(), op: op.clone(), target: target.to_owned() };
        match op.as_str() {
            "ping" => {
                asked.end()?;
                self.ping().await
            }
            "pause" | "resume" => {
                asked.end()?;
                let is_pause = op == "pause";
                self.driver.store.set_paused(audit(""), is_pause).await?;
                Ok(json!({"paused": is_pause}))
            }
            "instance.list" => {
                asked.end()?;
                let overview = self.driver.store.overview().await?;
                Ok(json!({"instances": answers::instances(&overview, &self.driver)}))
            }
            "instance.get" => {
                let name = asked.name("name")?;
                asked.end()?;
                self.instance(&name).await
            }
            "instance.enable" | "instance.disable" => {
                let name = asked.name("name")?;
                asked.end()?;
                let (instance, enabled) = (InstanceName::from(name.as_str()), op == "instance.enable");
                let change = move |registry: &mut super::store::Registry, _| {
                    registry.instance_mut(&instance)?.instance.enabled = enabled;
                    Ok(())
                };
                self.driver.store.change_registry(Some(audit(&name)), change).await?;
                self.instance(&name).await
            }
            "instance.add" => self.add_instance(asked, audit("")).await,
            "instance.set" => self.set_instance(asked, audit("")).await,
            "instance.health" => {
                let name = asked.name("name")?;
                asked.end()?;
                let instance = InstanceName::from(name.as_str());
                let change = move |registry: &mut super::store::Registry, now| {
                    registry.instance_mut(&instance)?.instance.request_health_check(now);
                    Ok(())
                };
                self.driver.store.change_registry(Some(audit(&name)), change).await?;
                self.instance(&name).await
            }
            "instance.remove" => {
                let name = asked.name("name")?;
                let dead = asked.flag("dead")?.unwrap_or(false);
                let _drain = asked.flag("drain")?;
                asked.end()?;
                let instance = InstanceName::from(name.as_str());
                let gone = match dead {
                    true => {
                        self.driver.store.declare_dead(audit(&name), instance).await?;
                        self.driver.show_open().await?;
                        true
                    }
                    false => self.driver.store.drain_instance(Some(audit(&name)), instance).await?,
                };
                Ok(json!({"name": name, "removed": gone}))
            }
            "group.list" => {
                asked.end()?;
                Ok(json!({"groups": answers::groups(&self.driver.store.overview().await?)}))
            }
            "group.get" => {
                let name = asked.name("name")?;
                asked.end()?;
                self.group(&name).await
            }
            "group.create" | "group.set" => self.change_group(asked, audit("")).await,
            "group.add" | "group.remove" => {
                let (name, instance) = (asked.name("name")?, asked.name("instance")?);
                asked.end()?;
                let (group, member) = (GroupName::from(name.as_str()), InstanceName::from(instance.as_str()));
                let is_add = op == "group.add";
                let change = move |registry: &mut super::store::Registry, _| match is_add {
                    true => registry.add_to_group(&group, &member),
                    false => registry.remove_from_group(&group, &member),
                };
                self.driver.store.change_registry(Some(audit(&name)), change).await?;
                self.group(&name).await
            }
            "group.delete" => {
                let name = asked.name("name")?;
                asked.end()?;
                self.driver.store.delete_group(audit(&name), GroupName::from(name.as_str())).await?;
                Ok(json!({"name": name, "deleted": true}))
            }
            "job.list" => self.list_jobs(asked).await,
            "job.get" => {
                let id = asked.job()?;
                asked.end()?;
                Ok(answers::job_detail(&self.driver.store.detail(id).await?))
            }
            "job.explain" => {
                let id = asked.job()?;
                asked.end()?;
                let require_tls = self.driver.options().require_tls;
                let explained = self.driver.store.explain(id, require_tls).await?;
                Ok(answers::explanation(&self.driver.store.job(id).await?, explained))
            }
            "job.cancel" => {
                let id = asked.job()?;
                asked.end()?;
                self.driver.store.cancel(Some(audit(&id.to_string())), id).await?;
                self.driver.show_canceled(id).await?;
                Ok(answers::job_detail(&self.driver.store.detail(id).await?))
            }
            other => Err(Refused { code: "unknown_op", message: format!("there is no operation {other}") }),
        }
    }

    async fn ping(&self) -> Result<Value, Refused> {
        let store = &self.driver.store;
        let kind = match self.driver.options().store.split(':').next() {
            Some("sqlite") | None => "sqlite",
            Some(_) => "postgresql",
        };
        let (paused, error) = match store.is_paused().await {
            Ok(paused) => (paused, None),
            Err(error) => (false, Some(error.to_string())),
        };
        Ok(json!({
            "node": self.driver.node.to_string(),
            "paused": paused,
            "store": {"kind": kind, "up": error.is_none(), "error": error},
        }))
    }

    async fn instance(&self, name: &str) -> Result<Value, Refused> {
        let overview = self.driver.store.overview().await?;
        let found = answers::instances(&overview, &self.driver).into_iter().find(|one| one["name"] == name);
        Ok(found.ok_or_else(|| Error::NoInstance(InstanceName::from(name)))?)
    }

    async fn group(&self, name: &str) -> Result<Value, Refused> {
        let overview = self.driver.store.overview().await?;
        let found = answers::groups(&overview).into_iter().find(|one| one["name"] == name);
        Ok(found.ok_or_else(|| Error::NoGroup(GroupName::from(name)))?)
    }

    async fn add_instance(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        let wanted = asked.text("node_type")?.unwrap_or_else(|| "execution".to_owned());
        let node_type = [NodeType::Execution, NodeType::Hop].into_iter().find(|one| one.name() == wanted);
        let node_type = node_type.ok_or_else(|| {
            Refused::bad("node_type: it is execution or hop: control nodes register themselves")
        })?;
        let enabled = asked.flag("enabled")?.unwrap_or(true);
        asked.end()?;
        let instance = InstanceName::from(name.as_str());
        let change = move |registry: &mut super::store::Registry, now| {
            if registry.instance_mut(&instance).is_ok() {
                return Err(Error::Conflict(format!("the instance {instance} exists")));
            }
            let record = InstanceRecord::register(instance.clone(), node_type, enabled, now);
            registry.add_instance(record).map(drop)
        };
        let audit = Audit { target: name.clone(), ..audit };
        self.driver.store.change_registry(Some(audit), change).await?;
        self.instance(&name).await
    }

    async fn set_instance(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
        let name = asked.name("name")?;
        let managed = asked.flag("managed_by_policy")?;
        let adjustment = asked.take("capacity_adjustment");
        asked.end()?;
        let adjustment = adjustment.map(|value| {
            let share = value.as_f64().filter(|share| (0.0..=1.0).contains(share));
            share.ok_or_else(|| Refused::bad("capacity_adjustment: it is a number from 0 to 1"))
        });
        let adjustment = adjustment.transpose()?.map(|share| Adjustment((share * 100.0).round() as u32));
        let instance = InstanceName::from(name.as_str());
        let change = move |registry: &mut super::store::Registry, _| {
            let one = &mut registry.instance_mut(&instance)?.instance;
            one.managed_by_policy = managed.unwrap_or(one.managed_by_policy);
            one.adjustment = adjustment.unwrap_or(one.adjustment);
            Ok(())
        };
        self.driver.store.change_registry(Some(Audit { target: name.clone(), ..audit }), change).await?;
        self.instance(&name).await
    }

    async fn change_group(&self, mut asked: Arguments, audit: Audit) -> Result<Value, Refused> {
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
        let change = move |registry: &mut super::store::Registry, _| {
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

    async fn list_jobs(&self, mut asked: Arguments) -> Result<Value, Refused> {
        let states = asked.texts("state")?;
        let states = states.iter().map(|name| {
            let state = JobState::ALL.into_iter().find(|state| state.name() == name);
            state.ok_or_else(|| Refused::bad(format!("state: there is no state {name}")))
        });
        let states = states.collect::<Result<_, _>>()?;
        let kinds = asked.texts("kind")?;
        let kinds = kinds.iter().map(|name| {
            JobKind::from_name(name).ok_or_else(|| Refused::bad(format!("kind: there is no kind {name}")))
        });
        let kinds = kinds.collect::<Result<_, _>>()?;
        let labels = match asked.take("label") {
            None => BTreeMap::new(),
            Some(value) => {
                serde_json::from_value(value).map_err(|_| Refused::bad("label: it is a map of texts"))?
            }
        };
        let filter = JobFilter {
            states,
            kinds,
            labels,
            name: asked.text("name")?,
            group: asked.text("group")?.map(|name| GroupName::from(name.as_str())),
            node: asked.text("node")?.map(|name| InstanceName::from(name.as_str())),
            since: asked.time("since")?,
            until: asked.time("until")?,
            before: asked.number("before")?.map(JobId),
        };
        let limit = asked.count("limit")?.unwrap_or(PAGE).clamp(1, PAGE_MAX);
        asked.end()?;
        let page = self.driver.store.list(filter, limit).await?;
        let jobs: Vec<Value> = page.jobs.iter().map(answers::job).collect();
        Ok(json!({"jobs": jobs, "next": page.next.map(|id| id.0)}))
    }
}
