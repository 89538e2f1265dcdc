//! Flooding: introductions and routing updates are checked, applied and passed on.
//!
//! The rules are those of docs/protocol.md#link-state. Comments here explain only what goes beyond them.

use bytes::Bytes;

use super::lsdb::News;
use super::probe::PeerKind;
use super::session::{Established, FLOOD, PeerUpdate};
use super::{CloseReason, Event, Mesh, Now, QueueClass, SessionId, Tick};
use crate::wire::routing::UpdateHead;
use crate::wire::{NodeId, RoutingUpdate, WireError};

/// An update as it came in.
#[derive(Debug)]
pub(super) struct ReceivedUpdate {
    pub(super) update: RoutingUpdate,
    /// Length of its message.
    size: usize,
}

impl ReceivedUpdate {
    pub(super) fn parse(message: &[u8]) -> Result<Self, WireError> {
        Ok(Self { update: RoutingUpdate::parse(message)?, size: message.len() })
    }
}

impl Mesh {
    /// The first routing update on a session names the peer, which is let in or not.
    pub(super) fn handle_introduction(
        &mut self,
        session: SessionId,
        message: &[u8],
        now: Now,
    ) -> Result<(), WireError> {
        let received = ReceivedUpdate::parse(message)?;
        let update = &received.update;
        let peer = update.forwarding_node.clone();
        let Some(state) = self.sessions.get(session) else { return Ok(()) };
        let policy = state.policy();
        if peer == self.id {
            self.meet_duplicate(session, update);
            self.close(session, CloseReason::OwnId, now);
        } else if !policy.certifies(&peer) {
            let certified = policy.certified.clone().unwrap_or_default();
            self.close(session, CloseReason::NotCertified { claimed: peer, certified }, now);
        } else if !policy.allows(&peer) {
            self.close(session, CloseReason::NotAllowed(peer), now);
        } else if let Some(&other) = self.sessions.by_peer().get(&peer) {
            self.contest(session, other, &peer, now);
            // The other end may have established this session, and flood over it.
            if update.node_id.as_ref() != Some(&peer) {
                self.apply_update(session, received, now);
            }
        } else if let Some(bytes) = self.excess_bytes(&peer) {
            self.close(session, CloseReason::TooManyLinks { bytes }, now);
        } else if let Some(host) = self.sessions.crowded_host(session, &peer) {
            self.close(session, CloseReason::Crowded { host }, now);
        } else {
            let lists_us = update.connections.contains_key(&self.id);
            self.establish(session, peer, now);
            // The peer has established the session already, so this is more than a greeting.
            if lists_us {
                self.check_update(session, received, now);
                // But it may mean another node of our name, and refuse us once it has heard us.
                self.established_mut(session).into_iter().for_each(|known| known.is_let_in = false);
            }
        }
        Ok(())
    }

    /// A routing update on an established session.
    pub(super) fn handle_update(
        &mut self,
        session: SessionId,
        message: &[u8],
        now: Now,
    ) -> Result<(), WireError> {
        if let Some(head) = UpdateHead::parse(message)
            && self.is_old_news(session, &head, now.tick)
        {
            self.confirm_alive(session);
            self.count_update(session, now.tick);
            self.remind(session, &head, now.tick);
            return Ok(());
        }
        self.check_update(session, ReceivedUpdate::parse(message)?, now);
        Ok(())
    }

    /// True if the peer passes on an update that is known already, as most copies in a flood are. Such an update
    /// need not be parsed to its end.
    fn is_old_news(&self, session: SessionId, head: &UpdateHead, now: Tick) -> bool {
        let Some(peer) = self.peer(session) else { return false };
        let of_others = ![peer.as_str(), self.id.as_str(), ""].contains(&&*head.node_id);
        head.forwarding_node == peer.as_str()
            && of_others
            && head.suspected_duplicate == 0
            && self.lsdb.is_old(head, now)
    }

    /// A receptor node takes no `UpdateID` twice. If it passes on an older update than we did, it may have ignored ours
    /// because of a lie under the same ID, and would keep ours from the nodes after it. So it is sent ours again, under
    /// another ID.
    fn remind(&mut self, session: SessionId, head: &UpdateHead<'_>, now: Tick) {
        let Some(newer) = self.lsdb.newer(&head.node_id, (head.epoch, head.sequence)) else { return };
        let may_be = |peer: &Established| peer.liveness.kind() == PeerKind::Other;
        if self.takes_reminder(session, now, may_be)
            && let Ok(update) = RoutingUpdate::parse(&newer)
        {
            let update_id = self.new_update_id();
            let again = self.forwarded(RoutingUpdate { update_id, ..update });
            again.into_iter().for_each(|message| self.outbox.send(session, message, QueueClass::Control));
        }
    }

    /// Sends a neighbour that is not believed the update that is believed in its name, so that it can outdo it. Limited
    /// as reminders are.
    fn contradict(&mut self, session: SessionId, update: &RoutingUpdate, now: Tick) {
        let version = (update.epoch, update.sequence);
        if let Some(newer) = self.lsdb.newer(update.forwarding_node.as_str(), version)
            && self.takes_reminder(session, now, |_| true)
        {
            self.outbox.send(session, newer, QueueClass::Control);
        }
    }

    /// True if the neighbour is of that kind and was not reminded recently; then notes that it is reminded now.
    fn takes_reminder(
        &mut self,
        session: SessionId,
        now: Tick,
        is_of_kind: impl Fn(&Established) -> bool,
    ) -> bool {
        let hold = self.options.reminder_hold;
        let due =
            self.established_mut(session).filter(|peer| is_of_kind(peer) && now.since(peer.reminded) >= hold);
        due.map(|peer| peer.reminded = now).is_some()
    }

