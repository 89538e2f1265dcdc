//! What may differ between two searches: the rules that control nodes and instances follow, what may fail and how often, and
//! what must be true whatever fails.

/// When a unit may show the end of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Elsewhere: also when the control node that has the output does not answer for a minute.
    Patience,
    /// When its copy has the length and hash that the end was stored with.
    Complete,
}

/// When a child is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// Once its end is shown; that it was released is stored afterwards. Who finds no child shows the end with what there is.
    ThenNoted,
    /// Once it is stored who has all of its output, which is done with its end.
    AfterStored,
}

/// How a copy is compared with what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    Length,
    Hash,
}

/// A copy that cannot become the stored output, as another attempt's bytes are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// It is continued where it ends.
    Stays,
    /// It is fetched again from byte 0.
    Anew,
}

/// Whether a power cut can take bytes of a copy that the store says is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    Sometime,
    /// It is flushed to the disk before the store is told.
    Before,
}

/// What an owner may conclude from an instance that does not know a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// That it never runs.
    Believed,
    /// The same, as the instance refuses it from then on, until it is started again.
    PromisedInMemory,
    /// The same, for good.
    Promised,
    /// Nothing, as with Go nodes: an attempt of which no write says that it is sent never runs; about any other an
    /// operator is asked.
    Nothing,
}

/// What the last look at the store before a unit is sent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Send {
    AfterRead,
    /// Fenced; it says that the unit is sent.
    AfterWrite,
}

/// What an instance does with the ID of a unit that was released there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    Forgotten,
    /// It refuses it, as one that it promised not to run, if another control node than the one that sent it has it released.
    RefusedToSenders,
    /// It refuses it in any case.
    Refused,
}

/// By what an owner is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Its lease has expired by the database's clock.
    Clock,
    /// Others have seen that its counter stands still, each by its own clock.
    Counter,
}

/// What a commit waits for, where the database has a standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    Asynchronous,
    /// For the standby, if it comes before a send or ends the job.
    Synchronous,
}

/// What a control node that starts again knows of the units that it has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// What it knew: each has a directory there.
    ByDirectory,
    /// What the store says. It asks the instance, or sends the unit again under its ID.
    ByRow,
}

/// The rules of the border.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) end: End,
    pub(crate) release: Release,
    pub(crate) compare: Compare,
    pub(crate) mismatch: Mismatch,
    pub(crate) flush: Flush,
    pub(crate) unknown: Unknown,
    pub(crate) send: Send,
    pub(crate) released: Released,
    pub(crate) lease: Lease,
    pub(crate) commits: Commits,
    pub(crate) known: Known,
}

impl Rules {
    /// Those of before, in which each of the five findings is.
    pub(crate) const fn former() -> Self {
        Self {
            end: End::Patience,
            release: Release::ThenNoted,
            compare: Compare::Length,
            mismatch: Mismatch::Stays,
            flush: Flush::Sometime,
            unknown: Unknown::Believed,
            send: Send::AfterRead,
            released: Released::Forgotten,
            lease: Lease::Clock,
            commits: Commits::Asynchronous,
            known: Known::ByDirectory,
        }
    }

    /// Those of docs/adr/0030-border-model.md and 0040-one-unit.md.
    pub(crate) const fn now() -> Self {
        Self {
            end: End::Complete,
            release: Release::AfterStored,
            compare: Compare::Hash,
            mismatch: Mismatch::Anew,
            flush: Flush::Before,
            unknown: Unknown::Promised,
            send: Send::AfterWrite,
            released: Released::Refused,
            lease: Lease::Counter,
            commits: Commits::Synchronous,
            known: Known::ByRow,
        }
    }
}

/// What may fail between any two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A control node or the instance stops; what is on its disk stays.
    Crash,
    /// A control node loses its power, and with it what is not flushed to its disk.
    PowerCut,
    /// A control node loses its way to the other one, to the instance or to the store.
    Cut,
    /// A control node stands still together with its clock, and goes on later as if nothing had been.
    Pause,
    /// The database's clock goes forward by more than a lease lasts.
    ClockStep,
    /// Something is done, and who asked for it is not told.
    LostAnswer,
    /// A submission reaches the instance later.
    Delay,
    /// The runner of a unit is killed.
    Kill,
    /// The database loses its last commits.
    LostCommits,
    /// A client cancels the job. No fault, but it may come as often.
    Cancel,
}

/// The bounds of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// What may fail, and how often anything of it.
    pub(crate) faults: &'static [Fault],
    pub(crate) budget: u8,
    /// How often the job is retried.
    pub(crate) retries: u32,
    /// The piece of output that tells that the playbook succeeded.
    pub(crate) tells: u8,
}

impl Scope {
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

/// What must be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Property {
    /// A unit at the job's owner that shows Succeeded has exactly the output that its end was stored with.
    WholeAtOwner,
    /// The same for a unit elsewhere.
    WholeElsewhere,
    /// A job has one end, in the store and in each unit.
    OneEnd,
    /// An attempt starts once, and not while or after another one that may run or ran, and not once it is over.
    OneRun,
    /// Only an owner that could not renew its lease is taken for lost.
    OwnersStay,
    /// From wherever faults have led, the end is reached once they are over, and nothing is left behind.
    NothingStays,
}
