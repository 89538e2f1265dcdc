//! Connections: a TCP port, TLS by a profile, HTTP/1.1. Owns what clients may use up: how many there are, how long a request
//! may take and how long it may be, and that an answer is read. A request has no body. What is answered is `answer`'s.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::TcpKeepalive;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::answer::{self, HttpAnswer};
use super::slow_reader::SlowReader;
use super::token::TokenFile;
use crate::control::Context;
use crate::os::address::{network_of, open_first, plain, resolve};
use crate::os::places::Places;
use crate::os::tcp;
use crate::tls::ServerProfile;

/// Connections of one host; all hosts together have twice as many.
const CONNECTIONS: usize = 32;
/// How long a client may take for the head of a request, and stay silent between two.
const HEAD: Duration = Duration::from_secs(30);
/// Bytes of a request, and its headers.
const REQUEST: usize = 16 << 10;
const HEADERS: usize = 64;
/// How long a listener rests that cannot accept, out of descriptors as a rule.
const REST: Duration = Duration::from_millis(200);
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));

/// A port that answers HTTP.
pub(crate) struct HttpServer {
    listener: TcpListener,
    tls: Option<ServerProfile>,
    site: Arc<Site>,
}

/// What requests reach.
struct Site {
    context: Context,
    token: Option<TokenFile>,
}

impl HttpServer {
    /// Listens at `address`, as `host:port`.
    ///
    /// # Errors
    /// The address cannot be found or had.
    pub(crate) async fn bind(
        address: &str,
        tls: Option<ServerProfile>,
        token: Option<TokenFile>,
        context: Context,
    ) -> io::Result<Self> {
        let listener = open_first(resolve(address).await?, tcp::listen)?;
        Ok(Self { listener, tls, site: Arc::new(Site { context, token }) })
    }

    /// Answers until `stop`; what is being answered then is cut.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Self { listener, tls, site } = self;
        let (places, mut connections) = (Places::new(CONNECTIONS), JoinSet::new());
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match accepted {
                Ok((stream, peer)) => (stream, plain(peer)),
                Err(error) => {
                    warn!(%error, "cannot accept HTTP clients, trying on");
                    sleep(REST).await;
                    continue;
                }
            };
            // One too many is closed.
            let Some(place) = places.take(&network_of(peer.ip())) else {
                debug!(%peer, "too many HTTP clients");
                continue;
            };
            tcp::tune(&stream, &KEEPALIVE);
            let (site, tls) = (site.clone(), tls.clone());
            connections.spawn(async move {
                site.serve(stream, tls)
                    .await
                    .unwrap_or_else(|error| debug!(%peer, %error, "HTTP client lost"));
                drop(place);
            });
        }
    }
}

impl Site {
    async fn serve(self: Arc<Self>, stream: TcpStream, tls: Option<ServerProfile>) -> Result<(), String> {
        match tls {
            None => self.converse(stream).await,
            Some(profile) => {
                let secured = profile.accept(stream).await.map_err(|error| error.to_string())?;
                self.converse(secured).await
            }
        }
    }

    async fn converse(self: Arc<Self>, io: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), String> {
        let service = service_fn(move |request: Request<Incoming>| {
            let site = self.clone();
            async move { Ok::<_, Infallible>(site.respond(request).await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(REQUEST).max_headers(HEADERS);
        let connection = http.serve_connection(TokioIo::new(SlowReader::new(io)), service);
        connection.await.map_err(|error| error.to_string())
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let has_body = !request.body().is_end_stream();
        let (method, path, headers) = (request.method(), request.uri().path(), request.headers());
        let answer = answer::answer(&self.context, self.token.as_ref(), method, path, headers).await;
        let HttpAnswer { status, content_type, header, body } = answer;
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
        headers.extend(header);
        if has_body {
            // It is not read, so nothing behind it is.
            headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        }
        response
    }
}
