//! The pods of container groups between two control nodes: taken over, forgotten, and left alone by a node that may not
//! act.

use meshd::controller::children::RegistryChildren;
use meshd::controller::core::{ChildEnd, ChildId, InstanceName, Known};
use meshd::controller::driver::world::{ChildInput, ChildNews, ChildRequest, Children, PodChild};
use meshd::pods::options::{AuthMethod, KubernetesType};
use meshd::pods::place::{KUBE_CONFIG, KUBE_POD, PodPlace};
use meshd::rpc::OutputBound;
use meshd::work::{CommandType, Leftovers, Registry};
use serde_json::json;

use crate::harness::{Nowhere, Scratch, eventually, node, options, until, within};
use crate::owner::Owner;
use crate::pods::server::{Fault, Server};

/// The pod of an attempt, as another control node sent it.
fn inherited(server: &Server, unit: &str) -> ChildRequest {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "automation-job-1", "namespace": "ns"},
        "spec": {"containers": [{"name": "worker", "image": "i"}]},
    });
    let params = [(KUBE_CONFIG, server.kubeconfig()), (KUBE_POD, pod)];
    let place = PodPlace {
        work_type: "runtime".to_owned(),
        params: params.map(|(name, value)| (name.to_owned(), value.to_string())).into(),
        namespace: Some("ns".to_owned()),
    };
    ChildRequest {
        unit: unit.to_owned(),
        node: InstanceName::from("heir"),
        work_type: "runtime".to_owned(),
        params: String::new(),
        run_dir: None,
        signed: false,
        tls: None,
        ttl: None,
        max_stdout: OutputBound { bytes: 1 << 20, setting: "joboutput".into() },
        far: None,
        pod: Some(PodChild { place, pull_secret: None, is_inherited: true }),
    }
}

/// A control node, whose kubeconfig is that of the server.
async fn registry(scratch: &Scratch, name: &str, server: &Server) -> RegistryChildren {
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig().to_string()).unwrap();
    let own = KubernetesType {
        auth_method: AuthMethod::KubeConfig,
        kubeconfig: Some(kubeconfig),
        namespace: "ns".to_owned(),
        ..KubernetesType::new("own")
    };
    let kind = KubernetesType {
        auth_method: AuthMethod::Runtime,
        allow_runtime_auth: true,
        allow_runtime_pod: true,
        ..KubernetesType::new("runtime")
    };
    let kinds = [("runtime", kind), ("own", own)];
    let command = |(name, kind)| CommandType { pods: Some(Box::new(kind)), ..CommandType::new(name, "") };
    let mut options = options(scratch.path().join(name), name);
    options.work_types = kinds.map(command).into();
    options.is_child = Some(|unit| ChildId::parse(unit.as_str()).is_some());
    let dialer = std::sync::Arc::new(Nowhere(node(name)));
    let registry = Registry::open(options, dialer).await.unwrap();
    let owner = Owner::default();
    owner.told().may_send = true;
    registry.serve_jobs(Box::new(owner)).await;
    RegistryChildren(registry)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_its_payload_only_while_the_store_says_that_this_node_drives_its_job() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let unit = "c000000abn1a1r00000000";
    let lost = registry(&scratch, "lost", &server).await;
    let owner = Owner::default();
    lost.0.serve_jobs(Box::new(owner.clone())).await;
    lost.let_act(true);
    let request = ChildRequest { node: InstanceName::from("lost"), ..inherited(&server, unit) };
    let input = ChildInput { head: b"{}\n".to_vec(), files: Vec::new() };
    lost.send(request, input).await.unwrap();
    let pod = server.pod().await;
    server.run(&pod);
    eventually("the question", || owner.told().asked > 1).await;
    let stdin = || server.change(|world| world.stdin.get(&pod).cloned());
    assert_eq!(stdin(), None, "another control node may have placed the job again");
    owner.told().may_send = true;
    eventually("its stdin", || stdin() == Some(b"{}\n".to_vec())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_of_a_lost_control_node_is_followed_by_another_and_made_only_if_it_is_not_there() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let unit = "c000000abn1a1r00000000";
    let request = inherited(&server, unit);
    let nothing = || ChildInput { head: b"{}\n".to_vec(), files: Vec::new() };
    let heir = registry(&scratch, "heir", &server).await;
    heir.let_act(true);
    assert_eq!(heir.adopt(request.clone()).await, Ok(false), "there is no pod of it");
    assert_eq!(heir.known(unit), Known::Unknown);

    let lost = registry(&scratch, "lost", &server).await;
    lost.let_act(true);
    let first = ChildRequest { node: InstanceName::from("lost"), ..request.clone() };
    lost.send(first, nothing()).await.unwrap();
    let pod = server.pod().await;
    server.run(&pod);
    server.print(&pod, 0..2);

    // The heir does not know whether it was sent. This one was.
    server.fault("labelSelector=meshd", Fault::Refuse(503, "later"));
    heir.send(request.clone(), nothing()).await.unwrap();
    assert_eq!(heir.known(unit), Known::Here);
    server.print(&pod, 2..4);
    server.end(&pod, 0);
    let (end, output) = end_of(&heir, unit).await;
    assert_eq!((end, output.as_str()), (ChildEnd::Succeeded, "line 0\nline 1\nline 2\nline 3\n"));
    assert_eq!(server.change(|world| world.pods.len()), 1);
    assert!(heir.release(unit.to_owned(), Leftovers::Stay).await);
    server.until("the deletion of the pod", |world| world.pods.is_empty()).await;

    // A unit that was never sent is sent.
    let other = "c000000abn2a1r00000000";
    heir.send(ChildRequest { unit: other.to_owned(), ..request }, nothing()).await.unwrap();
    let pod = server.pod().await;
    server.run(&pod);
    let stdin = || server.change(|world| world.stdin.get(&pod).cloned());
    eventually("its stdin", || stdin() == Some(b"{}\n".to_vec())).await;
}

