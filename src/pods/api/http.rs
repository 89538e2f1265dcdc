//! The requests of [`Api`] over HTTP, through a client of the kube crate. Owns paths, parameters and time limits.
//! Retries nothing, because a create must not be repeated without its caller's knowledge.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request, Response, header};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::connect::{ApiConnection, ConnectError, CredentialSource};
use super::failure::{NoApiAnswer, words};
use super::proven::{ApiServer, ProvenServers};
use super::rate::RateLimit;
use super::rights::{self, ApiRights};
use super::{
    ANSWER_WITHIN, Api, ApiAnswer, LogStream, PodChanges, PodList, PodName, Select, StdinStream, attach,
    body, calls, connect, no_answer, unanswered,
};
use crate::pods::api_error::{AnswerPatience, ApiError, ApiUnreachable};
use crate::pods::environment::Rate;
use crate::pods::pod::WORKER;
use crate::pods::waiting::joined;

/// How long the server keeps a watch open.
const WATCH_FOR: Duration = Duration::from_secs(290);
/// Pods in one answer to a list.
const PAGE: u32 = 500;

/// An API server, with one credential.
#[derive(Clone)]
pub struct HttpApi {
    client: Client,
    server: Arc<ApiServer>,
    limit: Option<Arc<RateLimit>>,
    rights: Arc<ApiRights>,
    /// The server refused WebSockets and accepted SPDY.
    uses_spdy: Arc<AtomicBool>,
}

impl HttpApi {
    /// A client for a credential, and the namespace that the credential leads to.
    ///
    /// # Errors
    /// [`ConnectError`]: the credential cannot be used. Nothing was sent yet.
    pub async fn new(
        credential: &CredentialSource,
        rate: Option<Rate>,
        proven: &ProvenServers,
    ) -> Result<(Self, String), ConnectError> {
        let ApiConnection { client, namespace, server } = connect::client(credential).await?;
        let server = proven.server(server);
        let limit = rate.map(|rate| Arc::new(RateLimit::new(rate)));
        Ok((Self { client, server, limit, rights: Arc::default(), uses_spdy: Arc::default() }, namespace))
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        if let Some(limit) = &self.limit {
            limit.admit().await;
        }
        let right = rights::needed(&request);
        let verb = calls::verb(request.method(), request.uri().query());
        let error = match timeout(ANSWER_WITHIN, self.client.send(request)).await {
            Ok(Ok(mut response)) => {
                self.server.note_answer();
                self.server.note_call(verb, Some(response.status()));
                self.rights.note_answer(right, &mut response);
                return Ok(response);
            }
            Ok(Err(error)) => self.unreachable(NoApiAnswer::of(&error), &words(&error)),
            Err(_) => {
                let failure = NoApiAnswer { was_connected: true, is_misdirected: false };
                self.unreachable(failure, &unanswered())
            }
        };
        self.server.note_call(verb, None);
        self.rights.note_failure();
        Err(error)
    }

    fn unreachable(&self, failure: NoApiAnswer, why: &str) -> ApiError {
        let (host, port) = self.server.address();
        let patience = match failure.is_misdirected {
            _ if self.server.is_proven() => AnswerPatience::Outage,
            true => AnswerPatience::None,
            false => AnswerPatience::Short,
        };
        let text = format!("API server {host}:{port}: {why}");
        ApiError::Unreachable(ApiUnreachable { text, was_connected: failure.was_connected, patience })
    }

    async fn json(&self, request: Request<Body>) -> Result<Value, ApiError> {
        let response = self.send(request).await?;
        timeout(ANSWER_WITHIN, body::json(response)).await.unwrap_or_else(|_| Err(no_answer()))
    }
}

impl Api for HttpApi {
    fn create(&self, namespace: &str, pod: &Value) -> ApiAnswer<Value> {
        let (api, path, body) = (self.clone(), pods(namespace), pod.to_string());
        Box::pin(async move { api.json(with_json(Method::POST, &path?, body)?).await })
    }

