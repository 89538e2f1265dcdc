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
/// How often an attach stream over which nothing is sent any more is kept alive.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long the server's reason is waited for where a stream broke off while it was written.
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

/// Bytes of a log as they come. An error means that the stream broke off; without one it ended in order, which it says as
/// often as it is asked.
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
    /// Those with this value of this label.
    Label(&'static str, String),
    /// The one of this name.
    Name(String),
}

/// The pods of a namespace at one moment.
#[derive(Debug, Clone, Default)]
pub struct PodList {
    /// The pods.
    pub pods: Vec<Value>,
    /// The moment, for a watch of what comes after it.
    pub version: String,
}

/// What happened to a pod.
#[derive(Debug, Clone)]
pub enum PodChange {
    /// It was created or changed.
    Applied(Value),
    /// It is gone; what it looked like at the end.
    Deleted(Value),
    /// Nothing happened up to this moment.
    Bookmark(String),
    /// The server does not know any more what happened since: list the pods again.
    Expired,
}

/// An open stream to a container's stdin.
pub trait StdinStream: Send {
    /// Sends all of a payload, half-closes the stream, reports that through `sent`, and waits for the server's word.
    fn send(self: Box<Self>, payload: File, sent: oneshot::Sender<()>) -> Sending;
}

/// A payload on its way.
pub type Sending = Pin<Box<dyn Future<Output = Result<(), AttachError>> + Send>>;

/// Why a payload did not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachError {
    /// The container was never attached to: it got nothing.
    NeverAttached(String),
    /// It may have got a part.
    Broken(String),
}

/// The requests that units make, and those for the secrets beside them. All objects are JSON: fields unknown here pass
/// through.
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
    /// Opens container `worker`'s log with time stamps. `since` counts whole seconds; with `follow` the stream goes on
    /// until the container has ended.
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
    /// What the server says of its release.
    fn version(&self) -> ApiAnswer<Value>;
    /// The host and port of the API server.
    fn server(&self) -> (String, u16);
}
