//! What operators read of jobs.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::arguments::Arguments;
use super::{Refused, answers};
use crate::controller::core::{GroupName, InstanceName, JobId, JobKind, JobState};
use crate::controller::service::Service;
use crate::controller::store::{JobFilter, PAGE_MAX};

/// Rows of a list, unless asked otherwise.
const PAGE: u32 = 50;

impl Service {
    pub(super) async fn list_jobs(&self, mut asked: Arguments) -> Result<Value, Refused> {
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
