//! Servers that cannot be reached: which are given up at once, what a unit then says, and that no release waits for
//! one.

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

async fn cluster_of(kubeconfig: Value, proven: &ProvenServers) -> Arc<Cluster> {
    let (api, namespace) =
        HttpApi::new(&CredentialSource::Kubeconfig(kubeconfig), None, proven).await.unwrap();
    Cluster::new(Arc::new(api), namespace, "store".into())
}

fn cluster_in(kubeconfig: &mut Value) -> &mut Value {
    &mut kubeconfig["clusters"][0]["cluster"]
}

async fn released_at_once(commands: &Commands) {
    let (answer, answered) = oneshot::channel();
    let give_up = Instant::now() + Duration::from_secs(600);
    commands.send(PodCommand::Release { force: false, give_up, waits: false, answer }).unwrap();
    assert_eq!(answered.await.unwrap(), PodRemoved::Done { is_gone: true });
}

#[tokio::test]
async fn a_wrong_authority_or_name_fails_at_once_and_is_named() {
    let (server, other) = (Server::start_tls().await, Server::start_tls().await);
    let mut wrong_authority = server.kubeconfig();
    cluster_in(&mut wrong_authority)["certificate-authority-data"] =
        cluster_in(&mut other.kubeconfig())["certificate-authority-data"].clone();
    let address = |kubeconfig: &mut Value| cluster_in(kubeconfig)["server"].as_str().unwrap().to_owned();
    let mut wrong_name = server.kubeconfig();
    let elsewhere = address(&mut wrong_name).replace("127.0.0.1", "localhost");
    cluster_in(&mut wrong_name)["server"] = elsewhere.into();
    let mut another_name = server.kubeconfig();
    cluster_in(&mut another_name)["tls-server-name"] = "no.such.name".into();
    for mut kubeconfig in [wrong_authority, wrong_name, another_name] {
        let cluster = cluster_of(kubeconfig.clone(), &ProvenServers::default()).await;
        let files = Files::new(b"");
        let (_commands, _) = drive(&cluster, &files, submitted()).await;
        let (state, detail) = files.end().await;
        let server = address(&mut kubeconfig).replace("https://", "API server ");
        assert!(state == State::Failed && detail.contains(&server), "{detail}");
        assert!(detail.starts_with("Error creating pod: "), "{detail}");
        let record = files.last.borrow().clone().unwrap().record;
        assert_eq!(record.pod_name, "", "there is nothing for a release to look for");
    }
}

#[tokio::test]
async fn a_refused_connection_fails_at_once_in_its_own_words_and_the_unit_can_go_at_any_time() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let mut kubeconfig = Server::start().await.kubeconfig();
    cluster_in(&mut kubeconfig)["server"] = format!("http://127.0.0.1:{port}").into();
    let cluster = cluster_of(kubeconfig, &ProvenServers::default()).await;
    let files = Files::new(b"");
    let (_commands, _) = drive(&cluster, &files, submitted()).await;
    let why = format!("Error creating pod: API server 127.0.0.1:{port}: Connection refused (os error 111)");
    assert_eq!(files.end().await, (State::Failed, why));
}

#[tokio::test]
async fn a_refused_connection_to_a_server_that_has_answered_is_waited_for() {
    let (listener, proven) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), ProvenServers::default());
    let mut kubeconfig = Server::start().await.kubeconfig();
    cluster_in(&mut kubeconfig)["server"] = format!("http://{}", listener.local_addr().unwrap()).into();
    let cluster = cluster_of(kubeconfig, &proven).await;
    let answers_once = async {
        let mut connection = listener.accept().await.unwrap().0;
        let _request = connection.read(&mut [0; 4096]).await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
        connection.write_all(answer).await.unwrap();
    };
    let (answer, ()) = tokio::join!(cluster.api.version(), answers_once);
    answer.unwrap();
    drop(listener);
    let files = Files::new(b"");
    let (commands, _) = drive(&cluster, &files, submitted()).await;
    let last = files.until(|last| last.detail.contains("Connection refused")).await;
    assert_eq!(last.state, State::Pending, "{last:?}");
    released_at_once(&commands).await;
}

#[tokio::test]
async fn a_refusal_names_what_was_refused_first_and_every_right_that_is_missing() {
    let rights = [
        ("create", vec!["create", "list", "watch", "delete", "create attach"]),
        ("list", vec!["list", "watch", "get log"]),
    ];
    for (first, denied) in rights {
        let server = Server::start().await;
        if first == "create" {
            let refusal = Fault::Refuse(403, "pods is forbidden: u cannot create");
            server.fault("POST /api/v1/namespaces/ns/pods", refusal);
        }
        server
            .fault("GET /api/v1/namespaces/ns/pods?", Fault::Refuse(403, "pods is forbidden: u cannot list"));
        server.change(|world| world.denied.clone_from(&denied));
        let cluster = cluster_of(server.kubeconfig(), &ProvenServers::default()).await;
        let files = Files::new(b"");
        let (_commands, _) = drive(&cluster, &files, submitted()).await;
        let (state, detail) = files.end().await;
        assert_eq!(
            (state, detail.starts_with("Error creating pod: ")),
            (State::Failed, first == "create"),
            "{detail}"
        );
        let (said, named) = detail.split_once("; its credential may not ").expect(&detail);
        assert!(said.ends_with(&format!("cannot {first}")), "{detail}");
        let named: Vec<_> = named.split(", ").map(str::to_owned).collect();
        let expected = denied.iter().map(|right| match right.split_once(' ') {
            Some((verb, subresource)) => format!("{verb} pods/{subresource}"),
            None => format!("{right} pods"),
        });
        assert_eq!(named, expected.collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn another_certificate_of_a_server_that_has_answered_is_an_outage() {
    let (server, proven) = (Server::start_tls().await, ProvenServers::default());
    let kubeconfig = server.kubeconfig();
    let before = cluster_of(kubeconfig.clone(), &proven).await;
    before.api.version().await.unwrap();
    server.renew_certificate();
    let cluster = cluster_of(kubeconfig, &proven).await;
    let files = Files::new(b"");
    let (commands, _) = drive(&cluster, &files, submitted()).await;
    let last = files.until(|last| last.detail.contains("API server")).await;
    assert_eq!(last.state, State::Pending, "{last:?}");
    released_at_once(&commands).await;
}
