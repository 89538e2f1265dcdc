//! Servers that are not reached: which of them are given up at once, what a unit then says, and that none has its release
//! wait.

use serde_json::Value;
use tokio::net::TcpListener;

use super::*;

async fn cluster_of(kubeconfig: Value, proven: &ProvenServers) -> Arc<Cluster> {
    let (api, namespace) = HttpApi::new(&Credential::Kubeconfig(kubeconfig), None, proven).await.unwrap();
    Cluster::new(Arc::new(api), namespace, "store".into())
}

fn cluster_in(kubeconfig: &mut Value) -> &mut Value {
    &mut kubeconfig["clusters"][0]["cluster"]
}

async fn released_at_once(commands: &Commands) {
    let (answer, answered) = oneshot::channel();
    let give_up = Instant::now() + Duration::from_secs(600);
    commands.send(Command::Release { force: false, give_up, answer }).unwrap();
    assert_eq!(answered.await.unwrap(), Removed::Done { is_gone: true });
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
async fn a_refused_connection_is_waited_for_and_named_and_the_unit_can_go_at_any_time() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let mut kubeconfig = Server::start().await.kubeconfig();
    cluster_in(&mut kubeconfig)["server"] = format!("http://127.0.0.1:{port}").into();
    let cluster = cluster_of(kubeconfig, &ProvenServers::default()).await;
    let files = Files::new(b"");
    let (commands, _) = drive(&cluster, &files, submitted()).await;
    let last = files.until(|last| last.detail.contains("Connection refused")).await;
    assert!(last.state == State::Pending && last.detail.contains(&format!("127.0.0.1:{port}")), "{last:?}");
    released_at_once(&commands).await;
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
