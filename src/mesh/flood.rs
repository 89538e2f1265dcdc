//! How knowledge spreads: introductions, routing updates and advertisements, taken in, judged, passed on.
//!
//! The rules are those of docs/protocol.md#link-state; the comments name what goes beyond them and why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rand::RngExt;
use rand::distr::{Alphanumeric, SampleString};

use super::anti_entropy::Comparison;
use super::core::{Class, Event, Mesh};
use super::exchange::Catchup;
use super::life::{Kind, Life};
use super::lsdb::News;
use super::readings::{self, Received};
use super::services::Reception;
use super::session::{Established, LOUD, Phase, Session, Use};
use super::{CloseReason, Now, SessionId, Tick};
use crate::wire::name::MAX_NODE_ID;
use crate::wire::routing::Glance;
use crate::wire::{Cost, NodeId, RoutingUpdate, ServiceName, WireError};

impl Mesh {
    /// The first routing update on a session names the peer, which is let in or not.
    pub(super) fn handle_introduction(
        &mut self,
        session: SessionId,
        message: &[u8],
        now: Now,
    ) -> Result<(), WireError> {
        let received = Received::parse(message)?;
        let update = &received.update;
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
                self.take_update(session, received, now);
            }
        } else if let Some(bytes) = self.bytes_beyond(&peer) {
            self.close(session, CloseReason::TooManyLinks { bytes }, now);
        } else if let Some(host) = self.crowded_host(session, &peer) {
            self.close(session, CloseReason::Crowded { host }, now);
        } else {
            let lists_us = update.connections.contains_key(&self.id);
            self.establish(session, peer, now);
            // The peer was faster: this is more than a greeting.
            if lists_us {
                self.use_update(session, received, now);
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
            is_first: peer < self.id,
            next_probe: now.tick,
            life: Life::new(now.tick),
            comparison: Comparison::default(),
            catchup: Catchup::default(),
        };
        if let Some(host) = state.policy.unknown_host() {
            self.strangers.add(host, name_bytes(&peer));
        }
        state.phase = Phase::Established(Box::new(established));
        self.by_peer.insert(peer.clone(), session);
        self.links.connect(&peer, cost);
        if self.by_peer.len() > 1 || self.options.receptor_like {
            self.update_pace.request(now.tick);
        } else {
            // The only neighbour is told right here, and passes it on.
            self.next_update = self.next_update.min(now.tick + self.update_round(now.tick));
        }
        self.route_pace.request(now.tick);
        self.sessions_due.take();
        self.counters.sessions_established += 1;
        self.digest = None;
        let own = self.told_update(0);
        self.transmit(session, own, Class::Control);
        self.tell_links(session);
        self.events.push_back(Event::SessionUp { session, peer, cost });
    }

    /// The own services as they were last told.
    pub(super) fn standing_services(&mut self, now: Now) -> Vec<Bytes> {
        let own = self.adverts.standing_messages(now.wall);
        self.digest = None;
        own.iter().filter_map(|ad| self.told(ad.message())).collect()
    }

    /// The size that the own update would have with one more neighbour, if that is too much. Refused early:
    /// others have to pass it on under names longer than ours.
    fn bytes_beyond(&self, peer: &NodeId) -> Option<usize> {
        // Each link takes a name of at most 255 bytes and some for its cost.
        const MOST_PER_LINK: usize = 2 * MAX_NODE_ID + 40;
        let links = self.links.own_links()?;
        if (links.len() + 2) * MOST_PER_LINK < self.options.max_own_message {
            return None;
        }
        let mut connections = (**links).clone();
        connections.insert(peer.clone(), Cost::DEFAULT);
        let update_id = String::from("8letters");
        let bytes = match self.own_update_with(connections.into(), update_id, 0).message() {
            Ok(message) => message.len(),
            Err(WireError::TooLarge { len, .. }) => len,
            Err(_) => return None,
        };
        (bytes > self.options.max_own_message).then_some(bytes)
    }

    /// Where the peer comes from, if there is no room for one more of whom nobody has said that they may come: a part
    /// of the own update is kept for those whom the configuration knows, and one host's neighbours leave some of the
    /// rest to others.
    fn crowded_host(&self, session: SessionId, peer: &NodeId) -> Option<String> {
        let host = self.sessions.get(&session)?.policy.unknown_host()?;
        (!self.strangers.admits(host, name_bytes(peer), 0)).then(|| host.clone())
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
        let shared = self.options.pool.as_ref().and_then(|pool| Received::shared(message, pool));
        let glance = shared.as_ref().map_or_else(|| Glance::at(message), |received| Some(received.glance()));
        if glance.is_some_and(|glance| self.is_old_news(session, &glance, now.tick)) {
            self.has_shown_life(session);
            self.count_update(session, now.tick);
            return Ok(());
        }
        let received = shared.map_or_else(|| Received::parse(message), Ok)?;
        self.use_update(session, received, now);
        Ok(())
    }

    /// True if the peer passes on an update that is known already, as most copies of a flood are: it need not
    /// be read to its end.
    fn is_old_news(&self, session: SessionId, glance: &Glance, now: Tick) -> bool {
        let Some(peer) = self.peer(session) else { return false };
        let of_others = ![peer.as_str(), self.id.as_str(), ""].contains(&&*glance.node_id);
        glance.forwarding_node == peer.as_str()
            && of_others
            && glance.suspected_duplicate == 0
            && self.links.is_stale(&glance.node_id, (glance.epoch, glance.sequence), now)
    }

    fn use_update(&mut self, session: SessionId, received: Received, now: Now) {
        let update = &received.update;
        let Some(Session { phase: Phase::Established(established), .. }) = self.sessions.get_mut(&session)
        else {
            return;
        };
        let was_listed = established.listed.is_some();
        if update.node_id.as_ref().is_none_or(|node| *node == update.forwarding_node) {
            self.sessions_due.take();
        }
        match established.check(&self.id, update) {
            Ok(Use::Process) => {
                if update.node_id.as_ref() != Some(&update.forwarding_node) {
                    self.has_shown_life(session);
                } else if !was_listed {
                    self.tell_services(session);
                }
                self.take_update(session, received, now);
            }
            // Our introduction was lost, and the next round is far away.
            Ok(Use::NotIntroduced) => {
                let own = self.told_update(0);
                self.transmit(session, own, Class::Control);
            }
            Ok(Use::Overtaken) => {}
            Err(reason) => self.close(session, reason, now),
        }
    }

    fn take_update(&mut self, session: SessionId, received: Received, now: Now) {
        self.count_update(session, now.tick);
        let update = &received.update;
        // A sender without a name is still starting.
        let Some(node) = update.node_id.clone() else { return };
        if node == self.id {
            return self.take_update_in_our_name(update, now);
        }
        let goes_on = if update.suspected_duplicate != 0 {
            self.take_correction(&node, update, now.tick)
        } else {
            self.take_news(session, &node, update, received.size, now.tick)
        };
        if goes_on {
            // Ours may be the longer name, so an update at the limit may no longer fit.
            let Some(message) = self.told(received.passed_on(&self.id)) else { return };
            self.flood(&message, Some(session));
        }
    }

    /// A node has found another one with its name; true if that is to be passed on.
    fn take_correction(&mut self, node: &NodeId, update: &RoutingUpdate, now: Tick) -> bool {
        let new = self.seen.insert(&update.update_id, now);
        if new {
            self.links.correct(node, update, now);
            self.digest = None;
        }
        new
    }

    /// An ordinary update; true if it is to be passed on. Its epoch and sequence tell whether it is new, except
    /// where nobody believes them.
    fn take_news(
        &mut self,
        session: SessionId,
        node: &NodeId,
        update: &RoutingUpdate,
        size: usize,
        now: Tick,
    ) -> bool {
        let before = self.links.version_of(node);
        match self.links.apply(node, update, size, &update.forwarding_node, now) {
            News::Nothing => false,
            News::Distrusted => self.seen.insert(&update.update_id, now),
            News::NoRoom => {
                self.counters.no_room += 1;
                self.refuse(session, node.clone());
                false
            }
            News::Update { new_node, new_life, links_changed } => {
                self.counters.updates_accepted += 1;
                self.on_version(node, before, [update.epoch, update.sequence]);
                if new_life {
                    self.outlive(node, now);
                }
                if new_node {
                    self.note(session, |told| told.new_nodes += 1);
                    self.answer_newcomer(session, now);
                } else if new_life {
                    self.events.push_back(Event::NodeRestarted(node.hash()));
                }
                if links_changed {
                    self.route_pace.request(now);
                }
                self.note_if_absent(node, now);
                true
            }
        }
    }

    /// A node that nobody had told of has to hear of us (docs/protocol.md#flooding), unless it has one of our
    /// kind for a neighbour, which has told it already. Where it was heard through one of our kind that is
    /// likely, so the answer may wait for those to other newcomers: a large mesh that starts would else tell
    /// itself again and again.
    fn answer_newcomer(&mut self, session: SessionId, now: Tick) {
        let kind = self.sessions.get(&session).and_then(|s| Some(s.established()?.life.kind()));
        if self.options.receptor_like || kind == Some(Kind::Other) {
            self.update_pace.request(now);
        } else {
            // A node that joins has heard of few when it hears of the first one.
            let (since, known) = (self.newcomers.map_or(now, |(since, _)| since), self.links.sizes().0);
            let nodes = u32::try_from(known).unwrap_or(u32::MAX);
            let due = since + self.options.answer_hold + self.options.answer_per_node * nodes;
            self.newcomers = Some((since, due));
        }
    }

    fn count_update(&mut self, session: SessionId, now: Tick) {
        self.counters.updates_heard += 1;
        self.note(session, |told| told.updates += 1);
        self.beware_of_floods(session, now);
    }

    /// Says whose word found no room. The word of others is still heard: what is known already stays, and moves.
    fn refuse(&mut self, session: SessionId, node: NodeId) {
        self.note(session, |told| told.refused += 1);
        self.events.push_back(Event::Refused { session, node });
    }

    /// A flood is not held back here, since a mesh that starts looks alike: tables are bounded, and links are
    /// read as fast as their messages are worked off. But it is told whom it comes from.
    fn beware_of_floods(&mut self, session: SessionId, now: Tick) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if state.is_getting_loud(now) {
            self.events.push_back(Event::Loud { session, messages: LOUD });
        }
    }

    /// A node has begun a new life: what it offered in an earlier one ends unless it renews it.
    fn outlive(&mut self, node: &NodeId, now: Tick) {
        if let Some(born) = self.links.born(node) {
            self.adverts.outlive(node, born, now);
            self.sweep_by(Some(now + self.options.unrenewed_time));
        }
    }

    /// The next version of our own list of links, as a message. Should the list not fit into a message,
    /// it is told empty: the node stays reachable by its neighbours' word, and says so.
    pub(super) fn own_update(&mut self, suspected_duplicate: u64) -> Bytes {
        let connections = self.links.own_links().cloned().unwrap_or_default();
        self.sequence += 1;
        let update_id = Alphanumeric.sample_string(&mut self.rng, 8);
        let mut update = self.own_update_with(connections, update_id, suspected_duplicate);
        update.message().unwrap_or_else(|error| {
            self.events.push_back(Event::CannotTell(error.into()));
            update.connections = Arc::default();
            update.message().unwrap_or_default()
        })
    }

    fn own_update_with(
        &self,
        connections: Arc<BTreeMap<NodeId, Cost>>,
        update_id: String,
        suspected_duplicate: u64,
    ) -> RoutingUpdate {
        RoutingUpdate {
            node_id: Some(self.id.clone()),
            update_id,
            epoch: self.epoch,
            sequence: self.sequence,
            connections,
            forwarding_node: self.id.clone(),
            suspected_duplicate,
        }
    }

    /// The same for neighbours that take it in, unlike a greeting.
    fn told_update(&mut self, suspected_duplicate: u64) -> Bytes {
        let message = self.own_update(suspected_duplicate);
        let before = std::mem::replace(&mut self.told_sequence, self.sequence);
        self.told_message = message.clone();
        self.on_own_sequence(before);
        message
    }

    /// How long until the next own update if nothing changes.
    pub(super) fn update_round(&mut self, now: Tick) -> Duration {
        let (options, nodes) = (&self.options, self.reachable());
        let relaxed =
            (options.relaxed_interval + options.relaxed_per_node * nodes).max(options.update_interval);
        let round = if self.is_among_its_kind() { relaxed } else { options.update_interval };
        let round = self.duplicates.round(now).map_or(round, |suspected| suspected.min(round));
        self.jittered(round)
    }

    /// How many nodes can be reached.
    pub(super) fn reachable(&self) -> u32 {
        u32::try_from(self.links.paths().reachable()).unwrap_or(u32::MAX)
    }

    fn jittered(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.rng.random_range(0.9..1.0))
    }

    pub(super) fn flood_own_update(&mut self, suspected_duplicate: u64, now: Tick) {
        self.update_pace.served(now);
        self.newcomers = None;
        self.next_update = now + self.update_round(now);
        if self.by_peer.is_empty() {
            return;
        }
        let message = self.told_update(suspected_duplicate);
        self.counters.own_updates += 1;
        self.flood(&message, None);
    }

    /// An advertisement on an established session.
    pub(super) fn handle_advertisement(
        &mut self,
        session: SessionId,
        message: Bytes,
        now: Now,
    ) -> Result<(), WireError> {
        let heard = readings::advertisement(&message, self.options.pool.as_ref())?;
        self.has_shown_life(session);
        let node = heard.advertisement.node_id.clone();
        let born = self.links.born(&node);
        self.counters.advertisements_heard += 1;
        self.note(session, |told| told.advertisements += 1);
        self.beware_of_floods(session, now.tick);
        let Some(teller) = self.peer(session).or_else(|| self.contested_peer(session)).cloned() else {
            return Ok(());
        };
        let key = (node.clone(), heard.advertisement.service);
        let before = self.adverts.date_of(&key);
        match self.adverts.receive(heard, &message, &teller, born, now) {
            Reception::Ignore => {}
            Reception::Incredible => {
                self.counters.malformed += 1;
                self.note(session, |told| told.malformed += 1);
            }
            Reception::NoRoom => {
                self.counters.no_room_for_services += 1;
                self.refuse(session, node);
            }
            Reception::PassOn { news } => {
                self.counters.advertisements_accepted += 1;
                self.on_date(&node, key.1, before, self.adverts.date_of(&key));
                self.note_if_absent(&node, now.tick);
                if news {
                    self.events.push_back(Event::OffersChanged);
                }
                if born.is_some() {
                    self.sweep_by(Some(now.tick + self.options.unrenewed_time));
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
        self.digest = None;
        if let Some(message) = self.told(message) {
            self.flood(&message, None);
        }
    }

    pub(super) fn flood_own_advertisements(&mut self, now: Now) {
        self.advertise_pace.served(now.tick);
        self.next_advertise = now.tick + self.jittered(self.options.advertise_interval);
        self.digest = None;
        for ad in self.adverts.own_messages(now.wall) {
            if let Some(message) = self.told(ad.message()) {
                self.flood(&message, None);
            }
        }
    }
}

/// What a neighbour of that name takes in our update, about.
pub(super) fn name_bytes(peer: &NodeId) -> usize {
    // Its cost, and what stands between them.
    const BESIDE: usize = 8;
    serde_json::to_string(peer).map_or(peer.as_str().len(), |printed| printed.len()) + BESIDE
}
