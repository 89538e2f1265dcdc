//! Rows of the job, which `controller::core` changes: what the model writes to its store goes through the product's own
//! functions. A row is a number here, so that a state of the model is small; each change of each row is computed once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use meshd::controller::core::{
    AttemptNo, ChildEnd, ChildId, ChildType, Driven, Duty, Epoch, Evidence, Fence, FinalStatus, Job, JobId,
    JobKind, JobState, OnLoss, Placement, Progress, Refused, Retry, Time,
};

/// A row that some history comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row(u16);

/// Who writes: a control node and the epoch of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pen {
    pub(crate) node: usize,
    pub(crate) epoch: u8,
}

/// A change of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// Slot: the number of the unit, which no later one gets again.
    Place(Pen, u8),
    Accepted(Pen, usize),
    /// Its stream has told that it succeeded; it was not cancelled.
    Ended(Pen, usize, bool, bool),
    Unknown(Pen, usize),
    /// Its instance does not know it, and promises nothing.
    Missing(Pen, usize),
    /// Its stream has told that it succeeded.
    Lost(Pen, usize, bool),
    Swept(Pen, usize),
    TakeOver(Pen),
    Cancel,
    /// An operator has said that nothing runs on the instance.
    DeclareDead,
    /// An operator has said that a lost attempt never runs any more.
    ConfirmLost(usize),
}

/// What the model looks at in a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) state: JobState,
    pub(crate) is_cancelled: bool,
    pub(crate) owner: Option<Pen>,
    pub(crate) attempts: [Option<Try>; 2],
    pub(crate) can_be_placed: bool,
}

/// An attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Try {
    pub(crate) slot: usize,
    pub(crate) sender: usize,
    pub(crate) progress: Progress,
    pub(crate) is_swept: bool,
    pub(crate) is_open: bool,
    pub(crate) is_current: bool,
    pub(crate) duty: Duty,
    pub(crate) is_unread: bool,
}

/// All rows so far.
pub(crate) struct Rows {
    jobs: Vec<(Job, View)>,
    numbers: HashMap<String, Row>,
    changed: HashMap<(Row, Change), Option<Row>>,
}

const NAMES: [&str; 2] = ["c1", "c2"];
const NOW: Time = Time(0);

impl Rows {
    /// The first row: a job that may be retried so often.
    pub(crate) fn new(retries: u32) -> (Self, Row) {
        let retry = Retry { max: retries, on_error: retries > 0, ..Retry::default() };
        let job = Job { retry, ..Job::new(JobId(1), JobKind::Job, 1, NOW) };
        let mut rows = Self { jobs: Vec::new(), numbers: HashMap::new(), changed: HashMap::new() };
        let first = rows.number(job);
        (rows, first)
    }

    pub(crate) fn view(&self, row: Row) -> View {
        self.jobs[usize::from(row.0)].1
    }

    /// The row after a change; `None` if its writer is fenced.
    pub(crate) fn change(&mut self, row: Row, change: Change) -> Option<Row> {
        if let Entry::Occupied(known) = self.changed.entry((row, change)) {
            return *known.get();
        }
        let mut job = self.jobs[usize::from(row.0)].0.clone();
        let changed = match change.apply(&mut job) {
            Ok(()) => Some(self.number(job)),
            Err(Refused::Fenced(_)) => None,
            Err(other) => panic!("{change:?} of {job:?}: {other}"),
        };
        self.changed.insert((row, change), changed);
        changed
    }

    fn number(&mut self, job: Job) -> Row {
        let new = Row(u16::try_from(self.jobs.len()).expect("there are few rows"));
        let row = *self.numbers.entry(format!("{job:?}")).or_insert(new);
        if row == new {
            let view = view(&job);
            self.jobs.push((job, view));
        }
        row
    }
}

