//! Admits a node: makes its certificate and configuration, and the changes to this node so that both find each
//! other.
//!
//! Owns who dials whom, and what changes here because of it. It writes files and bundles. It refuses to know the
//! running node, which somebody else asks to read its configuration again.

use std::collections::BTreeSet;
use std::net::{ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::JoinError;
use super::address::{NodeAddress, NodeTransport};
use super::asker::{self, Asker, Decided};
use super::authority::{Authority, Certified};
use super::bundle;
use super::configuration::{
    self, ASKING, CERTIFICATE, KEY, NEXT, NODE_FILE, PROFILE, REVOKED, SIGNING_KEY, Text, VERIFICATION_KEY,
};
use super::host;
use super::install::{Kit, Staged, names};
use super::invite::{Invitation, Token};
use super::own::OwnNode;
use super::place::{Access, FileTree};
use super::record::{NodeRole, PORT, Record};
use crate::config::HostPort;
use crate::os::directories::parent_of;
use crate::os::regular_file::read_text;
use crate::tls::ServerOptions;
use crate::tls::inspect::{self, VerifyingParty};
use crate::tls::make::{self, KeyKind};
use crate::tls::proof;
use crate::yaml::nearest;

/// The kind of the key that signs jobs; every node can verify it, also receptor.
const SIGNING: KeyKind = KeyKind::Rsa(4096);

/// A node that is to join.
pub(crate) struct Newcomer {
    pub(crate) node: String,
    pub(crate) role: NodeRole,
    /// The address that it dials, or at which it listens if `is_dialled`.
    pub(crate) peer: NodeAddress,
    pub(crate) is_dialled: bool,
    /// The peer is this node, whatever its name resolves to.
    pub(crate) is_here: bool,
    /// Further names of its host.
    pub(crate) hosts: BTreeSet<String>,
}

/// Admits it by its [record](Newcomer::record): makes the changes here in `tree`, and writes the bundle to `out`.
///
/// # Errors
/// What is missing or wrong; the bundle is then not written.
pub(crate) fn admit(
    newcomer: &Newcomer,
    mut record: Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut FileTree,
    out: &Path,
) -> Result<(), JoinError> {
    prepare(newcomer, own, authority, tree)?;
    pack(&mut record, authority, own, out)
}

/// Makes the changes here.
fn prepare(
    newcomer: &Newcomer,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut FileTree,
) -> Result<(), JoinError> {
    let mut here = Here { own, authority, tree };
    if own.is_ours() {
        here.open_up(newcomer)?;
    } else {
        here.check_by_hand(newcomer)?;
    }
    if newcomer.is_dialled { here.dial(newcomer) } else { Ok(()) }
}

/// Makes the changes here, and has this node give certificates.
fn give_certificates(
    newcomer: &Newcomer,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut FileTree,
) -> Result<(), JoinError> {
    prepare(newcomer, own, authority, tree)?;
    if newcomer.role.runs_jobs() {
        verification_key(own)?;
    }
    host::directories(tree)?;
    if let Some(daemon) = tree.daemon() {
        authority.give(daemon)?;
    }
    if own.config().enrolment.is_none() {
        let key = match (&own.config().work_verification, own.is_ours()) {
            (Some(verification), false) => verification.public_key.display().to_string(),
            (None, false) => own.signing_key()?.display().to_string(),
            (_, true) => VERIFICATION_KEY.to_owned(),
        };
        let mut text = Text::once();
        text.why("Gives certificates to hosts that `meshctl node invite` has invited, and to nodes in time.");
        text.directive("enrolment", &[("authority", json!(authority.dir())), ("workkey", json!(key))]);
        if own.is_ours() && own.config().renewal.is_none() {
            text.why("And gets its own in time.");
            text.directive("renewal", &[("tlsclient", json!(PROFILE))]);
        }
        let path = own.file("50-enrolment.yml");
        tree.file(&path.to_string_lossy(), text.finish().as_bytes(), Access::Public)?;
    }
    Ok(())
}

/// Approves a host that asks, which then gets its certificate when it asks again.
///
/// # Errors
/// What is missing or wrong.
pub(crate) fn approve(
    newcomer: &Newcomer,
    record: Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut FileTree,
    asker: Asker,
) -> Result<(), JoinError> {
    give_certificates(newcomer, own, authority, tree)?;
    authority.write_asker(&Asker { decided: Some(Decided::Approved(Box::new(record))), ..asker })
}

/// Invites it: makes the changes here, has this node give certificates, and keeps the invitation. The token is for the
/// new host.
///
/// # Errors
/// What is missing or wrong.
pub(crate) fn invite(
    newcomer: &Newcomer,
    record: Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut FileTree,
    (lifetime, uses): (Duration, u32),
) -> Result<(Invitation, Token), JoinError> {
    give_certificates(newcomer, own, authority, tree)?;
    let (invite, secret) = Invitation::new(record, lifetime, uses, Timestamp::now())?;
    authority.write_invite(&invite)?;
    let token = Token {
        node: newcomer.node.clone(),
        secret,
        authority: proof::key_of_certificate(authority.certificate())?,
        addresses: vec![newcomer.peer.clone()],
    };
    Ok((invite, token))
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

/// A node that was removed from the mesh.
pub(crate) struct Excluded {
    /// Whether this node dialled it.
    pub(crate) is_dialled: bool,
    /// The profiles of this node that still accept its certificates.
    pub(crate) accepts: Vec<String>,
    /// Whether other nodes get the new list over the mesh.
    pub(crate) travels: bool,
    /// One command for each node that needs the new list otherwise.
    pub(crate) lists: Vec<String>,
}

/// Revokes the certificates of a node; this node stops dialling it.
pub(crate) fn exclude(
    record: &mut Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut FileTree,
    now: Timestamp,
) -> Result<Excluded, JoinError> {
    authority.revoke(record, now)?;
    authority.remove_invite(&record.node)?;
    // Nor does an approval let it come again.
    for asker in asker::waiting(authority, now)?.iter().filter(|asker| asker.asked.node == record.node) {
        authority.remove_asker(&asker.key)?;
    }
    let list = authority.list_path();
    tree.directory("/etc/meshd/tls")?;
    tree.file(REVOKED, authority.list()?.as_bytes(), Access::Public)?;
    let accepts = own.without_list(Path::new(REVOKED));
    let file = own.peer_file(&record.node);
    tree.remove(&file.to_string_lossy())?;
    let is_dialled = tree.has_changed(&file.to_string_lossy());
    let this = own.config().node.id.as_str();
    let others = authority.records()?.into_iter().filter(|other| other.node != this && !other.is_removed());
    let travels = own.config().enrolment.is_some();
    let listening = others.filter(|other| other.listens.is_some() && !travels);
    let command = |other: Record| format!("scp {} root@{}:{REVOKED}", list.display(), other.host());
    Ok(Excluded { is_dialled, accepts, travels, lists: listening.map(command).collect() })
}

/// Gives this node a new certificate in place, which it reads at once.
///
/// # Errors
/// Its files belong to somebody else, or the system's error.
pub(crate) fn renew_own(
    record: &mut Record,
    own: &OwnNode,
    authority: &Authority,
    tree: &mut FileTree,
) -> Result<(), JoinError> {
    if !own.is_ours() {
        return Err(JoinError::Unready(format!(
            "the configuration of {} was written by hand: renew its certificate with `meshctl cert`",
            record.node
        )));
    }
    let Certified { certificate, key } = authority.certify(record, Timestamp::now(), |_| Ok(()))?;
    tree.remove(NEXT)?;
    tree.remove(ASKING)?;
    tree.file(KEY, key.as_bytes(), Access::Daemon)?;
    tree.file(CERTIFICATE, certificate.as_bytes(), Access::Public)
}

/// The public half of the key that signs jobs.
fn verification_key(own: &OwnNode) -> Result<String, JoinError> {
    let signing = if own.is_ours() { Path::new(SIGNING_KEY) } else { own.signing_key()? };
    let text = read_text(signing).map_err(JoinError::of(signing))?;
    make::public_key(&text).or_else(|error| match &own.config().work_verification {
        // A private key in ssh-keygen's form cannot be read here, so the public key comes from its own file.
        Some(verification) => {
            let path = &verification.public_key;
            read_text(path).map_err(JoinError::of(path))
        }
        None => Err(error.into()),
    })
}

/// Checks that the listener of a handwritten configuration accepts the certificate.
fn check_by_door(door: &ServerOptions, node: &str, certificate: &str) -> Result<(), JoinError> {
    let staged = Staged::new(&std::env::temp_dir())?;
    let file = staged.file(names::CERTIFICATE, certificate.as_bytes())?;
    let unfit = |reason: String| JoinError::Unready(format!("this node would refuse {node}: {reason}"));
    let verifier = VerifyingParty::by_server(door.clone()).map_err(|error| unfit(error.to_string()))?;
    inspect::verify(&verifier, &file, Some(node), None).map_err(|error| unfit(error.to_string()))
}

impl Newcomer {
    /// The record that the authority will keep of it, if there is an authority yet. Nothing is written.
    ///
    /// # Errors
    /// What is wrong with the input: a name that another node has, a peer that is no node, a bundle that exists.
    pub(crate) fn record(
        &self,
        own: &OwnNode,
        authority: Option<&Authority>,
        out: Option<&Path>,
    ) -> Result<Record, JoinError> {
        let records = authority.map_or_else(|| Ok(Vec::new()), Authority::records)?;
        let record = self.record_beside(own.config().node.id.as_str(), &records)?;
        if let Some(out) = out {
            if out.exists() {
                return Err(JoinError::Exists(out.to_owned()));
            }
            let dir = parent_of(out);
            dir.read_dir().map_err(JoinError::of(dir))?;
        }
        if !self.is_dialled {
            self.check_peer(own, &records)?;
        }
        Ok(record)
    }

    /// The same beside these records, on the node `own`; files and the peer are not looked at.
    pub(super) fn record_beside(&self, own: &str, records: &[Record]) -> Result<Record, JoinError> {
        let mut record = Record::new(&self.node, self.role)?;
        if self.node == own {
            let text = "is the node of this host: give the new one a name of its own";
            return Err(JoinError::Unready(format!("{} {text}", self.node)));
        }
        if let Some(known) = records.iter().find(|known| known.node == self.node) {
            if !known.is_free(Timestamp::now()) {
                return Err(JoinError::Known(self.node.clone()));
            }
            record.certificates.clone_from(&known.certificates);
        }
        record.hosts.extend(self.hosts.iter().cloned());
        if self.is_dialled {
            record.hosts.insert(self.peer.at.host.clone());
            record.listens = Some(self.peer.at.port);
        } else {
            record.dials = Some(self.peer.to_string());
            record.listens = self.role.relays().then_some(PORT);
        }
        Ok(record)
    }

    /// Checks that the peer is a node: an added one that listens there, or this one, by a name that it has or that
    /// resolves to it. This node's certificate gets the name, so a misspelt one must not pass.
    fn check_peer(&self, own: &OwnNode, records: &[Record]) -> Result<(), JoinError> {
        let (id, host) = (own.config().node.id.as_str(), &self.peer.at.host);
        let is_it = |record: &Record| match record.node == id {
            true => record.hosts.contains(host),
            false => is_at(record, &self.peer),
        };
        if host == id || self.is_here || records.iter().any(is_it) || leads_here(host) {
            return Ok(());
        }
        let known: Vec<String> = records.iter().flat_map(Record::addresses).collect();
        let (known, peer) = (known.iter().map(String::as_str).collect::<Vec<_>>(), self.peer.to_string());
        let near = nearest(&peer, &known).map(|near| format!(" Did you mean {near}?")).unwrap_or_default();
        Err(JoinError::Unready(format!(
            "--peer: no node that was added listens at {peer}, and {host} does not lead to this host (addresses of \
             nodes: {}).{near} If it does lead here, through NAT for example, give --here as well",
            known.join(", ")
        )))
    }
}

/// Whether others reach this node at this address. Its file names no other listeners than that for TCP.
pub(super) fn is_at(record: &Record, address: &NodeAddress) -> bool {
    match address.transport {
        NodeTransport::Tcp => record.is_at(&address.at),
        NodeTransport::WebSocket | NodeTransport::Quic => {
            record.hosts.contains(&address.at.host) && !record.is_removed()
        }
    }
}

/// Whether one of the host's addresses belongs to this host.
fn leads_here(host: &str) -> bool {
    (host, 0).to_socket_addrs().is_ok_and(|mut found| found.any(|address| UdpSocket::bind(address).is_ok()))
}

/// This node, with what is needed to change it.
struct Here<'a> {
    own: &'a OwnNode,
    authority: &'a Authority,
    tree: &'a mut FileTree,
}

impl Here<'_> {
    /// Gives this node what it lacks as a member of a mesh: profiles, the key that signs jobs, and a listener if
    /// the new node dials this one.
    fn open_up(&mut self, newcomer: &Newcomer) -> Result<(), JoinError> {
        let id = self.own.config().node.id.as_str();
        let known = self.authority.record(id)?;
        let mut record = known.clone().map_or_else(|| Record::new(id, NodeRole::Control), Ok)?;
        if !newcomer.is_dialled && !self.is_another(&newcomer.peer)? {
            let HostPort { host, port } = &newcomer.peer.at;
            let is_tcp = newcomer.peer.transport == NodeTransport::Tcp;
            if is_tcp && let Some(listens) = record.listens.filter(|listens| listens != port) {
                let text = format!(
                    "this node listens on port {listens}, not on {port}: give --peer {host}:{listens}"
                );
                return Err(JoinError::Unready(text));
            }
            if !is_tcp && !self.own.listens(&newcomer.peer) {
                let text = "this node has no such listener: configure it in a file beside the others, with `tls: mesh`";
                return Err(JoinError::Unready(format!("{}: {text}", newcomer.peer)));
            }
            // Other listeners are the administrator's, in files of their own.
            record.listens = if is_tcp { Some(*port) } else { record.listens };
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
    fn is_another(&self, address: &NodeAddress) -> Result<bool, JoinError> {
        let own = self.own.config().node.id.as_str();
        let records = self.authority.records()?;
        Ok(records.iter().any(|record| record.node != own && is_at(record, address)))
    }

    /// Checks that a handwritten configuration has what it needs.
    fn check_by_hand(&self, newcomer: &Newcomer) -> Result<(), JoinError> {
        if newcomer.role.runs_jobs() {
            self.own.signing_key()?;
        }
        if newcomer.is_dialled {
            self.own.dialler().map(drop)
        } else if newcomer.peer.transport != NodeTransport::Tcp || self.is_another(&newcomer.peer)? {
            Ok(())
        } else {
            self.own.door(newcomer.peer.at.port).map(drop)
        }
    }

    /// Writes a file beside the others, so that this node dials the new one.
    fn dial(&mut self, newcomer: &Newcomer) -> Result<(), JoinError> {
        if newcomer.peer.transport != NodeTransport::Tcp {
            return Err(JoinError::Unready(
                "--dial: this node dials others over TCP: give HOST[:PORT]".to_owned(),
            ));
        }
        if self.own.dials(&newcomer.peer.at) {
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
