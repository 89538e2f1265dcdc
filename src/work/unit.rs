//! The life of a unit of work; pure. Owns the states, and how each event changes a unit. The state only moves forward,
//! and the first final state and its Detail stay, whatever comes later. Knows no files, processes, clock or network:
//! the modules that do tell it of [`UnitEvent`]s.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use rand::RngExt as _;
use serde::{Serialize, Serializer};

pub use crate::rpc::UnitState as State;
use crate::wire::NodeId;

/// How the Detail of a unit begins if the daemon ended before it could start the unit (docs/protocol.md#details).
pub(crate) const PENDING_AT_RESTART: &str = "Pending at restart";
/// How the Detail of a unit begins if its payload stopped half way.
pub(crate) const INPUT_CUT: &str = "Error reading input data";

/// How the Detail of a unit begins if its command could not be started.
const START_ERROR: &str = "Error starting worker: ";

/// The Detail of a running unit while the process ID of its command is unknown.
pub(crate) const RUNNING: &str = "Running";

/// The longest unit ID, in bytes: the longest file name.
const MAX_UNIT_ID: usize = 255;

/// The longest unit ID that a client may choose, in bytes.
const MAX_CHOSEN: usize = 200;
/// The most characters of the node's ID in a unit ID, and the number of random ones after them.
const MAX_OF_NODE: usize = 128;
const RANDOM: usize = 8;
/// Digits of the install's ID in the ID of a controller's unit.
const INSTALL: usize = 8;

/// A unit's ID, safe as the name of a directory: letters, digits and `-_.:@`, not starting with a dot. IDs that are
/// made or chosen here have only letters and digits, because Go nodes read no others.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(Arc<str>);

/// A text that cannot be a unit ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a unit ID: letters, digits and -_.:@ only, at most {MAX_UNIT_ID}, no dot in front")]
pub struct InvalidUnitId(pub String);

/// A text that a client may not choose as the ID of a unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("workUnitID {0:?} cannot be a unit ID: letters and digits only, at most {MAX_CHOSEN}")]
pub struct NotChoosable(String);

impl UnitId {
    /// Makes an ID as receptor does: the letters and digits of the node's ID, then random ones.
    pub fn made_by(node: &NodeId) -> Self {
        let of_node = node.as_str().chars().filter(char::is_ascii_alphanumeric).take(MAX_OF_NODE);
        let random = rand::rng().sample_iter(rand::distr::Alphanumeric).take(RANDOM).map(char::from);
        Self(of_node.chain(random).collect::<String>().into())
    }

    /// The ID that a client chose for a new unit.
    ///
    /// # Errors
    /// [`NotChoosable`], because the ID becomes the name of a directory, and Go nodes read it.
    pub fn chosen(text: &str) -> Result<Self, NotChoosable> {
        let good = (1..=MAX_CHOSEN).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        if good { Ok(Self(text.into())) } else { Err(NotChoosable(text.chars().take(MAX_CHOSEN).collect())) }
    }

    /// Whether a client could have chosen this ID.
    pub fn is_choosable(&self) -> bool {
        Self::chosen(self.as_str()).is_ok()
    }