impl Change {
    fn apply(self, job: &mut Job) -> Result<(), Refused> {
        let mut drive = |pen: Pen, report: &dyn Fn(&mut Driven<'_>) -> Result<(), Refused>| {
            report(&mut job.driven_by(&pen.fence())?)
        };
        match self {
            Self::Place(pen, slot) => {
                let place = Placement {
                    job: job.id,
                    owner: NAMES[pen.node].into(),
                    execution_node: Some("e1".into()),
                    group: "default".into(),
                    child: ChildType::Runner,
                };
                let (attempt, random) = (job.next_attempt(), u32::from(slot));
                let unit = ChildId { install: 0, job: job.id, attempt, random };
                job.place(&place, unit, pen.fence(), NOW).map(drop)
            }
            Self::Accepted(pen, at) => drive(pen, &|job| job.on_accepted(number(at), NOW)),
            Self::Ended(pen, at, told, succeeded) => {
                drive(pen, &|job| job.on_ended(number(at), &evidence(told, succeeded), NOW))
            }
            Self::Unknown(pen, at) => drive(pen, &|job| job.on_unknown(number(at), NOW)),
            Self::Missing(pen, at) => drive(pen, &|job| job.on_missing(number(at), NOW)),
            Self::Lost(pen, at, told) => drive(pen, &|job| {
                let said = told.then(|| evidence(true, false));
                job.on_lost_after(number(at), said.as_ref(), NOW);
                Ok(())
            }),
            Self::Swept(pen, at) => drive(pen, &|job| job.on_swept(number(at))),
            Self::TakeOver(pen) => {
                job.take_over(pen.fence(), OnLoss::TakeOver, NOW);
                Ok(())
            }
            Self::Cancel => {
                job.request_cancel(NOW);
                Ok(())
            }
            Self::DeclareDead => {
                job.on_declared_dead(&"e1".into(), NOW);
                Ok(())
            }
            Self::ConfirmLost(at) => job.confirm_lost(number(at)),
        }
    }
}

impl Pen {
    fn fence(self) -> Fence {
        Fence { owner: NAMES[self.node].into(), epoch: Epoch(i64::from(self.epoch)) }
    }
}

fn number(at: usize) -> AttemptNo {
    AttemptNo(u32::try_from(at + 1).expect("there are few attempts"))
}

fn evidence(told: bool, succeeded: bool) -> Evidence {
    Evidence {
        status: told.then_some(FinalStatus::Successful),
        has_end: told,
        job_explanation: None,
        child: if succeeded { ChildEnd::Succeeded } else { ChildEnd::Canceled },
        detail: String::new(),
        tail: String::new(),
        failure: None,
        before_playbook: None,
    }
}

fn view(job: &Job) -> View {
    let owner = job.fence.as_ref().map(|fence| Pen {
        node: NAMES.iter().position(|name| *name == fence.owner.as_str()).expect("one of the two"),
        epoch: u8::try_from(fence.epoch.0).expect("it is small"),
    });
    let mut attempts = [None; 2];
    for (at, (attempt, (_, duty))) in job.attempts.iter().zip(job.duties()).enumerate() {
        attempts[at] = Some(Try {
            slot: attempt.unit.random as usize,
            sender: NAMES.iter().position(|name| *name == attempt.sender.as_str()).expect("one of the two"),
            progress: attempt.progress,
            is_swept: attempt.swept,
            is_open: attempt.is_open(),
            is_current: at + 1 == job.attempts.len(),
            duty,
            is_unread: attempt.has_unread_output(),
        });
    }
    View {
        state: job.state,
        is_cancelled: job.cancel_requested,
        owner,
        attempts,
        can_be_placed: job.state == JobState::Pending && job.hold().is_none() && job.attempts.len() < 2,
    }
}

impl View {
    /// The latest attempt, and where it stands.
    pub(crate) fn current(&self) -> Option<(usize, Try)> {
        self.tries().last()
    }

    pub(crate) fn tries(&self) -> impl Iterator<Item = (usize, Try)> + use<> {
        self.attempts.into_iter().flatten().enumerate()
    }

    pub(crate) fn is_owned_by(&self, node: usize) -> bool {
        self.owner.is_some_and(|pen| pen.node == node)
    }

    /// The attempt whose unit has that slot.
    pub(crate) fn of_slot(&self, slot: usize) -> Option<Try> {
        self.tries().find(|(_, attempt)| attempt.slot == slot).map(|(_, attempt)| attempt)
    }
}