    fn check_update(&mut self, session: SessionId, received: ReceivedUpdate, now: Now) {
        let update = &received.update;
        let Some(established) = self.sessions.get_mut(session).and_then(|state| state.established_mut())
        else {
            return;
        };
        let was_listed = established.listed.is_some();
        match established.check(&self.id, update) {
            Ok(PeerUpdate::Process) => {
                established.held.take_if(|_| update.node_id.as_ref() == Some(&update.forwarding_node));
                if update.node_id.as_ref() != Some(&update.forwarding_node) {
                    self.confirm_alive(session);
                } else if !was_listed {
                    self.send_all_services(session);
                }
                self.apply_update(session, received, now);
            }
            // Our introduction was lost, so it is repeated: the next round is far away.
            Ok(PeerUpdate::NotIntroduced) => {
                let own = self.announced_update(0);
                self.outbox.send(session, own, QueueClass::Control);
            }
            Ok(PeerUpdate::Overtaken) => {}
            Err(reason) => self.close(session, reason, now),
        }
    }

    pub(super) fn apply_update(&mut self, session: SessionId, received: ReceivedUpdate, now: Now) {
        self.count_update(session, now.tick);
        // A sender without a name is still starting.
        let Some(node) = received.update.node_id.clone() else { return };
        if node == self.id {
            return self.handle_update_in_our_name(session, &received.update, now);
        }
        if let Some(own_way) = self.own_way(&node, session) {
            return self.withhold(own_way, session, received.update, now.tick);
        }
        let update = received.update;
        // No message if the update does not fit under our name, which may be longer.
        let message = if update.suspected_duplicate != 0 {
            self.apply_correction(session, &node, update, now.tick)
        } else {
            self.apply_news(session, &node, update, received.size, now)
        };
        if let Some(message) = message {
            self.flood(&message, &[session]);
        }
    }

    /// A node has found another node with its name. Returns the message to pass on, if it is new.
    fn apply_correction(
        &mut self,
        session: SessionId,
        node: &NodeId,
        update: RoutingUpdate,
        now: Tick,
    ) -> Option<Bytes> {
        if !self.update_ids.insert(&update.update_id, now) {
            return None;
        }
        if let Some(later) = self.lsdb.correct(node, &update, now) {
            self.outbox.send(session, later, QueueClass::Control);
        }
        self.forwarded(update)
    }

    /// An ordinary update. Returns the message to pass on, if there is one. Epoch and sequence tell whether the update
    /// is new, or its ID if its epoch is distrusted.
    fn apply_news(
        &mut self,
        session: SessionId,
        node: &NodeId,
        update: RoutingUpdate,
        size: usize,
        now: Now,
    ) -> Option<Bytes> {
        let news = self.lsdb.apply(node, &update, size, now);
        let now = now.tick;
        match news {
            News::Nothing => {
                if update.forwarding_node == *node {
                    self.contradict(session, &update, now);
                }
                None
            }
            News::Distrusted if self.update_ids.insert(&update.update_id, now) => self.forwarded(update),
            News::Distrusted => None,
            News::NoRoom => {
                self.counters.no_room += 1;
                self.report_full_table(session, node.clone());
                None
            }
            News::Update { new_node, new_run, links_changed } => {
                self.counters.updates_accepted += 1;
                if new_run && let Some(start) = self.lsdb.start_of(node) {
                    self.services.outdate(node, start, now);
                    self.aging.sweep_by(Some(now + self.options.unrenewed_time));
                }
                if new_node {
                    self.sessions.count(session, |stats| stats.new_nodes += 1);
                    self.answer_newcomer(session, now);
                } else if new_run {
                    self.outbox.report(Event::NodeRestarted(node.hash()));
                }
                if links_changed {
                    self.forwarding.request(now);
                }
                if new_node || new_run {
                    self.tell_newcomer(node, now);
                }
                self.note_if_absent(node, now);
                self.lsdb.message(node)
            }
        }
    }

    pub(super) fn forwarded(&self, update: RoutingUpdate) -> Option<Bytes> {
        RoutingUpdate { forwarding_node: self.id.clone(), ..update }.message().ok()
    }

    fn count_update(&mut self, session: SessionId, now: Tick) {
        self.counters.updates_heard += 1;
        self.sessions.count(session, |stats| stats.updates += 1);
        self.report_flood(session, now);
    }

    /// Reports which neighbour found no room in a table. Its other reports still count: entries in the table stay, and
    /// can change.
    pub(super) fn report_full_table(&mut self, session: SessionId, node: NodeId) {
        self.sessions.count(session, |stats| stats.refused += 1);
        self.outbox.report(Event::TableFull { session, node });
    }

    /// Reports which neighbour floods this node. The flood is not held back, because a starting mesh looks the
    /// same; tables are bounded, and links are read only as fast as their messages are handled.
    pub(super) fn report_flood(&mut self, session: SessionId, now: Tick) {
        if self.sessions.get_mut(session).is_some_and(|state| state.count_flooded(now)) {
            self.outbox.report(Event::FloodDetected { session, messages: FLOOD });
        }
    }

    /// Sends a message to every established session but these.
    pub(super) fn flood(&mut self, message: &Bytes, except: &[SessionId]) {
        self.counters.floods += 1;
        for &session in self.sessions.by_peer().values().filter(|session| !except.contains(session)) {
            self.counters.flood_copies += 1;
            self.outbox.send(session, message.clone(), QueueClass::Control);
        }
    }
}
