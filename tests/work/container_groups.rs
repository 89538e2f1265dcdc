//! Jobs in container groups: a control node and a scripted API server, from the group to the release of the pod.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Daemon, scratch_in_memory};
use crate::pods::server::{Fault, Server};
use crate::until::until;

const IMAGE: &str = "quay.example/ee:1";
const PASSWORD: &str = "canary-of-quay";

/// A control node with the credentials `prod`, a cluster, and `quay`, a registry.
fn start(server: &Server) -> (TempDir, Daemon) {
    let temp = scratch_in_memory();
    let dir = temp.path();
    std::fs::create_dir(dir.join("credentials")).unwrap();
    credential(dir, "prod", &json!({"kind": "kubernetes", "kubeconfig": server.kubeconfig().to_string()}));
    let quay = json!({"kind": "registry", "host": "quay.example", "username": "u", "password": PASSWORD});
    credential(dir, "quay", &quay);
    std::fs::write(dir.join("kubeconfig"), server.kubeconfig().to_string()).unwrap();
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system/stand_in_runner.py");
    let rights = json!({
        "allowruntimeauth": true, "allowruntimepod": true, "allowruntimeparams": true,
    });
    let with = |settings: Value| {
        let mut all = rights.as_object().unwrap().clone();
        all.extend(settings.as_object().unwrap().clone());
        json!({"work-kubernetes": all})
    };
    let config = json!([
        {"node": {"id": "control", "datadir": dir.join("data")}}, {"log-level": "debug"}, "local-only",
        {"control-service": {"service": "control", "filename": dir.join("s")}},
        with(json!({"worktype": "kubernetes-runtime-auth", "authmethod": "runtime"})),
        with(json!({
            "worktype": "kubernetes-incluster-auth", "authmethod": "kubeconfig", "kubeconfig": dir.join("kubeconfig"),
        })),
        {"work-controller": {
            "runner": format!("python3 {} worker", stand_in.display()),
            "credentials": dir.join("credentials"), "rundir": dir, "poll": "200ms",
        }},
    ]);
    std::fs::write(dir.join("c.yml"), config.to_string()).unwrap();
    let daemon = Daemon::start(dir);
    let own = json!({"name": "control"});
    until("the control node to be ready", || {
        (operate(&daemon, "instance.get", &own)["result"]["node_state"] == "ready").then_some(())
    });
    (temp, daemon)
}

