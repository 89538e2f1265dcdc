//! The door of a node: newcomers come in at the listeners of links, and requests by the mesh if the authority's desk is
//! here. Each gets an answer from this desk, or from the nearest one.
//!
//! Owns how many are served at once and for how long, and whom the mesh is asked through. A newcomer can do nothing here
//! but send one request of some kilobytes. It refuses to know what is in it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::lists::NUMBER;
use super::messages;
use super::refusals::{Refusals, network};
use super::trust::TRUSTED;
use crate::backend::Session;
use crate::join::request::{CertificateAnswer, CertificateRequest, MOST_ANSWERED, MOST_ASKED};
use crate::mesh::LocalService;
use crate::node::{Changes, NodeHandle};
use crate::os::places::Places;
use crate::os::regular_file::read_text;
use crate::os::watch::{WatchFlags, Watcher};
use crate::stream::{MeshStream, StreamListenError, StreamListener, Streams};
use crate::tls::Profiles;
use crate::tls::proof::{self, HASH};
use crate::wire::{Advertisement, ConnType, InvalidServiceName, NodeId, ServiceName};

/// The service of a node with a desk.
const SERVICE: &str = "enrol";
/// How long a newcomer may take to send its request, and to take its answer.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long another node may take to answer.
const RELAY_LIMIT: Duration = Duration::from_secs(8);
/// How long a node comes last that has lied or did not answer, and how many of them are remembered.
const DOUBTFUL: Duration = Duration::from_secs(600);
const MOST_DOUBTFUL: usize = 1_000;
/// Newcomers and nodes that are served, told that there is no room, or leave.
const MOST_TASKS: usize = 256;
/// The requests under way from one address, or from one node; of all there are twice as many.
pub(super) const AT_ONCE: usize = 32;
/// Refusals of one address within a minute, and of one node, which passes on what others ask.
const REFUSALS: u32 = 10;
const REFUSALS_OF_NODE: u32 = 300;
/// The desks that are asked for one newcomer, or for a list.
const MOST_DESKS: usize = 4;
/// What a node sends to get the list of revoked certificates, and before one that it gives. A request begins otherwise.
const ASKS_FOR_LIST: &[u8] = b"list\n";
const GIVES_LIST: &[u8] = b"list\n-";
/// Before the number of the authorities that a node trusts, to get the latest ones.
const TRUSTS: &[u8] = b"trusts\n";
/// The events after which the file of the list may be another one, which `meshctl` writes; and the time between two looks
/// without inotify.
const LIST_EVENTS: WatchFlags = WatchFlags::CLOSE_WRITE.union(WatchFlags::MOVED_TO);
const LIST_POLL: Duration = Duration::from_millis(250);
/// And how often it is looked at in any case, because the directory itself may have been replaced.
const LIST_LOOK: Duration = Duration::from_secs(60);
/// Where a request comes from that a node makes for itself.
const ITSELF: &str = "itself";
/// The longest text about where a request comes from, in bytes.
const MOST_FROM: usize = 120;

/// Decides about requests.
pub(crate) trait Decide: Send + Sync + 'static {
    /// The answer to a request that came from this address. May wait for files, so it has a thread of its own.
    fn decide(&self, request: &[u8], from: &str) -> CertificateAnswer;

    /// The directory with the file of the list.
    fn directory(&self) -> &Path;

    /// The list of revoked certificates, and its number. May wait for files.
    fn list(&self) -> Option<(String, u64)>;

    /// The signed text that names the authorities, and its number; `None` before the first rotation. May wait for files.
    fn trusted(&self) -> Option<(String, u64)> {
        None
    }

    /// A node of this name trusts the authorities of this number. May wait for files.
    fn note_trust(&self, _node: &str, _number: u64) {}

    /// Takes in a later list, if it is one of this authority's. May wait for files.
    fn adopt(&self, list: &str);
}

/// The door of this node. Clones share it.
#[derive(Clone)]
pub(crate) struct EnrolDoor(Arc<EnrolDoorInner>);

