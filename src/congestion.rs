//! Decides how much may be in flight on a QUIC connection: on links, and on streams between services.
//!
//! Models a path as BBR does: by its delivery rate, and by its delay without queues. The product of both fills the
//! path. Bytes beyond it only wait in queues, so the window is only a little larger. A single lost packet means
//! nothing; many within a round trip mean that a buffer overflows. The window is the only output, because quinn paces
//! by it. Time is an argument. Knows nothing of what packets carry, nor who waits for them.

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

/// Packets that may be sent beyond a full window.
const BEYOND_PACKETS: u64 = 2;

/// The congestion controller of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Congestion {
    /// By delivery rate and delay, hardly by losses: the model of this module.
    #[default]
    Bbr,
    /// By losses, as in most hosts' TCP.
    Cubic,
}

impl Congestion {
    /// The controller of that name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "bbr" => Some(Self::Bbr),
            "cubic" => Some(Self::Cubic),
            _ => None,
        }
    }

    /// Its name, which the kernel uses as well.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }

    /// A factory for one connection. If its path changes, the new path's controller takes over the gauges.
    pub(crate) fn factory(self, first_window: u64) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Bbr => Arc::new(DeliveryRate { first_window, gauges: Some(Arc::default()) }),
            Self::Cubic => Arc::new(CubicConfig::default()),
        }
    }
}

/// Makes controllers whose window begins with about this many bytes, and never stays smaller.
#[derive(Debug)]
pub(crate) struct DeliveryRate {
    first_window: u64,
    /// Shared by all controllers of this factory, for a user that hands over only what fits the window. If `None`, each
    /// has its own.
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

/// The bytes in flight on a connection, for its user.
#[derive(Debug, Clone)]
pub(crate) struct InFlight(Arc<Gauges>);

/// State that a controller shares with [`InFlight`] and with its own clones in quinn. All in bytes.
#[derive(Debug, Default)]
struct Gauges {
    in_flight: AtomicU64,
    /// How much may be in flight, without `beyond`.
    window: AtomicU64,
    packet: AtomicU64,
    /// How much may be sent beyond the window until something is acknowledged.
    beyond: AtomicU64,
}

impl InFlight {
    /// For a connection whose controller is of this module; `None` for others.
    pub(crate) fn on(connection: &Connection) -> Option<Self> {
        let control: Box<Control> = connection.congestion_state().into_any().downcast().ok()?;
        Some(Self(control.gauges))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// How many bytes may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.0.window.load(Ordering::Relaxed)
    }

    /// Allows a few packets beyond the window, because everything in flight may be lost. For a path that is back:
    /// QUIC by itself may try again only much later.
    pub(crate) fn probe(&self) {
        let Gauges { packet, beyond, .. } = &*self.0;
        let over = self.bytes().saturating_sub(self.window());
        beyond.store(over + BEYOND_PACKETS * packet.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// To be called when something has arrived; true if the connection has to be woken. quinn sends no acknowledgement
    /// while data waits for room in the window. So two sides with full windows would wait for each other's until a
    /// timer of QUIC expires, and each such wait lengthens the measured round trip.
    #[must_use]
    pub(crate) fn let_acknowledge(&self) -> bool {
        let Gauges { packet, beyond, .. } = &*self.0;
        let more = BEYOND_PACKETS * packet.load(Ordering::Relaxed);
        let full = self.bytes() + more >= self.window();
        full && beyond.fetch_max(more, Ordering::Relaxed) < more
    }
}

/// The model behind quinn's interface.
#[derive(Debug, Clone)]
struct Control {
    model: Model,
    first_window: u64,
    /// Whether its user hands over only what fits the window.
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
        // quinn paces by this value, with a timer, two milliseconds at a time. A busy host's timer is late by as much,
        // and on a short path half of the time would be lost.
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