fn credential(dir: &Path, name: &str, content: &Value) {
    let path = dir.join(format!("credentials/{name}.yml"));
    std::fs::write(&path, content.to_string()).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn operate(daemon: &Daemon, op: &str, arguments: &Value) -> Value {
    let mut request = json!({"command": "controller", "op": op});
    request.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
    serde_json::from_str(&daemon.ask(&request.to_string())).unwrap()
}

fn done(daemon: &Daemon, op: &str, arguments: &Value) -> Value {
    let answer = operate(daemon, op, arguments);
    assert_eq!(answer["ok"], true, "{op} {arguments}: {answer}");
    answer["result"].clone()
}

/// The group `pods`, with everything that a group can have.
fn create_group(daemon: &Daemon) -> Value {
    let group = json!({
        "name": "pods", "is_container_group": true, "cluster": "prod", "namespace": "jobs", "registry": "quay",
        "max_forks": 50,
        "pod_spec_override": "spec:\n  serviceAccountName: null\n  nodeSelector: {disk: ssd} # fast\n",
    });
    done(daemon, "group.create", &group)
}

/// Submits a job for the group `pods`; returns its unit and its number.
fn submit(daemon: &Daemon, kwargs: &Value) -> (String, i64) {
    let header = json!({"controller": 1, "groups": {"launch": ["pods"]}, "runner": {"image": IMAGE}});
    let payload = format!("{header}\n{}\n{}\n", json!({"kwargs": kwargs}), json!({"eof": true}));
    let (unit, answer) = daemon.submit("controller", json!({}), payload.as_bytes());
    assert!(answer.contains("Job Started"), "{answer}");
    let status = daemon.until(&unit, |status| status["ExtraData"]["JobID"].is_i64());
    (unit, status["ExtraData"]["JobID"].as_i64().unwrap())
}

/// Lets the runner in a pod print lines, one each nanosecond.
fn play(server: &Server, pod: &str, from: u32, lines: &[Value]) {
    for (at, line) in (from..).zip(lines) {
        server.write(pod, &format!("2026-01-02T03:04:05.{at:09}Z {line}\n"));
    }
}

fn begin() -> Vec<Value> {
    vec![
        json!({"status": "starting"}),
        json!({"counter": 1, "uuid": "u1", "event": "verbose", "stdout": "hi"}),
    ]
}

fn finish() -> Vec<Value> {
    vec![
        json!({"counter": 2, "uuid": "u2", "event": "verbose"}),
        json!({"status": "successful"}),
        json!({"eof": true}),
    ]
}

/// The arguments of every process that has to do with a directory: the daemon, and what it has started.
fn arguments(dir: &Path) -> Vec<String> {
    let read = |process: &Path, name: &str| {
        // Processes end at any time.
        let bytes = std::fs::read(process.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let both = processes.map(|process| (read(&process, "cmdline"), read(&process, "environ")));
    let dir = dir.to_str().unwrap();
    let ours = both.filter(|(arguments, environment)| arguments.contains(dir) || environment.contains(dir));
    let found: Vec<String> = ours.map(|(arguments, _)| arguments).collect();
    assert!(!found.is_empty(), "the daemon at least");
    found
}

fn is_final(status: &Value) -> bool {
    status["State"].as_u64() >= Some(2)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_a_pod_of_its_groups_kind_and_nothing_of_it_is_left() {
    let server = Server::start().await;
    let (temp, daemon) = start(&server);
    let group = create_group(&daemon);
    assert_eq!(group["is_container_group"], true);
    assert_eq!((&group["cluster"], &group["registry"]), (&json!("prod"), &json!("quay")));
    assert_eq!((&group["capacity"], &group["members"]), (&json!(50), &json!([])));

    let (unit, number) =
        submit(&daemon, &json!({"playbook": "a.yml", "process_isolation": true, "container_image": "x"}));
    let pod = server.pod().await;
    assert!(pod.starts_with(&format!("automation-job-{number}-")), "{pod}");
    let (body, secrets) = server.change(|world| (world.pods[&pod].clone(), world.secrets.clone()));
    let install = body["metadata"]["labels"]["meshd/install"].as_str().unwrap().to_owned();
    let secret_name = format!("meshd-{install}-quay");
    assert_eq!(body["metadata"]["labels"]["meshd/job"], number.to_string());
    assert_eq!(body["metadata"]["namespace"], "jobs");
    let worker = json!({
        "name": "worker", "image": IMAGE, "stdin": true, "stdinOnce": true,
        "args": ["ansible-runner", "worker", "--private-data-dir=/runner"],
        "resources": {"requests": {"cpu": "250m", "memory": "100Mi"}},
    });
    let spec = json!({
        "automountServiceAccountToken": false, "nodeSelector": {"disk": "ssd"}, "restartPolicy": "Never",
        "imagePullSecrets": [{"name": secret_name}], "containers": [worker],
    });
    assert_eq!(body["spec"], spec);

    let secret = &secrets[&format!("jobs/{secret_name}")];
    let config = secret["data"][".dockerconfigjson"].as_str().unwrap();
    let config = base64::engine::general_purpose::STANDARD.decode(config).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["auths"]["quay.example"]["password"], PASSWORD);

    server.run(&pod);
    play(&server, &pod, 0, &begin());
    let running = daemon
        .until(&unit, |status| status["StateName"] == "Running" && status["StdoutSize"].as_u64() > Some(0));
    let shown = &running["ExtraData"];
    assert_eq!((&shown["ExecutionNode"], &shown["InstanceGroup"]), (&json!(""), &json!("pods")));
    assert_eq!(shown["ChildWorkType"], "kubernetes-runtime-auth");
    let child = shown["ChildUnitID"].as_str().unwrap().to_owned();
    assert!(child.starts_with(&format!("c{install}n{number}a1r")), "{child}");
    assert!(daemon.ask(&format!("work cancel {child}")).contains("meshctl job cancel"));
    let kwargs = json!({"kwargs": {"playbook": "a.yml", "process_isolation": false}});
    let payload = format!("{kwargs}\n{}\n", json!({"eof": true}));
    server.until("the whole payload", |world| world.stdin[&pod].len() >= payload.len()).await;
    let stdin = server.change(|world| String::from_utf8(world.stdin[&pod].clone()).unwrap());
    assert_eq!(stdin, payload);

    // Nothing secret is shown, logged or stored by the controller, nor an argument of any process.
    let words = [PASSWORD, "hunter2"];
    assert!(!arguments(temp.path()).iter().any(|text| words.iter().any(|word| text.contains(word))));
    let asked = [
        daemon.ask(&format!("work status {child}")),
        daemon.ask("work list"),
        daemon.log(),
        operate(&daemon, "group.list", &json!({})).to_string(),
        operate(&daemon, "job.get", &json!({"id": number})).to_string(),
    ];
    for text in asked {
        assert!(!words.iter().any(|word| text.contains(word)), "{text}");
    }
    for entry in std::fs::read_dir(temp.path().join("data/control/.controller")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_file() { std::fs::read(path).unwrap() } else { continue };
        assert!(!words.iter().any(|word| bytes.windows(word.len()).any(|part| part == word.as_bytes())));
    }

    play(&server, &pod, 10, &finish());
    server.end(&pod, 0);
    let ended = daemon.until(&unit, is_final);
    assert_eq!((&ended["StateName"], &ended["ExtraData"]["EventCount"]), (&json!("Succeeded"), &json!(2)));
    server.until("the deletion of the pod", |world| world.pods.is_empty()).await;
    assert_eq!(done(&daemon, "group.get", &json!({"name": "pods"}))["jobs_running"], 0);

    // Another job finds the secret, and replaces one that has changed.
    server.change(|world| {
        let secret = world.secrets.values_mut().next().unwrap();
        secret["data"][".dockerconfigjson"] = "old".into();
    });
    let (unit, _) = submit(&daemon, &json!({}));
    let pod = server.pod().await;
    assert_eq!(server.change(|world| world.secrets.clone()), secrets);
    daemon.ask(&format!("work cancel {unit}"));
    assert_eq!(daemon.until(&unit, is_final)["StateName"], "Canceled");
    server.until("the deletion of the pod", |world| !world.pods.contains_key(&pod)).await;

    // The secret is deleted with the last group that needs it.
    let other = json!({"name": "more", "is_container_group": true, "cluster": "prod", "namespace": "jobs", "registry": "quay"});
    done(&daemon, "group.create", &other);
    done(&daemon, "group.delete", &json!({"name": "pods"}));
    assert_eq!(server.change(|world| world.secrets.len()), 1);
    done(&daemon, "group.set", &json!({"name": "more", "registry": ""}));
    assert_eq!(server.change(|world| world.secrets.len()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_outlives_its_control_node_and_ends_once() {
    let server = Server::start().await;
    let (temp, mut daemon) = start(&server);
    create_group(&daemon);
    let (unit, number) = submit(&daemon, &json!({}));
    let pod = server.pod().await;
    // The restart also works before the pod has started.
    daemon.restart();
    daemon.until(&unit, |status| status["StateName"] == "Pending");
    let words = "0/3 nodes are available: 3 Insufficient cpu.";
    let unplaced =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words});
    server.change(|world| world.set_status(&pod, json!({"phase": "Pending", "conditions": [unplaced]})));
    until("the scheduler's words", || {
        let explained = done(&daemon, "job.explain", &json!({"id": number}));
        explained["summary"].as_str().unwrap().contains(words).then_some(())
    });
    server.run(&pod);
    play(&server, &pod, 0, &begin());
    daemon.until(&unit, |status| status["StateName"] == "Running" && status["StdoutSize"].as_u64() > Some(0));
    // A running job needs neither the credential nor the definition.
    std::fs::remove_file(temp.path().join("credentials/prod.yml")).unwrap();
    daemon.restart();
    play(&server, &pod, 10, &finish());
    server.end(&pod, 0);
    let ended = daemon.until(&unit, is_final);
    assert_eq!((&ended["StateName"], &ended["ExtraData"]["EventCount"]), (&json!("Succeeded"), &json!(2)));
    let job = done(&daemon, "job.get", &json!({"id": number}));
    assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job}");
    let made = |one: &&String| one.starts_with("POST") && one.ends_with("/pods?");
    assert_eq!(server.change(|world| world.requests.iter().filter(made).count()), 1);
    server.until("the deletion of the pod", |world| world.pods.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_and_an_api_server_that_is_away_are_waited_for_and_a_cancel_ends_both() {
    let server = Server::start().await;
    let (_temp, daemon) = start(&server);
    create_group(&daemon);
    let words =
        "pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
    server.fault("POST /api/v1/namespaces/jobs/pods", Fault::Refuse(403, words));
    let (unit, number) = submit(&daemon, &json!({}));
    let status = daemon.until(&unit, |status| status["Detail"].as_str().unwrap().contains("quota"));
    assert_eq!(status["StateName"], "Pending");
    let explained = done(&daemon, "job.explain", &json!({"id": number}));
    assert!(explained["summary"].as_str().unwrap().contains(words), "{explained}");
    daemon.ask(&format!("work cancel {unit}"));
    assert_eq!(daemon.until(&unit, is_final)["StateName"], "Canceled");

    server.change(|world| world.broken = vec!["/secrets"]);
    let (unit, _) = submit(&daemon, &json!({}));
    server
        .until("a try", |world| world.requests.iter().filter(|one| one.contains("/secrets")).count() > 1)
        .await;
    assert_eq!(daemon.until(&unit, |_| true)["StateName"], "Pending");
    daemon.ask(&format!("work cancel {unit}"));
    assert_eq!(daemon.until(&unit, is_final)["StateName"], "Canceled");
    assert!(server.change(|world| world.pods.is_empty()));

    // A refusal ends the job, in the server's words.
    server.change(|world| world.broken.clear());
    server.fault("/secrets", Fault::Refuse(403, "secrets is forbidden"));
    let (unit, _) = submit(&daemon, &json!({}));
    let ended = daemon.until(&unit, is_final);
    assert_eq!(ended["StateName"], "Failed");
    assert!(ended["Detail"].as_str().unwrap().contains("its pull secret: secrets is forbidden"), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_cannot_work_is_refused_with_what_to_change() {
    let server = Server::start().await;
    let (temp, daemon) = start(&server);
    let exec = json!({"current-context": "x", "contexts": [{"name": "x", "context": {}}],
        "users": [{"name": "x", "user": {"exec": {"command": "canary"}}}]});
    credential(temp.path(), "exec", &json!({"kind": "kubernetes", "kubeconfig": exec.to_string()}));
    credential(temp.path(), "wide", &json!({"kind": "kubernetes", "kubeconfig": "{}"}));
    std::fs::set_permissions(
        temp.path().join("credentials/wide.yml"),
        std::fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let long = "x".repeat((64 << 10) + 1);
    for (settings, wanted) in [
        (json!({"cluster": "missing"}), "cluster: credential missing: there is no file"),
        (json!({"cluster": "../prod"}), "cluster: a credential's name must have"),
        (json!({"cluster": "quay"}), "cluster: credential quay is of kind registry"),
        (json!({"registry": "prod"}), "registry: credential prod is of kind kubernetes"),
        (json!({"cluster": "wide"}), "make it 0600"),
        (json!({"cluster": "exec"}), "users[0].user.exec is not allowed"),
        (json!({"namespace": "Jobs"}), "namespace: it must have 1 to 63"),
        (json!({"namespace": "a/../b"}), "namespace: it must have 1 to 63"),
        (json!({"pod_spec_override": "spec: [1"}), "pod_spec_override: it is not valid YAML: see line 1"),
        (json!({"pod_spec_override": "spec: {containers: []}"}), "must be named worker"),
        (json!({"pod_spec_override": long}), "pod_spec_override: it is longer"),
        (
            json!({"namespace": "a", "pod_spec_override": "metadata: {namespace: b}"}),
            "set it in only one of the two",
        ),
        (json!({"policy_instance_minimum": 1}), "is a container group, which has no instances"),
        (json!({"is_container_group": false, "namespace": "jobs"}), "is not a container group"),
        (json!({"pod_spec_override": ["canary"]}), "pod_spec_override: it is not a string"),
    ] {
        let mut asked = json!({"name": "g", "is_container_group": true});
        asked.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let answer = operate(&daemon, "group.create", &asked);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(wanted) && !message.contains("canary"), "{settings}: {answer}");
    }
    for name in ["default", "controlplane"] {
        let answer = operate(&daemon, "group.set", &json!({"name": name, "is_container_group": true}));
        assert!(answer["error"]["message"].as_str().unwrap().contains("create another group"), "{answer}");
    }
    done(&daemon, "instance.add", &json!({"name": "e1", "node_type": "execution"}));
    done(&daemon, "group.create", &json!({"name": "g", "policy_instance_list": ["e1"]}));
    let answer = operate(&daemon, "group.set", &json!({"name": "g", "is_container_group": true}));
    assert!(answer["error"]["message"].as_str().unwrap().contains("has members"), "{answer}");
    done(&daemon, "group.set", &json!({"name": "g", "policy_instance_list": []}));
    let group = done(&daemon, "group.set", &json!({"name": "g", "is_container_group": true}));
    assert_eq!((&group["cluster"], &group["namespace"]), (&Value::Null, &Value::Null));
    let answer = operate(&daemon, "group.add", &json!({"name": "g", "instance": "e1"}));
    assert!(answer["error"]["message"].as_str().unwrap().contains("no instances"), "{answer}");
    let config = std::fs::read_to_string(temp.path().join("c.yml")).unwrap();
    std::fs::write(temp.path().join("c.yml"), config.replace("kubernetes-runtime-auth", "kube")).unwrap();
    assert!(daemon.ask("reload").contains("true"));
    let answer = operate(&daemon, "group.set", &json!({"name": "g", "cluster": "prod"}));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("a directive work-kubernetes with worktype kubernetes-runtime-auth"),
        "{answer}"
    );
}
