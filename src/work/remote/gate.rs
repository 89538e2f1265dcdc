//! Holds back what a node does on other nodes for its controller's jobs: while the controller may not act, none of its
//! children is started, cancelled or released on another node. Reading goes on. Knows neither leases nor jobs.

use tokio::sync::watch;

use super::step::DriverStep;
use crate::work::unit::UnitId;

/// A gate in front of the units of jobs. All other units pass. Clones open and close together.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    is_child: Option<fn(&UnitId) -> bool>,
    is_open: watch::Sender<bool>,
}

impl Gate {
    /// Makes a gate that is closed for the units for which `is_child` is true; open for all units if it is `None`.
    pub(crate) fn new(is_child: Option<fn(&UnitId) -> bool>) -> Self {
        Self { is_child, is_open: watch::Sender::new(false) }
    }

    /// Opens or closes the gate.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.send_if_modified(|known| std::mem::replace(known, is_open) != is_open);
    }

    /// Whether a unit is the child of a job.
    pub(crate) fn is_child(&self, unit: &UnitId) -> bool {
        self.is_child.is_some_and(|is_child| is_child(unit))
    }

    /// Returns once this node may act on other nodes for a unit.
    pub(crate) fn passes(&self, unit: &UnitId) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.is_open.subscribe();
        let is_child = self.is_child(unit);
        async move {
            if is_child {
                // This fails only once the gate is gone, and then nothing uses it any more.
                drop(changes.wait_for(|is_open| *is_open).await);
            }
        }
    }

    /// Whether a step has to wait.
    pub(super) fn holds(&self, unit: &UnitId, step: DriverStep) -> bool {
        let acts = match step {
            DriverStep::Start | DriverStep::Cancel | DriverStep::Release | DriverStep::Tidy => true,
            DriverStep::Follow | DriverStep::CancelHere | DriverStep::Delete | DriverStep::Rest => false,
        };
        acts && self.is_child(unit) && !*self.is_open.borrow()
    }

    /// Returns once a step has to wait; never for a step that need not.
    pub(super) async fn closes(&self, unit: &UnitId, step: DriverStep) {
        let mut changes = self.is_open.subscribe();
        while !self.holds(unit, step) {
            // The gate keeps the sender, so this cannot fail.
            let _never = changes.changed().await;
        }
    }

    /// Returns once a step need not wait any more.
    pub(super) async fn opens(&self, unit: &UnitId, step: DriverStep) {
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
        for step in [DriverStep::Start, DriverStep::Cancel, DriverStep::Release, DriverStep::Tidy] {
            assert!(gate.holds(&child, step) && !gate.holds(&other, step), "{step:?}");
        }
        assert!(!gate.holds(&child, DriverStep::Follow), "reading goes on");
        gate.set_open(true);
        assert!(!gate.holds(&child, DriverStep::Start));
        assert!(!Gate::new(None).holds(&child, DriverStep::Start), "without a controller nothing is held");
    }
}
