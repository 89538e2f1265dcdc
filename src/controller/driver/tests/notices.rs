//! Notices: every one arrives in order after an endpoint was away, and a dead endpoint delays nobody. And one delivery to a real
//! server, which checks what is sent and decides what comes of it.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::controller::core::JobId;
use crate::controller::notify::courier::Deliver;
use crate::controller::notify::tests::NoTls;
use crate::controller::notify::{
    Courier, JobNotice, NoticeEvent, NoticeWay, Notifier, NotifyTarget, Receipt, Webhook,
};
use crate::work::jobs::Act;

/// What a stand-in for an endpoint does.
#[derive(Default)]
struct Endpoint {
    is_up: AtomicBool,
    hangs: bool,
    refuses: bool,
    tries: AtomicUsize,
    got: Mutex<Vec<Value>>,
}

impl Deliver for Endpoint {
    fn deliver<'a>(&'a self, _: &'a str, _: &'a NotifyTarget, notice: &'a JobNotice) -> Act<'a, Receipt> {
        self.tries.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            if self.refuses {
                return Receipt::Refused("404".into());
            }
            if !self.is_up.load(Ordering::Relaxed) {
                return Receipt::Failed("500".into());
            }
            self.got.lock().push(json!(notice));
            Receipt::Delivered("200".into())
        })
    }
}

impl Endpoint {
    fn jobs(&self) -> Vec<JobId> {
        self.got.lock().iter().map(|notice| JobId(notice["job"]["id"].as_i64().unwrap())).collect()
    }
}

fn hook(url: String, allow_local: bool, secret_file: Option<std::path::PathBuf>) -> NotifyTarget {
    let url = url.parse().unwrap();
    let way = NoticeWay::Webhook(Webhook { url, secret_file, tls_client: None, allow_local });
    NotifyTarget { way, events: vec![NoticeEvent::Canceled], only_named: false, timeout: seconds(10) }
}

/// Delivers to an endpoint from now on.
fn serve(site: &Site, name: &str, endpoint: &Arc<Endpoint>) -> (Notifier, JoinHandle<()>) {
    let notifier = Notifier::new(site.driver().clone(), endpoint.clone());
    let target = hook("http://h/".into(), true, None);
    let serving = notifier.clone().serve(name.to_owned(), target);
    let mut task = None;
    site.run(async { task = Some(tokio::spawn(serving)) });
    site.pass(seconds(5));
    (notifier, task.unwrap())
}

/// A job that has ended at once.
fn cancelled(site: &Site) -> JobId {
    let (_, job) = site.submit(json!({}));
    site.operate(json!({"op": "job.cancel", "id": job.0}));
    job
}

#[test]
fn an_endpoint_that_fails_for_ten_minutes_gets_every_notice_afterwards() {
    let site = Site::ready(&["e1"]);
    site.operate(json!({"op": "pause"}));
    cancelled(&site);
    let endpoint = Arc::new(Endpoint::default());
    let (notifier, task) = serve(&site, "hook", &endpoint);
    let jobs: Vec<JobId> = (0..10)
        .map(|_| {
            let job = cancelled(&site);
            site.pass(seconds(60));
            job
        })
        .collect();
    let tries = endpoint.tries.load(Ordering::Relaxed);
    assert!((10..20).contains(&tries), "{tries}");
    let figures = notifier.figures()["hook"];
    assert!((figures.delivered, figures.dropped) == (0, 0) && figures.behind >= 5, "{figures:?}");
    endpoint.is_up.store(true, Ordering::Relaxed);
    site.pass(seconds(300));
    assert_eq!(endpoint.jobs(), jobs, "all that ended since it is a target, in their order");
    let last = cancelled(&site);
    site.pass(seconds(5));
    assert_eq!(endpoint.jobs().last(), Some(&last));
    task.abort();
    // Another process of this node goes on where the first one was.
    let (again, next) = (Arc::new(Endpoint { is_up: true.into(), ..Endpoint::default() }), cancelled(&site));
    serve(&site, "hook", &again);
    assert_eq!(again.jobs(), [next]);
    let ids: Vec<Value> = endpoint.got.lock().iter().map(|notice| notice["id"].clone()).collect();
    assert_eq!(ids.iter().collect::<std::collections::HashSet<_>>().len(), jobs.len() + 1);
}