struct EnrolDoorInner {
    streams: Streams,
    service: ServiceName,
    profiles: Profiles,
    /// The desk here, if there is one. Locked for moments.
    desk: Mutex<Option<Arc<dyn Decide>>>,
    places: Places<String>,
    /// Of newcomers, by address. Locked for moments.
    refusals: Mutex<Refusals<IpAddr>>,
    /// Of requests that nodes have passed on to the desk here, or made. Locked for moments.
    of_nodes: Mutex<Refusals<(String, bool)>>,
    /// The desk decides about one request at a time, and others wait without a thread.
    turn: tokio::sync::Mutex<()>,
    list_changed: Notify,
    /// How many directives of this node ask for enrolment: one, or two during a reload.
    is_open: AtomicUsize,
    opened: Notify,
    /// Nodes with a desk that is none, since when. Locked for moments.
    doubtful: Mutex<BTreeMap<NodeId, Instant>>,
    tasks: TaskTracker,
}

impl EnrolDoor {
    /// A door that nobody can come in by yet.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub(crate) fn new(streams: Streams, profiles: Profiles) -> Result<Self, InvalidServiceName> {
        Ok(Self(Arc::new(EnrolDoorInner {
            streams,
            service: ServiceName::new(SERVICE)?,
            profiles,
            desk: Mutex::default(),
            places: Places::new(AT_ONCE),
            refusals: Mutex::new(Refusals::new(REFUSALS)),
            of_nodes: Mutex::new(Refusals::new(REFUSALS_OF_NODE)),
            turn: tokio::sync::Mutex::default(),
            list_changed: Notify::new(),
            is_open: AtomicUsize::new(0),
            opened: Notify::new(),
            doubtful: Mutex::default(),
            tasks: TaskTracker::new(),
        })))
    }

    /// Lets newcomers in as long as some node has a desk, until `stop`.
    pub(crate) async fn serve(self, mut newcomers: mpsc::Receiver<Session>, stop: CancellationToken) {
        let mut changes = self.node().changes();
        loop {
            let is_open = self.0.is_open.load(Ordering::Relaxed) > 0;
            self.0.profiles.admit_newcomers(is_open && self.has_desk().await);
            tokio::select! {
                () = stop.cancelled() => return,
                () = changes.next() => {}
                () = self.0.opened.notified() => {}
                session = newcomers.recv() => {
                    let Some(session) = session else { return };
                    // Beyond that even to say that there is no room costs too much.
                    if self.0.tasks.len() < MOST_TASKS {
                        let door = self.clone();
                        self.0.tasks.spawn(async move { door.welcome(session).await });
                    }
                }
            }
        }
    }

    /// Lets newcomers in from now on, as long as some node has a desk, or no longer: whether this node's configuration
    /// has enrolment.
    pub(crate) fn open(&self, is_open: bool) {
        // Counted, because a reload may start the new one before it stops the old one.
        match is_open {
            true => self.0.is_open.fetch_add(1, Ordering::Relaxed),
            false => self.0.is_open.fetch_sub(1, Ordering::Relaxed),
        };
        self.0.opened.notify_one();
    }

    async fn has_desk(&self) -> bool {
        self.0.desk.lock().is_some() || !self.desks().await.is_empty()
    }

    /// Puts a desk here, for this and other nodes.
    ///
    /// # Errors
    /// The service is taken, or the node has stopped.
    pub(crate) async fn open_desk(&self, desk: Arc<dyn Decide>) -> Result<OpenDesk, StreamListenError> {
        let listener = self.0.streams.listen(self.0.service, Some(BTreeMap::new())).await?;
        *self.0.desk.lock() = Some(desk.clone());
        self.0.opened.notify_one();
        Ok(OpenDesk { door: self.clone(), desk, listener })
    }

    /// Notices changes of the mesh.
    pub(super) fn changes(&self) -> Changes {
        self.node().changes()
    }

    /// Returns when the list of the desk here has changed.
    pub(super) async fn list_changed(&self) {
        self.0.list_changed.notified().await;
    }

    /// The numbers that some desks have under a tag, the highest first and doubtful ones last; `None` for the desk here.
    pub(super) async fn numbers(&self, tag: &str) -> Vec<(u64, Option<NodeId>)> {
        let status = self.node().status().await;
        let number = |offer: &Arc<Advertisement>| {
            let number = offer.tags.as_ref()?.get(tag)?.parse().ok()?;
            Some((number, Some(offer.node_id.clone()).filter(|node| node != self.node().id())))
        };
        let desks = status.advertisements.iter().filter(|offer| offer.service == self.0.service);
        let reached = |offer: &&Arc<Advertisement>| {
            offer.node_id == *self.node().id() || status.routing_table.contains_key(&offer.node_id)
        };
        let mut lists: Vec<(u64, Option<NodeId>)> = desks.filter(reached).filter_map(number).collect();
        let doubtful = |desk: &Option<NodeId>| desk.as_ref().is_some_and(|desk| self.is_doubtful(desk));
        lists.sort_by_key(|(number, desk)| (doubtful(desk), std::cmp::Reverse(*number)));
        lists.truncate(MOST_DESKS);
        lists
    }

    /// The list of the desk of that node, or of the one here.
    pub(super) async fn list_of(&self, node: Option<&NodeId>) -> io::Result<String> {
        let Some(node) = node else {
            return self
                .read_desk(|desk| desk.list())
                .await
                .map(|(list, _)| list)
                .ok_or_else(|| io::ErrorKind::NotFound.into());
        };
        let answer = timeout(RELAY_LIMIT, self.relay(node, ASKS_FOR_LIST)).await??;
        String::from_utf8(answer).map_err(io::Error::other)
    }

    /// The authorities that the desk of that node, or the one here, says are trusted, for a node that trusts those of this
    /// number.
    pub(super) async fn trusted_of(&self, node: Option<&NodeId>, known: u64) -> io::Result<String> {
        let Some(node) = node else {
            let own = self.node().id().to_string();
            return self.trusted_here(own, known).await;
        };
        let asked = [TRUSTS, known.to_string().as_bytes()].concat();
        let answer = timeout(RELAY_LIMIT, self.relay(node, &asked)).await??;
        String::from_utf8(answer).map_err(io::Error::other)
    }

    async fn trusted_here(&self, node: String, known: u64) -> io::Result<String> {
        let trusted = self.read_desk(|desk| desk.trusted()).await;
        let (trusted, number) = trusted.ok_or(io::ErrorKind::NotFound)?;
        if number == known {
            let note = move |desk: &dyn Decide| {
                desk.note_trust(&node, known);
                None
            };
            let _nothing: Option<()> = self.with_desk(note).await;
        }
        Ok(trusted)
    }

    /// Gives a list to the desk of that node, or to the one here.
    pub(super) async fn give_list(&self, node: Option<&NodeId>, list: String) -> io::Result<()> {
        match node {
            None => {
                let adopt = move |desk: &dyn Decide| {
                    desk.adopt(&list);
                    None
                };
                let _nothing: Option<()> = self.with_desk(adopt).await;
            }
            Some(node) => {
                let given = [GIVES_LIST, list.as_bytes()].concat();
                drop(timeout(RELAY_LIMIT, self.relay(node, &given)).await??);
            }
        }
        Ok(())
    }

    /// What the desk here says, on a thread that may wait; `None` if there is no desk.
    async fn with_desk<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Decide) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let _turn = self.0.turn.lock().await;
        self.read_desk(ask).await
    }

    /// The same of what the desk reads without the authority's lock, beside a decision that may take long.
    async fn read_desk<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Decide) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        let desk = self.0.desk.lock().clone()?;
        tokio::task::spawn_blocking(move || ask(&*desk)).await.ok()?
    }

    /// Answers another node, which asks for a newcomer or for itself.
    async fn serve_node(&self, mut stream: MeshStream) -> io::Result<()> {
        let Some((node, _)) = stream.remote() else { return Ok(()) };
        let node = self.node().name_of(node).await.map_or_else(|| node.to_string(), |name| name.to_string());
        let Some(_place) = self.0.places.take(&node) else { return Ok(()) };
        let mut asked = Vec::new();
        let most = MOST_ANSWERED as u64;
        timeout(SEND_LIMIT, (&mut stream).take(most).read_to_end(&mut asked)).await??;
        let end = asked.iter().position(|byte| *byte == b'\n').filter(|end| *end <= MOST_FROM);
        let Some(end) = end else { return Err(io::ErrorKind::InvalidData.into()) };
        let from = format!("{} by {node}", String::from_utf8_lossy(&asked[..end]).escape_debug());
        // What strangers are refused at a hop does not keep the hop itself from renewing.
        let passed = (node.clone(), &asked[..end] != ITSELF.as_bytes());
        let known = || std::str::from_utf8(asked.strip_prefix(TRUSTS)?).ok()?.parse().ok();
        let answer = match asked.starts_with(GIVES_LIST) {
            _ if let Some(known) = known() => self.trusted_here(node, known).await?.into_bytes(),
            _ if asked == ASKS_FOR_LIST => self.list_of(None).await?.into_bytes(),
            true => {
                let list = String::from_utf8(asked.split_off(GIVES_LIST.len())).map_err(io::Error::other)?;
                self.give_list(None, list).await?;
                b"taken".to_vec()
            }
            false if self.0.of_nodes.lock().are_too_many(&passed, Instant::now()) => too_many(),
            false => {
                let answer = self.decide(asked.split_off(end + 1), from).await;
                if is_refusal(&answer) {
                    self.0.of_nodes.lock().note(passed);
                }
                answer
            }
        };
        let sending = async {
            stream.write_all(&answer).await?;
            stream.shutdown().await
        };
        timeout(SEND_LIMIT, sending).await?
    }

    /// How many nodes the mesh has, as far as it is known here.
    pub(super) async fn known_nodes(&self) -> u32 {
        u32::try_from(self.node().status().await.routing_table.len()).unwrap_or(u32::MAX)
    }

    fn node(&self) -> &NodeHandle {
        self.0.streams.node()
    }

    /// The nodes that have a desk, the nearest first.
    pub(super) async fn desks(&self) -> Vec<NodeId> {
        let status = self.node().status().await;
        let offers = status.advertisements.iter().filter(|offer| offer.service == self.0.service);
        let mut desks: Vec<NodeId> = offers.map(|offer| offer.node_id.clone()).collect();
        if desks.is_empty() {
            return desks;
        }
        let costs = status.path_costs(self.node().id());
        desks.retain(|desk| desk != self.node().id() && costs.contains_key(desk));
        desks.sort_by(|one, other| costs[one].total_cmp(&costs[other]));
        // Who has lied or kept silent comes last for a while.
        desks.sort_by_key(|desk| self.is_doubtful(desk));
        desks
    }

    /// Notes that a node that claims to have a desk has lied, or did not answer.
    pub(super) fn doubt(&self, desk: &NodeId, why: &str) {
        if !self.is_doubtful(desk) {
            tracing::warn!(%desk, why, "a node offers enrolment and does not do it: others are asked first");
        }
        let mut doubtful = self.0.doubtful.lock();
        doubtful.retain(|_, since| since.elapsed() < DOUBTFUL);
        if doubtful.len() < MOST_DOUBTFUL {
            doubtful.insert(desk.clone(), Instant::now());
        }
    }

    /// Whether it has lately.
    pub(super) fn is_doubtful(&self, desk: &NodeId) -> bool {
        self.0.doubtful.lock().get(desk).is_some_and(|since| since.elapsed() < DOUBTFUL)
    }

    /// The hashes of the keys of the authorities that this node's profiles trust.
    async fn authorities(&self) -> Vec<[u8; HASH]> {
        let files = self.0.profiles.authorities();
        let read = move || {
            let texts = files.iter().filter_map(|file| read_text(file).ok());
            texts.flat_map(|text| proof::keys_of_certificates(&text)).collect()
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// Answers a newcomer.
    async fn welcome(&self, session: Session) {
        let Session { mut reader, mut writer, info } = session;
        let address =
            info.peer.parse::<SocketAddr>().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        let are_too_many = self.0.refusals.lock().are_too_many(&network(address), Instant::now());
        let (Some(_place), false) = (self.0.places.take(&address.to_string()), are_too_many) else {
            let _gone = timeout(SEND_LIMIT, messages::send(&mut writer, &too_many())).await;
            drop(reader);
            return writer.close().await;
        };
        let asked = timeout(SEND_LIMIT, messages::receive(&mut reader, MOST_ASKED)).await;
        let Ok(Ok(asked)) = asked else { return };
        let answer = self.answer(asked, address.to_string()).await;
        // Whoever changes an answer on its way to us can only make us count too few.
        if is_refusal(&answer) {
            self.0.refusals.lock().note(network(address));
        }
        let _gone = timeout(SEND_LIMIT, messages::send(&mut writer, &answer)).await;
        drop(reader);
        writer.close().await;
    }

    /// The answer to a request of this node itself.
    pub(super) async fn ask(&self, asked: Vec<u8>) -> Vec<u8> {
        self.answer(asked, ITSELF.to_owned()).await
    }

    /// The answer of the desk here, or of the nearest one that can decide.
    async fn answer(&self, asked: Vec<u8>, from: String) -> Vec<u8> {
        if self.0.desk.lock().is_some() {
            return self.decide(asked, from).await;
        }
        let request = [from.as_bytes(), b"\n", &asked].concat();
        let (parsed, authorities) = (CertificateRequest::parse(&asked).ok(), self.authorities().await);
        let mut first = None;
        for desk in self.desks().await.into_iter().take(MOST_DESKS) {
            let answer = match timeout(RELAY_LIMIT, self.relay(&desk, &request)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    self.doubt(&desk, &error.to_string());
                    continue;
                }
                Err(_late) => {
                    self.doubt(&desk, "it does not answer");
                    continue;
                }
            };
            // Any node can say no, and another desk may know better; a grant is signed by the authority.
            if matches!(serde_json::from_slice(&answer), Ok(CertificateAnswer::Granted { .. })) {
                let is_granted = |request: &CertificateRequest| {
                    authorities.iter().any(|authority| request.open(&answer, authority).is_ok())
                };
                if authorities.is_empty() || parsed.as_ref().is_some_and(is_granted) {
                    return answer;
                }
                self.doubt(&desk, "what it grants is not signed by an authority that is trusted here");
                continue;
            }
            first.get_or_insert(answer);
        }
        first.unwrap_or_else(|| {
            let node = self.node().id();
            CertificateAnswer::Busy(format!("{node} reaches no node that gives certificates")).to_bytes()
        })
    }

    async fn relay(&self, desk: &NodeId, request: &[u8]) -> io::Result<Vec<u8>> {
        let dialled = self.0.streams.dial_shared(desk, self.0.service, None).await;
        let mut stream = dialled.map_err(io::Error::other)?;
        stream.write_all(request).await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        stream.take(MOST_ANSWERED as u64 + 1).read_to_end(&mut answer).await?;
        match answer.is_empty() || answer.len() > MOST_ANSWERED {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(answer),
        }
    }

    /// The answer of the desk here.
    async fn decide(&self, asked: Vec<u8>, from: String) -> Vec<u8> {
        let decided = self.with_desk(move |desk| Some(desk.decide(&asked, &from))).await;
        let away = || CertificateAnswer::Busy("this node gives no certificates any more".to_owned());
        decided.unwrap_or_else(away).to_bytes()
    }
}

