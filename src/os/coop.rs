//! Fairness between tasks: a task that always finds more bytes to move yields after some of them.
//!
//! The runtime counts a task's operations, not what each of them costs: a hundred copies of 64 KiB take
//! milliseconds, in which a ping that has arrived is not even looked at. Knows nothing of the bytes.

/// Bytes that a task may move before it yields: some tens of microseconds of copying and encrypting.
const BUDGET: usize = 128 << 10;

/// Counts the bytes that a task has moved since it last yielded.
#[derive(Debug, Default)]
pub(crate) struct ByteBudget {
    spent: usize,
}

impl ByteBudget {
    /// Counts moved bytes, and yields to other tasks once the budget is used up.
    pub(crate) async fn spend(&mut self, bytes: usize) {
        self.spent += bytes;
        if self.spent >= BUDGET {
            self.spent = 0;
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn other_tasks_run_when_the_budget_is_used_up_and_not_before() {
        let others = Cell::new(0);
        let busy = async {
            let mut budget = ByteBudget::default();
            budget.spend(BUDGET - 1).await;
            assert_eq!(others.get(), 0);
            budget.spend(1).await;
            assert_eq!(others.get(), 1);
            budget.spend(BUDGET - 1).await;
            assert_eq!(others.get(), 1);
        };
        let other = async { others.set(others.get() + 1) };
        tokio::join!(busy, other);
    }
}
