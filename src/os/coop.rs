//! Taking turns: a task that always finds more bytes to move lets the others of its thread go on after some of them.
//!
//! The runtime counts a task's operations, not what each of them takes: a hundred copies of 64 KiB are milliseconds
//! in which a ping that has arrived is not even looked at. Knows nothing of what is moved.

/// Bytes that a task moves before it is another one's turn: some tens of microseconds of copying and encrypting.
const SHARE: usize = 128 << 10;

/// How far a task has come in its turn.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    moved: usize,
}

impl Turn {
    /// Counts bytes that were moved; lets others go on first when they were many.
    pub(crate) async fn spend(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.moved >= SHARE {
            self.moved = 0;
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn another_task_gets_its_turn_after_a_share_and_not_before() {
        let others = Cell::new(0);
        let busy = async {
            let mut turn = Turn::default();
            turn.spend(SHARE - 1).await;
            assert_eq!(others.get(), 0);
            turn.spend(1).await;
            assert_eq!(others.get(), 1);
            turn.spend(SHARE - 1).await;
            assert_eq!(others.get(), 1);
        };
        let other = async { others.set(others.get() + 1) };
        tokio::join!(busy, other);
    }
}
