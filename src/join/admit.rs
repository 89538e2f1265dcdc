//! Takes a node in: a certificate and a configuration for it, and what this node needs so that both find each other.
//!
//! Owns the decision who dials whom, and what of it changes here. It writes files and bundles. It refuses to know the
//! running node, which reads its configuration again when somebody else has asked it to.

use std::collections::BTreeSet;
use std::net::{ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::json;

use super::JoinError;
use super::authority::{Authority, Certified};
use super::bundle;
use super::configuration::{self, CERTIFICATE, KEY, NODE_FILE, PROFILE, REVOKED, SIGNING_KEY, Text};
use super::install::{Kit, Staged, names};
use super::own::OwnNode;
use super::place::{Access, Tree};
use super::record::{NodeRole, PORT, Record};
use crate::config::{HostPort, nearest};
use crate::os::directories::parent_of;
use crate::os::regular_file::read_text;
use crate::tls::ServerOptions;
use crate::tls::inspect::{self, Verifier};
use crate::tls::make::{self, KeyKind};

/// The key that signs jobs, as every node can verify it, receptor's among them.
const SIGNING: KeyKind = KeyKind::Rsa(4096);

/// A node that shall join.
pub(crate) struct Newcomer {
    pub(crate) node: String,
    pub(crate) role: NodeRole,
    /// Whom it dials, or where it listens if `is_dialled`.
    pub(crate) peer: HostPort,
    pub(crate) is_dialled: bool,
    /// The peer is this node, wherever its name leads.
    pub(crate) is_here: bool,
    /// More names of its host.
    pub(crate) hosts: BTreeSet<String>,
}

/// Takes it in by its [record](Newcomer::record): what changes here is in `tree`, the bundle in `out`.
///
/// # Errors
/// What is missing, or wrong; the bundle is not written then.
pub(crate) fn admit(
    newcomer: &Newcomer,
    mut record: Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut Tree,
    out: &Path,
) -> Result<(), JoinError> {
    let mut here = Here { own, authority, tree };
    if own.is_ours() {
        here.open_up(newcomer)?;
    } else {
        here.check_by_hand(newcomer)?;
    }
    if newcomer.is_dialled {
        here.dial(newcomer)?;
    }
    pack(&mut record, authority, own, out)
}

/// Makes a certificate for the node of a record, and a bundle with everything that it needs.
/// A former bundle is overwritten.
///
/// # Errors
/// Something cannot be made or written.
pub(crate) fn pack(
    record: &mut Record,
    authority: &Authority,
    own: &OwnNode,
    out: &Path,
) -> Result<(), JoinError> {
    let verification = record.role.runs_jobs().then(|| verification_key(own)).transpose()?;
    let dialled = record.dials.as_ref().and_then(|address| address.rsplit_once(':')?.1.parse().ok());
    let door = dialled.filter(|_| !own.is_ours()).and_then(|port| own.door(port).ok());
    let node = record.node.clone();
    let is_fit = |certificate: &str| door.map_or(Ok(()), |door| check_by_door(door, &node, certificate));
    let Certified { certificate, key } = authority.certify(record, Timestamp::now(), is_fit)?;
    let readme = format!(
        "This is what the host {node} needs to join the mesh, its private key included: keep it secret, and delete it there.\n\
         With meshd's package on that host, run there as root: meshctl install {node}.tar\n"
    );
    let (configuration, list) = (configuration::of(record), authority.list()?);
    let mut files = vec![
        (names::README, readme.as_str()),
        (names::CONFIGURATION, &configuration),
        (names::CERTIFICATE, &certificate),
        (names::KEY, &key),
        (names::AUTHORITY, authority.certificate()),
        (names::REVOKED, &list),
    ];
    files.extend(verification.as_deref().map(|key| (names::VERIFICATION_KEY, key)));
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    bundle::write(out, &files, now)
}

/// A node that is no member any more.
pub(crate) struct Excluded {
    /// Whether this node dialled it.
    pub(crate) is_dialled: bool,
    /// The profiles of this node that accept its certificates still.
    pub(crate) accepts: Vec<String>,
    /// The command for each node that needs the new list.
    pub(crate) lists: Vec<String>,
}

/// Takes back the certificates of a node, which this one does not dial any more.
///
/// # Errors
/// As the system's.
pub(crate) fn exclude(
    record: &mut Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut Tree,
    now: Timestamp,
) -> Result<Excluded, JoinError> {
    authority.revoke(record, now)?;
    let list = authority.list_path();
    tree.directory("/etc/meshd/tls")?;
    tree.file(REVOKED, authority.list()?.as_bytes(), Access::Public)?;
    let accepts = own.without_list(Path::new(REVOKED));
    let file = own.peer_file(&record.node);
    tree.remove(&file.to_string_lossy())?;
    let is_dialled = tree.has_changed(&file.to_string_lossy());
    let this = own.config().node.id.as_str();
    let others = authority.records()?.into_iter().filter(|other| other.node != this && !other.is_removed());
    let listening = others.filter(|other| other.listens.is_some());
    let command = |other: Record| format!("scp {} root@{}:{REVOKED}", list.display(), other.host());
    Ok(Excluded { is_dialled, accepts, lists: listening.map(command).collect() })
}

/// Gives this node a new certificate in place, which it reads at once.
///
/// # Errors
/// Its files are somebody else's, or as the system's.
pub(crate) fn renew_own(
    record: &mut Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut Tree,
) -> Result<(), JoinError> {
    if !own.is_ours() {
        return Err(JoinError::Unready(format!(
            "the configuration of {} was written by hand: renew its certificate with `meshctl cert`",
            record.node
        )));
    }
    let Certified { certificate, key } = authority.certify(record, Timestamp::now(), |_| Ok(()))?;
    tree.file(KEY, key.as_bytes(), Access::Daemon)?;
    tree.file(CERTIFICATE, certificate.as_bytes(), Access::Public)
}

/// The public half of the key that signs jobs.
fn verification_key(own: &OwnNode) -> Result<String, JoinError> {
    let signing = if own.is_ours() { Path::new(SIGNING_KEY) } else { own.signing_key()? };
    let text = read_text(signing).map_err(JoinError::of(signing))?;
    make::public_key(&text).or_else(|error| match &own.config().work_verification {
        // In the form of ssh-keygen.
        Some(verification) => {
            let path = &verification.public_key;
            read_text(path).map_err(JoinError::of(path))
        }
        None => Err(error.into()),
    })
}

/// Whether the listener of a configuration written by hand accepts the certificate.
fn check_by_door(door: &ServerOptions, node: &str, certificate: &str) -> Result<(), JoinError> {
    let staged = Staged::new(&std::env::temp_dir())?;
    let file = staged.file(names::CERTIFICATE, certificate.as_bytes())?;
    let unfit = |reason: String| JoinError::Unready(format!("this node would not let {node} in: {reason}"));
    let verifier = Verifier::by_server(door.clone()).map_err(|error| unfit(error.to_string()))?;
    inspect::verify(&verifier, &file, Some(node), None).map_err(|error| unfit(error.to_string()))
}

impl Newcomer {
    /// What the authority will remember of it, if there is one yet. Nothing is written.
    ///
    /// # Errors
    /// What is wrong with what was typed: a name that another node has, a peer that is none, a bundle that is there.
    pub(crate) fn record(
        &self,
        own: &OwnNode,
        authority: Option<&Authority>,
        out: &Path,
    ) -> Result<Record, JoinError> {
        let mut record = Record::new(&self.node, self.role)?;
        if self.node == own.config().node.id.as_str() {
            let text = "is the node of this host: give the new one a name of its own";
            return Err(JoinError::Unready(format!("{} {text}", self.node)));
        }
        let records = authority.map_or_else(|| Ok(Vec::new()), Authority::records)?;
        if let Some(known) = records.iter().find(|known| known.node == self.node) {
            if !known.is_removed() {
                return Err(JoinError::Known(self.node.clone()));
            }
            record.certificates.clone_from(&known.certificates);
        }
        if out.exists() {
            return Err(JoinError::Exists(out.to_owned()));
        }
        let dir = parent_of(out);
        dir.read_dir().map_err(JoinError::of(dir))?;
        if !self.is_dialled {
            self.check_peer(own, &records)?;
        }
        record.hosts.extend(self.hosts.iter().cloned());
        if self.is_dialled {
            record.hosts.insert(self.peer.host.clone());
            record.listens = Some(self.peer.port);
        } else {
            record.dials = Some(self.peer.to_string());
            record.listens = self.role.relays().then_some(PORT);
        }
        Ok(record)
    }

    /// Whether the peer is a node: one that was added and listens there, or this one, by a name that it has or that leads
    /// here. This node's certificate gets the name, so no misspelt one may pass.
    fn check_peer(&self, own: &OwnNode, records: &[Record]) -> Result<(), JoinError> {
        let (id, host) = (own.config().node.id.as_str(), &self.peer.host);
        let is_it = |record: &Record| match record.node == id {
            true => record.hosts.contains(host),
            false => record.is_at(&self.peer),
        };
        if host == id || self.is_here || records.iter().any(is_it) || leads_here(host) {
            return Ok(());
        }
        let known: Vec<String> = records.iter().flat_map(Record::addresses).collect();
        let (known, peer) = (known.iter().map(String::as_str).collect::<Vec<_>>(), self.peer.to_string());
        let near = nearest(&peer, &known).map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
        Err(JoinError::Unready(format!(
            "--peer: no node that was added listens at {peer}, and {host} does not lead to this host (addresses of nodes: \
             {}).{near} If it leads here by other ways, as behind NAT, give --here as well",
            known.join(", ")
        )))
    }
}

/// Whether one of the addresses of a host is this one's.
fn leads_here(host: &str) -> bool {
    (host, 0).to_socket_addrs().is_ok_and(|mut found| found.any(|address| UdpSocket::bind(address).is_ok()))
}

/// This node.
struct Here<'a> {
    own: &'a OwnNode,
    authority: &'a Authority,
    tree: &'a mut Tree,
}