/// Returns the end of a unit and all of its output.
pub(crate) async fn end_of(children: &RegistryChildren, unit: &str) -> (ChildEnd, String) {
    let mut stream = children.follow(unit.to_owned(), 0).await;
    let mut output = Vec::new();
    loop {
        match within(stream.next()).await {
            ChildNews::Accepted | ChildNews::Missing => {}
            ChildNews::Output(bytes) => output.extend_from_slice(&bytes),
            ChildNews::Ended { end, .. } => return (end, String::from_utf8(output).unwrap()),
        }
    }
}

/// How many pods were asked for, and how many deletions.
fn changes(server: &Server) -> (usize, usize) {
    let count = |is_one: &dyn Fn(&str) -> bool| {
        server.change(|world| world.requests.iter().filter(|request| is_one(request)).count())
    };
    let made = count(&|request| request.starts_with("POST") && request.ends_with("/pods?"));
    (made, count(&|request| request.starts_with("DELETE") && request.contains("/pods/")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_node_that_is_back_forgets_its_pods_and_deletes_none_that_another_one_follows() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let unit = "c000000abn1a1r00000000";
    let request = inherited(&server, unit);
    let lost = registry(&scratch, "lost", &server).await;
    lost.let_act(true);
    let first = ChildRequest { node: InstanceName::from("lost"), ..request.clone() };
    lost.send(first, ChildInput::default()).await.unwrap();
    let pod = server.pod().await;
    server.run(&pod);
    server.print(&pod, 0..2);
    lost.let_act(false);
    let heir = registry(&scratch, "heir", &server).await;
    heir.let_act(true);
    heir.adopt(request).await.unwrap();

    // The former node learns of it and forgets the unit: nothing that it does reaches the pod any more.
    let here: Vec<_> =
        lost.list().into_iter().map(|child| (child.id.to_string(), child.is_elsewhere)).collect();
    assert_eq!(here, [(unit.to_owned(), true)]);
    lost.forget(unit.to_owned()).await;
    assert_eq!((lost.known(unit), lost.list()), (Known::Unknown, Vec::new()));
    lost.let_act(true);
    drop(lost);

    // At its next start it deletes a pod that nobody has, but not this one.
    server.change(|world| {
        let mut orphan = world.pods[&pod].clone();
        orphan["metadata"]["name"] = "orphan".into();
        orphan["metadata"]["labels"]["meshd/unit"] = "nobody12".into();
        world.pods.insert("orphan".into(), orphan);
    });
    let lost = registry(&scratch, "lost", &server).await;
    lost.let_act(true);
    server.until("the orphan's deletion", |world| !world.pods.contains_key("orphan")).await;
    server.print(&pod, 2..4);
    server.end(&pod, 0);
    let (end, output) = end_of(&heir, unit).await;
    assert_eq!((end, output.as_str()), (ChildEnd::Succeeded, "line 0\nline 1\nline 2\nline 3\n"));
    assert_eq!(changes(&server), (1, 1), "the orphan's deletion");
    assert!(heir.release(unit.to_owned(), Leftovers::Stay).await);
    server.until("the deletion of the pod", |world| world.pods.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_neither_made_nor_deleted_while_the_controller_may_not_act() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let control = registry(&scratch, "control", &server).await;
    let sent = async |unit: &str| {
        let request = ChildRequest { node: InstanceName::from("control"), ..inherited(&server, unit) };
        let pod = request.pod.map(|pod| PodChild { is_inherited: false, ..pod });
        control.send(ChildRequest { pod, ..request }, ChildInput::default()).await.unwrap();
        // Its name is durable before the pod is asked for.
        until(&control.0, unit, |report| report.extra_data["PodName"] != "").await;
    };
    let (unwanted, wanted) = ("c000000abn1a1r00000000", "c000000abn2a1r00000000");
    sent(unwanted).await;
    sent(wanted).await;
    control.withhold(unwanted.to_owned()).await;
    assert_eq!(end_of(&control, unwanted).await.0, ChildEnd::Canceled);
    assert!(control.release(unwanted.to_owned(), Leftovers::Stay).await);
    assert_eq!(changes(&server), (0, 0));
    control.let_act(true);
    let pod = server.pod().await;
    server.run(&pod);
    control.let_act(false);
    control.withhold(wanted.to_owned()).await;
    assert_eq!(end_of(&control, wanted).await.0, ChildEnd::Canceled);
    assert_eq!(changes(&server), (1, 0));
    control.let_act(true);
    assert!(control.release(wanted.to_owned(), Leftovers::Stay).await);
    server.until("the deletion of the pod", |world| world.pods.is_empty()).await;
    assert_eq!(changes(&server), (1, 1));
}
