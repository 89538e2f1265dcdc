//! Notices about jobs that have ended, for programs elsewhere: by a POST or a command, at least once each.
//!
//! There is no queue. Each target follows the numbers of [`crate::controller::store::EndedJob`] with a cursor of its own, which is
//! a document of the store: a target that is dead delays no job and no other target, and control nodes that share a
//! store share the work. `event` is pure: it decides what a target is told, and in which words. `cursor` keeps how far
//! a target is, and when it is tried again. `notifier` follows, and `courier` delivers by HTTP or a command. Knows nothing
//! of the syntax of configuration.

pub(in crate::controller) mod courier;
mod cursor;
mod event;
mod notifier;

use std::path::PathBuf;
use std::time::Duration;

pub use self::courier::WebTls;
pub(crate) use self::courier::{Courier, Receipt};
pub use self::event::NoticeEvent;
pub(crate) use self::event::{JobNotice, wanted_word};
pub(crate) use self::notifier::Notifier;

/// Where notices go, and which.
#[derive(Debug, Clone, PartialEq)]
pub struct NotifyTarget {
    /// How they are delivered.
    pub way: NoticeWay,
    /// What it is told of.
    pub events: Vec<NoticeEvent>,
    /// Only of jobs whose saved job names it.
    pub only_named: bool,
    /// How long one delivery may take.
    pub timeout: Duration,
}

/// How notices are delivered.
#[derive(Debug, Clone, PartialEq)]
pub enum NoticeWay {
    /// By a POST.
    Webhook(Webhook),
    /// To the standard input of a program with these arguments.
    Command(String, Vec<String>),
}

/// Whether a target may have this name, which stands in a label of jobs.
pub fn is_target_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
    (1..=63).contains(&name.len()) && name.chars().all(is_letter) && !name.starts_with('.')
}

/// A place on the web that takes notices.
#[derive(Clone, PartialEq)]
pub struct Webhook {
    /// Its address. It may hold a secret, so only its host is shown.
    pub url: http::Uri,
    /// The file with the secret that signs.
    pub secret_file: Option<PathBuf>,
    /// The `tls-client`; the system's authorities if none is named.
    pub tls_client: Option<String>,
    /// It may be on this machine, link-local, or a cloud's metadata server.
    pub allow_local: bool,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("host", &self.url.host()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(in crate::controller) mod tests;
