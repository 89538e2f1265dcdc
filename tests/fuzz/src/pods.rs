//! What an API server and a kubelet send, and the kubeconfig that a submission brings.

use std::path::Path;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;

use meshd::pods::api::spdy;
use meshd::pods::executor;
use meshd::pods::kubeconfig as checks;
use meshd::pods::log::{LogReader, StreamEnd, new_part};
use meshd::pods::pod_status::PodSeen;
use meshd::pods::waiting;

/// The bytes are streams of a log, in pieces: a byte that says how a piece is delivered, its length, and the piece. Stdout
/// grows, and holds what the reader says.
pub(crate) fn log_stream(data: &[u8]) {
    let (mut reader, mut stdout, mut rest) = (LogReader::new(), Vec::new(), data);
    reader.open();
    while let Some(([how, length], tail)) = rest.split_first_chunk::<2>() {
        let (piece, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        if how % 8 == 7 {
            let end = if how & 8 == 0 { StreamEnd::InOrder } else { StreamEnd::Broken };
            let _complete = reader.complete();
            let _message = reader.close(end);
            reader.open();
        }
        let mut out = Vec::new();
        let Ok(took) = reader.read(piece, &mut out) else {
            assert!(out.is_empty(), "bytes that do not fit go nowhere");
            return;
        };
        assert!(took.at <= stdout.len() as u64, "there is no hole");
        let Some(new) = new_part(&stdout[took.at as usize..], &out) else { return };
        stdout.extend_from_slice(new);
        assert_eq!(reader.size(), stdout.len() as u64);
        assert!(stdout.len() <= data.len() && reader.cursor().size() <= reader.size());
    }
}

/// The server's frames on an attach stream end in its word, or in an error that says something.
pub(crate) fn attach_stream(data: &[u8]) {
    let (pongs, _answered) = mpsc::channel(8);
    let read = spdy::read(data, pongs).now_or_never().expect("all bytes are there");
    if let Err(error) = read {
        assert!(!format!("{error:?}").is_empty());
    }
}

/// A pod, however odd, is read, and what is said of it is bounded by it.
pub(crate) fn pod_status(data: &[u8]) {
    let Ok(pod) = serde_json::from_slice(data) else { return };
    let seen = PodSeen::read(&pod);
    let _started = seen.has_started();
    let waits = waiting::waits_for(&seen).unwrap_or_default();
    let obstacle = waiting::obstacle(&seen).map(waiting::describe).unwrap_or_default();
    for text in [waits, obstacle, waiting::failed_to_start(&seen)] {
        assert!(text.len() <= data.len() * 4 + 256, "{text}");
    }
}

/// A kubeconfig that is accepted names no file of this node, and its namespace is found or refused.
pub(crate) fn kubeconfig(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(mut value) = executor::parse("secret_kube_config", &text) else { return };
    if checks::check_submitted(&value).is_ok() {
        let before = value.clone();
        checks::make_paths_absolute(&mut value, Path::new("/dir"));
        assert_eq!(value, before);
        if let Ok(namespace) = checks::namespace(&value) {
            assert!(!namespace.is_empty());
        }
    }
}
