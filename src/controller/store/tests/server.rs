//! A PostgreSQL server for the tests of this process: Debian's, in a temporary directory, as an unprivileged user.
//!
//! The server ends with the process, however the process ends: a shell ends it once a pipe is closed that only this
//! process holds.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The user `nobody`, for servers that are started by root.
const NOBODY: u32 = 65534;

pub(super) struct Server {
    /// The sockets and `ca.pem` are here, too.
    pub directory: PathBuf,
    pub port: u16,
    databases: AtomicU32,
    /// The server ends when this is closed.
    _pipe: ChildStdin,
}

/// The server, started by the first test that asks. `None` if PostgreSQL is not installed.
pub(super) fn get() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    let server = SERVER.get_or_init(|| programs().map(|programs| start(&programs)));
    if server.is_none() {
        eprintln!("SKIPPED: PostgreSQL is not installed (Debian: apt-get install postgresql)");
    }
    server.as_ref()
}

/// The newest version's directory of programs.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(Result::ok);
    let version = |path: &PathBuf| -> Option<u32> { path.file_name()?.to_str()?.parse().ok() };
    let newest = versions.map(|entry| entry.path()).max_by_key(version)?.join("bin");
    newest.join("initdb").exists().then_some(newest)
}

fn start(programs: &Path) -> Server {
    let directory = tempfile::Builder::new().prefix("meshd-postgres-").tempdir().unwrap().keep();
    let root = rustix::process::geteuid().is_root();
    let own = |path: &Path| {
        if root {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    };
    let unprivileged = |command: &mut Command| {
        if root {
            command.uid(NOBODY).gid(NOBODY);
        }
    };
    own(&directory);
    fs::write(directory.join("password"), "correct horse").unwrap();
    own(&directory.join("password"));
    let mut initdb = Command::new(programs.join("initdb"));
    initdb.args([
        "-U",
        "meshd",
        "--auth-local=trust",
        "--auth-host=scram-sha-256",
        "--no-sync",
        "-E",
        "UTF8",
    ]);
    initdb.arg("--pwfile").arg(directory.join("password")).arg("-D").arg(directory.join("data"));
    unprivileged(&mut initdb);
    let made = initdb.current_dir(&directory).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    make_certificate(&directory, own);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // $0 is the server, $1 the directory, $2 the port.
    let script = r#""$0" -D "$1/data" -p "$2" -k "$1" -c listen_addresses=127.0.0.1 -c fsync=off \
        -c max_connections=400 -c ssl=on -c "ssl_cert_file=$1/server.pem" -c "ssl_key_file=$1/server.key" \
        >"$1/log" 2>&1 </dev/null & server=$!
        cat >/dev/null; kill -INT $server; wait $server; rm -rf "$1""#;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(programs.join("postgres")).arg(&directory).arg(port.to_string());
    shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir(&directory);
    // In its own process group, the shell gets no interrupt from the terminal. The tests get it, and the server ends
    // with them.
    shell.process_group(0);
    unprivileged(&mut shell);
    let pipe = shell.spawn().unwrap().stdin.take().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let ready = || fs::read_to_string(directory.join("log")).is_ok_and(|log| log.contains("ready to accept"));
    while !ready() {
        assert!(Instant::now() < deadline, "{:?}", fs::read_to_string(directory.join("log")));
        std::thread::yield_now();
    }
    Server { directory, port, databases: AtomicU32::new(0), _pipe: pipe }
}

/// A certificate for `localhost`, and the authority that signed it.
fn make_certificate(directory: &Path, own: impl Fn(&Path)) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new([]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let server =
        rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    fs::write(directory.join("ca.pem"), certificate.pem()).unwrap();
    fs::write(directory.join("server.pem"), server.pem()).unwrap();
    let path = directory.join("server.key");
    fs::write(&path, key.serialize_pem()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    own(&path);
}

impl Server {
    /// The URL of a new, empty database, over the Unix socket.
    pub(super) async fn new_database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.run(&format!("CREATE DATABASE {name}")).await;
        self.url(&name)
    }

    /// Runs a statement as the administrator.
    pub(super) async fn run(&self, statement: &str) {
        let (client, connection) =
            tokio_postgres::connect(&self.url("postgres"), tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(statement).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
    }

    fn url(&self, database: &str) -> String {
        format!("postgresql://meshd@/{database}?host={}&port={}", self.directory.display(), self.port)
    }
}
