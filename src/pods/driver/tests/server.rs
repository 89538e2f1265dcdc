//! A scripted API server: it keeps pods and their logs, answers over real sockets, and fails where a test says so. The
//! tests of `tests/work` use it too.

#[path = "server_http.rs"]
mod http;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use self::http::{Asked, Connection, Socket, answer, base64, chunk, head, parameter, read, stream};

/// The server, with the state that tests read and change.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// With TLS, the authority's certificate and how connections are accepted.
    tls: Arc<Mutex<Option<(String, TlsAcceptor)>>>,
    world: Arc<Mutex<World>>,
    changed: Arc<watch::Sender<()>>,
}

#[derive(Default)]
pub(crate) struct World {
    /// The token that is accepted.
    pub(crate) token: &'static str,
    /// Rights that the credential lacks: `VERB SUBRESOURCE`.
    pub(crate) denied: Vec<&'static str>,
    /// Requests whose text contains one of these are answered with 503.
    pub(crate) broken: Vec<&'static str>,
    pub(crate) pods: BTreeMap<String, Value>,
    /// Each pod's log, as the kubelet holds it.
    pub(crate) logs: BTreeMap<String, String>,
    pub(crate) stdin: BTreeMap<String, Vec<u8>>,
    /// By `NAMESPACE/NAME`.
    pub(crate) secrets: BTreeMap<String, Value>,
    /// All requests received: `METHOD PATH?QUERY`.
    pub(crate) requests: Vec<String>,
    events: Vec<Value>,
    /// Each fault replaces the answer to the next request whose text contains its string.
    pub(crate) faults: VecDeque<(&'static str, Fault)>,
    /// The first log stream of the pod with UID `uN` breaks off after N bytes.
    pub(crate) cuts_first_stream: bool,
    pub(crate) cuts: u32,
    /// How often all log streams were cut off.
    logs_cut: u32,
    /// Requests that are held back are answered.
    pub(crate) goes_on: bool,
    /// The version that the server reports; none if empty.
    pub(crate) version: &'static str,
    /// Each pod that is created runs at once.
    pub(crate) runs_at_once: bool,
    made: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// This status and message.
    Refuse(u16, &'static str),
    /// The request is carried out, but the connection ends without an answer.
    LoseAnswer,
    /// The answer is held back until the test allows it.
    Hold,
    /// This text in place of a log.
    Say(&'static str),
    /// A log that ends in order at once.
    End,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let world = World { token: "hunter2", ..World::default() };
        let (world, tls) = (Arc::new(Mutex::new(world)), Arc::default());
        let server = Self { address, tls, world, changed: Arc::new(watch::Sender::new(())) };
        server.clone().listen(listener);
        server
    }

    /// The same with TLS.
    pub(crate) async fn start_tls() -> Self {
        let server = Self::start().await;
        server.renew_certificate();
        server
    }

    /// Uses a new certificate for new connections, and returns it.
    pub(crate) fn renew_certificate(&self) -> String {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        *self.tls.lock() = Some((made.cert.pem(), TlsAcceptor::from(Arc::new(config))));
        made.cert.pem()
    }

    fn listen(self, listener: TcpListener) {
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let server = self.clone();
                connection.set_nodelay(true).unwrap();
                let acceptor = server.tls.lock().as_ref().map(|(_, acceptor)| acceptor.clone());
                tokio::spawn(async move {
                    let socket: Box<dyn Socket> = match acceptor {
                        None => Box::new(connection),
                        Some(acceptor) => match acceptor.accept(connection).await {
                            Ok(connection) => Box::new(connection),
                            // The client does not know the certificate.
                            Err(_) => return,
                        },
                    };
                    server.serve(BufReader::new(socket)).await;
                });
            }
        });
    }

    /// A kubeconfig for this server.
    pub(crate) fn kubeconfig(&self) -> Value {
        let mut cluster = json!({"server": format!("http://{}", self.address)});
        if let Some((authority, _)) = &*self.tls.lock() {
            cluster["server"] = format!("https://{}", self.address).into();
            cluster["certificate-authority-data"] = base64(authority.as_bytes()).into();
        }
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": cluster}],
            "users": [{"name": "x", "user": {"token": "hunter2"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x", "namespace": "ns"}}],
        })
    }

    /// Reads or changes the state; streams notice it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        let done = change(&mut self.world.lock());
        self.changed.send_replace(());
        done
    }

    pub(crate) fn fault(&self, request: &'static str, fault: Fault) {
        self.world.lock().faults.push_back((request, fault));
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, what: &str, mut is_so: impl FnMut(&World) -> bool) {
        let mut changed = self.changed.subscribe();
        let waits = async {
            while !is_so(&self.world.lock()) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(std::time::Duration::from_secs(60), waits).await.is_err() {
            panic!("{what} never comes: {:#?}", self.world.lock().requests);
        }
    }

    /// The only pod's name, once there is one.
    pub(crate) async fn pod(&self) -> String {
        self.until("a pod", |world| !world.pods.is_empty()).await;
        self.world.lock().pods.keys().next().unwrap().clone()
    }

    /// Makes a pod's worker run.
    pub(crate) fn run(&self, pod: &str) {
        self.change(|world| world.set_worker(pod, "Running", json!({"running": {}})));
    }

    pub(crate) fn end(&self, pod: &str, code: i32) {
        let (phase, reason) = if code == 0 { ("Succeeded", "Completed") } else { ("Failed", "Error") };
        let ended = json!({"terminated": {"exitCode": code, "reason": reason}});
        self.change(|world| world.set_worker(pod, phase, ended));
    }

    /// Makes a pod's worker print lines, two with each timestamp.
    pub(crate) fn print(&self, pod: &str, lines: std::ops::Range<u32>) {
        self.change(|world| {
            let log = world.logs.entry(pod.to_owned()).or_default();
            for line in lines {
                let stamp =
                    jiff::Timestamp::from_millisecond(1_000_000_000 + i64::from(line / 2) * 300).unwrap();
                log.push_str(&format!("{stamp} line {line}\n"));
            }
        });
    }

    /// Breaks off all log streams.
    pub(crate) fn cut_logs(&self) {
        self.change(|world| world.logs_cut += 1);
    }

    /// Appends a text to a pod's log as it is.
    pub(crate) fn write(&self, pod: &str, text: &str) {
        self.change(|world| world.logs.entry(pod.to_owned()).or_default().push_str(text));
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    async fn serve(&self, mut connection: Connection) {
        while let Some((asked, is_upgrade)) = read(&mut connection).await {
            let text = format!("{} {}?{}", asked.method, asked.path, asked.query);
            let fault = {
                let mut world = self.lock();
                world.requests.push(text.clone());
                let at = world.faults.iter().position(|(part, _)| text.contains(part));
                let fault = at.and_then(|at| world.faults.remove(at)).map(|(_, fault)| fault);
                if asked.token != world.token {
                    Some(Fault::Refuse(401, "Unauthorized"))
                } else if world.broken.iter().any(|part| text.contains(part)) {
                    Some(Fault::Refuse(503, "the server is currently unable to handle the request"))
                } else {
                    fault
                }
            };
            self.changed.send_replace(());
            if let Some(Fault::Hold) = fault {
                self.until("the permission", |world| world.goes_on).await;
            }
            let goes_on = match fault {
                Some(Fault::Refuse(code, message)) => {
                    answer(
                        &mut connection,
                        code,
                        &json!({"kind": "Status", "code": code, "message": message}),
                    )
                    .await
                }
                Some(Fault::Say(text)) => stream(&mut connection, text.as_bytes(), true).await,
                Some(Fault::End) => stream(&mut connection, b"", true).await,
                Some(Fault::LoseAnswer) => {
                    self.answer(&asked);
                    return;
                }
                Some(Fault::Hold) | None if is_upgrade => return self.attach(connection, &asked).await,
                Some(Fault::Hold) | None if asked.query.contains("watch=true") => {
                    return self.watch(connection, &asked).await;
                }
                Some(Fault::Hold) | None if asked.path.ends_with("/log") => {
                    return self.log(connection, &asked).await;
                }
                Some(Fault::Hold) | None => {
                    let (code, body) = self.answer(&asked);
                    answer(&mut connection, code, &body).await
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    fn answer(&self, asked: &Asked) -> (u16, Value) {
        let answer = self.lock().answer(asked);
        self.changed.send_replace(());
        answer
    }

    async fn watch(&self, mut connection: Connection, asked: &Asked) {
        let mut changed = self.changed.subscribe();
        let mut shown: usize = parameter(&asked.query, "resourceVersion").parse().unwrap();
        if !head(&mut connection).await {
            return;
        }
        loop {
            let new: String = {
                let world = self.lock();
                let new = &world.events[shown..];
                shown += new.len();
                new.iter().map(|event| format!("{event}\n")).collect()
            };
            if !new.is_empty() && !chunk(&mut connection, new.as_bytes()).await
                || changed.changed().await.is_err()
            {
                return;
            }
        }
    }

    async fn log(&self, mut connection: Connection, asked: &Asked) {
        let pod = asked.path.split('/').nth(6).unwrap().to_owned();
        let since = parameter(&asked.query, "sinceTime").replace("%3A", ":");
        let follows = asked.query.contains("follow=true");
        let mut changed = self.changed.subscribe();
        let (mut left, logs_cut) = {
            let mut world = self.lock();
            (world.cut(&pod), world.logs_cut)
        };
        if !head(&mut connection).await {
            return;
        }
        let mut shown = 0;
        loop {
            let (new, has_ended) = {
                let world = self.lock();
                if world.logs_cut > logs_cut {
                    return;
                }
                let log = world.logs.get(&pod).cloned().unwrap_or_default();
                let has_ended = world.pods.get(&pod).is_none_or(|pod| pod.to_string().contains("terminated"));
                (log[shown..].to_owned(), has_ended)
            };
            shown += new.len();
            let is_in = |line: &&str| {
                let stamp = || line.split(' ').next().unwrap().parse::<jiff::Timestamp>().unwrap();
                since.is_empty() || stamp() >= since.parse().unwrap()
            };
            let mut text: String = new.split_inclusive('\n').filter(is_in).collect();
            if let Some(left) = &mut left {
                text.truncate(*left);
                *left -= text.len();
            }
            if !text.is_empty() && !chunk(&mut connection, text.as_bytes()).await || left == Some(0) {
                return;
            }
            if !follows || has_ended {
                // The end of the chunks, and of the connection.
                chunk(&mut connection, b"").await;
                return;
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    async fn attach(&self, mut connection: Connection, asked: &Asked) {
        let pod = asked.path.split('/').nth(6).unwrap().to_owned();
        let spdy = asked.method == "POST";
        let head: &[u8] = match spdy {
            false => b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n",
            true => b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n",
        };
        connection.get_mut().write_all(head).await.unwrap();
        let success = json!({"status": "Success"}).to_string().into_bytes();
        let took = |bytes: &[u8]| {
            self.change(|world| world.stdin.entry(pod.clone()).or_default().extend_from_slice(bytes));
        };
        took(b"");
        if spdy {
            while let Ok(word) = connection.read_u32().await {
                let (flags, length) =
                    (connection.read_u8().await.unwrap(), connection.read_u16().await.unwrap());
                let mut body =
                    vec![0; usize::from(length) << 8 | usize::from(connection.read_u8().await.unwrap())];
                connection.read_exact(&mut body).await.unwrap();
                if word != 3 {
                    continue;
                }
                took(&body);
                if flags == 1 {
                    let mut frame = vec![0, 0, 0, 1, 1, 0, 0, success.len() as u8];
                    frame.extend_from_slice(&success);
                    connection.get_mut().write_all(&frame).await.unwrap();
                }
            }
            return;
        }
        let mut socket = WebSocketStream::from_raw_socket(connection, Role::Server, None).await;
        // A real server sends this empty message too.
        socket.send(Message::binary(vec![3])).await.unwrap();
        while let Some(Ok(message)) = socket.next().await {
            match &message.into_data()[..] {
                [0, bytes @ ..] => took(bytes),
                [255, 0] => {
                    let status = [&[3][..], &success].concat();
                    socket.send(Message::binary(status)).await.unwrap();
                }
                _ => {}
            }
        }
    }
}

impl World {
    fn note(&mut self, kind: &str, mut pod: Value) -> Value {
        let version = (self.events.len() + 1).to_string();
        pod["metadata"]["resourceVersion"] = version.into();
        self.events.push(json!({"type": kind, "object": pod}));
        pod
    }

    /// Bytes after which the next log stream of a pod breaks off.
    fn cut(&mut self, pod: &str) -> Option<usize> {
        let log = format!("GET /api/v1/namespaces/ns/pods/{pod}/log");
        let is_first = self.requests.iter().filter(|request| request.starts_with(&log)).count() == 1;
        let uid = self.pods.get(pod)?["metadata"]["uid"].as_str()?;
        let cut = (self.cuts_first_stream && is_first).then(|| uid.trim_start_matches('u').parse().unwrap());
        self.cuts += u32::from(cut.is_some());
        cut
    }

    pub(crate) fn set_worker(&mut self, name: &str, phase: &str, state: Value) {
        self.set_status(
            name,
            json!({"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]}),
        );
    }

    pub(crate) fn set_status(&mut self, name: &str, status: Value) {
        let Some(mut pod) = self.pods.get(name).cloned() else { return };
        pod["status"] = status;
        let pod = self.note("MODIFIED", pod);
        self.pods.insert(name.to_owned(), pod);
    }

    fn answer_secret(&mut self, asked: &Asked) -> (u16, Value) {
        let place = asked.path.split('/').nth(4).unwrap_or_default();
        let given = asked.body["metadata"]["name"].as_str();
        let name = format!("{place}/{}", asked.path.split('/').nth(6).or(given).unwrap_or_default());
        let found = self.secrets.get(&name).cloned();
        match (asked.method.as_str(), found) {
            ("POST", None) => (201, self.secrets.entry(name).or_insert(asked.body.clone()).clone()),
            ("POST", Some(_)) => (409, json!({"message": format!("secrets {name} already exists")})),
            ("DELETE", Some(found)) => (200, self.secrets.remove(&name).unwrap_or(found)),
            (_, Some(found)) => (200, found),
            (_, None) => (404, json!({"message": format!("secrets {name} not found")})),
        }
    }

    fn answer(&mut self, asked: &Asked) -> (u16, Value) {
        let name = asked.path.split('/').nth(6).unwrap_or_default();
        let missing = || (404, json!({"message": format!("pods \"{name}\" not found")}));
        match (asked.method.as_str(), name) {
            _ if asked.path == "/version" => (200, json!({"major": "1", "gitVersion": self.version})),
            _ if asked.path.contains("/secrets") => self.answer_secret(asked),
            ("POST", _) if asked.path.ends_with("/pods") => {
                let mut pod = asked.body.clone();
                let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
                if self.pods.contains_key(&name) {
                    return (409, json!({"message": format!("pods \"{name}\" already exists")}));
                }
                self.made += 1;
                pod["metadata"]["uid"] = format!("u{}", self.made).into();
                let pod = self.note("ADDED", pod);
                self.pods.insert(name.clone(), pod.clone());
                if self.runs_at_once {
                    self.set_worker(&name, "Running", json!({"running": {}}));
                }
                (201, pod)
            }
            ("POST", _) if asked.path.ends_with("/selfsubjectaccessreviews") => {
                let wanted = &asked.body["spec"]["resourceAttributes"];
                let text = |key: &str| wanted[key].as_str().unwrap_or_default().to_owned();
                let right = format!("{} {}", text("verb"), text("subresource"));
                (
                    201,
                    json!({"status": {"allowed": !self.denied.iter().any(|denied| right.trim() == *denied)}}),
                )
            }
            ("GET", "") => {
                let pods: Vec<_> = self.pods.values().cloned().collect();
                (200, json!({"items": pods, "metadata": {"resourceVersion": self.events.len().to_string()}}))
            }
            ("GET", name) => self.pods.get(name).map_or_else(missing, |pod| (200, pod.clone())),
            ("DELETE", name) => match self.pods.remove(name) {
                Some(pod) => {
                    assert_eq!(asked.body["preconditions"]["uid"], pod["metadata"]["uid"]);
                    (200, self.note("DELETED", pod))
                }
                None => missing(),
            },
            _ => (405, json!({"message": "no such thing here"})),
        }
    }
}
