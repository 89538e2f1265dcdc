//! `loglevel`: how much the node logs, shown and changed while it runs.

use serde_json::{Value, json};

use super::{Context, RequestRefusal};

/// The part of the daemon that owns the log.
pub(crate) trait LogLevels: Send + Sync + 'static {
    /// The level at the moment.
    fn level(&self) -> &'static str;

    /// Changes it.
    ///
    /// # Errors
    /// A text for a person, if there is no such level.
    fn set_level(&self, name: &str) -> Result<(), String>;
}

pub(super) fn answer(context: &Context, level: Option<&str>) -> Result<Value, RequestRefusal> {
    let before = context.log.level();
    let Some(level) = level else { return Ok(json!({"Level": before})) };
    context.log.set_level(level).map_err(RequestRefusal::LogLevel)?;
    let after = context.log.level();
    tracing::warn!(before, after, "log level changed");
    Ok(json!({"Level": after, "Before": before}))
}