    /// Whether this has the form of a job child's ID: `c`, then the ID of its install, then `n`.
    pub fn is_child(&self) -> bool {
        let rest = self.as_str().strip_prefix('c').and_then(|rest| rest.split_at_checked(INSTALL));
        let is_hex = |install: &str| install.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        rest.is_some_and(|(install, rest)| is_hex(install) && rest.starts_with('n'))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, shared.
    pub(crate) fn to_shared(&self) -> Arc<str> {
        self.0.clone()
    }
}

/// The number of the job that a unit was made for, if its ID is that of a job's child.
pub fn job_of(unit: &str) -> Option<u64> {
    let is_child = unit.parse::<UnitId>().is_ok_and(|unit| unit.is_child());
    let number = unit.get(1 + INSTALL + 1..).filter(|_| is_child)?;
    number.split_once('a')?.0.parse().ok()
}

impl FromStr for UnitId {
    type Err = InvalidUnitId;
    fn from_str(text: &str) -> Result<Self, InvalidUnitId> {
        let safe = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@".contains(&b);
        let good =
            (1..=MAX_UNIT_ID).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(safe);
        if good {
            Ok(Self(text.into()))
        } else {
            Err(InvalidUnitId(text.chars().take(MAX_UNIT_ID).collect()))
        }
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for UnitId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

/// What happened to a unit. Sizes are bytes of stdout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnitEvent {
    /// The unit exists and its payload may come.
    PayloadAwaited,
    /// The payload is complete and on disk.
    PayloadComplete,
    /// The payload stopped half way, for this cause.
    PayloadCut(String),
    /// The unit waits in the queue: this number of units of its type run already.
    Queued(u32),
    /// A remote unit found no way to its node, for this cause; it will be tried again.
    Waiting(String),
    /// The command runs under this process ID.
    Started(u32),
    /// A runner has the unit. The process ID of its command is not known yet.
    Claimed,
    /// The command could not be started, for this cause.
    StartFailed(String),
    /// The other node's certificate is not accepted, or ours is missing: the whole Detail.
    TlsFailed(String),
    /// The runner or the remote node reports state, Detail and size.
    Reported(State, String, u64),
    /// Something on this node, such as a full disk, keeps the unit from going on for now. It needs no request to go on
    /// later.
    Blocked(String),
    /// The runner is gone and left no final state.
    RunnerVanished {
        /// A client had asked for cancellation.
        cancelled: bool,
        /// Processes of the unit that outlived the runner and were killed.
        killed: usize,
        /// A text about those that could not be killed.
        left: Option<String>,
        /// Bytes of stdout.
        stdout_size: u64,
    },
    /// A restarted daemon found that the unit had not started and has no runner.
    Restarted,
    /// The unit was cancelled before anything ran.
    CancelledEarly,
    /// A remote unit was cancelled before the remote node had it.
    CancelledLocally,
    /// The remote node does not know the unit any more.
    RemoteGone {
        /// The node.
        node: String,
        /// Bytes of stdout that have come from there.
        stdout_size: u64,
    },
    /// The time to live ended, at the given time, before the unit had started.
    Expired(String),
}

/// The part of a status that events change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Where the unit stands.
    pub state: State,
    /// Phase and cause, in words for people.
    pub detail: String,
    /// Bytes of stdout, as far as known.
    pub stdout_size: u64,
    /// Whether the payload is still to come. After a restart, such a unit can never start.
    pub awaits_payload: bool,
}

impl Life {
    /// A unit that has just been made.
    pub fn new() -> Self {
        Self { state: State::Pending, detail: UNIT_CREATED.into(), stdout_size: 0, awaits_payload: true }
    }

    /// The life that a file or an answer describes. Go nodes show only by Detail that the payload is still to come.
    pub fn read(state: State, detail: String, stdout_size: u64) -> Self {
        let awaits_payload =
            state == State::Pending && [UNIT_CREATED, WAITING_FOR_INPUT].contains(&detail.as_str());
        Self { state, detail, stdout_size, awaits_payload }
    }

    /// Whether the payload is still to come but Detail does not show it.
    pub fn hides_awaited_payload(&self) -> bool {
        let shown = Self::read(self.state, self.detail.clone(), 0);
        self.awaits_payload && !shown.awaits_payload
    }

    /// Whether the unit has not started, and cannot unless its payload is sent again.
    pub(crate) fn lacks_payload(&self) -> bool {
        let ended_early = [INPUT_CUT, PENDING_AT_RESTART].iter().any(|early| self.detail.starts_with(early));
        self.awaits_payload || self.state == State::Failed && ended_early
    }

    /// Applies an event, and says whether anything changed. An event that would move the state back, or that comes
    /// after a final state, changes nothing.
    pub fn apply(&mut self, event: &UnitEvent) -> bool {
        if self.state.is_final() {
            return false;
        }
        let size = self.stdout_size;
        let (state, detail, stdout_size) = match event {
            UnitEvent::PayloadAwaited => (State::Pending, WAITING_FOR_INPUT.into(), size),
            UnitEvent::PayloadComplete => (State::Pending, "Starting Worker".into(), size),
            UnitEvent::PayloadCut(cause) => {
                (State::Failed, format!("{INPUT_CUT}: {cause}; submit the job again"), size)
            }
            UnitEvent::Queued(running) => {
                (State::Pending, format!("Queued: {running} units of its work type run already"), size)
            }
            UnitEvent::Waiting(cause) => (State::Pending, cause.clone(), size),
            UnitEvent::Started(pid) => (State::Running, format!("Running: PID {pid}"), size),
            UnitEvent::Claimed => (State::Running, RUNNING.into(), size),
            UnitEvent::StartFailed(cause) => (State::Failed, format!("{START_ERROR}{cause}"), size),
            UnitEvent::TlsFailed(text) => (State::Failed, text.clone(), size),
            UnitEvent::Reported(state, detail, size) => (*state, detail.clone(), *size),
            UnitEvent::Blocked(cause) => (self.state, cause.clone(), size),
            UnitEvent::RunnerVanished { cancelled, stdout_size, killed, left } => {
                let (state, detail) = match cancelled {
                    true => (State::Canceled, "Canceled".to_owned()),
                    false => (State::Failed, runner_vanished(*killed)),
                };
                let left = left.as_ref().map_or_else(String::new, |left| format!(" ({left})"));
                (state, detail + &left, *stdout_size)
            }
            UnitEvent::Restarted => (State::Failed, pending_at_restart(), size),
            UnitEvent::CancelledEarly => (State::Canceled, "Canceled".into(), size),
            UnitEvent::CancelledLocally => (State::Failed, "Locally Cancelled".into(), size),
            UnitEvent::RemoteGone { node, stdout_size } => (State::Failed, remote_gone(node), *stdout_size),
            UnitEvent::Expired(when) => (State::Failed, self.expired(when), size),
        };
        if state < self.state {
            return false;
        }
        let awaits_payload =
            self.awaits_payload && state == State::Pending && *event != UnitEvent::PayloadComplete;
        let mut next = Self { state, detail, stdout_size: stdout_size.max(size), awaits_payload };
        // Output that was counted while the unit ran may be lost, by a power loss or because no node has it any more.
        if state.is_final() && stdout_size < size {
            next.lose_output(stdout_size);
        }
        let changed = next != *self;
        *self = next;
        changed
    }

