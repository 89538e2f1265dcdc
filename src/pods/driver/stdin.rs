//! The attach stream of a unit: which stream is open, and what was sent over it. Owns the stream's number, which tells
//! news of an earlier stream from news of this one. The machine decides what news mean.

use std::path::Path;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::requests::ApiNews;
use super::{PodDriver, finished, now};
use crate::pods::api::{AttachError, StdinStream};
use crate::pods::api_error::ApiError;
use crate::pods::machine::AttachNews;

/// The attach stream.
#[derive(Default)]
pub(super) struct Attach {
    /// Counts streams, so that news of an earlier stream are recognised.
    pub(super) number: u32,
    pub(super) task: Option<AbortHandle>,
    pub(super) stream: Option<Box<dyn StdinStream>>,
    /// Ready once everything was sent.
    pub(super) sent: Option<oneshot::Receiver<()>>,
}

impl PodDriver {
    pub(super) fn send_stdin(&mut self) {
        let Some(stream) = self.attach.stream.take() else { return };
        let (sent, is_sent) = oneshot::channel();
        let (number, path) = (self.attach.number, self.unit.dir().join("stdin"));
        let task =
            self.requests.spawn(async move { ApiNews::StdinEnded(number, send(stream, &path, sent).await) });
        self.attach.task = Some(task);
        self.attach.sent = Some(is_sent);
    }

    pub(super) fn close_attach(&mut self) {
        // A new number, so that news of the closed stream are ignored.
        let number = self.attach.number + 1;
        if let Some(task) = std::mem::take(&mut self.attach).task {
            task.abort();
        }
        self.attach.number = number;
    }

    pub(super) fn on_sent(&mut self) {
        self.attach.sent = None;
        self.machine.handle_attach(now(), AttachNews::Sent);
    }
}

pub(super) fn attach_news(outcome: Result<(), AttachError>) -> AttachNews {
    match outcome {
        Ok(()) => AttachNews::Succeeded,
        Err(AttachError::NeverAttached(message)) => {
            AttachNews::Refused(ApiError::Busy { message, retry_after: None })
        }
        Err(AttachError::Broken(cause)) => AttachNews::Failed(cause),
    }
}

async fn send(
    stream: Box<dyn StdinStream>,
    path: &Path,
    sent: oneshot::Sender<()>,
) -> Result<(), AttachError> {
    let payload = tokio::fs::File::open(path).await;
    let payload =
        payload.map_err(|error| AttachError::Broken(format!("Error opening stdin file: {error}")))?;
    stream.send(payload, sent).await
}

pub(super) async fn sent(slot: &mut Option<oneshot::Receiver<()>>) {
    // A dropped sender has failed; the end of its stream reports that.
    if finished(slot).await.is_err() {
        std::future::pending().await
    }
}
