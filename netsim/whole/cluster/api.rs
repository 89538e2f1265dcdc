//! An API server's connections: requests, watches, logs, and the stream to a worker.

#[expect(dead_code, reason = "the tests of pods send whole streams")]
#[path = "../../../src/pods/driver/tests/server_http.rs"]
mod http;

use std::rc::Rc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::TOKEN;
use super::pods::Pods;
use http::{Asked, Connection, answer, chunk, head, parameter, read};

const UPGRADE: &[u8] = b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n";
/// Channels of the stream to a worker: its stdin, the server's final status, and the close of another channel.
const STDIN: u8 = 0;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;

pub(super) async fn serve(stream: TcpStream, pods: Rc<Pods>) {
    let mut connection: Connection = BufReader::new(Box::new(stream));
    while let Some((asked, is_upgrade)) = read(&mut connection).await {
        let pod = asked.path.split('/').nth(6).unwrap_or_default().to_owned();
        let (code, body) = match asked.method.as_str() {
            _ if asked.token != TOKEN => failure(401, "Unauthorized"),
            _ if is_upgrade && pods.attach(&pod) => return attach(connection, &pods, &pod).await,
            _ if is_upgrade => failure(400, &format!("container worker of {pod} has had its stream")),
            "GET" if asked.query.contains("watch=true") => return watch(connection, &pods, &asked).await,
            "GET" if asked.path.ends_with("/log") && pods.log(&pod, 0).is_some() => {
                return log(connection, &pods, &asked, &pod).await;
            }
            "GET" if asked.path.ends_with("/log") => {
                failure(400, &format!("container worker of {pod} waits to start"))
            }
            method => reply(&pods, method, &asked, &pod),
        };
        if !answer(&mut connection, code, &body).await {
            return;
        }
    }
}

fn failure(code: u16, message: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "code": code, "message": message}))
}

fn reply(pods: &Rc<Pods>, method: &str, asked: &Asked, name: &str) -> (u16, Value) {
    let missing = || failure(404, &format!("pods \"{name}\" not found"));
    match method {
        "GET" if asked.path == "/version" => (200, json!({"major": "1", "gitVersion": "v1.33.0"})),
        "GET" if asked.path.ends_with("/events") => (200, json!({"items": []})),
        "POST" if asked.path.ends_with("/selfsubjectaccessreviews") => {
            (201, json!({"status": {"allowed": true}}))
        }
        "POST" if asked.path.ends_with("/pods") => match pods.create(asked.body.clone()) {
            Some(pod) => (201, pod),
            None => failure(409, "there is a pod of that name"),
        },
        "GET" if asked.path.ends_with("/pods") => {
            let (items, moment) = pods.list(selected(&asked.query));
            (200, json!({"items": items, "metadata": {"resourceVersion": moment.to_string()}}))
        }
        "GET" => pods.get(name).map_or_else(missing, |pod| (200, pod)),
        "DELETE" => match pods.get(name) {
            Some(pod) if pod["metadata"]["uid"] == asked.body["preconditions"]["uid"] => {
                pods.delete(name);
                (200, pod)
            }
            Some(_) => failure(409, "another pod has that name"),
            None => missing(),
        },
        _ => failure(405, "no such thing here"),
    }
}

/// The pods that a request selects.
fn selected(query: &str) -> impl Fn(&Value) -> bool + use<> {
    let text = |name: &str| parameter(query, name).replace("%2F", "/").replace("%3D", "=");
    let (label, field) = (text("labelSelector"), text("fieldSelector"));
    move |pod| {
        let metadata = &pod["metadata"];
        let has_label = label.split_once('=').is_none_or(|(name, value)| metadata["labels"][name] == value);
        has_label && field.strip_prefix("metadata.name=").is_none_or(|name| metadata["name"] == name)
    }
}

async fn watch(mut connection: Connection, pods: &Pods, asked: &Asked) {
    let mut news = pods.news();
    let is_selected = selected(&asked.query);
    let number = |name: &str| parameter(&asked.query, name).parse().unwrap_or_default();
    let mut moment = number("resourceVersion") as usize;
    let until = Instant::now() + Duration::from_secs(number("timeoutSeconds"));
    if !head(&mut connection).await {
        return;
    }
    loop {
        let text = match pods.since(moment) {
            Some((events, now)) => {
                moment = now;
                let own = events.iter().filter(|event| is_selected(&event["object"]));
                own.map(|event| format!("{event}\n")).collect()
            }
            None => {
                format!("{}\n", json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}}))
            }
        };
        if !text.is_empty() && !chunk(&mut connection, text.as_bytes()).await {
            return;
        }
        if !matches!(timeout_at(until, news.changed()).await, Ok(Ok(()))) {
            chunk(&mut connection, b"").await;
            return;
        }
    }
}

async fn log(mut connection: Connection, pods: &Pods, asked: &Asked, pod: &str) {
    let mut news = pods.news();
    let since: Option<Timestamp> = parameter(&asked.query, "sinceTime").replace("%3A", ":").parse().ok();
    let follows = asked.query.contains("follow=true");
    if !head(&mut connection).await {
        return;
    }
    let mut shown = 0;
    // A log disappears with its pod, and nothing says whether it was complete.
    while let Some((lines, has_ended)) = pods.log(pod, shown) {
        shown += lines.len();
        let mut text = Vec::new();
        for (at, line) in lines.iter().filter(|(at, _)| since.is_none_or(|since| *at >= since)) {
            text.extend_from_slice(format!("{at} ").as_bytes());
            text.extend_from_slice(line);
        }
        if !text.is_empty() && !chunk(&mut connection, &text).await {
            return;
        }
        if has_ended || !follows {
            chunk(&mut connection, b"").await;
            return;
        }
        if news.changed().await.is_err() {
            return;
        }
    }
}

/// A stream to a worker. Whatever ends it, the worker sees the end of its stdin.
struct Attached<'a>(&'a Pods, &'a str);

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.0.close(self.1);
    }
}

async fn attach(mut connection: Connection, pods: &Pods, pod: &str) {
    let _attached = Attached(pods, pod);
    if connection.get_mut().write_all(UPGRADE).await.is_ok() {
        let mut socket = WebSocketStream::from_raw_socket(connection, Role::Server, None).await;
        // A real server sends this empty status, too.
        let _gone = socket.send(Message::binary(vec![STATUS])).await;
        while let Some(Ok(message)) = socket.next().await {
            match &message.into_data()[..] {
                [STDIN, bytes @ ..] => pods.take(pod, bytes),
                [CLOSE, STDIN] => {
                    let status = json!({"status": "Success"}).to_string().into_bytes();
                    pods.close(pod);
                    let _gone = socket.send(Message::binary([vec![STATUS], status].concat())).await;
                }
                _ => {}
            }
        }
    }
}
