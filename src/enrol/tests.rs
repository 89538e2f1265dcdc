//! Tests of the door: a hop and a node with a desk, over real links with TLS.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::lists::ListKeeper;
use super::{Decide, EnrolDoor, messages, newcomer};
use crate::backend::{
    self, DialSpec, ListenSpec, Listener, QuicListenOptions, Session, TcpDialOptions, TcpListenOptions,
};
use crate::join::address::NodeAddress;
use crate::join::authority::Authority;
use crate::join::desk::Desk;
use crate::join::invite::{Invitation, Token};
use crate::join::record::{NodeRole, Record};
use crate::join::request::{
    CertificateAnswer, CertificateRequest, MOST_ANSWERED, NotGranted, WantedCertificate,
};
use crate::mesh::LinkPolicy;
use crate::node::{LinkHandle, LinkSpec, NodeHandle, NodeOptions};
use crate::stream::Streams;
use crate::tls::crl::RevocationList;
use crate::tls::make::{self, CertSubject, KeyKind};
use crate::tls::tests::pki::Pki;
use crate::tls::{ClientProfile, Files, Profiles, proof};
use crate::wire::NodeId;

/// A desk that says what it was asked and by whom, once it is let: as a refusal, or as a grant that nobody has signed.
struct Parrot {
    may: Semaphore,
    refuses: bool,
}

/// A desk with the authority's key.
struct Honest(Desk);

impl Decide for Honest {
    fn directory(&self) -> &Path {
        &self.0.authority
    }

    fn list(&self) -> Option<(String, u64)> {
        None
    }

    fn adopt(&self, _list: &str) {}

    fn decide(&self, request: &[u8], from: &str) -> CertificateAnswer {
        self.0.decide(request, from, Timestamp::now()).answer
    }
}

/// The desk of the authority of these keys, a token for `e1`, and a request by it.
fn honest(pki: &Pki) -> (Arc<Honest>, Token, CertificateRequest) {
    let dir = pki.path("desk");
    std::fs::create_dir(&dir).unwrap();
    for name in ["ca.crt", "ca.key"] {
        std::fs::copy(pki.path(name), dir.join(name)).unwrap();
    }
    let authority = Authority::open(&dir).unwrap().unwrap();
    let record = Record::new("e1", NodeRole::Hop).unwrap();
    let hour = Duration::from_secs(3600);
    let (invitation, secret) = Invitation::new(record, hour, 1, Timestamp::now()).unwrap();
    authority.write_invite(&invitation).unwrap();
    let pin = proof::key_of_certificate(authority.certificate()).unwrap();
    let token = Token { node: "e1".into(), secret, authority: pin, addresses: Vec::new() };
    let names = CertSubject { node_ids: vec!["e1".into()], ..CertSubject::default() };
    let request = make::request(&names, &make::private_key(KeyKind::EcdsaP256).unwrap()).unwrap();
    let wanted = WantedCertificate { node: "e1".into(), request, dials: None };
    let request = CertificateRequest::by_token(&wanted, &token.secret).unwrap();
    (
        Arc::new(Honest(Desk {
            authority: dir,
            asks: false,
            is_offline: false,
            shared: None,
            lifetime: hour,
            work_key: None,
        })),
        token,
        request,
    )
}

impl Decide for Parrot {
    fn directory(&self) -> &Path {
        Path::new("/nonexistent")
    }

    fn list(&self) -> Option<(String, u64)> {
        None
    }

    fn adopt(&self, _list: &str) {}

    fn decide(&self, request: &[u8], from: &str) -> CertificateAnswer {
        let turn = tokio::runtime::Handle::current().block_on(self.may.acquire());
        turn.unwrap().forget();
        let said = format!("{} from {from}", String::from_utf8_lossy(request));
        match self.refuses {
            true => CertificateAnswer::Refused(said),
            false => CertificateAnswer::Granted { granted: said, signature: String::new() },
        }
    }
}

fn parrot(turns: usize, refuses: bool) -> Arc<Parrot> {
    Arc::new(Parrot { may: Semaphore::new(turns), refuses })
}

/// A node with a door, and listeners for TCP and QUIC.
struct Rig {
    node: NodeHandle,
    door: EnrolDoor,
    profiles: Profiles,
    address: String,
    quic: String,
    _links: Vec<LinkHandle>,
    _stop: tokio_util::sync::DropGuard,
}

