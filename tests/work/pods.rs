//! Units as pods: the daemon and a scripted API server, from the submission to the release. The tests of the state
//! machine cover decisions, and those of the driver cover the requests.

#[path = "../../src/pods/driver/tests/server.rs"]
#[allow(dead_code, reason = "the tests of the driver use the rest")]
pub(crate) mod server;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use self::server::Server;
use crate::daemon::{Daemon, scratch_in_memory};
use crate::harness::{LIMIT, bytes, eventually};

/// Writes a configuration with the work types `kube` and `runtime`, whose pods go to that server.
fn configure(dir: &Path, server: &Server, changes: Value) {
    std::fs::write(dir.join("kubeconfig"), server.kubeconfig().to_string()).unwrap();
    let mut kube = json!({
        "worktype": "kube", "namespace": "ns", "image": "i", "authmethod": "kubeconfig",
        "kubeconfig": dir.join("kubeconfig"), "deletepodonrestart": false,
    });
    let kube_settings = kube.as_object_mut().unwrap();
    kube_settings.extend(changes.as_object().unwrap().clone());
    kube_settings.retain(|_, value| !value.is_null());
    let runtime =
        json!({"worktype": "runtime", "image": "i", "authmethod": "runtime", "allowruntimeauth": true});
    write(dir, json!({}), json!([{"work-kubernetes": kube}, {"work-kubernetes": runtime}]));
}

fn write(dir: &Path, settings: Value, items: Value) {
    let mut node = json!({"id": "n1", "datadir": dir.join("data")});
    node.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let mut config = json!([
        {"node": node}, {"log-level": "info"}, "local-only",
        {"control-service": {"service": "control", "filename": dir.join("s")}},
    ]);
    config.as_array_mut().unwrap().extend(items.as_array().unwrap().clone());
    std::fs::write(dir.join("c.yml"), config.to_string()).unwrap();
}

/// A daemon whose work types are those of [`configure`].
fn start(server: &Server, changes: Value) -> (TempDir, Daemon) {
    let temp = scratch_in_memory();
    configure(temp.path(), server, changes);
    let daemon = Daemon::start(temp.path());
    (temp, daemon)
}

fn is_final(status: &Value) -> bool {
    status["State"].as_u64() >= Some(2)
}

fn is_running(status: &Value) -> bool {
    status["StateName"] == "Running"
}

fn deletes(server: &Server) -> usize {
    server.change(|world| world.requests.iter().filter(|request| request.starts_with("DELETE")).count())
}

/// Runs a unit of a work type until its pod has ended; returns its ID and the pod's name.
async fn finished_unit(daemon: &Daemon, server: &Server, work_type: &str, params: Value) -> (String, String) {
    let (id, _) = daemon.submit(work_type, params, b"");
    let pod = pod_of(daemon, &id);
    server.until("the pod", |world| world.pods.contains_key(&pod)).await;
    server.run(&pod);
    server.print(&pod, 0..1);
    server.end(&pod, 0);
    assert_eq!(daemon.until(&id, is_final)["StateName"], "Succeeded");
    (id, pod)
}

