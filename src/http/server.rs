//! Connections: a TCP port, TLS by a profile, HTTP/1.1. Owns what clients may use up: the number of connections, the
//! time and the length of a request's head, and the time in which an answer must be read. A [`Site`] makes the answers.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::answer::{HttpAnswer, HttpBody};
use super::slow_reader::SlowReader;
use crate::os::accept::ClientAcceptor;
use crate::os::address::{network_of, open_first, plain, resolve};
use crate::os::house::{Asking, House, Seat};
use crate::os::peer_user::peer_user;
use crate::os::tcp;
use crate::tls::{Names, ServerProfile};

/// How long the head of a request may take, and how long a client may stay silent between two requests.
const HEAD: Duration = Duration::from_secs(30);
/// The most bytes of a request's head, and of an answer that wait to be sent; the most headers of a request.
const BUFFER: usize = 16 << 10;
const HEADERS: usize = 64;
/// Bytes that the kernel may hold for a client that does not read. Linux doubles this number.
const UNREAD: usize = 256 << 10;
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));

/// What a port answers, and to whom.
pub(crate) trait Site: Send + Sync + 'static {
    /// The most connections of one host; all hosts together may have twice as many.
    fn connections(&self) -> usize;

    /// The answer to a request.
    fn respond(self: Arc<Self>, client: Arc<HttpClient>, request: Request<RequestBody>) -> Responding;
}

pub(crate) type Responding = Pin<Box<dyn Future<Output = HttpAnswer> + Send>>;

/// What the connection says about the client.
#[derive(Debug)]
pub(crate) struct HttpClient {
    pub(super) host: IpAddr,
    /// The address of this node that the client has reached.
    pub(super) local: IpAddr,
    pub(super) is_secured: bool,
    /// The names in the client's certificate, which was verified.
    pub(super) certificate: Option<Names>,
}

/// The body of a request. Until it has come whole, the connection may lose its place to another.
pub(crate) struct RequestBody {
    incoming: Incoming,
    asking: Arc<Asking<HttpCaller>>,
}

impl RequestBody {
    fn new(incoming: Incoming, asking: Arc<Asking<HttpCaller>>) -> Self {
        if incoming.is_end_stream() {
            asking.stays();
        }
        Self { incoming, asking }
    }

    /// Keeps the connection's place although the body has not come. The caller bounds the number of such bodies.
    pub(super) fn may_take_long(&self) {
        self.asking.stays();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if frame.is_none() || self.incoming.is_end_stream() {
            self.asking.stays();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// A port that answers HTTP.
pub(crate) struct HttpServer {
    listener: TcpListener,
    tls: Option<ServerProfile>,
    site: Arc<dyn Site>,
}

/// Whose connections count together: those of a network, or of one user of this machine.
type HttpCaller = (IpAddr, Option<u32>);

/// The caller of a connection. All loopback addresses count as one, because they all lead to this machine's users.
fn caller_of(stream: &TcpStream, peer: SocketAddr) -> HttpCaller {
    match stream.local_addr() {
        Ok(local) if peer.ip().is_loopback() => (Ipv4Addr::LOCALHOST.into(), peer_user(peer, plain(local))),
        Ok(_) | Err(_) => (network_of(peer.ip()), None),
    }
}

impl HttpServer {
    /// Listens at `address`, as `host:port`.
    ///
    /// # Errors
    /// The address cannot be resolved, or not listened on.
    pub(crate) async fn bind(address: &str, tls: Option<ServerProfile>, site: impl Site) -> io::Result<Self> {
        let listener = open_first(resolve(address).await?, tcp::listen)?;
        Ok(Self { listener, tls, site: Arc::new(site) })
    }

    /// Answers until `stop`, which cuts the answers under way.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let Self { listener, tls, site } = self;
        let (house, mut connections) = (House::new(site.connections()), JoinSet::new());
        let mut acceptor = ClientAcceptor::new("HTTP");
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            let Some((stream, peer)) = acceptor.sort(accepted).await else { continue };
            let peer = plain(peer);
            // A connection too many is closed, unless a silent one leaves for it.
            let Some(seat) = house.enter(caller_of(&stream, peer)) else {
                debug!(%peer, "too many HTTP clients");
                continue;
            };
            tcp::tune(&stream, &KEEPALIVE);
            // If this fails, the system's own bound holds.
            let _set = SockRef::from(&stream).set_send_buffer_size(UNREAD);
            let (site, tls) = (site.clone(), tls.clone());
            connections.spawn(async move {
                tokio::select! {
                    served = serve(site, stream, peer.ip(), tls, &seat) => {
                        served.unwrap_or_else(|error| debug!(%peer, %error, "HTTP client lost"));
                    }
                    () = seat.left() => debug!(%peer, "closed a silent HTTP connection to make room for another"),
                }
            });
        }
    }
}

async fn serve(
    site: Arc<dyn Site>,
    stream: TcpStream,
    host: IpAddr,
    tls: Option<ServerProfile>,
    seat: &Arc<Seat<HttpCaller>>,
) -> Result<(), String> {
    let local = plain(stream.local_addr().map_err(|error| error.to_string())?).ip();
    let client = HttpClient { host, local, is_secured: tls.is_some(), certificate: None };
    match tls {
        None => converse(site, client, stream, seat).await,
        Some(profile) => {
            let secured = profile.accept(stream).await.map_err(|error| error.to_string())?;
            let client = HttpClient { certificate: secured.names(), ..client };
            converse(site, client, secured, seat).await
        }
    }
}

async fn converse(
    site: Arc<dyn Site>,
    client: HttpClient,
    io: impl AsyncRead + AsyncWrite + Unpin,
    seat: &Arc<Seat<HttpCaller>>,
) -> Result<(), String> {
    let client = Arc::new(client);
    let service = service_fn(move |request: Request<Incoming>| {
        let (site, client, asking) = (site.clone(), client.clone(), Arc::new(seat.asks()));
        let request = request.map(|incoming| RequestBody::new(incoming, asking.clone()));
        async move {
            let answer = respond(site, client, request).await;
            // The connection keeps its place until the last of the answer is on its way.
            asking.stays();
            let held = |body: HttpBody| {
                let held = move |error| {
                    let _held = &asking;
                    error
                };
                body.map_err(held).boxed_unsync()
            };
            Ok::<_, Infallible>(answer.map(held))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(BUFFER).max_headers(HEADERS);
    let connection = http.serve_connection(TokioIo::new(SlowReader::new(io)), service);
    connection.await.map_err(|error| error.to_string())
}

async fn respond(site: Arc<dyn Site>, client: Arc<HttpClient>, request: Request<RequestBody>) -> HttpAnswer {
    let has_body = !request.body().is_end_stream();
    let takes_one = *request.method() == Method::POST;
    let mut answer = site.respond(client, request).await;
    let is_read = takes_one && answer.status().is_success();
    let headers = answer.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if has_body && !is_read {
        // After a body that was not read, the next bytes are not a request.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}
