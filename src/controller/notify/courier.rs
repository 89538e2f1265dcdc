//! Delivers one notice, by a POST or a command, and says what came of it. No redirect is followed. Addresses of this
//! machine are refused by the code that keeps syncs of projects from them, for the address that is connected to. Retries
//! nothing.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use aws_lc_rs::hmac;
use http::{StatusCode, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{JobNotice, NoticeWay, NotifyTarget, Webhook};
use crate::confine::{self, Confinement};
use crate::controller::core::readable;
use crate::controller::options::SharedOptions;
use crate::os::{hex, private_file};
use crate::rpc::Duplex;
use crate::rpc::post::{Poster, is_tls, place, post_to};
use crate::work::jobs::Act;

/// How much of an answer is read, in bytes.
const ANSWER: usize = 4096;
/// How much of it is told.
const TOLD: usize = 200;
/// Where everything starts that this program runs for a notice.
const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// What came of a delivery, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Receipt {
    /// The other end has it.
    Delivered(String),
    /// The other end does not want it, and hardly will.
    Refused(String),
    /// It may have it or not.
    Failed(String),
}

/// Delivers notices.
pub(crate) trait Deliver: Send + Sync {
    /// Delivers one notice to a target of this name.
    fn deliver<'a>(
        &'a self,
        name: &'a str,
        target: &'a NotifyTarget,
        notice: &'a JobNotice,
    ) -> Act<'a, Receipt>;
}

/// TLS towards servers of the web.
pub trait WebTls: Send + Sync {
    /// Does the handshake with a host by the `tls-client` of that name, or if there is none with the authorities that the
    /// system trusts.
    fn secure(
        &self,
        stream: TcpStream,
        host: String,
        profile: Option<String>,
    ) -> Act<'_, io::Result<Box<dyn Duplex>>>;
}

/// Delivers notices from this node.
pub(crate) struct Courier {
    tls: Arc<dyn WebTls>,
    settings: SharedOptions,
    /// The node's directory.
    directory: PathBuf,
}

impl Deliver for Courier {
    fn deliver<'a>(
        &'a self,
        name: &'a str,
        target: &'a NotifyTarget,
        notice: &'a JobNotice,
    ) -> Act<'a, Receipt> {
        Box::pin(async move {
            // Printing cannot fail with these types.
            let body = serde_json::to_vec(notice).unwrap_or_default();
            let delivered = async {
                match &target.way {
                    NoticeWay::Webhook(hook) => self.post(hook, &notice.id, body).await,
                    NoticeWay::Command(program, words) => self.run(name, program, words, &body).await,
                }
            };
            match timeout(target.timeout, delivered).await {
                Ok(receipt) => receipt.unwrap_or_else(Receipt::Failed),
                Err(_) => Receipt::Failed(format!("no answer within {} s", target.timeout.as_secs())),
            }
        })
    }
}

impl Courier {
    pub(crate) fn new(tls: Arc<dyn WebTls>, settings: SharedOptions, directory: PathBuf) -> Self {
        Self { tls, settings, directory }
    }

    async fn post(&self, hook: &Webhook, id: &str, body: Vec<u8>) -> Result<Receipt, String> {
        let mut request = post_to(&hook.url).header(header::CONTENT_TYPE, "application/json");
        request = request.header("X-Meshd-Delivery", id);
        if let Some(file) = hook.secret_file.clone() {
            let read = spawn_blocking(move || private_file::secret(&file)).await.map_err(told)?;
            let secret = read.map_err(|why| format!("secretfile: {why}"))?;
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), &body);
            let tag = hex::print(tag.as_ref());
            request = request.header("X-Meshd-Signature", format!("sha256={tag}"));
        }
        let request = request.body(body.into()).map_err(told)?;
        let ((host, port), is_tls) = (place(&hook.url), is_tls(&hook.url));
        let stream = confine::reach(host, port, is_tls, hook.allow_local).await.map_err(told)?;
        let stream: Box<dyn Duplex> = match is_tls {
            true => self.tls.secure(stream, host.to_owned(), hook.tls_client.clone()).await,
            false => Ok(Box::new(stream) as _),
        }
        .map_err(told)?;
        let answered = async { Poster::new(stream).await?.post(request, ANSWER).await };
        let (status, answer) = answered.await.map_err(told)?;
        let text = format!("{status}{}", shown(&answer));
        let is_passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
        Ok(match status {
            status if status.is_success() => Receipt::Delivered(text),
            status if status.is_client_error() && !is_passing => Receipt::Refused(text),
            _ => Receipt::Failed(text),
        })
    }

    /// Runs a program, confined as the sync of a project is. Its directory lasts as long as it runs.
    async fn run(&self, name: &str, program: &str, words: &[String], body: &[u8]) -> Result<Receipt, String> {
        let options = self.settings.load_full();
        let directory = self.directory.join(".controller").join("notify").join(name);
        // What an earlier run left that was cut off.
        let _absent = tokio::fs::remove_dir_all(&directory).await;
        let temporary = directory.join("tmp");
        tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(&temporary).await.map_err(told)?;
        let hidden = [Some(self.directory.clone()), options.credentials.clone()];
        let confinement = Confinement {
            write: vec![directory.clone()],
            read: options.sync_read.clone(),
            hidden: hidden.into_iter().flatten().collect(),
            hosts: options.project_hosts.clone(),
            home: directory.clone(),
            temporary,
            variables: Default::default(),
        };
        let confinement = serde_json::to_string(&confinement).map_err(told)?;
        let mut command = Command::new(confine::THIS_PROGRAM);
        command.arg(confine::ARGUMENT).arg(program).args(words).arg(confinement);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or(USUAL_PATH.into()));
        let proxies = confine::PROXIES.into_iter().chain(confine::NO_PROXY);
        command.envs(proxies.filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(told)?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let give = async {
            if let Some(mut stdin) = stdin {
                // A program that does not read it is judged by its exit code.
                let _unread = stdin.write_all(body).await;
            }
        };
        let (said, (), ended) = tokio::join!(words_of(stderr), give, child.wait());
        let _left = tokio::fs::remove_dir_all(&directory).await;
        let ended = ended.map_err(told)?;
        let said = format!("{ended}{said}");
        Ok(if ended.success() { Receipt::Delivered(said) } else { Receipt::Failed(said) })
    }
}

/// The beginning of what a program says on standard error. All of it is read, so that the program does not wait.
async fn words_of(stderr: Option<tokio::process::ChildStderr>) -> String {
    let (mut begin, mut rest) = (Vec::new(), [0; ANSWER]);
    let Some(mut stderr) = stderr else { return String::new() };
    while let Ok(count @ 1..) = stderr.read(&mut rest).await {
        let room = ANSWER.saturating_sub(begin.len()).min(count);
        begin.extend_from_slice(&rest[..room]);
    }
    shown(&begin)
}

fn told(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What the other end says, for people, behind a colon; nothing if it says nothing.
fn shown(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer);
    if text.trim().is_empty() { String::new() } else { format!(": {}", readable(text.trim(), TOLD)) }
}
