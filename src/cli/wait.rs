//! Asks again at intervals, for changes that the node does not report by itself.

use std::time::Duration;

use tokio::time::sleep;

/// Time between two questions to a controller.
pub(super) const POLL: Duration = Duration::from_millis(500);

/// Asks until there is an answer.
pub(super) async fn until<T, E>(
    every: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>, E>,
) -> Result<T, E> {
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        sleep(every).await;
    }
}
