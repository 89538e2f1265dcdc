//! What is answered: a table of paths, who may ask for each, and the function that answers. Owns the codes of what is not
//! answered. It knows no connections.

use std::pin::Pin;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::json;

use super::metrics;
use super::token::TokenFile;
use crate::control::Context;

/// What a client gets.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    /// One more header.
    pub(super) header: Option<(header::HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
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

/// The answer to a request.
pub(super) async fn answer(
    context: &Context,
    token: Option<&TokenFile>,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> HttpAnswer {
    let Some(route) = ROUTES.iter().find(|route| route.path == path) else {
        return HttpAnswer::text(StatusCode::NOT_FOUND, "there is nothing here\n");
    };
    if *method != Method::GET && *method != Method::HEAD {
        let allow = (header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        let refused = HttpAnswer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n");
        return HttpAnswer { header: Some(allow), ..refused };
    }
    if let (Who::TokenHolders, Some(token)) = (route.who, token)
        && let Err(refused) = admit(token, headers).await
    {
        return refused;
    }
    (route.answer)(context).await
}

/// Lets in whoever shows the token.
async fn admit(token: &TokenFile, headers: &HeaderMap) -> Result<(), HttpAnswer> {
    let challenge = (header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    let refused = HttpAnswer::text(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
    let refused = HttpAnswer { header: Some(challenge), ..refused };
    let Some(shown) = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
        return Err(refused);
    };
    let (token, shown) = (token.clone(), shown.to_vec());
    // A file may lie on a file system that hangs.
    match tokio::task::spawn_blocking(move || token.is(&shown)).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(refused),
        // Who has shown no good token is not told of files.
        Ok(Err(_)) | Err(_) => Err(HttpAnswer::text(
            StatusCode::SERVICE_UNAVAILABLE,
            "the node cannot use its tokenfile: meshd check says why\n",
        )),
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

async fn scrape(context: &Context) -> HttpAnswer {
    HttpAnswer {
        content_type: super::exposition::TEXT,
        ..HttpAnswer::text(StatusCode::OK, metrics::page(context).await)
    }
}

/// The process works, or nobody would answer. Nothing else counts: who restarts a node because its database is away has
/// two faults.
fn live() -> HttpAnswer {
    HttpAnswer::text(StatusCode::OK, "ok\n")
}

async fn ready(context: &Context) -> HttpAnswer {
    let health = context.observer.health().await;
    let status = if health.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    HttpAnswer {
        content_type: "application/json",
        ..HttpAnswer::text(status, format!("{}\n", json!(health)))
    }
}

impl HttpAnswer {
    fn text(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", header: None, body: body.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_stands_behind_its_scheme() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer", None),
            ("Bearerabc", None),
        ] {
            assert_eq!(bearer(value.as_bytes()), token.map(str::as_bytes), "{value}");
        }
    }
}