impl Here<'_> {
    /// Gives this node what it needs as a member of a mesh, unless it has it: profiles, the key that signs jobs, and a
    /// listener if it is the one that the new node dials.
    fn open_up(&mut self, newcomer: &Newcomer) -> Result<(), JoinError> {
        let id = self.own.config().node.id.as_str();
        let known = self.authority.record(id)?;
        let mut record = known.clone().map_or_else(|| Record::new(id, NodeRole::Control), Ok)?;
        if !newcomer.is_dialled && !self.is_another(&newcomer.peer)? {
            let HostPort { host, port } = &newcomer.peer;
            if let Some(listens) = record.listens.filter(|listens| listens != port) {
                let text = format!(
                    "this node listens on port {listens}, not on {port}: give --peer {host}:{listens}"
                );
                return Err(JoinError::Unready(text));
            }
            record.listens = Some(*port);
            record.hosts.insert(host.clone());
        }
        let text = configuration::of(&record);
        let file = self.tree.path(NODE_FILE);
        let is_written = read_text(&file).is_ok_and(|found| found == text);
        if known.as_ref() == Some(&record) && is_written {
            return Ok(());
        }
        let signing = self.tree.path(SIGNING_KEY);
        let signing = match signing.exists() {
            true => read_text(&signing).map_err(JoinError::of(&signing))?,
            false => make::private_key(SIGNING)?,
        };
        let Certified { certificate, key } =
            self.authority.certify(&mut record, Timestamp::now(), |_| Ok(()))?;
        let kit = Kit {
            configuration: text,
            certificate: certificate.into(),
            key: key.into(),
            authority: self.authority.certificate().into(),
            revoked: Some(self.authority.list()?.into()),
            verification_key: Some(make::public_key(&signing)?.into()),
            signing_key: Some(signing.into()),
            unused: Vec::new(),
        };
        kit.check(self.tree)?;
        kit.place(self.tree)
    }

    /// Whether this is the address of another node.
    fn is_another(&self, address: &HostPort) -> Result<bool, JoinError> {
        let own = self.own.config().node.id.as_str();
        let records = self.authority.records()?;
        Ok(records.iter().any(|record| record.node != own && record.is_at(address)))
    }

    /// Whether a configuration that somebody wrote by hand has what it needs.
    fn check_by_hand(&self, newcomer: &Newcomer) -> Result<(), JoinError> {
        if newcomer.role.runs_jobs() {
            self.own.signing_key()?;
        }
        if newcomer.is_dialled {
            self.own.dialler().map(drop)
        } else if self.is_another(&newcomer.peer)? {
            Ok(())
        } else {
            self.own.door(newcomer.peer.port).map(drop)
        }
    }

    /// A file beside the others, so that this node dials the new one.
    fn dial(&mut self, newcomer: &Newcomer) -> Result<(), JoinError> {
        if self.own.dials(&newcomer.peer) {
            return Ok(());
        }
        let profile = if self.own.is_ours() { PROFILE } else { &self.own.dialler()?.name };
        let mut text = Text::new();
        let parameters = [("address", json!(newcomer.peer.to_string())), ("tls", json!(profile))];
        text.directive("tcp-peer", &parameters);
        let path: PathBuf = self.own.peer_file(&newcomer.node);
        self.tree.file(&path.to_string_lossy(), text.finish().as_bytes(), Access::Public)
    }
}
