//! Reports from a job's owner about its attempts, and their effect on the job.
//!
//! Only the holder of the job's current epoch can report. A report about an attempt that no longer counts
//! does not change the job: the attempt's end is recorded and its unit is released.

use super::attempt::{Attempt, OutputEnd, Progress};
use super::job::{Job, QUOTA_BACK_OFF, QuotaWait, Refused};
use super::names::AttemptNo;
use super::state::JobState;
use super::text::readable;
use super::time::Time;
use super::verdict::{ChildEnd, Ending, Evidence, LONGEST_DETAIL, Verdict, judge};

/// A job, as driven by its owner.
#[derive(Debug)]
pub struct Driven<'a> {
    job: &'a mut Job,
}

impl<'a> Driven<'a> {
    pub(super) fn new(job: &'a mut Job) -> Self {
        Self { job }
    }

    /// An attempt's instance accepted it, or still has it after it was lost. A lost attempt is followed again
    /// from where it was, unless the job has moved on.
    ///
    /// # Errors
    /// There is no such attempt.
    pub fn on_accepted(&mut self, n: AttemptNo, now: Time) -> Result<(), Refused> {
        let counts = self.counts(n);
        let job_open = !self.job.state.is_final();
        let attempt = self.attempt(n)?;
        match attempt.progress {
            Progress::Placed => attempt.progress = Progress::Running,
            Progress::Lost if counts && job_open => attempt.progress = Progress::Running,
            Progress::Running | Progress::Lost | Progress::Over(_) => return Ok(()),
        }
        attempt.started.get_or_insert(now);
        attempt.ended = None;
        let text = match &attempt.node {
            Some(node) => format!("Running on {node}, unit {}", attempt.unit),
            None => format!("Running in {}, unit {}", attempt.group, attempt.unit),
        };
        if counts && job_open {
            self.job.state = JobState::Running;
            self.job.explanation = text;
        }
        Ok(())
    }

    /// An attempt has ended, according to its own instance. If the instance refused it, the Detail says so.
    ///
    /// # Errors
    /// There is no such attempt.
    pub fn on_ended(&mut self, n: AttemptNo, evidence: &Evidence, now: Time) -> Result<(), Refused> {
        let (kind, cancel_saved) = (self.job.kind, self.job.cancel_requested);
        let attempt = self.attempt(n)?;
        if !attempt.is_open() {
            return Ok(());
        }
        let verdict = judge(kind, cancel_saved, evidence, attempt.node.as_ref());
        self.conclude(n, verdict, now)
    }

    /// An attempt cannot be sent because something that it needs is missing. Nothing of it ran.
    ///
    /// # Errors
    /// There is no such attempt.
    pub fn on_not_prepared(
        &mut self,
        n: AttemptNo,
        ending: Ending,
        explanation: String,
        now: Time,
    ) -> Result<(), Refused> {
        let attempt = self.attempt(n)?;
        if !attempt.is_open() {
            return Ok(());
        }
        attempt.swept = true;
        let explanation = readable(&explanation, LONGEST_DETAIL);
        self.conclude(n, Verdict { ending, explanation }, now)
    }

    /// An attempt's instance does not have its unit and will not run it, because it promised that, or because nobody
    /// else can send it.
    ///
    /// An attempt that was never accepted has not run, so the job is placed again. A running attempt was released by
    /// somebody else. A lost attempt is now known to have stopped.
    ///
    /// # Errors
    /// There is no such attempt.
    pub fn on_unknown(&mut self, n: AttemptNo, now: Time) -> Result<(), Refused> {
        let cancel_saved = self.job.cancel_requested;
        let attempt = self.attempt(n)?;
        match attempt.progress {
            Progress::Placed => {
                attempt.swept = true;
                let explanation = format!("attempt {n} was not accepted");
                let ending = if cancel_saved { Ending::Canceled } else { Ending::NotAccepted };
                self.conclude(n, Verdict { ending, explanation }, now)
            }
            Progress::Running => {
                attempt.swept = true;
                self.on_ended(n, &Evidence::of_unit(ChildEnd::Unknown, String::new()), now)
            }
            Progress::Lost => {
                self.on_gone(n);
                self.on_swept(n)
            }
            Progress::Over(_) => {
                attempt.swept = true;
                Ok(())
            }
        }
    }

    /// An attempt's instance does not have its unit but may still run it: another control node was to send it, or sent
    /// it under an ID that only that node knows. The attempt counts as lost, and the owner keeps asking for it.
    ///
    /// # Errors
    /// There is no such attempt.
    pub fn on_missing(&mut self, n: AttemptNo, now: Time) -> Result<(), Refused> {
        let counts = self.counts(n);
        let attempt = self.attempt(n)?;
        let ending = match attempt.progress {
            // It most likely did not run, so the job need not fail.
            Progress::Placed => Ending::NotAccepted,
            Progress::Running => Ending::Lost,
            Progress::Lost | Progress::Over(_) => return Ok(()),
        };
        attempt.progress = Progress::Lost;
        attempt.ended = Some(now);
        let node = attempt.node.as_ref().map(|node| format!("{node} ")).unwrap_or_default();
        let explanation =
            format!("{node}does not know attempt {n}, and does not promise that it will not run it");
        if counts {
            self.apply(Verdict { ending, explanation }, now);
        }
        Ok(())
    }

