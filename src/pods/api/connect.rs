//! A client for a credential: kubeconfig or mounted service account, TLS, tokens that are read again, keep-alive of
//! connections. Owns how a connection to an API server is made; makes no requests. No error shows a credential.

use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::Value;
use tower::{BoxError, ServiceBuilder};

use super::failure::words;
use super::proven::ServerKey;
use super::resolver::Resolver;

/// How long a TCP connection may take.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A connection whose other side does not answer is given up after about a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_BETWEEN: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TRIES: u32 = 3;
/// How long sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);
/// Bytes of one connection's buffer.
const BUFFER: usize = 64 * 1024;

/// Where a client's credential comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// The service account that is mounted into this node's own pod.
    InCluster,
    /// A kubeconfig, parsed.
    Kubeconfig(Value),
    /// The kubeconfig file in its usual place.
    Default,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The mounted service account cannot be used.
    #[error("the mounted service account cannot be used: {0}")]
    InCluster(String),
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Kubeconfig(String),
}

/// A client for a credential, with the namespace and the server that the credential names.
pub(super) struct ApiConnection {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// The API server's address, and a digest of its certificate authority.
    pub(super) server: ServerKey,
}

/// Makes a client.
pub(super) async fn client(credential: &CredentialSource) -> Result<ApiConnection, ConnectError> {
    let config = match credential {
        CredentialSource::InCluster => Config::incluster().map_err(|e| ConnectError::InCluster(words(&e)))?,
        CredentialSource::Default => {
            let found = Config::from_kubeconfig(&KubeConfigOptions::default()).await;
            found.map_err(|e| ConnectError::Kubeconfig(words(&e)))?
        }
        CredentialSource::Kubeconfig(value) => {
            // The parser's own message would show values of the kubeconfig.
            let shape = |_| ConnectError::Kubeconfig("its fields are not those of a kubeconfig".into());
            let kubeconfig: Kubeconfig = serde_json::from_value(value.clone()).map_err(shape)?;
            let read = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            read.map_err(|e| ConnectError::Kubeconfig(words(&e)))?
        }
    };
    let client = build(&config).map_err(|e| ConnectError::Kubeconfig(words(&*e)))?;
    let url = &config.cluster_url;
    let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let server = (host, url.port_u16().unwrap_or(usual), digest_of(config.root_cert.iter().flatten()));
    Ok(ApiConnection { client, namespace: config.default_namespace, server })
}

fn digest_of<'a>(certificates: impl Iterator<Item = &'a Vec<u8>>) -> [u8; 32] {
    let mut digest = Context::new(&SHA256);
    for certificate in certificates {
        digest.update(&(certificate.len() as u64).to_be_bytes());
        digest.update(certificate);
    }
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.finish().as_ref());
    bytes
}

fn build(config: &Config) -> Result<Client, BoxError> {
    if let Some(proxy) = &config.proxy_url {
        let scheme = proxy.scheme_str().unwrap_or("none");
        return Err(format!("proxy-url is not supported (its scheme is {scheme})").into());
    }
    let mut tcp = HttpConnector::new_with_resolver(Resolver);
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_WITHIN));
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE_BETWEEN));
    tcp.set_keepalive_retries(Some(KEEP_ALIVE_TRIES));
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let http: HyperClient<_, Body> = HyperClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .http1_max_buf_size(BUFFER)
        .build(tls);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace.clone()))
}

impl std::fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InCluster => "InCluster",
            Self::Kubeconfig(_) => "Kubeconfig(..)",
            Self::Default => "Default",
        })
    }
}
