//! A small cluster in which anything may happen: jobs as the core sees them, and next to them what really
//! runs on each node, which the core only learns by contact.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// The parts of a submission that a [`Job`] does not store.
#[derive(Debug, Clone)]
pub(super) struct Submission {
    pub priority: i8,
    pub groups: Vec<(GroupName, Level)>,
    pub needs: Vec<JobId>,
    pub holders: Vec<InstanceName>,
    pub pending_timeout: Option<Duration>,
}

pub(super) struct World {
    pub instances: Vec<Instance>,
    pub groups: Vec<Group>,
    pub jobs: Vec<Job>,
    pub submissions: Vec<Submission>,
    pub now: Time,
    epochs: BTreeMap<InstanceName, i64>,
    /// Nodes that do not answer.
    cut: BTreeSet<InstanceName>,
    /// Running units.
    alive: BTreeSet<ChildId>,
    /// Units that ended, until their result is read.
    ended: BTreeMap<ChildId, FinalStatus>,
    finals: BTreeMap<JobId, Job>,
}

impl World {
    pub(super) fn new(instances: Vec<Instance>, groups: Vec<Group>) -> Self {
        Self {
            instances,
            groups,
            jobs: Vec::new(),
            submissions: Vec::new(),
            now: START,
            epochs: BTreeMap::new(),
            cut: BTreeSet::new(),
            alive: BTreeSet::new(),
            ended: BTreeMap::new(),
            finals: BTreeMap::new(),
        }
    }

    fn fence_of(&self, owner: &InstanceName) -> Fence {
        Fence { owner: owner.clone(), epoch: Epoch(self.epochs.get(owner).copied().unwrap_or(1)) }
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        self.jobs.iter().flat_map(Job::claims).collect()
    }

    fn pending(&self) -> Vec<PendingJob> {
        let state_of = |id: JobId| self.jobs.iter().find(|job| job.id == id).map(|job| job.state);
        let all = self.jobs.iter().zip(&self.submissions).filter(|(job, _)| job.state == JobState::Pending);
        all.map(|(job, submission)| PendingJob {
            id: job.id,
            kind: job.kind,
            impact: job.impact,
            priority: submission.priority,
            groups: submission.groups.clone(),
            needs: submission.needs.iter().map(|&job| Need { job, state: state_of(job) }).collect(),
            exclusive: job.exclusive.clone(),
            holders: submission.holders.clone(),
            since: job.pending_since,
            pending_timeout: submission.pending_timeout,
            hold: job.hold(),
        })
        .collect()
    }

    pub(super) fn pass(&mut self) {
        for instance in &mut self.instances {
            let is_seen = !self.cut.contains(&instance.name);
            instance.seen.values_mut().for_each(|sighting| sighting.routed = is_seen);
        }
        let (claims, pending) = (self.claims(), self.pending());
        let now = self.now;
        let scene = Scene {
            instances: &self.instances,
            groups: &self.groups,
            claims: &claims,
            require_tls: false,
            paused: false,
            now,
        };
        let decisions = pass(&scene, &pending);
        oracle::check(&scene, &pending, &decisions);
        for decision in decisions {
            match decision {
                Decision::Place(place) => {
                    let fence = self.fence_of(&place.owner);
                    let job = self.job(place.job);
                    let unit = child_id(job.id, job.next_attempt());
                    job.place(&place, unit, fence, now).expect("a pass places only what can be placed");
                }
                Decision::Fail(id, end) => self.job(id).fail_pending(end, now),
                Decision::Wait(_, _) => {}
            }
        }
    }

    fn job(&mut self, id: JobId) -> &mut Job {
        self.jobs.iter_mut().find(|job| job.id == id).expect("jobs are never deleted here")
    }

    /// The owner of a job carries out its duties, as far as nodes answer.
    pub(super) fn contact(&mut self, at: usize) {
        let now = self.now;
        let duties: Vec<_> = self.jobs[at].duties().collect();
        for (n, duty) in duties {
            let attempt = self.jobs[at].attempt(n).expect("it has duties").clone();
            if attempt.node.as_ref().is_some_and(|node| self.cut.contains(node)) {
                continue;
            }
            let unit = attempt.unit.clone();
            if duty == Duty::Send && self.jobs[at].fence.is_some() {
                assert!(!self.ended.contains_key(&unit) || attempt.progress == Progress::Placed);
                if !self.ended.contains_key(&unit) {
                    self.alive.insert(unit.clone());
                }
            }
            let result = self.ended.get(&unit).copied();
            let alive = self.alive.contains(&unit);
            let fence = self.jobs[at].fence.clone().expect("it was placed");
            let mut driven = self.jobs[at].driven_by(&fence).expect("the present fence");
            match duty {
                Duty::Nothing => {}
                Duty::Release => {
                    self.ended.remove(&unit);
                    driven.on_swept(n).unwrap();
                }
                Duty::Send | Duty::Follow | Duty::Ask => match (alive, result) {
                    (true, _) => driven.on_accepted(n, now).unwrap(),
                    (false, Some(status)) => driven.on_ended(n, &evidence(Some(status)), now).unwrap(),
                    (false, None) => driven.on_unknown(n, now).unwrap(),
                },
                Duty::Cancel => match (alive, result) {
                    (true, _) => {
                        self.alive.remove(&unit);
                        self.ended.insert(unit, FinalStatus::Canceled);
                        driven.on_ended(n, &evidence(Some(FinalStatus::Canceled)), now).unwrap();
                    }
                    (false, Some(status)) => driven.on_ended(n, &evidence(Some(status)), now).unwrap(),
                    (false, None) => driven.on_unknown(n, now).unwrap(),
                },
            }
        }
    }