impl Rig {
    async fn new(pki: &Pki, name: &str, peer: Option<&str>) -> Self {
        let (newcomers, come) = mpsc::channel(64);
        let id = NodeId::new(name).unwrap();
        let options = NodeOptions { newcomers: Some(newcomers), ..NodeOptions::new(id.clone()) };
        let (node, _stopped) = NodeHandle::start(options);
        let profiles = Profiles::open([pki.server_options(name)], [pki.client_options(name)], &id).unwrap();
        let door = EnrolDoor::new(Streams::new(node.clone()), profiles.clone()).unwrap();
        let stop = CancellationToken::new();
        door.open(true);
        tokio::spawn(door.clone().serve(come, stop.clone()));
        let tls = || profiles.server("srv").unwrap();
        let listen = |spec| LinkSpec::Listen { spec, policy: LinkPolicy::default() };
        let tcp = TcpListenOptions::new("127.0.0.1", 0).with_tls(Some(tls()));
        let mut links = Vec::new();
        for spec in [ListenSpec::Tcp(tcp), ListenSpec::Quic(QuicListenOptions::new("127.0.0.1", 0, tls()))] {
            links.push(node.add_link(listen(spec)).await.unwrap());
        }
        let [address, quic] = [0, 1].map(|at| links[at].local_addr().unwrap().to_owned());
        if let Some(peer) = peer {
            let (address, tls) = (peer.to_owned(), Some(profiles.client("cli").unwrap()));
            let spec = DialSpec::Tcp(TcpDialOptions { address, tls, congestion: None });
            let link = LinkSpec::Dial { spec, redial: true, policy: LinkPolicy::default() };
            links.push(node.add_link(link).await.unwrap());
        }
        Self { node, door, profiles, address, quic, _links: links, _stop: stop.drop_guard() }
    }

    async fn open_desk(&self, desk: Arc<dyn Decide>) {
        tokio::spawn(self.door.open_desk(desk).await.unwrap().run(CancellationToken::new()));
        self.lets_newcomers_in().await;
    }

    /// Returns once its listeners know that there is a desk.
    async fn lets_newcomers_in(&self) {
        until("newcomers to be let in", async || self.profiles.admits_newcomers()).await;
    }

    /// What a newcomer is told at one of the addresses.
    async fn told(&self, address: &str) -> String {
        let address: NodeAddress = address.parse().unwrap();
        let open = |answer: &[u8]| match serde_json::from_slice(answer).unwrap() {
            CertificateAnswer::Granted { granted, .. } => Ok(granted),
            CertificateAnswer::Refused(why) => Err(NotGranted::Refused(why)),
            CertificateAnswer::Busy(why) | CertificateAnswer::Waiting(why) => Err(NotGranted::Busy(why)),
        };
        newcomer::ask(&[address], b"hello", open, |_| ())
            .await
            .unwrap_or_else(|unanswered| unanswered.to_string())
    }

