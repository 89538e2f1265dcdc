//! `reload`: reads the configuration again. What may change, and how, is decided by the daemon, which implements [`Reload`].

use std::pin::Pin;

use serde_json::{Value, json};

use super::Context;

/// The part of the daemon that owns the configuration.
pub(crate) trait Reload: Send + Sync + 'static {
    /// Reads the configuration again and applies it; nothing changes if it fails.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<(), ReloadError>> + Send + '_>>;
}

/// Why the configuration stays as it was, in words for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReloadError {
    /// Something differs that only a restart can change. `why` names it; clients get the words that receptor has for it.
    #[error("{why}")]
    NotReloadable { why: String, of_receptor: String },
    /// The configuration cannot be read or applied; the text says where.
    #[error("{0}")]
    Invalid(String),
}

impl ReloadError {
    /// What clients are told, who distinguish the two by the number behind it.
    pub(super) fn line(&self) -> String {
        match self {
            Self::NotReloadable { of_receptor, .. } => format!("{of_receptor} ERRORCODE 3"),
            Self::Invalid(why) => format!("{why} ERRORCODE 4"),
        }
    }
}

pub(super) async fn answer(context: &Context) -> Value {
    match context.reload.reload().await {
        Ok(()) => json!({"Success": true}),
        Err(error) => {
            tracing::warn!(%error, "reload failed, nothing was changed");
            json!({"Success": false, "Error": error.line()})
        }
    }
}
