//! TLS to PostgreSQL, by rustls with the provider of all our TLS.
//!
//! The server must prove the host's name. Channel binding is not offered, because the certificate is checked already.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use super::error::Error;
use super::options::SslMode;
use crate::os::regular_file::{self, LONGEST};

/// Makes TLS connections. With [`SslMode::Disable`] it is never asked to.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Reads the authorities.
    pub(super) fn new(mode: &SslMode) -> Result<Self, Error> {
        let roots = match mode {
            SslMode::Disable => RootCertStore::empty(),
            SslMode::VerifyFull(file) => authorities(file.as_deref())?,
        };
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Settings(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

fn authorities(file: Option<&std::path::Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let wrong = |why: String| Error::Settings(format!("sslrootcert {}: {why}", path.display()));
    let pem = regular_file::read(path, LONGEST).map_err(Error::file(path))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() { Err(wrong("it has no certificate".into())) } else { Ok(roots) }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = SecuredConnection<S>;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connect> {
        // Also called for Unix sockets, which have no name and no TLS.
        let name = ServerName::try_from(host.to_owned()).ok();
        Ok(Connect { connector: TlsConnector::from(self.0.clone()), name })
    }
}

/// A handshake that has not begun.
pub(super) struct Connect {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connect {
    type Stream = SecuredConnection<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<SecuredConnection<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        let Some(name) = self.name else {
            let nameless = io::Error::other("the host has no name that a certificate could prove");
            return std::future::ready(Err(nameless)).boxed();
        };
        let handshake = self.connector.connect(name, stream);
        handshake.map(|stream| stream.map(|stream| SecuredConnection(Box::new(stream)))).boxed()
    }
}

/// A connection after its handshake.
pub(super) struct SecuredConnection<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for SecuredConnection<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SecuredConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SecuredConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