    /// A newcomer's session.
    async fn newcomer(&self) -> Session {
        let tls = Some(ClientProfile::of_newcomer().unwrap());
        let (address, congestion) = (self.address.clone(), None);
        backend::dial(&DialSpec::Tcp(TcpDialOptions { address, tls, congestion })).await.unwrap()
    }
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

fn pki() -> Pki {
    Pki::of(&["control", "hop"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hop_asks_the_desk_behind_it() {
    let pki = pki();
    let control = Rig::new(&pki, "control", None).await;
    let hop = Rig::new(&pki, "hop", Some(&control.address)).await;
    control.open_desk(parrot(100, true)).await;
    until("a desk", async || !hop.door.desks().await.is_empty()).await;
    hop.lets_newcomers_in().await;
    for address in [&hop.address, &format!("quic://{}", hop.quic)] {
        assert_eq!(hop.told(address).await, "hello from 127.0.0.1 by hop");
    }
    assert_eq!(control.told(&control.address).await, "hello from 127.0.0.1");
    // A newcomer is nobody's neighbour.
    assert_eq!(hop.node.status().await.connections.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_desk_in_the_mesh_a_listener_asks_for_certificates() {
    let pki = pki();
    let control = Rig::new(&pki, "control", None).await;
    let mut session = control.newcomer().await;
    assert!(session.reader.read_batch(&mut Vec::new()).await.is_err());
    // Nor does the listener of anything else but a link know newcomers.
    let tls = pki.server("control");
    let spec = ListenSpec::Tcp(TcpListenOptions::new("127.0.0.1", 0).with_tls(Some(tls)));
    let mut listener = Listener::bind(&spec).await.unwrap();
    let (address, congestion) = (listener.local_addr(), None);
    let tls = Some(ClientProfile::of_newcomer().unwrap());
    let spec = DialSpec::Tcp(TcpDialOptions { address, tls, congestion });
    let (refused, _session) = tokio::join!(listener.accept(), backend::dial(&spec));
    assert!(refused.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_at_once_are_told_to_come_again_and_then_they_are_served() {
    let pki = pki();
    let control = Rig::new(&pki, "control", None).await;
    let desk = parrot(0, false);
    control.open_desk(desk.clone()).await;
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..super::door::AT_ONCE + 8 {
        let mut session = control.newcomer().await;
        asking.spawn(async move {
            // Who is told that there is no room may be told before it has asked.
            let _told = messages::send(&mut session.writer, b"hello").await;
            let answer = messages::receive(&mut session.reader, MOST_ANSWERED).await.unwrap();
            serde_json::from_slice::<CertificateAnswer>(&answer).unwrap()
        });
    }
    for _ in 0..8 {
        assert!(matches!(asking.join_next().await.unwrap().unwrap(), CertificateAnswer::Busy(_)));
    }
    desk.may.add_permits(100);
    while let Some(answer) = asking.join_next().await {
        assert!(matches!(answer.unwrap(), CertificateAnswer::Granted { .. }));
    }
    assert_eq!(control.told(&control.address).await, "hello from 127.0.0.1");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_again_and_again_has_to_wait() {
    let pki = pki();
    let control = Rig::new(&pki, "control", None).await;
    control.open_desk(parrot(1000, true)).await;
    let ask = async || {
        let mut session = control.newcomer().await;
        let _full = messages::send(&mut session.writer, b"hello").await;
        let answer = messages::receive(&mut session.reader, MOST_ANSWERED).await.unwrap();
        serde_json::from_slice::<CertificateAnswer>(&answer).unwrap()
    };
    let mut refused = 0;
    until("to be made to wait", async || match ask().await {
        CertificateAnswer::Refused(_) => {
            refused += 1;
            false
        }
        CertificateAnswer::Busy(_) => true,
        CertificateAnswer::Granted { .. } | CertificateAnswer::Waiting(_) => panic!("it was granted"),
    })
    .await;
    assert_eq!(refused, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_desk_that_says_no_or_lies_does_not_speak_for_the_next_one() {
    for refuses in [true, false] {
        let pki = Pki::of(&["control", "liar", "hop"]);
        let control = Rig::new(&pki, "control", None).await;
        let liar = Rig::new(&pki, "liar", Some(&control.address)).await;
        let hop = Rig::new(&pki, "hop", Some(&liar.address)).await;
        let (desk, token, request) = honest(&pki);
        liar.open_desk(parrot(100, refuses)).await;
        control.open_desk(desk).await;
        until("both desks", async || hop.door.desks().await.len() == 2).await;
        hop.lets_newcomers_in().await;
        let open = |answer: &[u8]| request.open(answer, &token.authority);
        let address: NodeAddress = hop.address.parse().unwrap();
        let granted = newcomer::ask(&[address], &request.to_bytes(), open, |_| ()).await.unwrap();
        assert_eq!(make::facts(&granted.certificate).unwrap().names.node_ids, ["e1"]);
        // Who lies is asked last from then on, unless the others are slow. Who refuses is not.
        assert_eq!(hop.door.is_doubtful(&NodeId::new("liar").unwrap()), !refuses);
    }
}

/// A desk that has a list, and cannot read it at times.
struct Lister {
    list: String,
    number: u64,
    fails: AtomicBool,
}

impl Decide for Lister {
    fn directory(&self) -> &Path {
        Path::new("/nonexistent")
    }

    fn list(&self) -> Option<(String, u64)> {
        (!self.fails.load(Ordering::Relaxed)).then(|| (self.list.clone(), self.number))
    }

    fn adopt(&self, _list: &str) {}

    fn decide(&self, _request: &[u8], _from: &str) -> CertificateAnswer {
        CertificateAnswer::Busy(String::new())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_could_not_be_fetched_is_fetched_soon() {
    let pki = pki();
    let control = Rig::new(&pki, "control", None).await;
    let hop = Rig::new(&pki, "hop", Some(&control.address)).await;
    let read = |name: &str| std::fs::read_to_string(pki.path(name)).unwrap();
    let (authority, key) = (read("ca.crt"), read("ca.key"));
    let list = |number| make::revocation_list(&authority, &key, &[], number, Timestamp::now()).unwrap();
    let lister = Arc::new(Lister { list: list(2), number: 2, fails: AtomicBool::new(false) });
    control.open_desk(lister.clone()).await;
    until("the number", async || !hop.door.numbers(super::lists::NUMBER).await.is_empty()).await;
    lister.fails.store(true, Ordering::Relaxed);

    let (id, crl) = (NodeId::new("hop").unwrap(), pki.path("own.crl"));
    std::fs::write(&crl, list(1)).unwrap();
    let mut options = pki.client_options("hop");
    options.files = Files { crl: Some(crl.clone()), ..options.files };
    let profiles = Profiles::open([], [options], &id).unwrap();
    let stop = CancellationToken::new();
    let keeper = ListKeeper { door: hop.door.clone(), profiles, profile: "cli".to_owned() };
    let keeping = tokio::spawn(keeper.run(stop.clone()));
    until("a doubt", async || hop.door.is_doubtful(control.node.id())).await;
    lister.fails.store(false, Ordering::Relaxed);
    let number = async || {
        let own = std::fs::read_to_string(&crl).unwrap();
        RevocationList::read(&own, &authority).unwrap().number == 2
    };
    until("the later list", number).await;
    stop.cancel();
    keeping.await.unwrap();
}
