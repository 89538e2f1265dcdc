//! The operations on schedules: lists with the next starts, and pauses. What is due is not decided here.

use jiff::Timestamp;

use super::saved::page;
use super::{conflict, missing};
use crate::controller::saved::{LoadedSchedule, SavedEntry, ScheduleState, next_starts};
use crate::controller::service::Service;
use crate::controller::store::Audit;
use crate::rpc::operation::{OperationRefusal, SavedFilter};
use crate::rpc::report::Lenient;
use crate::rpc::report::saved::{SchedulePage, ScheduleReport};

/// Starts of each schedule that are listed.
const NEXT: usize = 5;
/// Tries to write a pause while control nodes write how far the schedule is.
const TRIES: usize = 5;

impl Service {
    pub(super) async fn list_schedules(&self, asked: SavedFilter) -> Result<SchedulePage, OperationRefusal> {
        let (known, now) = (self.known_schedules().await?, self.moment().await?);
        let saved = self.saved.now();
        let is_after = |(name, _): &(&str, &LoadedSchedule)| {
            asked.after.as_ref().is_none_or(|after| *name > after.as_str())
        };
        let reports = saved.schedules().filter(is_after).map(|(name, schedule)| {
            report(name, schedule, known.get(name).and_then(|(_, state)| state.as_ref()), now)
        });
        let (schedules, next) = page(reports, asked.limit, |one| &one.name);
        Ok(SchedulePage { schedules, next })
    }

    /// Pauses a schedule, or lets it go on from now: nothing is made up for.
    pub(super) async fn pause_schedule(
        &self,
        name: &str,
        paused: bool,
        audit: Audit,
    ) -> Result<ScheduleReport, OperationRefusal> {
        let saved = self.saved.now();
        let no_such = || missing(format!("no saved job {name} of this control node has a schedule"));
        let schedule = saved.entries().get(name).and_then(SavedEntry::schedule).ok_or_else(no_such)?;
        self.driver.store.record(audit).await?;
        for _ in 0..TRIES {
            let (version, known) = self.known_schedule(name).await?;
            let now = self.moment().await?;
            let state = ScheduleState::paused(known, schedule, paused, now);
            if self.write_schedule(name, version, &state).await? {
                self.saved.note_change();
                return Ok(report(name, schedule, Some(&state), now));
            }
        }
        Err(conflict(format!("{name}: others write what is known of its schedule: try again")))
    }
}

fn report(
    name: &str,
    schedule: &LoadedSchedule,
    known: Option<&ScheduleState>,
    now: Timestamp,
) -> ScheduleReport {
    let next = next_starts(name, schedule, known, now).take(NEXT).map(|start| start.to_string());
    ScheduleReport {
        name: name.to_owned(),
        rule: schedule.rule.to_string(),
        zone: schedule.timetable.zone().to_owned(),
        overlap: Lenient::Known(schedule.overlap),
        missed: Lenient::Known(schedule.missed),
        enabled: schedule.enabled,
        paused: known.is_some_and(|known| known.paused),
        next: next.collect(),
        last: known.and_then(|known| known.last.clone()),
        skipped: known.and_then(|known| known.skipped.clone()),
    }
}