fn is_refusal(answer: &[u8]) -> bool {
    matches!(serde_json::from_slice(answer), Ok(CertificateAnswer::Refused(_)))
}

/// The answer when there is no room for a request.
fn too_many() -> Vec<u8> {
    let why = "too many hosts ask at once, or were refused within a minute: try again later";
    CertificateAnswer::Busy(why.to_owned()).to_bytes()
}

/// A desk that other nodes can ask.
pub(crate) struct OpenDesk {
    door: EnrolDoor,
    desk: Arc<dyn Decide>,
    listener: StreamListener,
}

impl OpenDesk {
    /// Answers other nodes until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let watcher = Watcher::new("the list of revoked certificates", LIST_EVENTS, LIST_POLL);
        let (mut looks, mut said) = (interval(LIST_LOOK), None);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut files = watcher.subscribe(self.desk.directory()).await;
        loop {
            let stream = tokio::select! {
                () = stop.cancelled() => break,
                () = files.changed() => {
                    self.say(&mut said).await;
                    continue;
                }
                _ = looks.tick() => {
                    files = watcher.subscribe(self.desk.directory()).await;
                    self.say(&mut said).await;
                    continue;
                }
                stream = self.listener.accept() => stream,
            };
            let Some(stream) = stream else { break };
            let door = self.door.clone();
            self.door.0.tasks.spawn(async move {
                if let Err(error) = door.serve_node(stream).await {
                    tracing::debug!(%error, "a request for a certificate was not answered");
                }
            });
        }
        *self.door.0.desk.lock() = None;
        self.listener.close().await;
    }

    /// Says in the mesh which list is in force, and which authorities, if that is something else than was said.
    async fn say(&self, said: &mut Option<(u64, Option<u64>)>) {
        let desk = self.desk.clone();
        let read = move || Some((desk.list()?.1, desk.trusted().map(|(_, number)| number)));
        let Ok(Some((number, trusted))) = tokio::task::spawn_blocking(read).await else { return };
        if said.replace((number, trusted)) == Some((number, trusted)) {
            return;
        }
        let tags = [("type", Some("Enrolment".to_owned())), (NUMBER, Some(number.to_string()))];
        let tags = tags.into_iter().chain([(TRUSTED, trusted.map(|number| number.to_string()))]);
        let tags = tags.filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        let offer = LocalService { conn_type: ConnType::STREAM, tags };
        self.door.node().advertise(self.door.0.service, offer);
        // Kept for the one that looks after the file here, if it is busy.
        self.door.0.list_changed.notify_one();
    }
}
