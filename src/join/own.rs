//! The configuration of the node of this host, as `meshctl node` finds it: whether it may be rewritten, and what it
//! lacks to admit others.
//!
//! A handwritten configuration is never changed: our files are added beside it, and what it lacks is named. It
//! refuses to know the running node.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::JoinError;
use super::address::{NodeAddress, NodeTransport};
use super::configuration::{self, DATA, MARK, NODE_FILE, PROFILE, SOCKET};
use super::record::{NodeRole, Record};
use crate::config::{self, Config, ConfigErrors, HostPort};
use crate::os::regular_file::read_text;
use crate::tls::{ClientOptions, Files, ServerOptions};

/// The configuration in a directory.
pub(crate) struct OwnNode {
    dir: PathBuf,
    texts: BTreeMap<PathBuf, String>,
    config: Config,
}

impl OwnNode {
    /// Reads all files of the directory.
    ///
    /// # Errors
    /// They cannot be read, or are not a valid configuration.
    pub(crate) fn read(dir: &Path) -> Result<Self, JoinError> {
        let texts = texts(dir)?;
        if texts.is_empty() {
            let dir = dir.display();
            return Err(JoinError::Unready(format!(
                "{dir}: there is no configuration of a node: install the package, or name its directory with --config"
            )));
        }
        let config = checked(&texts)?;
        Ok(Self { dir: dir.to_owned(), texts, config })
    }

    /// The configuration itself.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the file of the node itself may be rewritten: we have written it, or it says no more than the
    /// package's, and no file beside it conflicts with what we would write.
    pub(crate) fn is_ours(&self) -> bool {
        let file = self.texts.iter().find(|(path, _)| path.as_path() == Path::new(NODE_FILE));
        let Some((path, text)) = file.filter(|(path, text)| may_be_replaced(path, text)) else {
            return false;
        };
        let id = self.config.node.id.as_str();
        let Ok(record) = Record::new(id, NodeRole::Control) else { return text.starts_with(MARK) };
        let mut texts = self.texts.clone();
        texts.insert(path.clone(), configuration::of(&record));
        checked(&texts).is_ok()
    }

    /// Whether it has the certificates of a mesh; an authority has then signed them.
    pub(crate) fn is_member(&self) -> bool {
        self.config.tls_clients.iter().any(|client| client.name == PROFILE)
    }

    /// The file in this directory that is for one peer.
    pub(crate) fn peer_file(&self, node: &str) -> PathBuf {
        self.file(&format!("60-peer-{node}.yml"))
    }

    /// A file of this name in this directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The `tls-server` that asks for certificates, of the listener on this port.
    pub(crate) fn door(&self, port: u16) -> Result<&ServerOptions, JoinError> {
        let listener = self.config.tcp_listeners.iter().find(|listener| listener.bind.port == port);
        let profile = listener.and_then(|listener| listener.tls.as_ref());
        let server = self.config.tls_servers.iter().find(|server| Some(&server.name) == profile);
        server.filter(|server| server.require_client_cert).ok_or_else(|| {
            self.lacks(&format!(
                "a tcp-listener on port {port} whose tls-server has requireclientcert: true, and clientcas with the \
                 authority's certificate"
            ))
        })
    }

    /// A `tls-client` that presents a certificate.
    pub(crate) fn dialler(&self) -> Result<&ClientOptions, JoinError> {
        let shows = |client: &&ClientOptions| client.files.identity.is_some() && !client.insecure_skip_verify;
        let clients = || self.config.tls_clients.iter().filter(shows);
        let found = clients().find(|client| client.name == PROFILE).or_else(|| clients().next());
        found.ok_or_else(|| {
            self.lacks("a tls-client with cert and key, and rootcas with the authority's certificate")
        })
    }

    /// The private key that signs jobs.
    pub(crate) fn signing_key(&self) -> Result<&Path, JoinError> {
        let signing = self.config.work_signing.as_ref();
        signing.map(|signing| signing.private_key.as_path()).ok_or_else(|| {
            self.lacks(
                "work-signing, with a key that `meshctl key generate` makes: nodes run what is signed by it",
            )
        })
    }

    /// Whether newcomers can come in at a listener of this address, for WebSockets or QUIC.
    pub(super) fn listens(&self, address: &NodeAddress) -> bool {
        let (port, config) = (address.at.port, &self.config);
        match address.transport {
            NodeTransport::Tcp => config.tcp_listeners.iter().any(|one| one.bind.port == port),
            NodeTransport::WebSocket => {
                config.ws_listeners.iter().any(|one| one.bind.port == port && one.tls.is_some())
            }
            NodeTransport::Quic => config.quic_listeners.iter().any(|one| one.bind.port == port),
        }
    }

    /// Whether it already dials a node at this address.
    pub(crate) fn dials(&self, address: &HostPort) -> bool {
        self.config.tcp_peers.iter().any(|peer| peer.address == *address)
    }

    /// The profiles that accept certificates without checking this list of revoked ones.
    pub(crate) fn without_list(&self, list: &Path) -> Vec<String> {
        let reads = |files: &Files| files.crl.as_deref() == Some(list);
        let accepts = |one: &&ServerOptions| one.require_client_cert || one.files.authorities.is_some();
        let servers = self.config.tls_servers.iter().filter(accepts).filter(|one| !reads(&one.files));
        let clients = self.config.tls_clients.iter().filter(|one| !reads(&one.files));
        let servers = servers.map(|one| format!("tls-server {}", one.name));
        servers.chain(clients.map(|one| format!("tls-client {}", one.name))).collect()
    }

    fn lacks(&self, what: &str) -> JoinError {
        JoinError::Unready(format!(
            "the configuration in {} was written by hand, and lacks {what}; docs/trust-setup.md has an example",
            self.dir.display()
        ))
    }
}

/// The configuration files of a directory; none if the directory does not exist.
pub(super) fn texts(dir: &Path) -> Result<BTreeMap<PathBuf, String>, JoinError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries.and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(JoinError::of(dir))?,
    };
    let paths = entries.into_iter().map(|entry| entry.path()).filter(|path| config::is_configuration(path));
    let text = |path: PathBuf| {
        let text = read_text(&path).map_err(JoinError::of(&path))?;
        Ok((path, text))
    };
    paths.map(text).collect()
}

/// The configuration that these files make.
pub(super) fn checked(texts: &BTreeMap<PathBuf, String>) -> Result<Config, ConfigErrors> {
    let files: Vec<_> = texts.iter().map(|(path, text)| (path.clone(), text.clone())).collect();
    config::of_texts(&files)
}

/// Whether replacing this file of a node would lose nothing.
pub(super) fn may_be_replaced(path: &Path, text: &str) -> bool {
    text.starts_with(MARK) || says_little(path, text).unwrap_or(false)
}

/// Whether it only names the node, with its usual data directory and socket; a log level does not count.
fn says_little(path: &Path, text: &str) -> Option<bool> {
    let read = |text: String| config::of_texts(&[(path.to_owned(), text)]).ok();
    let found = read(text.to_owned())?;
    let (node, permissions) = (&found.node.id, found.control_services.first()?.permissions);
    let plain = format!(
        "- node: {{id: '{node}', datadir: {DATA}}}\n\
         - control-service: {{filename: {SOCKET}, permissions: '0{permissions:o}'}}\n\
         - local-only:\n"
    );
    let mut plain = read(plain)?;
    plain.log_level = found.log_level;
    Some(plain == found)
}
