//! How knowledge spreads: introductions, routing updates and advertisements, taken in, judged, passed on.
//!
//! The rules are those of contract section 3; the comments name what goes beyond them and why.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use rand::distr::{Alphanumeric, SampleString};

use super::adverts::Reception;
use super::core::{Class, Event, Mesh};
use super::links::News;
use super::session::{Established, Phase, Session, Use};
use super::{CloseReason, Now, SessionId, Tick};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{NodeId, RoutingUpdate, ServiceName, WireError};

/// Between two notices to a node that uses our ID.
pub(super) const DUPLICATE_NOTICE_INTERVAL: Duration = Duration::from_secs(1);

impl Mesh {
    /// The first routing update on a session names the peer, which is let in or not.
    pub(super) fn handle_introduction(
        &mut self,
        session: SessionId,
        message: &[u8],
        now: Now,
    ) -> Result<(), WireError> {
        let update = RoutingUpdate::parse(message)?;
        let peer = update.forwarding_node.clone();
        let Some(state) = self.sessions.get(&session) else { return Ok(()) };
        if peer == self.id {
            self.close(session, CloseReason::OwnId, now);
        } else if !state.policy.certifies(&peer) {
            let certified = state.policy.certified.clone().unwrap_or_default();
            self.close(session, CloseReason::NotCertified { claimed: peer, certified }, now);
        } else if !state.policy.allows(&peer) {
            self.close(session, CloseReason::NotAllowed(peer), now);
        } else if let Some(&other) = self.by_peer.get(&peer) {
            self.contest(session, other, &peer, now);
            // The other end may have established this session, and floods over it what it hears.
            if update.node_id.as_ref() != Some(&peer) {
                self.take_update(session, update, now);
            }
        } else {
            let lists_us = update.connections.contains_key(&self.id);
            self.establish(session, peer, now);
            // The peer was faster: this is more than a greeting.
            if lists_us {
                self.use_update(session, update, now);
            }
        }
        Ok(())
    }