    fn get(&self, pod: &PodName) -> ApiAnswer<Value> {
        let (api, path) = (self.clone(), path(pod));
        Box::pin(async move { api.json(get(&path?)?).await })
    }

    fn delete(&self, pod: &PodName, uid: &str) -> ApiAnswer<()> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        let (api, path) = (self.clone(), path(pod));
        Box::pin(
            async move { api.json(with_json(Method::DELETE, &path?, options.to_string())?).await.map(drop) },
        )
    }

    fn last_event(&self, namespace: &str, uid: &str) -> ApiAnswer<Option<String>> {
        let (api, namespace) = (self.clone(), checked(namespace).map(str::to_owned));
        let query = encode(&format!("involvedObject.uid={uid}"));
        Box::pin(async move {
            let path = format!("/api/v1/namespaces/{}/events?fieldSelector={query}&limit={PAGE}", namespace?);
            let list = api.json(get(&path)?).await?;
            let events = list["items"].as_array().into_iter().flatten();
            let last = events.max_by_key(|event| time(event).to_owned());
            Ok(last.map(|event| {
                let text = |key: &str| event[key].as_str().unwrap_or_default().trim().to_owned();
                joined(&text("reason"), &text("message"))
            }))
        })
    }

    fn list(&self, namespace: &str, select: &Select) -> ApiAnswer<PodList> {
        let (api, path, select) = (self.clone(), pods(namespace), selector(select));
        Box::pin(async move {
            let path = format!("{}?{select}&limit={PAGE}", path?);
            let mut list = PodList::default();
            let mut next = String::new();
            loop {
                let mut page = api.json(get(&format!("{path}{next}"))?).await?;
                if let Value::Array(pods) = page["items"].take() {
                    list.pods.extend(pods);
                }
                list.version = body::version(&page);
                match page["metadata"]["continue"].as_str() {
                    Some(token) if !token.is_empty() => next = format!("&continue={}", encode(token)),
                    _ => return Ok(list),
                }
            }
        })
    }

    fn watch(&self, namespace: &str, select: &Select, version: &str) -> ApiAnswer<PodChanges> {
        let (api, path, select) = (self.clone(), pods(namespace), selector(select));
        let (version, seconds) = (encode(version), WATCH_FOR.as_secs());
        Box::pin(async move {
            let path = format!(
                "{}?{select}&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}",
                path?
            );
            Ok(body::changes(body::successful(api.send(get(&path)?).await?).await?))
        })
    }

    fn open_log(&self, pod: &PodName, since: Option<Timestamp>, follow: bool) -> ApiAnswer<LogStream> {
        let (api, path) = (self.clone(), path(pod));
        let since = since.map(|since| {
            let whole = Timestamp::from_second(since.as_second()).unwrap_or(since);
            format!("&sinceTime={}", encode(&whole.to_string()))
        });
        let since = since.unwrap_or_default();
        Box::pin(async move {
            let path = format!("{}/log?container={WORKER}&follow={follow}&timestamps=true{since}", path?);
            Ok(body::log(body::successful(api.send(get(&path)?).await?).await?))
        })
    }

    fn attach(&self, pod: &PodName) -> ApiAnswer<Box<dyn StdinStream>> {
        let (api, path) = (self.clone(), path(pod));
        Box::pin(async move {
            let path =
                format!("{}/attach?container={WORKER}&stdin=true&stdout=false&stderr=false&tty=false", path?);
            attach::open(&api, &path).await
        })
    }

    fn get_secret(&self, namespace: &str, name: &str) -> ApiAnswer<Value> {
        let (api, path) = (self.clone(), secret(namespace, name));
        Box::pin(async move { api.json(get(&path?)?).await })
    }

    fn create_secret(&self, namespace: &str, secret: &Value) -> ApiAnswer<()> {
        let (api, path, body) = (self.clone(), secrets(namespace), secret.to_string());
        Box::pin(async move { api.json(with_json(Method::POST, &path?, body)?).await.map(drop) })
    }

    fn delete_secret(&self, namespace: &str, name: &str) -> ApiAnswer<()> {
        let (api, path) = (self.clone(), secret(namespace, name));
        Box::pin(async move { api.json(request(Method::DELETE, &path?, Body::empty())?).await.map(drop) })
    }

    fn may(&self, namespace: &str, verb: &str, subresource: &str) -> ApiAnswer<bool> {
        let mut resource = json!({"namespace": namespace, "verb": verb, "resource": "pods"});
        if !subresource.is_empty() {
            resource["subresource"] = subresource.into();
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": resource},
        });
        let api = self.clone();
        Box::pin(async move {
            let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let answer = api.json(with_json(Method::POST, path, review.to_string())?).await?;
            Ok(answer["status"]["allowed"] == true)
        })
    }

    fn version(&self) -> ApiAnswer<Value> {
        let api = self.clone();
        Box::pin(async move { api.json(get("/version")?).await })
    }

    fn server(&self) -> (String, u16) {
        let (host, port) = self.server.address();
        (host.to_owned(), port)
    }
}

