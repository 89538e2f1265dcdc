//! `loglevel`: shows and changes how much the node logs while it runs. Refuses to know which levels there are.

use serde_json::{Value, json};

use super::{Context, RequestRefusal};

pub(super) fn answer(context: &Context, level: Option<&str>) -> Result<Value, RequestRefusal> {
    let before = context.log.level();
    let Some(level) = level else { return Ok(json!({"Level": before})) };
    context.log.set_level(level).map_err(RequestRefusal::LogLevel)?;
    let after = context.log.level();
    tracing::warn!(before, after, "log level changed");
    Ok(json!({"Level": after, "Before": before}))
}