    /// Why the command could not be started, if that is how the unit failed.
    pub(crate) fn start_error(&self) -> Option<&str> {
        self.detail.strip_prefix(START_ERROR).filter(|_| self.state == State::Failed)
    }

    /// Lowers the size to the output that is left, and says so in Detail.
    pub fn lose_output(&mut self, left: u64) {
        self.detail.push_str(&format!(
            " (its stdout holds {left} of {} bytes: the rest was lost)",
            self.stdout_size
        ));
        self.stdout_size = left;
    }

    /// The Detail of an expired unit, with what had prevented its start.
    fn expired(&self, when: &str) -> String {
        format!(
            "Work unit expired on {when}, before it had started ({}); make sure that the node can be reached, or give a longer ttl",
            self.detail
        )
    }
}

impl Default for Life {
    fn default() -> Self {
        Self::new()
    }
}

const UNIT_CREATED: &str = "Unit Created";
const WAITING_FOR_INPUT: &str = "Waiting for Input Data";

fn pending_at_restart() -> String {
    format!("{PENDING_AT_RESTART}: the daemon ended before the job could start; submit it again")
}

fn remote_gone(node: &str) -> String {
    format!(
        "Remote work unit is gone: node {node} does not know it any more, because it was released there or the \
         node's data directory was emptied; check whether the job has done its work before submitting it again"
    )
}

fn runner_vanished(killed: usize) -> String {
    let rest = match killed {
        0 => "none of the job's processes was left".to_owned(),
        1 => "the job's last process was killed after it".to_owned(),
        more => format!("{more} processes of the job were killed after it"),
    };
    format!(
        "The job's runner process ended without a result: it was killed, or the machine restarted ({rest}); look \
         for an out-of-memory kill in the system's log, then submit the job again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_unit_of_an_attempt_names_its_job() {
        for (unit, job) in [
            ("c0123abcdn42a1rdeadbeef", Some(42)),
            ("c0123abcdn42", None),
            ("c0123abcdna1r0", None),
            ("c0123abcdh1a1r0", None),
            ("n42a1", None),
            ("", None),
            ("c0123abcdn99999999999999999999999a1", None),
        ] {
            assert_eq!(job_of(unit), job, "{unit}");
        }
    }

    fn state() -> impl Strategy<Value = State> {
        (0_u64..5).prop_map(|n| State::from_number(n).unwrap())
    }

    fn event() -> impl Strategy<Value = UnitEvent> {
        prop_oneof![
            Just(UnitEvent::PayloadAwaited),
            Just(UnitEvent::PayloadComplete),
            "[a-z]{0,3}".prop_map(UnitEvent::PayloadCut),
            "[a-z]{0,3}".prop_map(UnitEvent::Waiting),
            (1_u32..9).prop_map(UnitEvent::Started),
            Just(UnitEvent::Claimed),
            "[a-z]{0,3}".prop_map(UnitEvent::StartFailed),
            "[a-z]{0,3}".prop_map(UnitEvent::Blocked),
            (1_u32..9).prop_map(UnitEvent::Queued),
            (state(), "[a-z]{0,3}", 0_u64..99).prop_map(|(s, d, n)| UnitEvent::Reported(s, d, n)),
            (any::<bool>(), 0_u64..99, 0_usize..3).prop_map(|(cancelled, stdout_size, killed)| {
                UnitEvent::RunnerVanished { cancelled, stdout_size, killed, left: None }
            }),
            Just(UnitEvent::Restarted),
            Just(UnitEvent::CancelledEarly),
            Just(UnitEvent::CancelledLocally),
            ("[a-z]{0,3}", 0_u64..99)
                .prop_map(|(node, stdout_size)| UnitEvent::RemoteGone { node, stdout_size }),
            Just(UnitEvent::Expired("today".into())),
        ]
    }

    proptest! {
        #[test]
        fn state_only_moves_forward_and_the_first_end_stays(events in proptest::collection::vec(event(), 0..20)) {
            let mut life = Life::new();
            for event in &events {
                let before = life.clone();
                let changed = life.apply(event);
                prop_assert_eq!(changed, before != life);
                prop_assert!(life.state >= before.state);
                prop_assert!(life.stdout_size >= before.stdout_size || life.state.is_final());
                if before.state.is_final() {
                    prop_assert_eq!(&life, &before);
                }
            }
        }

        #[test]
        fn a_unit_always_has_a_way_to_its_end(events in proptest::collection::vec(event(), 0..20)) {
            let mut life = Life::new();
            for event in &events {
                life.apply(event);
            }
            life.apply(&UnitEvent::RunnerVanished { cancelled: false, stdout_size: 0, killed: 0, left: None });
            prop_assert!(life.state.is_final() && !life.awaits_payload);
        }
    }

    #[test]
    fn ids_are_safe_names_of_directories() {
        for good in ["abcd1234", "A", "10.0.0.1-abcdEFGH", "node_1:x@y"] {
            assert_eq!(good.parse::<UnitId>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".x", "a/b", "a b", "a\0", "ä", &"x".repeat(256)] {
            assert!(bad.parse::<UnitId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_made_here_are_of_receptors_shape() {
        let long = "x-".repeat(120);
        for (node, prefix) in [
            ("foo", "foo".to_owned()),
            ("10.0.0.1:2_@b", "100012b".to_owned()),
            ("-_.", String::new()),
            ("ä", String::new()),
            (&long, "x".repeat(120)),
            (&"y".repeat(255), "y".repeat(128)),
        ] {
            let id = UnitId::made_by(&NodeId::new(node).unwrap());
            let rest = id.as_str().strip_prefix(prefix.as_str()).unwrap_or_else(|| panic!("{node}: {id}"));
            assert!(rest.len() == 8 && rest.bytes().all(|b| b.is_ascii_alphanumeric()), "{node}: {id}");
        }
    }

    #[test]
    fn a_chosen_id_is_letters_and_digits() {
        for good in ["a", "fooOdeZdKuE", &"x".repeat(200)] {
            assert_eq!(UnitId::chosen(good).unwrap().as_str(), good);
        }
        for bad in ["", "a-b", "a.b", "..", "a/b", "a b", "ä", "a\0", &"x".repeat(201)] {
            assert!(UnitId::chosen(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_end_counts_the_output_that_is_left() {
        let mut life = Life::new();
        life.apply(&UnitEvent::Reported(State::Running, "Running".into(), 163));
        life.apply(&UnitEvent::RemoteGone { node: "n".into(), stdout_size: 5 });
        assert_eq!((life.state, life.stdout_size), (State::Failed, 5));
        assert!(
            life.detail.ends_with("(its stdout holds 5 of 163 bytes: the rest was lost)"),
            "{}",
            life.detail
        );
    }

    #[test]
    fn details_are_the_ones_that_clients_look_at() {
        let mut life = Life::new();
        assert!(life.awaits_payload);
        life.apply(&UnitEvent::PayloadAwaited);
        assert!(life.awaits_payload && Life::read(State::Pending, life.detail.clone(), 0).awaits_payload);
        life.apply(&UnitEvent::Blocked("no room".into()));
        assert!(life.awaits_payload && life.state == State::Pending);
        life.apply(&UnitEvent::PayloadComplete);
        assert!(!life.awaits_payload);
        assert!(!Life::read(State::Pending, life.detail.clone(), 0).awaits_payload);
        assert!(!Life::read(State::Failed, "Unit Created".into(), 0).awaits_payload);
        life.apply(&UnitEvent::Started(7));
        assert_eq!((life.state, life.detail.as_str()), (State::Running, "Running: PID 7"));
        life.apply(&UnitEvent::Reported(State::Failed, "exit status 2".into(), 5));
        life.apply(&UnitEvent::RemoteGone { node: "n".into(), stdout_size: 9 });
        assert_eq!((life.detail.as_str(), life.stdout_size), ("exit status 2", 5));
    }
}