impl HttpApi {
    /// Whether SPDY is used for attach streams from the start.
    pub(super) fn uses_spdy(&self) -> bool {
        self.uses_spdy.load(Ordering::Relaxed)
    }

    /// Has attach streams use SPDY from now on.
    pub(super) fn use_spdy(&self) {
        self.uses_spdy.store(true, Ordering::Relaxed);
    }
}

fn get(path: &str) -> Result<Request<Body>, ApiError> {
    request(Method::GET, path, Body::empty())
}

fn with_json(method: Method, path: &str, body: String) -> Result<Request<Body>, ApiError> {
    let mut request = request(method, path, Body::from(body.into_bytes()))?;
    let json = header::HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(request)
}

pub(super) fn request(method: Method, path: &str, body: Body) -> Result<Request<Body>, ApiError> {
    // No Accept header: the server refuses streams to a client that asks for JSON, and sends JSON by default.
    Request::builder()
        .method(method)
        .uri(path)
        .body(body)
        .map_err(|error| ApiError::Rejected(error.to_string()))
}

fn pods(namespace: &str) -> Result<String, ApiError> {
    Ok(format!("/api/v1/namespaces/{}/pods", checked(namespace)?))
}

fn secrets(namespace: &str) -> Result<String, ApiError> {
    Ok(format!("/api/v1/namespaces/{}/secrets", checked(namespace)?))
}

fn secret(namespace: &str, name: &str) -> Result<String, ApiError> {
    Ok(format!("{}/{}", secrets(namespace)?, checked(name)?))
}

fn path(pod: &PodName) -> Result<String, ApiError> {
    Ok(format!("{}/{}", pods(&pod.namespace)?, checked(&pod.name)?))
}

/// Checks that a name cannot change the path, because submissions choose namespaces and names.
fn checked(name: &str) -> Result<&str, ApiError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if !name.is_empty() && name.bytes().all(fits) && name.bytes().any(|byte| byte != b'.') {
        return Ok(name);
    }
    Err(ApiError::Rejected(format!("{name:?} cannot be the name of a namespace, pod or secret")))
}

fn selector(select: &Select) -> String {
    match select {
        Select::Label(name, value) => format!("labelSelector={}", encode(&format!("{name}={value}"))),
        Select::Name(name) => format!("fieldSelector={}", encode(&format!("metadata.name={name}"))),
    }
}

/// Escapes a parameter's value.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// When an event last happened. All times of events have one format, so they compare as texts.
fn time(event: &Value) -> &str {
    let times = [&event["lastTimestamp"], &event["eventTime"], &event["metadata"]["creationTimestamp"]];
    times.into_iter().find_map(Value::as_str).unwrap_or_default()
}
