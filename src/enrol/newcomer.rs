//! A host that is no node yet asks for a certificate: it dials each address in turn, until one answers.
//!
//! Owns how often and how long it tries. It refuses to know what is asked.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::messages;
use crate::backend::{self, DialSpec, Proxy, QuicDialOptions, Session, TcpDialOptions, WsDialOptions};
use crate::join::address::{NodeAddress, NodeTransport};
use crate::join::request::{MOST_ANSWERED, NotGranted};
use crate::os::back_off::BackOff;
use crate::tls::ClientProfile;

/// How long one address may take to answer, with the ways behind it.
const ANSWER_LIMIT: Duration = Duration::from_secs(40);
/// How long all of them are tried again while nobody can decide: a control node may be starting.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a host waits at most before it asks again, while nobody has decided.
const WAITING: Duration = Duration::from_secs(4);
const PAUSES: BackOff = BackOff::new(Duration::from_millis(300), Duration::from_secs(10));

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// The authority, or somebody on the way, refuses.
    #[error("{0}")]
    Refused(String),
    /// None of the addresses has given an answer; one line for each.
    #[error("{}", .0.join("\n"))]
    Nobody(Vec<String>),
}

/// Sends the request to each address until one of them gives an answer that `open` accepts. There is no time limit while
/// the request waits for a person. `tries_again` is called once, with the reasons, when the first round has failed.
///
/// # Errors
/// The first refusal, or what each address has said when time was up.
pub(crate) async fn ask<T>(
    addresses: &[NodeAddress],
    request: &[u8],
    open: impl Fn(&[u8]) -> Result<T, NotGranted>,
    tries_again: impl Fn(&[String]),
) -> Result<T, Unanswered> {
    let (mut deadline, mut pauses) = (Instant::now() + PATIENCE, PAUSES);
    'again: loop {
        let mut failures = Vec::new();
        for address in addresses {
            let answered = timeout(ANSWER_LIMIT, exchange(address, request)).await;
            let answer = answered.unwrap_or_else(|_late| Err("no answer in time".to_owned()));
            let why = match answer.map(|answer| open(&answer)) {
                Ok(Ok(granted)) => return Ok(granted),
                Ok(Err(NotGranted::Refused(why))) => return Err(Unanswered::Refused(why)),
                Ok(Err(NotGranted::Waiting(_))) => {
                    (deadline, pauses) = (Instant::now() + PATIENCE, PAUSES);
                    sleep(WAITING.mul_f64(rand::rng().random_range(0.5..=1.0))).await;
                    continue 'again;
                }
                Ok(Err(other)) => other.to_string(),
                Err(why) => why,
            };
            failures.push(format!("{address}: {why}"));
        }
        if pauses.failures() == 0 {
            tries_again(&failures);
        }
        let pause = pauses.next();
        if Instant::now() + pause > deadline {
            return Err(Unanswered::Nobody(failures));
        }
        sleep(pause).await;
    }
}

async fn exchange(address: &NodeAddress, request: &[u8]) -> Result<Vec<u8>, String> {
    let spec = spec(address).map_err(|error| error.to_string())?;
    let Session { mut reader, mut writer, .. } =
        backend::dial(&spec).await.map_err(|error| error.to_string())?;
    let answered = async {
        messages::send(&mut writer, request).await?;
        messages::receive(&mut reader, MOST_ANSWERED).await
    };
    let answer = answered.await;
    drop(reader);
    writer.close().await;
    // A node that lets nobody in closes the connection, or its TLS asks for a certificate.
    answer.map_err(|error| format!("it lets no newcomers in, or has too many of them ({error})"))
}

fn spec(address: &NodeAddress) -> std::io::Result<DialSpec> {
    let tls = ClientProfile::of_newcomer().map_err(std::io::Error::other)?;
    let (text, host, port) = (address.at.to_string(), address.at.host.clone(), address.at.port);
    Ok(match address.transport {
        NodeTransport::Tcp => {
            DialSpec::Tcp(TcpDialOptions { address: text, tls: Some(tls), congestion: None })
        }
        NodeTransport::Quic => DialSpec::Quic(QuicDialOptions::new(text, tls)),
        NodeTransport::WebSocket => DialSpec::WebSocket(WsDialOptions {
            proxy: Proxy::from_environment(true, &host, port)?,
            path: address.path.clone(),
            extra_header: None,
            tls: Some(tls),
            host,
            port,
        }),
    })
}
