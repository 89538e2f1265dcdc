//! What operators ask of a controller: lists, explanations, cancels, and changes of instances and groups. Owns the names
//! of operations and their arguments; the shapes of answers are `answers`'.

mod arguments;
mod backup;
mod groups;
mod instances;
mod jobs;
mod streams;

use serde_json::{Map, Value, json};

use self::arguments::Arguments;
use super::answers;
use super::core::{GroupName, InstanceName};
use super::options::ControllerOptions;
use super::service::Service;
use super::store::{Audit, Error};

pub use self::streams::JobStream;

/// The program's version.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What an operation gives.
#[derive(Debug)]
pub enum Operated {
    /// Its result.
    Done(Value),
    /// What it says first, and the bytes that follow.
    Stream(Value, Box<JobStream>),
}

/// The answer to an operation, as one JSON object.
pub fn line(result: Result<Value, Refused>) -> Value {
    match result {
        Ok(result) => json!({"ok": true, "result": result}),
        Err(Refused { code, message }) => json!({"ok": false, "error": {"code": code, "message": message}}),
    }
}

/// Why an operation was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// For programs.
    pub code: &'static str,
    /// For people.
    pub message: String,
}

impl Refused {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { code: "bad_request", message: message.into() }
    }

    fn conflict(message: impl Into<String>) -> Self {
        Self { code: "conflict", message: message.into() }
    }

    fn missing(message: impl Into<String>) -> Self {
        Self { code: "not_found", message: message.into() }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Away(_) => "store_away",
            Error::Fenced(_) | Error::Expired(_) | Error::Unready(_) => "owner_away",
            Error::NoJob(_) | Error::NoInstance(_) | Error::NoGroup(_) | Error::NoDependency(_) => {
                "not_found"
            }
            Error::Conflict(_) | Error::Job(_) | Error::KeyTaken { .. } => "conflict",
            Error::Full(_)
            | Error::Refused(_)
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

impl Service {
    /// Carries out one operation for a caller with all rights.
    ///
    /// # Errors
    /// [`Refused`]
    pub async fn operate(&self, mut request: Map<String, Value>, who: &str) -> Result<Operated, Refused> {
        let Some(Value::String(op)) = request.remove("op") else {
            return Err(Refused::bad("op: it is missing"));
        };
        let asked = Arguments { op, left: request };
        match asked.op.as_str() {
            "job.output" => self.stream_output(asked).await,
            "job.events" => self.stream_events(asked).await,
            _ => self.answer(asked, who).await.map(Operated::Done),
        }
    }

    /// Carries out one operation whose answer is one object.
    async fn answer(&self, mut asked: Arguments, who: &str) -> Result<Value, Refused> {
        let op = asked.op.clone();
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
            "clock.confirm" => {
                asked.end()?;
                Ok(answers::clock(&self.driver.store.confirm_clock(audit("")).await?))
            }
            "instance.list" => self.list_instances(asked).await,
            "instance.get" => {
                let name = asked.name("name")?;
                asked.end()?;
                self.instance(&name).await
            }
            "instance.enable" => self.enable_instance(asked, audit("")).await,
            "instance.disable" => self.disable_instance(asked, audit("")).await,
            "instance.add" => self.add_instance(asked, audit("")).await,
            "instance.set" => self.set_instance(asked, audit("")).await,
            "instance.health" => self.check_health(asked, audit("")).await,
            "instance.remove" => {
                let name = asked.name("name")?;
                let dead = asked.flag("dead")?.unwrap_or(false);
                let _drain = asked.flag("drain")?;
                asked.end()?;
                let instance = InstanceName::from(name.as_str());
                let gone = match dead {
                    true if instance == self.driver.node => {
                        let alive =
                            "this control node answers, so it is not dead: ask another one, or drain it";
                        return Err(Refused::conflict(alive));
                    }
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
                self.delete_group(name.clone(), audit(&name)).await
            }
            "job.list" => self.list_jobs(asked).await,
            "job.get" => {
                let id = asked.job()?;
                asked.end()?;
                self.job(id).await
            }
            "job.hosts" => self.list_hosts(asked).await,
            "job.rerun" => self.rerun_job(asked, audit("")).await,
            "job.delete" => {
                let id = asked.job()?;
                asked.end()?;
                self.delete_job(id, audit("")).await
            }
            "policy.run" => self.run_policies(asked, audit("")).await,
            "cleanup" => {
                asked.end()?;
                self.driver.store.record(audit("")).await?;
                Ok(json!({"instances": self.clean_up().await?}))
            }
            "backup" => {
                let path = asked.name("path")?;
                asked.end()?;
                self.back_up(&path, audit(&path)).await
            }
            "job.explain" => {
                let id = asked.job()?;
                asked.end()?;
                let require_tls = self.driver.options().require_tls;
                let explained = self.driver.store.explain(id, require_tls).await?;
                let job = self.driver.store.job(id).await?;
                Ok(answers::explanation(&job, explained, self.driver.pod_detail(&job)))
            }
            "job.cancel" => {
                let id = asked.job()?;
                asked.end()?;
                self.driver.store.cancel(Some(audit(&id.to_string())), id).await?;
                self.driver.show(id).await?;
                self.job(id).await
            }
            other => Err(Refused { code: "unknown_op", message: format!("there is no operation {other}") }),
        }
    }

    /// What is here, and how it stands: nodes and groups by name, none of them while the store is away.
    async fn ping(&self) -> Result<Value, Refused> {
        let store = &self.driver.store;
        let seen = async {
            Ok::<_, Error>((store.is_paused().await?, store.overview().await?, store.clock().await?))
        };
        let (paused, overview, clock, error) = match seen.await {
            Ok((paused, overview, clock)) => (Some(paused), Some(overview), Some(clock), None),
            Err(error) => (None, None, None, Some(error.to_string())),
        };
        let nodes = overview.iter().flat_map(|overview| answers::instances(overview, &self.driver));
        let nodes = nodes.map(|one| {
            json!({
                "node": one["name"], "node_type": one["node_type"], "node_state": one["node_state"],
                "uuid": one["uuid"], "heartbeat": one["last_seen"], "capacity": one["capacity"],
                "consumed": one["consumed_capacity"], "version": one["version"], "errors": one["errors"],
            })
        });
        let groups = overview.iter().flat_map(answers::groups);
        let groups = groups.map(|one| {
            let members = one["members"].as_array().into_iter().flatten();
            let members: Vec<Value> = members.map(|member| member["name"].clone()).collect();
            json!({
                "name": one["name"], "capacity": one["capacity"], "consumed": one["consumed_capacity"],
                "running": one["jobs_running"], "members": members,
            })
        });
        let error = self.driver.halted().or(error);
        Ok(json!({
            "version": VERSION,
            "node": self.driver.node.to_string(),
            "active_node": self.driver.node.to_string(),
            "install": format!("{:08x}", self.driver.install),
            "paused": paused,
            "clock": clock.as_ref().map(answers::clock),
            "store": store_state(&self.driver.options(), error, store.times_away()),
            "nodes": by_name(nodes.collect(), "node"),
            "groups": by_name(groups.collect(), "name"),
        }))
    }
}

/// How the store stands, for a ping.
pub(super) fn store_state(options: &ControllerOptions, error: Option<String>, times_away: u64) -> Value {
    let kind = match options.store.split(':').next() {
        Some("sqlite") | None => "sqlite",
        Some(_) => "postgresql",
    };
    json!({"kind": kind, "up": error.is_none(), "error": error, "times_away": times_away})
}

fn by_name(mut records: Vec<Value>, key: &str) -> Vec<Value> {
    records.sort_by(|one, other| one[key].as_str().cmp(&other[key].as_str()));
    records
}
