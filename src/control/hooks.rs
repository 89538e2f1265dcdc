//! What commands ask of the rest of the daemon: its examination, its configuration and its log. Owns the traits that
//! the daemon implements, and their errors. It refuses to know clients and the format of answers.

use std::pin::Pin;
use std::time::Duration;

use crate::rpc::report::finding::Finding;

/// How long one examination of a node may take.
pub(crate) const EXAMINED_WITHIN: Duration = Duration::from_secs(30);

/// The part of the daemon that knows what a node needs.
pub(crate) trait Examine: Send + Sync + 'static {
    /// What is wrong with this node now. Callers are served one after the other.
    fn examine(&self) -> Pin<Box<dyn Future<Output = Vec<Finding>> + Send + '_>>;

    /// The `tls-client` for control services that need TLS, if the caller names none.
    fn tls_client(&self) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>>;
}

/// The part of the daemon that owns the configuration.
pub(crate) trait Reload: Send + Sync + 'static {
    /// Reads the configuration again and applies it; nothing changes if it fails.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<(), ReloadError>> + Send + '_>>;
}

/// Why the configuration stays as it was, in words for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReloadError {
    /// A setting differs that only a restart can change. `why` names it; clients get receptor's text, `of_receptor`.
    #[error("{why}")]
    NotReloadable { why: String, of_receptor: String },
    /// The configuration cannot be read or applied; the text says where.
    #[error("{0}")]
    Invalid(String),
}

/// The part of the daemon that owns the log.
pub(crate) trait LogLevels: Send + Sync + 'static {
    /// The current level.
    fn level(&self) -> &'static str;

    /// Sets the level.
    ///
    /// # Errors
    /// A text for a person, if there is no such level.
    fn set_level(&self, name: &str) -> Result<(), String>;
}
