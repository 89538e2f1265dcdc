//! POSTs to a server of the web, one after another over a connection that the caller has made. Follows no redirect, and
//! retries nothing. Does not know what is posted.

use bytes::Bytes;
use http::{Request, StatusCode, Uri, header, request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

/// A connection to a server.
pub(crate) struct Poster {
    requests: SendRequest<Full<Bytes>>,
    _connection: AbortOnDropHandle<hyper::Result<()>>,
}

impl Poster {
    pub(crate) async fn new(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> hyper::Result<Self> {
        let (requests, connection) = handshake(TokioIo::new(stream)).await?;
        Ok(Self { requests, _connection: AbortOnDropHandle::new(tokio::spawn(connection)) })
    }

    /// Returns the status and the first `most` bytes of the answer. If the answer was longer, the connection cannot be
    /// used again.
    pub(crate) async fn post(
        &mut self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> hyper::Result<(StatusCode, Vec<u8>)> {
        let answer = self.requests.send_request(request).await?;
        let (status, mut body, mut begin) = (answer.status(), answer.into_body(), Vec::new());
        while begin.len() <= most
            && let Some(Ok(frame)) = body.frame().await
        {
            begin.extend(frame.into_data().unwrap_or_default());
        }
        begin.truncate(most);
        Ok((status, begin))
    }
}

/// A POST to this address.
pub(crate) fn post_to(address: &Uri) -> request::Builder {
    let path = address.path_and_query().map_or("/", |path| path.as_str());
    let host = address.authority().map_or("", |authority| authority.as_str());
    let agent = concat!("meshd/", env!("CARGO_PKG_VERSION"));
    Request::post(path).header(header::HOST, host).header(header::USER_AGENT, agent)
}

/// The host and the port of an address.
pub(crate) fn place(address: &Uri) -> (&str, u16) {
    let usual = if is_tls(address) { 443 } else { 80 };
    (address.host().unwrap_or_default().trim_matches(['[', ']']), address.port_u16().unwrap_or(usual))
}

/// Whether an address of the web is secured.
pub(crate) fn is_tls(address: &Uri) -> bool {
    address.scheme_str() == Some("https")
}
