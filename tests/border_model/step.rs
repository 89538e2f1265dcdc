//! What can happen, and how a history says it.

use std::fmt;

use super::world::Way;

/// What becomes of the answer to something that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Comes,
    IsLost,
    /// It has not even been done: the request is on its way.
    IsAwaited,
}

/// One step. Control nodes and attempts are counted from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Stop(usize),
    CutPower(usize),
    StopInstance,
    Cut(Way),
    Pause(usize),
    ClockGoesForward,
    LoseCommits,
    Cancel,
    Kill(usize),

    Start(usize),
    StartInstance,
    Heal(Way),
    Resume(usize),
    Replicate,

    Submit,
    Renew(usize),
    TakeOver(usize),
    Place(usize),
    Prepare(usize, usize, Answer),
    Send(usize, usize, Answer),
    Arrive(usize),
    Write(usize),
    Doubt(usize, usize),
    /// Where it says whether the instance knows the unit.
    Ask(usize, usize, bool, Answer),
    NeverSent(usize, usize),
    Miss(usize, usize),
    Conclude(usize, usize),
    Accept(usize, usize),
    Read(usize, usize),
    End(usize, usize),
    Lose(usize, usize),
    CancelRun(usize, usize),
    Release(usize, usize, Answer),
    Sweep(usize, usize),
    Copy(usize),
    CopyAnew(usize),
    Show(usize),
    GiveUp(usize),
    ShowWithoutChild(usize),
    ConfirmLost,
}

impl Step {
    pub(crate) fn is_fault(self) -> bool {
        match self {
            Self::Stop(_)
            | Self::CutPower(_)
            | Self::StopInstance
            | Self::Cut(_)
            | Self::Pause(_)
            | Self::ClockGoesForward
            | Self::LoseCommits
            | Self::Cancel
            | Self::Kill(_) => true,
            Self::Prepare(_, _, answer)
            | Self::Send(_, _, answer)
            | Self::Ask(_, _, _, answer)
            | Self::Release(_, _, answer) => answer != Answer::Comes,
            _ => false,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Comes => "",
            Self::IsLost => ", and the answer is lost",
            Self::IsAwaited => ", and that is on its way",
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToInstance(node) => write!(f, "between c{} and e1", node + 1),
            Self::ToStore(node) => write!(f, "between c{} and the store", node + 1),
            Self::BetweenNodes => f.write_str("between c1 and c2"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: usize| format!("c{}", node + 1);
        match *self {
            Self::Stop(c) => write!(f, "{} stops", name(c)),
            Self::CutPower(c) => write!(f, "{} loses its power, and what is not on its disk", name(c)),
            Self::StopInstance => f.write_str("e1's daemon stops"),
            Self::Cut(way) => write!(f, "the way {way} is cut"),
            Self::Pause(c) => write!(f, "{} stands still, and its clock too", name(c)),
            Self::ClockGoesForward => f.write_str("the store's clock goes forward by an hour"),
            Self::LoseCommits => f.write_str("the store loses what the standby does not have"),
            Self::Cancel => f.write_str("a client cancels the job"),
            Self::Kill(n) => write!(f, "the runner of unit {} is killed", n + 1),
            Self::Start(c) => write!(f, "{} starts again", name(c)),
            Self::StartInstance => f.write_str("e1's daemon starts again"),
            Self::Heal(way) => write!(f, "the way {way} is back"),
            Self::Resume(c) => write!(f, "{} goes on as if nothing had been", name(c)),
            Self::Replicate => f.write_str("the standby has all commits"),
            Self::Submit => f.write_str("the job's key is submitted at c2 too"),
            Self::Renew(c) => write!(f, "{} renews its lease, or gets a new one", name(c)),
            Self::TakeOver(c) => write!(f, "{} takes the job over", name(c)),
            Self::Place(c) => write!(f, "{} places an attempt", name(c)),
            Self::Prepare(c, n, answer) => {
                write!(f, "{} has looked at the store and will send attempt {}{answer}", name(c), n + 1)
            }
            Self::Send(c, n, answer) => write!(f, "{} sends unit {}{answer}", name(c), n + 1),
            Self::Arrive(n) => write!(f, "unit {} arrives at e1", n + 1),
            Self::Write(n) => write!(f, "unit {} writes output", n + 1),
            Self::Doubt(c, n) => write!(f, "{} is about to ask e1 for attempt {}", name(c), n + 1),
            Self::Ask(c, n, known, answer) => {
                let said = if known { "knows it" } else { "does not know it" };
                write!(f, "{} asks for attempt {}: e1 {said}{answer}", name(c), n + 1)
            }
            Self::NeverSent(c, n) => write!(f, "{} takes attempt {} for never sent", name(c), n + 1),
            Self::Miss(c, n) => {
                write!(f, "{} stores that the instance does not know attempt {}", name(c), n + 1)
            }
            Self::Conclude(c, n) => write!(f, "{} stores that attempt {} does not run", name(c), n + 1),
            Self::Accept(c, n) => write!(f, "{} stores that attempt {} runs", name(c), n + 1),
            Self::Read(c, n) => write!(f, "{} reads output of attempt {}", name(c), n + 1),
            Self::End(c, n) => write!(f, "{} stores the end of attempt {}", name(c), n + 1),
            Self::Lose(c, n) => write!(f, "{} stores that attempt {} is lost", name(c), n + 1),
            Self::CancelRun(c, n) => write!(f, "{} cancels attempt {} on e1", name(c), n + 1),
            Self::Release(c, n, answer) => {
                write!(f, "{} releases the unit of attempt {}{answer}", name(c), n + 1)
            }
            Self::Sweep(c, n) => write!(f, "{} stores that attempt {} is released", name(c), n + 1),
            Self::Copy(c) => write!(f, "{} copies output", name(c)),
            Self::CopyAnew(c) => write!(f, "{} finds that its copy differs, and begins it again", name(c)),
            Self::Show(c) => write!(f, "{}'s unit shows the end", name(c)),
            Self::GiveUp(c) => write!(f, "{}'s unit has waited a minute, and shows the end", name(c)),
            Self::ConfirmLost => f.write_str("an operator confirms that nothing of it runs on e1"),
            Self::ShowWithoutChild(c) => {
                write!(f, "{} finds no child any more, and its unit shows the end", name(c))
            }
        }
    }
}
