//! Decides from a remote unit's status what is to be done next. Does none of it, and asks no node.

use crate::work::status::{RemoteExtra, Status};
use crate::work::units::Entry;

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverStep {
    /// Let the other node release its part, then delete ours.
    Release,
    /// The other node has nothing: delete ours.
    Delete,
    /// It never started and must not start.
    CancelHere,
    /// Let the other node cancel it.
    Cancel,
    /// Submit it, with its payload.
    Start,
    /// Follow it to its end.
    Follow,
    /// It ended here before the other node confirmed that it had all of it: let the other node release what it has.
    Tidy,
    /// Nothing.
    Rest,
}

impl DriverStep {
    /// Whether the step is one line and its answer, for which a client waits: such a step begins again once the route
    /// is back. The other steps move bytes, and continue over a connection that survives a change of routes.
    pub(super) fn is_brief(self) -> bool {
        match self {
            Self::Release | Self::Cancel | Self::Tidy => true,
            Self::Delete | Self::CancelHere | Self::Start | Self::Follow | Self::Rest => false,
        }
    }
}

/// Whether anything is to be done about a unit.
pub(crate) fn has_work(status: &Status) -> bool {
    next_step(status, false) != DriverStep::Rest
}

/// Decides what to do next; `cancelled` says that the other node has cancelled the unit already.
pub(super) fn next_step(status: &Status, cancelled: bool) -> DriverStep {
    let Some(remote) = status.remote() else { return DriverStep::Rest };
    let over_there = !remote.remote_unit_id.is_empty();
    match remote {
        RemoteExtra { local_released: true, .. } if over_there => DriverStep::Release,
        RemoteExtra { local_released: true, .. } => DriverStep::Delete,
        RemoteExtra { remote_started: false, .. } if status.life.state.is_final() && over_there => {
            DriverStep::Tidy
        }
        _ if status.life.state.is_final() => DriverStep::Rest,
        RemoteExtra { local_cancelled: true, remote_started: false, .. } => DriverStep::CancelHere,
        RemoteExtra { local_cancelled: true, .. } if !cancelled => DriverStep::Cancel,
        RemoteExtra { remote_started: false, .. } => DriverStep::Start,
        _ => DriverStep::Follow,
    }
}

/// What only remote units have.
pub(super) fn extra(entry: &Entry) -> RemoteExtra {
    entry.status().remote().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::status::{Extra, REMOTE};
    use crate::work::unit::State;

    fn step(state: State, cancelled: bool, change: impl FnOnce(&mut RemoteExtra)) -> DriverStep {
        let mut remote = RemoteExtra::default();
        change(&mut remote);
        let mut status = Status::new(REMOTE, Extra::Remote(Box::new(remote)));
        status.life.state = state;
        next_step(&status, cancelled)
    }

    fn there(remote: &mut RemoteExtra) {
        remote.remote_unit_id = "abcd1234".into();
        remote.remote_started = true;
    }

    #[test]
    fn every_standing_has_its_next_step() {
        use State::{Failed, Pending, Running, Succeeded};
        assert_eq!(step(Pending, false, |_| {}), DriverStep::Start);
        assert_eq!(step(Pending, false, |r| r.remote_unit_id = "x".into()), DriverStep::Start);
        assert_eq!(step(Running, false, there), DriverStep::Follow);
        assert_eq!(step(Succeeded, false, there), DriverStep::Rest);
        assert_eq!(step(Pending, false, |r| r.local_cancelled = true), DriverStep::CancelHere);
        let half = |r: &mut RemoteExtra| r.remote_unit_id = "x".into();
        assert_eq!(step(Failed, false, half), DriverStep::Tidy);
        assert_eq!(step(Failed, false, |_| {}), DriverStep::Rest);
        let cancel = |r: &mut RemoteExtra| {
            there(r);
            r.local_cancelled = true;
        };
        assert_eq!(step(Running, false, cancel), DriverStep::Cancel);
        assert_eq!(step(Running, true, cancel), DriverStep::Follow);
        let release = |r: &mut RemoteExtra| {
            cancel(r);
            r.local_released = true;
        };
        assert_eq!(step(Running, false, release), DriverStep::Release);
        assert_eq!(step(Failed, true, release), DriverStep::Release);
        assert_eq!(step(Failed, false, |r| r.local_released = true), DriverStep::Delete);
    }
}