/// The name of a unit's pod, which is known before the pod is.
fn pod_of(daemon: &Daemon, id: &str) -> String {
    let status = daemon.until(id, |status| status["ExtraData"]["PodName"] != "");
    status["ExtraData"]["PodName"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_pending_until_the_pod_is_gone_across_restarts_and_a_week_at_most() {
    let server = Server::start().await;
    let (temp, mut daemon) = start(&server, json!({}));
    let params = json!({"secret_kube_config": server.kubeconfig().to_string()});
    for is_week_over in [false, true] {
        let (id, pod) = finished_unit(&daemon, &server, "runtime", params.clone()).await;
        server.change(|world| world.broken = vec!["DELETE"]);
        let answer: Value = serde_json::from_str(&daemon.ask(&format!("work release {id}"))).unwrap();
        assert_eq!(answer, json!({"release pending": id}));
        assert_eq!(daemon.ask("work list").trim(), "{}");
        assert!(daemon.ask(&format!("work status {id}")).starts_with("ERROR"));
        let node = temp.path().join("data/n1");
        let entries = std::fs::read_dir(&node).unwrap().flatten();
        let hidden = entries
            .map(|entry| entry.path())
            .find(|path| path.is_dir() && path.file_name().unwrap().to_string_lossy().contains(&id));
        let (hidden, status) = (hidden.clone().unwrap(), hidden.unwrap().join("status"));
        let text = std::fs::read_to_string(&status).unwrap();
        assert!(text.contains("hunter2"), "its credential is needed");
        assert_eq!(status.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        if is_week_over {
            let mut edited: Value = serde_json::from_str(&text).unwrap();
            assert!(edited["ExtraData"]["Released"].is_string(), "{edited}");
            edited["ExtraData"]["Released"] = "2020-01-01T00:00:00Z".into();
            drop(daemon);
            std::fs::write(&status, edited.to_string()).unwrap();
            daemon = Daemon::start(temp.path());
        } else {
            let before = deletes(&server);
            daemon.restart();
            server
                .until("another attempt", |world| {
                    world.requests.iter().filter(|request| request.starts_with("DELETE")).count() > before
                })
                .await;
            assert!(hidden.exists());
            server.change(|world| world.broken.clear());
            server.until("the deletion", |world| !world.pods.contains_key(&pod)).await;
        }
        eventually("nothing is left of the unit", || !hidden.exists()).await;
        assert_eq!(server.change(|world| world.pods.contains_key(&pod)), is_week_over);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_tries_once_and_a_start_deletes_the_pods_of_units_that_are_gone() {
    let server = Server::start().await;
    let (_temp, mut daemon) = start(&server, json!({}));
    let (forced, left_behind) = finished_unit(&daemon, &server, "kube", json!({})).await;
    let (kept, _) = finished_unit(&daemon, &server, "kube", json!({})).await;
    // Pods of another node's directory, and of nobody.
    server.change(|world| {
        let mut other = world.pods[&left_behind].clone();
        other["metadata"]["labels"]["meshd/store"] = "another".into();
        world.pods.insert("other".into(), other);
        world
            .pods
            .insert("bare".into(), json!({"metadata": {"name": "bare", "namespace": "ns", "uid": "b"}}));
        world.broken = vec!["DELETE"];
    });
    let answer: Value = serde_json::from_str(&daemon.ask(&format!("work force-release {forced}"))).unwrap();
    assert_eq!(answer, json!({"released": forced}));
    assert_eq!(deletes(&server), 1);
    server.change(|world| world.broken.clear());
    daemon.restart();
    server.until("the deletion", |world| !world.pods.contains_key(&left_behind)).await;
    assert_eq!(server.change(|world| world.pods.len()), 3);
    let answer: Value = serde_json::from_str(&daemon.ask(&format!("work release {kept}"))).unwrap();
    assert_eq!(answer, json!({"released": kept}));
    let left: Vec<String> = server.change(|world| world.pods.keys().cloned().collect());
    assert_eq!(left, ["bare", "other"]);
    assert_eq!(deletes(&server), 3, "nobody else's pod was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_has_each_byte_before_the_kubelet_sends_the_next() {
    let server = Server::start().await;
    let (_temp, daemon) = start(&server, json!({}));
    let (id, _) = daemon.submit("kube", json!({}), b"");
    let pod = pod_of(&daemon, &id);
    server.until("the pod", |world| world.pods.contains_key(&pod)).await;
    server.run(&pod);
    let (mut results, head) = daemon.converse(&format!("work results {id}"));
    assert!(head.starts_with("Streaming results"), "{head}");
    let mut expect = |text: &str| {
        let mut got = vec![0; text.len()];
        results.read_exact(&mut got).unwrap();
        assert_eq!(got, text.as_bytes());
    };
    for line in 0..50 {
        server.write(&pod, &format!("2026-01-02T03:04:05.{line:09}Z line {line}\n"));
        expect(&format!("line {line}\n"));
    }
    server.write(&pod, "2026-01-02T03:04:06Z ");
    for byte in ["a", "b", "c", "\n"] {
        server.write(&pod, byte);
        expect(byte);
    }
    server.end(&pod, 0);
    let mut rest = Vec::new();
    results.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"");
}

/// Row B16, over plain HTTP and over TLS: the requests and the memory of each running unit, without what all of them
/// share.
async fn many(server: Server, most_of_memory: u64) {
    const UNITS: usize = 500;
    let payload = bytes(70_000);
    server.change(|world| world.runs_at_once = true);
    let (_temp, daemon) = start(&server, json!({}));
    let submit = |count: usize| -> Vec<String> {
        (0..count).map(|_| daemon.submit("kube", json!({}), &payload).0).collect()
    };
    // All units share the client, the watch, and the arenas of the allocator.
    let first = submit(100);
    for id in &first {
        daemon.until(id, is_running);
    }
    let before = daemon.memory();
    let units = submit(UNITS);
    for id in &units {
        daemon.until(id, is_running);
    }
    let logs = |world: &server::World| world.requests.iter().filter(|r| r.contains("/log")).count();
    server.until("each log", |world| logs(world) == UNITS + first.len()).await;
    let each = daemon.memory().saturating_sub(before) / UNITS as u64;
    println!("{UNITS} units: {each} bytes each");
    let pods: Vec<String> = server.change(|world| world.pods.keys().cloned().collect());
    server.change(|world| {
        assert!(world.stdin.values().all(|got| *got == payload));
        for pod in &pods {
            let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
            world.logs.insert(pod.clone(), "2026-01-02T03:04:05Z hi\n".into());
            world.set_worker(pod, "Succeeded", ended);
        }
    });
    for id in first.iter().chain(&units) {
        assert_eq!(daemon.until(id, is_final)["StdoutSize"], 3);
        assert!(daemon.ask(&format!("work release {id}")).contains("released"));
    }
    server.change(|world| {
        assert!(world.pods.is_empty());
        let watches = world.requests.iter().filter(|request| request.contains("watch=true")).count();
        assert_eq!(watches, 1, "one for all");
        // Three requests are not of units: two lists, by the sweep and before the watch, and the version.
        let of_units = world.requests.len() - watches - 3;
        assert!(of_units <= 6 * pods.len(), "{of_units}");
    });
    assert!(each <= most_of_memory, "{each} bytes a unit");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_units_share_one_watch_ask_for_little_and_need_little() {
    many(Server::start().await, 64 * 1024).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_units_over_tls_need_little() {
    many(Server::start_tls().await, 128 * 1024).await;
}

/// Connects from an address to where a pod is to connect.
async fn connect(from: &str, pod: &Value) -> TcpStream {
    let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| env.iter().find(|var| var["name"] == name).unwrap()["value"].as_str().unwrap();
    let to = format!("{}:{}", value("RECEPTOR_HOST"), value("RECEPTOR_PORT"));
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(to.parse().unwrap()).await.unwrap()
}

/// Reads everything that comes over a connection.
async fn all(connection: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut got = Vec::new();
    let read = tokio::time::timeout(LIMIT, connection.read_to_end(&mut got)).await.expect("it never ends");
    // A stranger's connection may be reset.
    let _ = read;
    got
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tcp_only_the_pod_itself_is_served_and_a_restart_is_not_survived() {
    let server = Server::start().await;
    let (_temp, mut daemon) =
        start(&server, json!({"streammethod": "tcp", "tcpaddress": "127.0.0.1", "image": "i"}));
    let run = async |daemon: &Daemon| {
        let (id, _) = daemon.submit("kube", json!({}), b"payload");
        let name = pod_of(daemon, &id);
        server.until("the pod", |world| world.pods.contains_key(&name)).await;
        let pod = server.change(|world| world.pods[&name].clone());
        // The daemon cannot know yet whose connection this is.
        let mut early = connect("127.0.0.2", &pod).await;
        server.change(|world| {
            let status = json!({
                "phase": "Running", "hostIP": "127.0.0.4", "podIP": "127.0.0.3", "podIPs": [{"ip": "127.0.0.3"}],
                "containerStatuses": [{"name": "worker", "state": {"running": {}}}],
            });
            world.set_status(&name, status);
        });
        assert_eq!(all(&mut early).await, b"");
        let mut stranger = connect("127.0.0.5", &pod).await;
        assert_eq!(all(&mut stranger).await, b"");
        let (mut from, mut to) = connect("127.0.0.3", &pod).await.into_split();
        assert_eq!(all(&mut from).await, b"payload", "to the half-close");
        daemon.until(&id, is_running);
        to.write_all(b"output").await.unwrap();
        (id, name, (from, to))
    };
    let (id, _, connection) = run(&daemon).await;
    drop(connection);
    let status = daemon.until(&id, is_final);
    assert_eq!((&status["Detail"], &status["StdoutSize"]), (&json!("Finished"), &json!(6)));

    let (id, name, _connection) = run(&daemon).await;
    let (mut results, _) = daemon.converse(&format!("work results {id}"));
    results.read_exact(&mut [0; 6]).unwrap();
    daemon.restart();
    let status = daemon.until(&id, is_final);
    assert_eq!(status["Detail"], "Failed to restart: restart not implemented for streammethod tcp");
    assert_eq!((&status["StateName"], &status["StdoutSize"]), (&json!("Failed"), &json!(6)));
    server.until("the deletion", |world| !world.pods.contains_key(&name)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_bounds_the_requests() {
    let server = Server::start().await;
    let temp = scratch_in_memory();
    configure(temp.path(), &server, json!({}));
    let start = |variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--config").arg(temp.path().join("c.yml")).envs(variables.iter().copied());
        Daemon::start_by(command, temp.path())
    };
    let daemon = start(&[("RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER", "never")]);
    let refused = daemon.submit_refused("kube");
    assert!(
        refused.contains("RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER=never refuses every request"),
        "{refused}"
    );
    drop(daemon);

    let begun = Instant::now();
    let daemon = start(&[
        ("RECEPTOR_KUBE_CLIENTSET_QPS", "10"),
        ("RECEPTOR_KUBE_CLIENTSET_BURST", "1"),
        ("RECEPTOR_KUBE_SUPPORT_RECONNECT", "disabled"),
    ]);
    finished_unit(&daemon, &server, "kube", json!({})).await;
    let requests = server.change(|world| world.requests.len());
    assert!(requests >= 6, "{requests}");
    // The sweep has its own client, and so its own rate, if it comes before the unit.
    assert!(begun.elapsed() >= Duration::from_millis(100) * (requests as u32 - 2), "{requests} requests");
    assert_eq!(daemon.log().matches("RECEPTOR_KUBE_SUPPORT_RECONNECT=disabled has no effect").count(), 1);
    drop(daemon);

    // The node's own settings override the environment.
    let kube = json!({"worktype": "kube", "image": "i", "namespace": "ns"});
    let settings = json!({"ReceptorKubeClientsetRateLimiter": "never"});
    write(temp.path(), settings, json!([{"work-kubernetes": kube}]));
    let daemon = start(&[("RECEPTOR_KUBE_CLIENTSET_RATE_LIMITER", "always")]);
    assert!(daemon.submit_refused("kube").contains("never refuses every request"));
}

#[tokio::test(flavor = "multi_thread")]
async fn check_tries_the_credential_its_rights_the_servers_version_and_the_pod_file() {
    let server = Server::start().await;
    let temp = tempfile::tempdir().unwrap();
    let check = async || {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_meshd"));
        let output = command.arg("check").arg(temp.path().join("c.yml")).output().await.unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    configure(temp.path(), &server, json!({}));
    let (code, text) = check().await;
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains("hunter2"));

    server.change(|world| (world.denied, world.version) = (vec!["create attach", "delete"], "v1.23.9"));
    let pod = temp.path().join("pod.yml");
    std::fs::write(&pod, r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "x"}]}}"#)
        .unwrap();
    configure(temp.path(), &server, json!({"image": null, "pod": pod}));
    let (_, text) = check().await;
    for part in [
        "its credential may not create pods/attach in namespace ns",
        "its credential may not delete pods in namespace ns",
        "Kubernetes v1.23.9",
        "at least one container must be named worker",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }

    server.change(|world| world.token = "another");
    configure(temp.path(), &server, json!({}));
    assert!(check().await.1.contains("cannot ask the API server: Unauthorized"));
    std::fs::write(temp.path().join("kubeconfig"), "{").unwrap();
    assert!(check().await.1.contains("kubeconfig is not valid YAML: see line 1"));
    assert!(server.change(|world| world.pods.is_empty()));
}

/// A daemon that finds token, authority and namespace where a pod does, in a mount namespace of its own.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_token_and_authority_are_read_again_as_they_change() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: a mount namespace needs root");
        return;
    }
    let server = Server::start_tls().await;
    let temp = tempfile::tempdir().unwrap();
    let mounted = temp.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let put = |name: &str, text: &str| std::fs::write(mounted.join(name), text).unwrap();
    put("token", "hunter2");
    put("namespace", "ns");
    put("ca.crt", &server.renew_certificate());
    let kube = json!({"worktype": "kube", "image": "i", "namespace": "ns", "authmethod": "incluster"});
    write(temp.path(), json!({}), json!([{"work-kubernetes": kube}]));
    let mut command = Command::new("unshare");
    let script = "set -e; mount -t tmpfs none /run; cd /run; mkdir -p secrets/kubernetes.io/serviceaccount; \
                  mount --bind \"$1\" secrets/kubernetes.io/serviceaccount; cd /; exec \"$2\" --config \"$3\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&mounted);
    command.arg(env!("CARGO_BIN_EXE_meshd")).arg(temp.path().join("c.yml"));
    command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
    command.env("KUBERNETES_SERVICE_PORT", server.address.port().to_string());
    command.env("RECEPTOR_KUBE_TIMEOUT_START", "100ms");
    let daemon = Daemon::start_by(command, temp.path());
    let (id, _) = daemon.submit("kube", json!({}), b"");
    let pod = pod_of(&daemon, &id);
    server.until("the pod", |world| world.pods.contains_key(&pod)).await;
    server.run(&pod);
    server.print(&pod, 0..1);
    daemon.until(&id, |status| status["StdoutSize"] == 7);
    // The old token and certificate are no longer valid, and the unit needs new connections.
    put("token", "hunter3");
    put("ca.crt", &server.renew_certificate());
    server.change(|world| world.token = "hunter3");
    server.cut_logs();
    server.print(&pod, 1..2);
    server.end(&pod, 0);
    let deadline = Instant::now() + Duration::from_secs(120);
    let status = loop {
        let status: Value = serde_json::from_str(&daemon.ask(&format!("work status {id}"))).unwrap();
        if is_final(&status) {
            break status;
        }
        assert!(Instant::now() < deadline, "{status}: {}", daemon.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&status["Detail"], &status["StdoutSize"]), (&json!("Finished"), &json!(14)), "{status}");
}