    pub(super) fn establish(&mut self, session: SessionId, peer: NodeId, now: Now) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let cost = state.policy.cost_for(&peer);
        let established = Established {
            peer: peer.clone(),
            cost,
            listed: None,
            prove_alive_by: None,
            next_probe: now.tick,
        };
        state.phase = Phase::Established(established);
        self.by_peer.insert(peer.clone(), session);
        self.learn_name(&peer);
        self.links.connect(&peer, cost);
        self.update_pace.request(now.tick);
        self.route_pace.request(now.tick);
        self.tell_links(session);
        self.events.push_back(Event::SessionUp { session, peer, cost });
    }

    /// A new neighbour hears at once which links are known, as ordinary updates, rather than waiting for the
    /// next round of each node. What is known of itself is included: it may have come back with its clock
    /// set back, and only it can correct what its past has told.
    fn tell_links(&mut self, session: SessionId) {
        let own = self.own_update(0);
        let all: Vec<Bytes> = std::iter::once(&own).chain(self.links.messages()).cloned().collect();
        for message in all {
            self.transmit(session, message, Class::Control);
        }
    }

    /// A new neighbour hears of all services once it has got to know us: before, it would not listen. Its own
    /// ones are included, for it may have come back without them.
    pub(super) fn tell_services(&mut self, session: SessionId, now: Now) {
        let own = self.adverts.standing_messages(now.wall);
        let own = own.iter().filter_map(|ad| self.told(ad.message())).collect::<Vec<_>>();
        let all: Vec<Bytes> = self.adverts.messages().chain(&own).cloned().collect();
        for message in all {
            self.transmit(session, message, Class::Control);
        }
    }

    /// A message of our own making, or a complaint that it does not fit.
    fn told(&self, message: Result<Bytes, WireError>) -> Option<Bytes> {
        // Own services are bounded by configuration; a body that no link can carry stays untold.
        message.inspect_err(|error| debug_assert!(matches!(error, WireError::TooLarge { .. }))).ok()
    }

    /// A routing update on an established session.
    pub(super) fn handle_update(
        &mut self,
        session: SessionId,
        message: &[u8],
        now: Now,
    ) -> Result<(), WireError> {
        let update = RoutingUpdate::parse(message)?;
        self.use_update(session, update, now);
        Ok(())
    }

    fn use_update(&mut self, session: SessionId, update: RoutingUpdate, now: Now) {
        let Some(Session { phase: Phase::Established(established), .. }) = self.sessions.get_mut(&session)
        else {
            return;
        };
        let was_listed = established.listed.is_some();
        match established.check(&self.id, &update) {
            Ok(Use::Process) => {
                if update.node_id.as_ref() != Some(&update.forwarding_node) {
                    self.has_shown_life(session);
                } else if !was_listed {
                    self.tell_services(session, now);
                }
                self.take_update(session, update, now);
            }
            // Our introduction was lost, and the next round is far away.
            Ok(Use::NotIntroduced) => {
                let own = self.own_update(0);
                self.transmit(session, own, Class::Control);
            }
            Ok(Use::Overtaken) => {}
            Err(reason) => self.close(session, reason, now),
        }
    }

    fn take_update(&mut self, session: SessionId, update: RoutingUpdate, now: Now) {
        // A sender without a name is still starting.
        let Some(node) = update.node_id.clone() else { return };
        if node == self.id {
            return self.take_update_in_our_name(&update, now);
        }
        if !self.seen.insert(&update.update_id, now.tick) {
            return;
        }
        let believed = if update.suspected_duplicate != 0 {
            self.links.correct(&node, &update);
            false
        } else {
            match self.links.apply(&node, &update) {
                News::Nothing => return,
                News::Distrusted => false,
                News::NoRoom => {
                    self.counters.no_room += 1;
                    return;
                }
                News::Update { new_node, links_changed, restarted } => {
                    if restarted {
                        self.events.push_back(Event::NodeRestarted(node.hash()));
                    }
                    if new_node {
                        self.learn_name(&node);
                        self.update_pace.request(now.tick);
                    }
                    if links_changed {
                        self.route_pace.request(now.tick);
                    }
                    true
                }
            }
        };
        let passed_on = RoutingUpdate { forwarding_node: self.id.clone(), ..update };
        // Ours may be the longer name, so an update at the limit may no longer fit.
        let Some(message) = self.told(passed_on.message()) else { return };
        if believed {
            self.links.keep_message(&node, &message);
        }
        self.flood(&message, Some(session));
    }

    /// Somebody speaks in our name: an echo, our own past, or a node with the same ID.
    fn take_update_in_our_name(&mut self, update: &RoutingUpdate, now: Now) {
        if update.epoch == self.epoch {
            return;
        }
        if update.suspected_duplicate == self.epoch {
            self.events.push_back(Event::WeAreDuplicate);
        } else if update.epoch > self.epoch {
            self.duplicate = Some(update.epoch);
            self.duplicate_pace.request(now.tick);
        }
    }

    /// Tells the mesh that another node uses our name. The answer to a flood in our name must not be a flood
    /// of its own, so this is paced; but each time that the other one was heard is followed by a notice,
    /// since whoever has heard it believes it.
    pub(super) fn give_duplicate_notice(&mut self, now: Tick) {
        let Some(epoch) = self.duplicate.take() else { return };
        self.events.push_back(Event::DuplicateNode { epoch });
        self.flood_own_update(epoch, now);
        // The notice only sets the others right about who speaks; what is said comes with the next update.
        self.update_pace.request(now);
    }

    /// The next version of our own list of links, as a message. Should the list not fit into a message,
    /// it is told empty: the node stays reachable by its neighbours' word, and says so.
    pub(super) fn own_update(&mut self, suspected_duplicate: u64) -> Bytes {
        let connections = self.links.costs().get(&self.id).cloned().unwrap_or_default();
        self.sequence += 1;
        let mut update = RoutingUpdate {
            node_id: Some(self.id.clone()),
            update_id: Alphanumeric.sample_string(&mut self.rng, 8),
            epoch: self.epoch,
            sequence: self.sequence,
            connections,
            forwarding_node: self.id.clone(),
            suspected_duplicate,
        };
        update.message().unwrap_or_else(|error| {
            self.events.push_back(Event::CannotTell(error.into()));
            update.connections = BTreeMap::new();
            update.message().unwrap_or_default()
        })
    }

    pub(super) fn flood_own_update(&mut self, suspected_duplicate: u64, now: Tick) {
        self.update_pace.served(now);
        self.next_update = now + self.options.update_interval;
        if self.by_peer.is_empty() {
            return;
        }
        let message = self.own_update(suspected_duplicate);
        self.flood(&message, None);
    }

    /// An advertisement on an established session.
    pub(super) fn handle_advertisement(
        &mut self,
        session: SessionId,
        message: Bytes,
        now: Now,
    ) -> Result<(), WireError> {
        let heard = AdvertisementMessage::parse(&message)?;
        self.has_shown_life(session);
        match self.adverts.receive(heard, message.clone(), now) {
            Reception::Ignore => {}
            Reception::PassOn { news } => {
                if news {
                    self.events.push_back(Event::OffersChanged);
                }
                self.flood(&message, Some(session));
            }
            // In good time, not at once: of two nodes with our ID each would go on correcting the other.
            Reception::Correct => self.advertise_pace.request(now.tick),
        }
        Ok(())
    }

    pub(super) fn flood_advertisement_of(&mut self, service: ServiceName, now: Now) {
        let message = self.adverts.own_message(service, now.wall).message();
        if let Some(message) = self.told(message) {
            self.flood(&message, None);
        }
    }

    pub(super) fn flood_own_advertisements(&mut self, now: Now) {
        self.advertise_pace.served(now.tick);
        self.next_advertise = now.tick + self.options.advertise_interval;
        for ad in self.adverts.own_messages(now.wall) {
            if let Some(message) = self.told(ad.message()) {
                self.flood(&message, None);
            }
        }
    }
}
