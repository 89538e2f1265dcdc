//! Services with certificates, on the mesh and on the sockets at both ends: each direction ends separately, a
//! close loses nothing, and a client without a certificate is refused.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};

use crate::harness::{LIMIT, Node, echo, exchange, pattern};
use crate::port::free_port;

/// The client and server profile of a node, with its certificate of the development set.
fn profiles(node: &str) -> [Value; 2] {
    let cert =
        |name: String| Path::new(env!("CARGO_MANIFEST_DIR")).join("certs").join(name).display().to_string();
    let (own, key, ca) =
        (cert(format!("{node}.crt")), cert(format!("{node}.key")), cert("ca.crt".to_owned()));
    [
        json!({"tls-server": {"name": "srv", "cert": own, "key": key, "clientcas": ca, "requireclientcert": true}}),
        json!({"tls-client": {"name": "cli", "cert": own, "key": key, "rootcas": ca}}),
    ]
}

/// Two nodes; `tcp` leads to an echo through four handshakes, two on sockets and two on the mesh.
struct Secured {
    near: Node,
    _far: Node,
    tcp: u16,
    /// How many bytes each connection to the Unix socket delivered.
    counted: mpsc::Receiver<usize>,
    _targets: tempfile::TempDir,
}

impl Secured {
    fn new() -> Self {
        let targets = tempfile::tempdir().unwrap();
        let (link, tcp, entrance, exit, target) =
            (free_port(), free_port(), free_port(), free_port(), echo());
        let behind = targets.path().join("behind");
        let counted = count(&behind);
        let local = |port: u16| format!("127.0.0.1:{port}");
        let [server, client] = profiles("execution");
        let far = Node::start(
            "execution",
            json!([server, client,
                {"tcp-listener": {"port": link, "bindaddr": "127.0.0.1"}},
                {"tcp-client": {"service": "secured", "tlsserver": "srv", "address": local(exit), "tlsclient": "cli"}},
                {"tcp-server": {"port": exit, "bindaddr": "127.0.0.1", "tlsserver": "srv",
                    "remotenode": "localhost", "remoteservice": "plain"}},
                {"tcp-client": {"service": "plain", "address": local(target)}},
                {"unix-socket-client": {"service": "unix", "filename": behind, "tls": "srv"}},
                {"command-service": {"service": "term", "tls": "srv",
                    "command": "sh -c 'stty -echo; read line; echo you said $line'"}}]),
        );
        let [server, client] = profiles("control");
        let near = Node::start(
            "control",
            json!([server, client,
                {"tcp-peer": local(link)},
                {"tcp-server": {"port": tcp, "bindaddr": "127.0.0.1",
                    "remotenode": "localhost", "remoteservice": "entrance"}},
                {"tcp-client": {"service": "entrance", "address": local(entrance), "tlsclient": "cli"}},
                {"tcp-server": {"port": entrance, "bindaddr": "127.0.0.1", "tlsserver": "srv",
                    "remotenode": "execution", "remoteservice": "secured", "tlsclient": "cli"}},
                {"unix-socket-server": {"filename": targets.path().join("in"), "remotenode": "execution",
                    "remoteservice": "unix", "tls": "cli"}},
                {"unix-socket-server": {"filename": targets.path().join("bare"), "remotenode": "execution",
                    "remoteservice": "unix"}}]),
        );
        for service in ["secured", "unix", "term"] {
            near.knows("execution", service);
        }
        Self { near, _far: far, tcp, counted, _targets: targets }
    }

    fn unix(&self, name: &str) -> UnixStream {
        let stream = UnixStream::connect(self._targets.path().join(name)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }
}

/// Listens, counts the bytes of each connection, and answers with the count.
fn count(path: &Path) -> mpsc::Receiver<usize> {
    let listener = UnixListener::bind(path).unwrap();
    let (sender, counted) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut all) = (stream.unwrap(), Vec::new());
            let _broken = stream.read_to_end(&mut all);
            let _gone = write!(stream, "{}", all.len());
            if sender.send(all.len()).is_err() {
                return;
            }
        }
    });
    counted
}

#[test]
fn ends_and_bytes_are_kept_under_certificates() {
    let mesh = Secured::new();
    let sent = pattern(3_000_000);
    assert!(exchange(mesh.tcp, &sent) == sent, "an echo after the end of the input, byte for byte");
    for size in [0, 1, 1452, 70_000] {
        assert!(exchange(mesh.tcp, &sent[..size]) == sent[..size], "{size} bytes");
    }

    let mut stream = mesh.unix("in");
    stream.write_all(&sent[..500_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "500000", "what is said after one direction has ended arrives");
    assert_eq!(mesh.counted.recv_timeout(LIMIT), Ok(500_000));
    // A client that writes and leaves.
    let mut stream = mesh.unix("in");
    stream.write_all(&sent[..500_000]).unwrap();
    drop(stream);
    assert_eq!(mesh.counted.recv_timeout(LIMIT), Ok(500_000));
}

#[test]
fn a_terminal_under_a_certificate_and_none_without() {
    let mesh = Secured::new();
    let mut stream = UnixStream::connect(mesh.near.socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"connect execution term cli\nhello\n").unwrap();
    let mut said = String::new();
    while !said.contains("you said hello") {
        let mut buffer = [0; 1000];
        let size = stream.read(&mut buffer).unwrap();
        assert!(size > 0, "{said}");
        said += &String::from_utf8_lossy(&buffer[..size]);
    }
    let refused = mesh.near.ask("connect execution term");
    assert!(refused.starts_with("ERROR: "), "{refused}");
    let mut stream = mesh.unix("bare");
    let mut nothing = Vec::new();
    assert!(stream.read_to_end(&mut nothing).is_ok_and(|size| size == 0) || nothing.is_empty());
    assert!(mesh.counted.try_recv().is_err(), "nobody came through");
}
