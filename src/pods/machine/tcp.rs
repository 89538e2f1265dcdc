//! A pod that connects to this node for stdin and stdout: what its connection means for the unit. The driver
//! checks the caller against the addresses in the pod's status.

use std::time::{Duration, Instant};

use super::{Machine, TcpNews, Timer};
use crate::pods::waiting::how;
use crate::rpc::UnitState as State;

/// How long to wait for the connection's end after `worker` has ended.
const LINGER: Duration = Duration::from_secs(10);

impl Machine {
    pub(super) fn on_tcp(&mut self, now: Instant, news: TcpNews) {
        match news {
            TcpNews::Connected => {
                self.timers.stop(Timer::Pending);
                self.set(State::Pending, "Sending stdin to pod");
            }
            TcpNews::Sent => self.set(State::Running, "Pod Running"),
            TcpNews::Ended => self.conclude(now, State::Succeeded, "Finished".into()),
            TcpNews::Failed(detail) => self.fail(now, detail),
        }
    }

    /// `worker` has ended, but its output may still be on its way.
    pub(super) fn linger_for_tcp(&mut self, now: Instant) {
        self.timers.start(Timer::Linger, now + LINGER);
    }

    pub(super) fn stop_lingering_for_tcp(&mut self, now: Instant) {
        let Some(ended) = &self.ended else { return };
        let text = format!(
            "Error reading stdout from pod: container worker {}, and its connection has not",
            how(ended)
        );
        self.fail_with_event(now, text);
    }
}
