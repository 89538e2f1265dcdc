//! What a unit asks of an API server, as a trait, so that its driver knows neither HTTP nor the kube crate. Owns the
//! meaning of each request and its answers. Each request has exactly one answer, within a bounded time; nothing is
//! retried here.
//!
//! - `connect`: a client for a credential. `rate`: how many requests it may make. `rights`: which refusals pass.
//! - `resolver`, `proven` and `failure`: why there is no answer, and which servers have answered before.
//! - `http`: the requests. `body`: reading their answers.
//! - `attach`, `websocket`, `spdy`: sending stdin.

mod attach;
mod body;
mod calls;
pub mod connect;
mod failure;
mod http;
mod proven;
mod rate;
mod resolver;
mod rights;
pub mod spdy;
mod websocket;

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use jiff::Timestamp;
use serde_json::Value;
use tokio::fs::File;
use tokio::sync::oneshot;

pub use self::http::HttpApi;
pub use self::proven::ProvenServers;
use super::api_error::ApiError;

/// How long an answer, or the beginning of a stream, may take.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How often an attach stream is pinged after all of stdin was sent.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long to wait for the server's reason after a write to a stream failed.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(2);

/// An answer on its way.
pub type ApiAnswer<T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send>>;

/// The error of a request that was not answered in time.
pub fn no_answer() -> ApiError {
    ApiError::Unreachable(unanswered().into())
}

fn unanswered() -> String {
    format!("no answer within {} s", ANSWER_WITHIN.as_secs())
}

/// Bytes of a log as they come. An error means that the stream broke off. Otherwise it ended in order, and says so
/// again at each later poll.
pub type LogStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Changes of pods as they come, until the server ends the watch.
pub type PodChanges = Pin<Box<dyn Stream<Item = Result<PodChange, ApiError>> + Send>>;

/// The name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name in that namespace.
    pub name: String,
}

/// Which pods of a namespace are meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Select {
    /// The pods with this value of this label.
    Label(&'static str, String),
    /// The pod of this name.
    Name(String),
}

/// The pods of a namespace at one moment.
#[derive(Debug, Clone, Default)]
pub struct PodList {
    /// The pods.
    pub pods: Vec<Value>,
    /// The `resourceVersion` of that moment, from which a watch can go on.
    pub version: String,
}

/// What happened to a pod.
#[derive(Debug, Clone)]
pub enum PodChange {
    /// It was created or changed.
    Applied(Value),
    /// It is gone; this is its last state.
    Deleted(Value),
    /// All changes up to this `resourceVersion` have been sent.
    Bookmark(String),
    /// The server no longer has the changes since then: list the pods again.
    Expired,
}

/// An open stream to a container's stdin.
pub trait StdinStream: Send {
    /// Sends all of a payload, half-closes the stream, reports that through `sent`, and waits for the server's Status
    /// object.
    fn send(self: Box<Self>, payload: File, sent: oneshot::Sender<()>) -> PayloadSending;
}

/// A payload on its way.
pub type PayloadSending = Pin<Box<dyn Future<Output = Result<(), AttachError>> + Send>>;

/// Why a payload did not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachError {
    /// The container was never attached to: it got nothing.
    NeverAttached(String),
    /// The container may have got a part.
    Broken(String),
}

/// The requests for units, and those for secrets. All objects are JSON, so that fields unknown here pass through.
pub trait Api: Send + Sync + 'static {
    /// Creates a pod.
    fn create(&self, namespace: &str, pod: &Value) -> ApiAnswer<Value>;
    /// Gets a pod.
    fn get(&self, pod: &PodName) -> ApiAnswer<Value>;
    /// Deletes a pod with its default grace if it has this UID.
    fn delete(&self, pod: &PodName, uid: &str) -> ApiAnswer<()>;
    /// The last event about the pod of this UID, for people.
    fn last_event(&self, namespace: &str, uid: &str) -> ApiAnswer<Option<String>>;
    /// Lists pods.
    fn list(&self, namespace: &str, select: &Select) -> ApiAnswer<PodList>;
    /// Watches pods from the moment of a list on.
    fn watch(&self, namespace: &str, select: &Select, version: &str) -> ApiAnswer<PodChanges>;
    /// Opens container `worker`'s log with time stamps. `since` is cut to whole seconds; with `follow` the stream goes
    /// on until the container has ended.
    fn open_log(&self, pod: &PodName, since: Option<Timestamp>, follow: bool) -> ApiAnswer<LogStream>;
    /// Attaches to container `worker`'s stdin.
    fn attach(&self, pod: &PodName) -> ApiAnswer<Box<dyn StdinStream>>;
    /// Gets a secret.
    fn get_secret(&self, namespace: &str, name: &str) -> ApiAnswer<Value>;
    /// Creates a secret.
    fn create_secret(&self, namespace: &str, secret: &Value) -> ApiAnswer<()>;
    /// Deletes a secret.
    fn delete_secret(&self, namespace: &str, name: &str) -> ApiAnswer<()>;
    /// Whether the credential may make a request of this verb on pods or a subresource of them.
    fn may(&self, namespace: &str, verb: &str, subresource: &str) -> ApiAnswer<bool>;
    /// The server's version.
    fn version(&self) -> ApiAnswer<Value>;
    /// The host and port of the API server.
    fn server(&self) -> (String, u16);
}
