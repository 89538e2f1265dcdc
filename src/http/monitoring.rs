//! The directive `metrics`: what is answered there, and who may ask for it. Knows nothing of connections.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{ALLOW, AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode};

use super::answer::{HttpAnswer, bearer, json, large, text, with};
use super::hosts::ServerNames;
use super::server::{HttpClient, RequestBody, Responding, Site};
use super::token::TokenFile;
use super::{exposition, metrics};
use crate::control::Context;
use crate::os::answers::AnswerDoor;

/// The most connections of one host.
const CONNECTIONS: usize = 32;

/// The site of the directive.
pub(crate) struct Monitoring {
    context: Context,
    token: Option<TokenFile>,
    hosts: ServerNames,
    answers: AnswerDoor<IpAddr>,
}

impl Monitoring {
    /// `hosts` are the names that clients may use besides addresses.
    pub(crate) fn new(
        context: Context,
        token: Option<TokenFile>,
        hosts: Vec<String>,
        own_host: &str,
    ) -> Self {
        let (hosts, answers) = (ServerNames::new(hosts, own_host, true), AnswerDoor::new());
        Self { context, token, hosts, answers }
    }

    async fn answer(&self, client: &HttpClient, head: &Parts) -> HttpAnswer {
        let Parts { method, headers, .. } = head;
        let is_look = *method == Method::GET || *method == Method::HEAD;
        match head.uri.path() {
            "/metrics" | "/readyz" if !self.is_called(client, head) => text(
                StatusCode::MISDIRECTED_REQUEST,
                "this server does not answer to this name: use an address, or name its hosts in the directive metrics\n",
            ),
            "/metrics" | "/healthz" | "/readyz" if !is_look => {
                let refused = text(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported here\n");
                with(refused, ALLOW, "GET, HEAD")
            }
            "/metrics" => match self.refuse(headers).await {
                Some(refused) => refused,
                None => {
                    let (room, page) = (self.answers.room(client.host), metrics::page(&self.context).await);
                    large(exposition::TEXT, room, page).await.unwrap_or_else(|| {
                        text(StatusCode::SERVICE_UNAVAILABLE, "too many answers are unread: try again\n")
                    })
                }
            },
            // This answer shows that the process works. Nothing else counts, because a restart of the node would not
            // help, for instance while its database is away.
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" => {
                let health = self.context.observer.health().await;
                let status = if health.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                json(status, &health)
            }
            _ => text(StatusCode::NOT_FOUND, "there is nothing here\n"),
        }
    }

    /// Whether a request means this server. With TLS the certificate proves it; a client that gives no name is no
    /// browser, so it may pass.
    fn is_called(&self, client: &HttpClient, head: &Parts) -> bool {
        let gives_none = !head.headers.contains_key(HOST) && head.uri.authority().is_none();
        client.is_secured || gives_none || self.hosts.called(client, head).is_some()
    }

    /// The refusal of a client that does not show the configured token; `None` lets the client in.
    async fn refuse(&self, headers: &HeaderMap) -> Option<HttpAnswer> {
        let token = self.token.clone()?;
        let refused = text(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
        let refused = with(refused, WWW_AUTHENTICATE, "Bearer");
        let Some(shown) = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
            return Some(refused);
        };
        let shown = shown.to_vec();
        // On another thread, because the file may lie on a file system that hangs.
        match tokio::task::spawn_blocking(move || token.is(&shown)).await {
            Ok(Ok(true)) => None,
            Ok(Ok(false)) => Some(refused),
            // A client without a good token is not told what is wrong with the file.
            Ok(Err(_)) | Err(_) => Some(text(
                StatusCode::SERVICE_UNAVAILABLE,
                "the node cannot use its tokenfile: meshd check says why\n",
            )),
        }
    }
}

impl Site for Monitoring {
    fn connections(&self) -> usize {
        CONNECTIONS
    }

    fn respond(self: Arc<Self>, client: Arc<HttpClient>, request: Request<RequestBody>) -> Responding {
        Box::pin(async move { self.answer(&client, &request.into_parts().0).await })
    }
}