#[test]
fn an_endpoint_that_hangs_delays_no_job_and_no_other_endpoint_and_old_notices_are_dropped() {
    let site = Site::ready(&["e1"]);
    let (dead, live) = (Endpoint { hangs: true, ..Endpoint::default() }, Endpoint::default());
    let (dead, live) = (Arc::new(dead), Arc::new(live));
    live.is_up.store(true, Ordering::Relaxed);
    let (_, hanging) = serve(&site, "dead", &dead);
    serve(&site, "live", &live);
    site.operate(json!({"op": "pause"}));
    let jobs = [cancelled(&site), cancelled(&site)];
    site.pass(seconds(5));
    assert_eq!((live.jobs(), dead.tries.load(Ordering::Relaxed)), (jobs.to_vec(), 1));
    hanging.abort();
    site.sql(&format!("UPDATE job SET finished = finished - 90000000 WHERE id = {}", jobs[0].0));
    let back = Arc::new(Endpoint { is_up: true.into(), ..Endpoint::default() });
    let (notifier, _) = serve(&site, "dead", &back);
    assert_eq!((back.jobs(), notifier.figures()["dead"].dropped), (vec![jobs[1]], 1));
}

#[test]
fn a_notice_that_is_refused_again_and_again_is_dropped() {
    let site = Site::ready(&["e1"]);
    site.operate(json!({"op": "pause"}));
    let endpoint = Arc::new(Endpoint { refuses: true, ..Endpoint::default() });
    let (notifier, _) = serve(&site, "hook", &endpoint);
    cancelled(&site);
    site.pass(seconds(60));
    assert_eq!((endpoint.tries.load(Ordering::Relaxed), notifier.figures()["hook"].dropped), (5, 1));
}

/// Answers one request with this, and returns what was sent.
async fn answered(answer: &str, target: impl FnOnce(String) -> NotifyTarget) -> (Receipt, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = target(format!("http://{}/a?b=c", listener.local_addr().unwrap()));
    let settings = Arc::new(ArcSwap::from_pointee(options(Discovery::Off)));
    let courier = Courier::new(Arc::new(NoTls), settings, "/nowhere".into());
    let server = async {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"}") {
            assert!(client.read_buf(&mut read).await.unwrap() > 0);
        }
        client.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(read).unwrap()
    };
    let notice = JobNotice::test("hook", "c1");
    let deliver = courier.deliver("hook", &target, &notice);
    tokio::pin!(deliver, server);
    tokio::select! {
        // It was refused before anything was sent.
        receipt = &mut deliver => (receipt, String::new()),
        sent = &mut server => (deliver.await, sent),
    }
}

#[tokio::test]
async fn a_post_is_signed_and_its_answer_says_what_comes_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "key\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}", "x".repeat(9000));
    for (answer, expected) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", Receipt::Delivered("204 No Content".into())),
        (long.as_str(), Receipt::Delivered(format!("200 OK: {}", "x".repeat(200)))),
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone",
            Receipt::Refused("404 Not Found: gone".into()),
        ),
        ("HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n", Receipt::Failed("429 Too Many Requests".into())),
        (
            "HTTP/1.1 307 X\r\nLocation: http://h/\r\nContent-Length: 0\r\n\r\n",
            Receipt::Failed("307 Temporary Redirect".into()),
        ),
    ] {
        let signed = |url| hook(url, true, Some(secret.clone()));
        let (receipt, sent) = answered(answer, signed).await;
        assert_eq!(receipt, expected);
        let (head, body) = sent.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /a?b=c HTTP/1.1\r\n"), "{head}");
        let header = |name: &str| {
            let of = |line: &str| Some(line.to_lowercase().strip_prefix(name)?.trim().to_owned());
            head.lines().find_map(of).unwrap()
        };
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"key"), body.as_bytes());
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(header("x-meshd-signature:"), format!("sha256={hex}"));
        let notice: Value = serde_json::from_str(body).unwrap();
        assert_eq!(json!(header("x-meshd-delivery:")), notice["id"]);
        assert_eq!((&notice["event"], &notice["version"]), (&json!("test"), &json!(1)));
    }
}

#[tokio::test]
async fn addresses_of_this_machine_are_refused_unless_allowed() {
    let here = |url: String| hook(url, false, None);
    let (receipt, sent) = answered("", here).await;
    assert!(matches!(&receipt, Receipt::Failed(why) if why.contains("one of this machine")), "{receipt:?}");
    assert_eq!(sent, "");
    for url in ["http://169.254.169.254/", "http://[::1]:1/", "http://localhost:1/", "http://0.0.0.0:1/"] {
        let (receipt, _) = answered("", |_| here(url.to_owned())).await;
        assert!(
            matches!(&receipt, Receipt::Failed(why) if why.contains("one of this machine")),
            "{url} {receipt:?}"
        );
    }
    let missing = |url| hook(url, true, Some("/nowhere/secret".into()));
    let (receipt, _) = answered("", missing).await;
    assert!(matches!(&receipt, Receipt::Failed(why) if why.starts_with("secretfile: ")), "{receipt:?}");
}
