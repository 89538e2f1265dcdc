//! `reload`: reads the configuration again. The daemon, which implements [`super::Reload`], decides what may change and
//! how.

use serde_json::{Value, json};

use super::{Context, ReloadError};

pub(super) async fn answer(context: &Context) -> Value {
    match context.reload.reload().await {
        Ok(()) => json!({"Success": true}),
        Err(error) => {
            tracing::warn!(%error, "reload failed, nothing was changed");
            json!({"Success": false, "Error": line(&error)})
        }
    }
}

/// The text for clients, who tell the two errors apart by the number at its end.
pub(super) fn line(error: &ReloadError) -> String {
    match error {
        ReloadError::NotReloadable { of_receptor, .. } => format!("{of_receptor} ERRORCODE 3"),
        ReloadError::Invalid(why) => format!("{why} ERRORCODE 4"),
    }
}
