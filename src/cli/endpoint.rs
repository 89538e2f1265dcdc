//! Addresses of control services: how users write them, how they are dialled, and what to do if nobody listens.

use std::{fmt, io, path::PathBuf, str::FromStr, time::Duration};

use tokio::net::{TcpStream, UnixStream};

use crate::rpc::{CallError, ControlDialer, Dialing, Duplex};
use crate::tls::{ClientOptions, ClientProfile};

/// Where a node's control socket usually is, most likely place first.
pub(super) const DEFAULT_SOCKETS: [&str; 3] =
    ["/run/meshd/meshd.sock", "/var/run/receptor/receptor.sock", "/var/run/awx-receptor/receptor.sock"];

/// The address of a control service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A Unix socket file.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Host name or address, an IPv6 one without brackets; with TLS the certificate must name it.
        host: String,
        /// Port.
        port: u16,
        /// TLS is spoken there.
        tls: bool,
    },
}

/// A text that is no address of a control service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a control socket: write unix:/PATH, /PATH, tcp://HOST:PORT or tls://HOST:PORT")]
pub(super) struct InvalidEndpoint(String);

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    /// Reads `unix:PATH`, `unix://PATH`, `PATH` (a leading `~/` is the home directory), `tcp://HOST:PORT`,
    /// `tcp:HOST:PORT`, and `tls` likewise.
    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let without_slashes = |rest: &str| rest.strip_prefix("//").unwrap_or(rest).to_owned();
        let invalid = || InvalidEndpoint(text.to_owned());
        for (scheme, tls) in [("tls:", true), ("tcp:", false)] {
            if let Some(rest) = text.strip_prefix(scheme) {
                let (host, port) = host_and_port(&without_slashes(rest)).ok_or_else(invalid)?;
                return Ok(Self::Tcp { host, port, tls });
            }
        }
        let path = text.strip_prefix("unix:").map_or_else(|| text.to_owned(), without_slashes);
        // A colon in a path is far more often a misspelt scheme or a forgotten tcp:.
        if path.is_empty() || path.contains([':', '\0']) {
            return Err(invalid());
        }
        Ok(Self::Unix(expand_home(&path, std::env::home_dir())))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port, tls } => {
                write!(f, "{}://{}:{port}", if *tls { "tls" } else { "tcp" }, bracketed(host))
            }
        }
    }
}

/// A control service by its address.
pub(super) struct EndpointDialer {
    endpoint: Endpoint,
    tls: Option<ClientProfile>,
}

impl EndpointDialer {
    /// With a profile for `tls://` endpoints; without one the system's authorities are trusted.
    pub(super) fn new(endpoint: Endpoint, tls: Option<ClientProfile>) -> Self {
        Self { endpoint, tls }
    }

    async fn open(&self) -> io::Result<Box<dyn Duplex>> {
        match &self.endpoint {
            Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Endpoint::Tcp { host, port, tls: false } => Ok(Box::new(dial_tcp(host, *port).await?)),
            Endpoint::Tcp { host, port, tls: true } => {
                let profile = match &self.tls {
                    Some(profile) => profile.clone(),
                    None => {
                        let options = ClientOptions { name: "(none)".to_owned(), ..ClientOptions::default() };
                        ClientProfile::open(options, None).map_err(io::Error::other)?
                    }
                };
                let stream = dial_tcp(host, *port).await?;
                Ok(Box::new(profile.connect(stream, host).await?.ending_like_tcp()))
            }
        }
    }
}

impl ControlDialer for EndpointDialer {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            self.open().await.map_err(|error| CallError::Unreachable(unreachable(&self.endpoint, &error)))
        })
    }

    fn address(&self) -> String {
        self.endpoint.to_string()
    }

    fn ends_are_reliable(&self) -> bool {
        match self.endpoint {
            Endpoint::Unix(_) => true,
            Endpoint::Tcp { .. } => false,
        }
    }
}

/// Results may be silent for hours: only probes can distinguish a lost host from a quiet job.
const KEEPALIVE: socket2::TcpKeepalive =
    socket2::TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));

async fn dial_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    crate::os::tcp::tune(&stream, &KEEPALIVE);
    Ok(stream)
}

fn unreachable(endpoint: &Endpoint, source: &io::Error) -> String {
    let advice = match (endpoint, source.kind()) {
        (Endpoint::Unix(path), io::ErrorKind::NotFound) => {
            return format!(
                "no socket at {}: is meshd running? give --socket or set RECEPTORCTL_SOCKET",
                path.display()
            );
        }
        (Endpoint::Unix(_), io::ErrorKind::ConnectionRefused) => {
            "the socket file is there, but nobody listens: the node was killed or is starting; start meshd"
        }
        (Endpoint::Unix(_), io::ErrorKind::PermissionDenied) => {
            "run as the node's user or root, or set `permissions` and the group of its control-service"
        }
        (Endpoint::Tcp { tls: false, .. }, io::ErrorKind::ConnectionRefused) => {
            "is meshd running, with `tcplisten` in its control-service?"
        }
        (Endpoint::Tcp { tls: true, .. }, io::ErrorKind::ConnectionRefused) => {
            "is meshd running, with `tcplisten` and `tcptls` in its control-service?"
        }
        (Endpoint::Tcp { tls: true, .. }, io::ErrorKind::InvalidData) => {
            "give --rootcas, and --cert and --key where the node wants them"
        }
        (Endpoint::Unix(_) | Endpoint::Tcp { .. }, _) => "is meshd running there?",
    };
    format!("cannot connect to {endpoint}: {source}; {advice}")
}

fn bracketed(host: &str) -> std::borrow::Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

fn expand_home(path: &str, home: Option<PathBuf>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        (Some(_) | None, _) => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_receptorctl_reads() {
        let unix = |path: &str| Ok(Endpoint::Unix(PathBuf::from(path)));
        let tcp = |host: &str, port| Ok(Endpoint::Tcp { host: host.to_owned(), port, tls: false });
        for (text, expected) in [
            ("/run/x.sock", unix("/run/x.sock")),
            ("relative.sock", unix("relative.sock")),
            ("unix:/run/x.sock", unix("/run/x.sock")),
            ("unix:///run/x.sock", unix("/run/x.sock")),
            ("tcp://host:2222", tcp("host", 2222)),
            ("tcp:10.0.0.1:2222", tcp("10.0.0.1", 2222)),
            ("tcp://::1:2222", tcp("::1", 2222)),
            ("tcp://[::1]:2222", tcp("::1", 2222)),
        ] {
            assert_eq!(text.parse(), expected, "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_address() {
        for text in
            ["", "unix:", "tcp://host", "tcp://host:0", "tcp://:1", "tcp://h:99999", "http://h:1", "tls://h"]
        {
            assert_eq!(text.parse::<Endpoint>(), Err(InvalidEndpoint(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn the_home_directory_is_expanded_at_the_start_only() {
        let home = || Some(PathBuf::from("/home/op"));
        assert_eq!(expand_home("~/x.sock", home()), PathBuf::from("/home/op/x.sock"));
        assert_eq!(expand_home("/a/~/x.sock", home()), PathBuf::from("/a/~/x.sock"));
        assert_eq!(expand_home("~/x.sock", None), PathBuf::from("~/x.sock"));
    }

    #[test]
    fn prints_what_reads_back() {
        for text in
            ["unix:/run/x.sock", "tcp://host:2222", "tcp://[::1]:2222", "tls://host:1", "tls://[::1]:1"]
        {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }
}
