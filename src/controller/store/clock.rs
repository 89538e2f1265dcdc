//! What the store remembers of its own clock, in `meta`. The core decides whether something may be deleted by that
//! clock.

use super::audit::Audit;
use super::error::Error;
use super::sql::{Sql, from_json, to_json};
use super::{Store, schema};
use crate::controller::core::{ClockRecord, Time};

const KEY: &str = "clock";

/// The store's clock, and what is remembered of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// The clock's time: earlier than [`Store::now`] if the system's clock was set back since the store was opened.
    pub now: Time,
    /// What the store remembers of it.
    pub record: ClockRecord,
}

impl Clock {
    /// Whether the clock is doubted, so that nothing may be deleted by it.
    pub fn is_doubted(&self) -> bool {
        self.record.doubts(self.now)
    }
}

impl Store {
    /// The clock, without remembering what it says.
    pub async fn clock(&self) -> Result<Clock, Error> {
        let set_back = self.set_back();
        self.read(move |sql| {
            let now = sql.now() - set_back;
            Ok(Clock { now, record: record(sql)?.unwrap_or(ClockRecord::believed(now)) })
        })
        .await
    }

    /// Looks at the clock, and remembers what it says.
    pub async fn look_at_clock(&self) -> Result<Clock, Error> {
        let set_back = self.set_back();
        let look = move |sql: &mut dyn Sql| {
            let now = sql.now() - set_back;
            let before = record(sql)?;
            let after = before.map_or(ClockRecord::believed(now), |before| before.looked_at(now));
            let is_news = before.is_none_or(|before| after.is_news(&before));
            Ok((Clock { now, record: after }, is_news))
        };
        let (clock, is_news) = self.read(look).await?;
        if is_news {
            let save = move |sql: &mut dyn Sql| {
                let (clock, _) = look(sql)?;
                schema::set(sql, KEY, &to_json(&clock.record))?;
                Ok(clock)
            };
            return self.write(save).await;
        }
        Ok(clock)
    }

    /// An operator says that the clock is right.
    pub async fn confirm_clock(&self, audit: Audit) -> Result<Clock, Error> {
        let set_back = self.set_back();
        self.write(move |sql| {
            audit.clone().insert(sql)?;
            let now = sql.now() - set_back;
            let record = ClockRecord::believed(now);
            schema::set(sql, KEY, &to_json(&record))?;
            sql.announce();
            Ok(Clock { now, record })
        })
        .await
    }
}

fn record(sql: &mut dyn Sql) -> Result<Option<ClockRecord>, Error> {
    schema::get(sql, KEY)?.map(|text| from_json(&text)).transpose()
}
