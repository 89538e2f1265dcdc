//! Counts units when operators look. Keeps nothing: units note themselves how long they wait and run.

use std::collections::{BTreeMap, BTreeSet};

use super::Registry;
use crate::work::figures::{OTHER, WorkFigures};
use crate::work::jobs::CONTROLLER;
use crate::work::status::REMOTE;
use crate::work::unit::State;

impl Registry {
    /// What is counted at the moment.
    pub async fn figures(&self) -> WorkFigures {
        let mut figures = WorkFigures {
            disk: self.disk().await,
            pieces: self.pieces.total(),
            carried: self.executor.remotes.keepers().figures(),
            kubernetes: self.executor.pods.calls(),
            ..WorkFigures::default()
        };
        let types = self.executor.local.type_names().into_iter();
        let known: BTreeSet<String> = types.chain([REMOTE, CONTROLLER].map(str::to_owned)).collect();
        let name = |work_type: &str| known.get(work_type).map_or(OTHER, String::as_str);
        let mut units: BTreeMap<(&str, State), u64> = BTreeMap::new();
        for entry in self.units.all() {
            let status = entry.status();
            *units.entry((name(&status.work_type), status.life.state)).or_default() += 1;
            if status.work_type == CONTROLLER {
                figures.job_output += status.life.stdout_size;
            }
        }
        figures.units =
            units.into_iter().map(|((kind, state), count)| ((kind.to_owned(), state), count)).collect();
        self.units.timings().add_to(&mut figures, name);
        figures
    }
}
