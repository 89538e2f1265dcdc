//! A scripted controller for the units of a node. It can permit or refuse that payloads are sent, and can keep the IDs
//! that nodes give or fail to. It gets no jobs.

use std::sync::Arc;

use meshd::work::UnitId;
use meshd::work::jobs::{Act, JobController, JobExtra, JobIntake, JobRequest, JobUnit};
use parking_lot::{Mutex, MutexGuard};

#[derive(Clone, Default)]
pub(crate) struct Owner(Arc<Mutex<Told>>);

#[derive(Default)]
pub(crate) struct Told {
    /// Whether payloads may be sent.
    pub(crate) may_send: bool,
    /// How often that was asked.
    pub(crate) asked: u32,
    /// Whether its store is there.
    pub(crate) keeps: bool,
    /// Units, and the IDs that their nodes gave them.
    pub(crate) kept: Vec<(String, String)>,
}

impl Owner {
    /// A controller whose store is there if `keeps`.
    pub(crate) fn new(keeps: bool) -> Self {
        Self(Arc::new(Mutex::new(Told { keeps, ..Told::default() })))
    }

    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock()
    }
}

impl JobController for Owner {
    fn verifies_signatures(&self) -> bool {
        false
    }

    fn begin(&self, _request: JobRequest) -> Result<(JobExtra, Box<dyn JobIntake>), String> {
        unreachable!()
    }

    fn resume(&self, _unit: JobUnit) -> Act<'_, ()> {
        unreachable!()
    }

    fn cancel(&self, _unit: UnitId) -> Act<'_, Result<(), String>> {
        unreachable!()
    }

    fn forget(&self, _unit: UnitId) -> Act<'_, ()> {
        unreachable!()
    }

    fn may_send(&self, _unit: UnitId) -> Act<'_, bool> {
        let mut told = self.told();
        told.asked += 1;
        Box::pin(std::future::ready(told.may_send))
    }

    fn keep_far_id(&self, unit: UnitId, id: String) -> Act<'_, Result<(), String>> {
        let mut told = self.told();
        let kept = match told.keeps {
            true => {
                told.kept.push((unit.to_string(), id));
                Ok(())
            }
            false => Err("the store is away".to_owned()),
        };
        Box::pin(std::future::ready(kept))
    }

    fn parent(&self, _unit: &UnitId) -> Option<i64> {
        None
    }
}
