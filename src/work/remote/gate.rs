//! What holds back what a node does elsewhere for its controller's jobs: while the controller may not act, none of its
//! children is started, cancelled or released on another node. Reading goes on. It knows neither leases nor jobs.

use tokio::sync::watch;

use super::driver::Step;
use crate::work::unit::UnitId;

/// A gate before the units of jobs. Those of everybody else pass. Clones open and close together.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    is_child: Option<fn(&UnitId) -> bool>,
    is_open: watch::Sender<bool>,
}

impl Gate {
    /// Closed for the units that `is_child` names; open for all if there is none.
    pub(crate) fn new(is_child: Option<fn(&UnitId) -> bool>) -> Self {
        Self { is_child, is_open: watch::Sender::new(false) }
    }

    /// Opens or closes it.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.send_if_modified(|known| std::mem::replace(known, is_open) != is_open);
    }

    /// Whether a unit is the child of a job.
    pub(crate) fn is_child(&self, unit: &UnitId) -> bool {
        self.is_child.is_some_and(|is_child| is_child(unit))
    }

    /// Returns once something may be done elsewhere for a unit.
    pub(crate) fn passes(&self, unit: &UnitId) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.is_open.subscribe();
        let is_child = self.is_child(unit);
        async move {
            if is_child {
                // Only a gate that is gone fails, and with it goes everything behind it.
                drop(changes.wait_for(|is_open| *is_open).await);
            }
        }
    }

    /// Whether a step is to wait.
    pub(super) fn holds(&self, unit: &UnitId, step: Step) -> bool {
        let acts = match step {
            Step::Start | Step::Cancel | Step::Release | Step::Tidy => true,
            Step::Follow | Step::CancelHere | Step::Delete | Step::Rest => false,
        };
        acts && self.is_child(unit) && !*self.is_open.borrow()
    }

    /// Returns once a step is to wait; never for one that need not.
    pub(super) async fn closes(&self, unit: &UnitId, step: Step) {
        let mut changes = self.is_open.subscribe();
        while !self.holds(unit, step) {
            // The gate keeps the sender, so this cannot fail.
            let _never = changes.changed().await;
        }
    }

    /// Returns once a step need not wait any more.
    pub(super) async fn opens(&self, unit: &UnitId, step: Step) {
        let mut changes = self.is_open.subscribe();
        while self.holds(unit, step) {
            let _never = changes.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_acts_for_children_and_nothing_else() {
        let unit = |text: &str| text.parse::<UnitId>().unwrap();
        let (child, other) = (unit("child123"), unit("other123"));
        let gate = Gate::new(Some(|unit| unit.as_str().starts_with("child")));
        for step in [Step::Start, Step::Cancel, Step::Release, Step::Tidy] {
            assert!(gate.holds(&child, step) && !gate.holds(&other, step), "{step:?}");
        }
        assert!(!gate.holds(&child, Step::Follow), "reading goes on");
        gate.set_open(true);
        assert!(!gate.holds(&child, Step::Start));
        assert!(!Gate::new(None).holds(&child, Step::Start), "without a controller nothing is held");
    }
}