    /// The running attempt of a job ends with this status.
    pub(super) fn finish(&mut self, at: usize, status: FinalStatus) {
        let id = self.jobs[at].id;
        if let Some(unit) = self.alive.iter().find(|unit| unit.job == id).cloned() {
            self.alive.remove(&unit);
            self.ended.insert(unit, status);
        }
    }

    /// A node stops answering, long enough to be lost; if it crashed, its units are gone.
    pub(super) fn lose(&mut self, at: usize, crashed: bool) {
        let name = self.instances[at].name.clone();
        self.cut.insert(name.clone());
        self.instances[at].on_lost();
        let now = self.now;
        for job in &mut self.jobs {
            let there: Vec<_> = job
                .attempts
                .iter()
                .filter(|a| a.depends_on_node(&name))
                .map(|a| (a.n, a.unit.clone()))
                .collect();
            for (n, unit) in there {
                if crashed {
                    self.alive.remove(&unit);
                    self.ended.remove(&unit);
                }
                if let Some(fence) = job.fence.clone() {
                    job.driven_by(&fence).unwrap().on_lost(n, now);
                }
            }
        }
    }

    pub(super) fn bring_back(&mut self, at: usize) {
        let name = self.instances[at].name.clone();
        self.cut.remove(&name);
        self.instances[at].node_state = NodeState::Ready;
        self.instances[at].enabled = true;
    }

    /// A lost node is declared dead, so nothing on it runs any more.
    pub(super) fn declare_dead(&mut self, at: usize) {
        let name = self.instances[at].name.clone();
        if self.cut.contains(&name) {
            for job in &mut self.jobs {
                for attempt in job.attempts.iter().filter(|attempt| attempt.depends_on_node(&name)) {
                    self.alive.remove(&attempt.unit);
                    self.ended.remove(&attempt.unit);
                }
                job.on_declared_dead(&name, self.now);
            }
        }
    }

    /// One control node takes over the jobs of another; the next write of the former owner must fail.
    pub(super) fn take_over(&mut self, from: &InstanceName, to: &InstanceName) {
        let old = self.fence_of(from);
        *self.epochs.entry(from.clone()).or_insert(1) += 1;
        let heir = self.fence_of(to);
        for job in self.jobs.iter_mut().filter(|job| job.fence.as_ref() == Some(&old)) {
            job.take_over(heir.clone(), OnLoss::TakeOver, self.now);
            let before = job.clone();
            assert!(job.driven_by(&old).is_err());
            assert_eq!(*job, before);
        }
    }

    /// The invariants.
    pub(super) fn check(&mut self) {
        for job in &self.jobs {
            let open: Vec<_> = job.attempts.iter().filter(|attempt| attempt.is_open()).collect();
            assert!(open.len() <= 1 || job.retry.unconfirmed, "two attempts at a time: {job:?}");
            let running = self.alive.iter().filter(|unit| unit.job == job.id).count();
            assert!(running <= 1 || job.retry.unconfirmed, "runs twice: {job:?}");
            let known = |unit: &&ChildId| {
                job.attempts.iter().any(|attempt| attempt.unit == **unit && attempt.is_open())
            };
            let orphans = self.alive.iter().filter(|unit| unit.job == job.id && !known(unit)).count();
            assert_eq!(orphans, 0, "a unit runs that no open attempt stands for: {job:?}");
            let progress = job.current().map(|attempt| attempt.progress);
            match job.state {
                JobState::Waiting => assert_eq!(progress, Some(Progress::Placed)),
                JobState::Running => assert_eq!(progress, Some(Progress::Running)),
                JobState::Pending => assert!(!matches!(progress, Some(Progress::Placed | Progress::Running))),
                JobState::Successful | JobState::Failed | JobState::Error | JobState::Canceled => {
                    let frozen = self.finals.entry(job.id).or_insert_with(|| job.clone());
                    assert_eq!(frozen.state, job.state);
                    assert_eq!((&frozen.explanation, frozen.finished), (&job.explanation, job.finished));
                    assert_eq!(frozen.attempts.len(), job.attempts.len(), "an attempt after the end");
                }
            }
            let ran = job.attempts.iter().filter(|a| a.ending().is_none_or(Ending::may_have_run)).count();
            assert!(ran <= job.retry.max as usize + 1, "{ran} attempts: {job:?}");
        }
    }

    /// All nodes return and everything is cancelled: nothing may be left.
    pub(super) fn wind_up(&mut self) {
        (0..self.instances.len()).for_each(|at| self.bring_back(at));
        for at in 0..self.jobs.len() {
            self.jobs[at].request_cancel(self.now);
            self.contact(at);
            self.contact(at);
            self.check();
            assert!(self.jobs[at].state.is_final(), "{:?}", self.jobs[at]);
            assert!(self.jobs[at].attempts.iter().all(|attempt| attempt.swept), "{:?}", self.jobs[at]);
        }
        let loads = Loads::sum(&self.instances, &self.groups, &self.claims());
        assert!(loads.instances.iter().all(|load| (load.consumed, load.jobs) == (0, 0)), "{loads:?}");
        assert!(self.alive.is_empty() && self.ended.is_empty(), "{:?} {:?}", self.alive, self.ended);
    }
}
