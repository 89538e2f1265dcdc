//! The directive `metrics`: the table of what is answered there, and who may ask for each. It knows no connections.

use std::pin::Pin;
use std::sync::Arc;

use http::header::{ALLOW, AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use super::answer::{HttpAnswer, JSON, bearer, text, whole, with};
use super::server::{HttpClient, Responding, Site};
use super::token::TokenFile;
use super::{exposition, metrics};
use crate::control::Context;

/// Connections of one host.
const CONNECTIONS: usize = 32;

/// What requests reach.
pub(crate) struct Monitoring {
    context: Context,
    token: Option<TokenFile>,
}

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Everybody,
    /// Who shows the token, if one is configured.
    TokenHolders,
}

type Answering<'a> = Pin<Box<dyn Future<Output = HttpAnswer> + Send + 'a>>;

/// A path and what is answered there.
struct Route {
    path: &'static str,
    who: Who,
    answer: for<'a> fn(&'a Context) -> Answering<'a>,
}

const ROUTES: [Route; 3] = [
    Route { path: "/metrics", who: Who::TokenHolders, answer: |context| Box::pin(scrape(context)) },
    Route { path: "/healthz", who: Who::Everybody, answer: |_context| Box::pin(async { live() }) },
    Route { path: "/readyz", who: Who::Everybody, answer: |context| Box::pin(ready(context)) },
];

impl Monitoring {
    pub(crate) fn new(context: Context, token: Option<TokenFile>) -> Self {
        Self { context, token }
    }

    async fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> HttpAnswer {
        let Some(route) = ROUTES.iter().find(|route| route.path == path) else {
            return text(StatusCode::NOT_FOUND, "there is nothing here\n");
        };
        if *method != Method::GET && *method != Method::HEAD {
            let refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n");
            return with(refused, ALLOW, "GET, HEAD");
        }
        if let (Who::TokenHolders, Some(token)) = (route.who, &self.token)
            && let Some(refused) = refuse(token, headers).await
        {
            return refused;
        }
        (route.answer)(&self.context).await
    }
}

impl Site for Monitoring {
    fn connections(&self) -> usize {
        CONNECTIONS
    }

    fn respond(self: Arc<Self>, _client: Arc<HttpClient>, request: Request<Incoming>) -> Responding {
        Box::pin(async move { self.answer(request.method(), request.uri().path(), request.headers()).await })
    }
}

/// Lets in whoever shows the token: then there is no answer yet.
async fn refuse(token: &TokenFile, headers: &HeaderMap) -> Option<HttpAnswer> {
    let refused = text(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
    let refused = with(refused, WWW_AUTHENTICATE, "Bearer");
    let Some(shown) = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
        return Some(refused);
    };
    let (token, shown) = (token.clone(), shown.to_vec());
    // A file may lie on a file system that hangs.
    match tokio::task::spawn_blocking(move || token.is(&shown)).await {
        Ok(Ok(true)) => None,
        Ok(Ok(false)) => Some(refused),
        // Who has shown no good token is not told of files.
        Ok(Err(_)) | Err(_) => Some(text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the node cannot use its tokenfile: meshd check says why\n",
        )),
    }
}

async fn scrape(context: &Context) -> HttpAnswer {
    whole(StatusCode::OK, exposition::TEXT, metrics::page(context).await)
}

/// The process works, or nobody would answer. Nothing else counts: who restarts a node because its database is away has
/// two faults.
fn live() -> HttpAnswer {
    text(StatusCode::OK, "ok\n")
}

async fn ready(context: &Context) -> HttpAnswer {
    let health = context.observer.health().await;
    let status = if health.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    whole(status, JSON, format!("{}\n", json!(health)))
}