    /// An attempt's instance has not been seen for too long. The attempt may still run there.
    pub fn on_lost(&mut self, n: AttemptNo, now: Time) {
        self.on_lost_after(n, None, now);
    }

    /// Like [`Self::on_lost`]; if there is `evidence` from the attempt's stream, that decides how the job goes on.
    pub fn on_lost_after(&mut self, n: AttemptNo, evidence: Option<&Evidence>, now: Time) {
        let (counts, kind, cancel_saved) = (self.counts(n), self.job.kind, self.job.cancel_requested);
        let Ok(attempt) = self.attempt(n) else { return };
        match attempt.progress {
            Progress::Placed | Progress::Running => {}
            Progress::Lost | Progress::Over(_) => return,
        }
        attempt.progress = Progress::Lost;
        attempt.ended = Some(now);
        let verdict = match (evidence, &attempt.node) {
            (Some(evidence), node) => judge(kind, cancel_saved, evidence, node.as_ref()),
            (None, Some(node)) => Verdict {
                ending: Ending::Lost,
                explanation: format!("{node} was lost while it ran attempt {n}"),
            },
            (None, None) => Verdict {
                ending: Ending::Lost,
                explanation: format!("attempt {n} in {} was lost", attempt.group),
            },
        };
        if counts {
            self.apply(verdict, now);
        }
    }

    /// The owner has all the output of an attempt, or no output is kept: the attempt's unit may be released. Values
    /// that are already set stay.
    ///
    /// # Errors
    /// There is no such attempt.
    pub fn on_output(&mut self, n: AttemptNo, output: Option<OutputEnd>) -> Result<(), Refused> {
        let owner = self.job.fence.as_ref().map(|fence| fence.owner.clone());
        let attempt = self.attempt(n)?;
        attempt.output = attempt.output.or(output);
        attempt.released_by = attempt.released_by.take().or(owner);
        Ok(())
    }

    /// An attempt's unit was released.
    ///
    /// # Errors
    /// There is no such attempt.
    pub fn on_swept(&mut self, n: AttemptNo) -> Result<(), Refused> {
        self.attempt(n)?.swept = true;
        Ok(())
    }

    /// A lost attempt does not run and will not. Its unit is still to be released, so that nothing starts it later.
    pub(super) fn on_gone(&mut self, n: AttemptNo) {
        let Ok(attempt) = self.attempt(n) else { return };
        if attempt.is_open() {
            // Even if its instance never accepted it, because that answer may have been lost.
            attempt.progress = Progress::Over(Ending::Lost);
        }
    }

    fn conclude(&mut self, n: AttemptNo, verdict: Verdict, now: Time) -> Result<(), Refused> {
        let counts = self.counts(n);
        let attempt = self.attempt(n)?;
        attempt.progress = Progress::Over(verdict.ending);
        attempt.ended = Some(now);
        if counts {
            self.apply(verdict, now);
        }
        Ok(())
    }

    /// Applies the end of the current attempt to the job, unless a retry follows.
    fn apply(&mut self, verdict: Verdict, now: Time) {
        if self.job.state.is_final() {
            return;
        }
        let Verdict { ending, explanation } = verdict;
        if self.job.cancel_requested {
            return self.job.end(JobState::Canceled, "Canceled".into(), now);
        }
        if self.job.retries_after(ending) {
            return self.requeue(ending, explanation, now);
        }
        let state = match ending {
            Ending::Successful => JobState::Successful,
            Ending::Failed | Ending::Lost => JobState::Failed,
            Ending::Error | Ending::Quota | Ending::NotAccepted => JobState::Error,
            Ending::Canceled => JobState::Canceled,
        };
        self.job.end(state, explanation, now);
    }

    fn requeue(&mut self, ending: Ending, explanation: String, now: Time) {
        let job = &mut *self.job;
        job.state = JobState::Pending;
        // If nothing ran, the job's wait goes on.
        if ending.may_have_run() {
            job.pending_since = now;
        }
        job.quota = match ending {
            Ending::Quota => {
                let refusals = job.quota.as_ref().map_or(0, |quota| quota.refusals) + 1;
                let until = now + QUOTA_BACK_OFF.after(refusals);
                Some(QuotaWait { until, words: explanation.clone(), refusals })
            }
            Ending::NotAccepted
            | Ending::Lost
            | Ending::Error
            | Ending::Failed
            | Ending::Successful
            | Ending::Canceled => None,
        };
        job.explanation = explanation;
    }

    fn counts(&self, n: AttemptNo) -> bool {
        self.job.is_current(n)
    }

    fn attempt(&mut self, n: AttemptNo) -> Result<&mut Attempt, Refused> {
        let id = self.job.id;
        let found = self.job.attempts.iter_mut().find(|attempt| attempt.n == n);
        found.ok_or(Refused::NoAttempt(id, n))
    }
}
