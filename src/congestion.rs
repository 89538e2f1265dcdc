//! How much may be in flight on a QUIC connection: on links, and on the streams above them.
//!
//! It models a way as BBR does, by the rate at which it delivers and the time that it takes while nothing waits. The
//! product of both fills it; what is beyond that waits somewhere on the way, so little is. A lost packet says nothing,
//! many of them within a round trip mean that a buffer overflows. quinn paces by the window, so there is no other output.
//! Time is an argument. It knows neither packets nor who waits for them.

mod model;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quinn::Connection;
use quinn::congestion::{Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;

use self::model::Model;

/// Packets that may go out beyond a full window.
const BEYOND_PACKETS: u64 = 2;

/// The controller of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Congestion {
    /// By the rate of delivery and the delay, whatever gets lost: the one described here.
    #[default]
    Bbr,
    /// By losses, as most hosts' TCP.
    Cubic,
}

impl Congestion {
    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "bbr" => Some(Self::Bbr),
            "cubic" => Some(Self::Cubic),
            _ => None,
        }
    }

    /// As the kernel calls it, too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }

    /// For one connection: when its path changes, the gauges are those of the new one.
    pub(crate) fn factory(self, first_window: u64) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Bbr => Arc::new(DeliveryRate { first_window, gauges: Some(Arc::default()) }),
            Self::Cubic => Arc::new(CubicConfig::default()),
        }
    }
}

/// Makes controllers whose window begins with, and never stays below, about this many bytes.
#[derive(Debug)]
pub(crate) struct DeliveryRate {
    first_window: u64,
    /// What all of them share, for a user who hands over no more than fits the window; each has its own without.
    gauges: Option<Arc<Gauges>>,
}

impl DeliveryRate {
    pub(crate) fn new(first_window: u64) -> Self {
        Self { first_window, gauges: None }
    }
}

impl ControllerFactory for DeliveryRate {
    fn build(self: Arc<Self>, now: Instant, packet: u16) -> Box<dyn Controller> {
        let model = Model::new(self.first_window, packet.into(), now);
        Box::new(Control {
            model,
            first_window: self.first_window,
            is_fed_by_window: self.gauges.is_some(),
            gauges: self.gauges.clone().unwrap_or_default(),
        })
    }
}

/// What is under way on a connection, for those who use it.
#[derive(Debug, Clone)]
pub(crate) struct InFlight(Arc<Gauges>);

/// What the controller shares with them, and with the clones of it that quinn hands out. All in bytes.
#[derive(Debug, Default)]
struct Gauges {
    in_flight: AtomicU64,
    /// What may be in flight, without what may go out beyond it.
    window: AtomicU64,
    packet: AtomicU64,
    /// What may go out beyond the window until something is acknowledged.
    beyond: AtomicU64,
}

impl InFlight {
    /// Of a connection whose controller is the one described here.
    pub(crate) fn on(connection: &Connection) -> Option<Self> {
        let control: Box<Control> = connection.congestion_state().into_any().downcast().ok()?;
        Some(Self(control.gauges))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.0.window.load(Ordering::Relaxed)
    }

    /// Sends something at the next opportunity, even if all that is in flight is lost: the way that lost it is back,
    /// and the next time at which QUIC would try by itself may be far away.
    pub(crate) fn probe(&self) {
        let Gauges { packet, beyond, .. } = &*self.0;
        let over = self.bytes().saturating_sub(self.window());
        beyond.store(over + BEYOND_PACKETS * packet.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// To be told when something has arrived; true if the connection has to be woken. quinn sends no acknowledgement
    /// while there is data for which the window has no room. Two sides that fill their windows at once would each wait
    /// for the other's, until a timer of QUIC ends it, and its round trips grow with each time.
    #[must_use]
    pub(crate) fn let_acknowledge(&self) -> bool {
        let Gauges { packet, beyond, .. } = &*self.0;
        let more = BEYOND_PACKETS * packet.load(Ordering::Relaxed);
        let full = self.bytes() + more >= self.window();
        full && beyond.fetch_max(more, Ordering::Relaxed) < more
    }
}

/// The model in the shape that quinn wants.
#[derive(Debug, Clone)]
struct Control {
    model: Model,
    first_window: u64,
    /// Its user hands over no more than fits the window.
    is_fed_by_window: bool,
    gauges: Arc<Gauges>,
}

impl Control {
    fn share(&self) {
        self.gauges.window.store(self.model.window(), Ordering::Relaxed);
        self.gauges.packet.store(self.model.packet(), Ordering::Relaxed);
    }
}

impl Controller for Control {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.model.handle_sent(now);
        self.gauges.in_flight.fetch_add(bytes, Ordering::Relaxed);
        self.share();
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, _rtt: &RttEstimator) {
        self.model.handle_ack(now, sent, bytes, app_limited);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        self.model.handle_end_of_acks(now, in_flight);
        self.gauges.in_flight.store(in_flight, Ordering::Relaxed);
        self.gauges.beyond.store(0, Ordering::Relaxed);
        self.share();
    }

    fn on_congestion_event(&mut self, _now: Instant, _sent: Instant, all_for_long: bool, lost: u64) {
        self.model.handle_loss(lost, all_for_long);
    }

    fn on_mtu_update(&mut self, packet: u16) {
        self.model.set_packet(packet.into());
    }

    fn window(&self) -> u64 {
        // quinn paces by what this returns, with a timer, for two milliseconds at a time. On a short way a busy host is as
        // late as that, and half the time would be lost.
        let paces = if self.is_fed_by_window && self.model.is_short() { 2 } else { 1 };
        self.model.window() * paces + self.gauges.beyond.load(Ordering::Relaxed)
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.first_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
