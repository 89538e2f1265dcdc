//! Services: which advertisements of other nodes are believed, and the own ones.
//!
//! Of two advertisements of a service, the one with the later date counts. A withdrawal is remembered for a
//! while, because a ring of nodes would otherwise pass it round forever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use super::anti_entropy::{Digest, dated};
use super::newcomers::Newcomers;
use super::service_table::{AdKey, NewService, ServiceTable};
use super::throttle::{SlowingThrottle, Throttle};
use super::{Event, Mesh, Now, Options, SessionId, Tick};
use crate::counters::Tables;
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{Advertisement, ConnType, NodeId, ServiceName, WireError, WorkCommand};

/// The tag by which a control service is recognised.
const CONTROL_SERVICE: &str = "Control Service";

/// A service of this node, as it is advertised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalService {
    /// How it is spoken to.
    pub conn_type: ConnType,
    /// Its description.
    pub tags: BTreeMap<String, String>,
}

/// How far a date may be ahead of our clock: 200 years, so that a node whose clock starts in 1970 believes today's
/// dates. Bounded, because its node could not outdo the latest date that can be written.
const MOST_AHEAD: SignedDuration = SignedDuration::from_hours(200 * 366 * 24);

/// An advertisement whose date differs from our clock by at most this counts as sent just now: clocks differ a little.
const JUST_NOW: SignedDuration = SignedDuration::from_secs(30);

/// Between two announcements that correct what others keep saying about our services.
const CORRECTION_INTERVAL: Duration = Duration::from_secs(2);

/// Most withdrawals that are remembered. Beyond this, expired ones are dropped, or else the first by name.
const MOST_WITHDRAWN: usize = 16_384;

/// All services that are on offer, and the withdrawals that are remembered.
#[derive(Debug)]
pub(super) struct Services {
    own: NodeId,
    withdrawn_time: Duration,
    max_per_node: usize,
    max_own: usize,
    unrenewed_time: Duration,
    pub(super) remote: ServiceTable,
    withdrawn: BTreeMap<AdKey, (Timestamp, Tick)>,
    local: BTreeMap<ServiceName, LocalService>,
    /// The latest announcement of each own service, until the service changes.
    announced: BTreeMap<ServiceName, AdvertisementMessage>,
    /// Services of ours that somebody still believes in and that are to be withdrawn once more.
    phantoms: BTreeSet<ServiceName>,
    work_commands: Vec<WorkCommand>,
    /// The latest date used for our services, by us or by others: our dates only grow, whatever the clock does.
    last_date: Timestamp,
    throttle: Throttle,
    /// Limits announcements that correct what others have said.
    corrections: SlowingThrottle,
    /// The next regular round of announcements.
    next: Tick,
    pub(super) newcomers: Newcomers,
}

/// What a received advertisement asks of this node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reception {
    /// Known already.
    Ignore,
    /// Dated more than [`MOST_AHEAD`] ahead.
    Incredible,
    /// The tables have no room for it.
    NoRoom,
    /// To be passed on as it came.
    PassOn {
        /// True if it changes the service, or is the first one.
        news: bool,
    },
    /// Somebody still believes in a service of ours that we do not offer, or offer differently: all own
    /// services are to be announced soon.
    Correct,
}

/// Where an advertisement came from.
#[derive(Debug)]
pub(super) struct AdOrigin<'a> {
    /// The message in which it came.
    pub(super) message: &'a [u8],
    /// The neighbour that passed it on.
    pub(super) neighbour: &'a NodeId,
    /// When the advertising node started, if known.
    pub(super) start: Option<Timestamp>,
    /// Whether the advertising node can be reached.
    pub(super) reachable: bool,
}

impl Services {
    pub(super) fn new(own: NodeId, options: &Options, now: Tick) -> Self {
        Self {
            own,
            withdrawn_time: options.withdrawn_time,
            max_per_node: options.max_services_per_node,
            max_own: options.max_own_message,
            unrenewed_time: options.unrenewed_time,
            remote: ServiceTable::new(options),
            withdrawn: BTreeMap::new(),
            local: BTreeMap::new(),
            announced: BTreeMap::new(),
            phantoms: BTreeSet::new(),
            work_commands: Vec::new(),
            last_date: Timestamp::UNIX_EPOCH,
            throttle: Throttle::new(options.advertise_hold),
            corrections: SlowingThrottle::new(options.advertise_hold, CORRECTION_INTERVAL),
            next: now + options.advertise_interval,
            newcomers: Newcomers::new(now),
        }
    }

    /// Takes an advertisement that came from a neighbour.
    pub(super) fn receive(&mut self, ad: AdvertisementMessage, from: AdOrigin<'_>, now: Now) -> Reception {
        let AdvertisementMessage { advertisement, cancel } = ad;
        if advertisement.time.duration_since(now.wall) > MOST_AHEAD {
            return Reception::Incredible;
        }
        if advertisement.node_id == self.own {
            return self.receive_own(&advertisement, cancel);
        }
        let key = (advertisement.node_id.clone(), advertisement.service);
        let current = self.remote.get(&key).cloned();
        let date = self.remote.date(&key);
        let ahead = |date: Timestamp| date.duration_since(now.wall);
        // A withdrawal dated ahead of our clock gives way to an advertisement dated just now, by a corrected clock.
        let is_outdone =
            |date: &Timestamp| ahead(*date) > JUST_NOW && ahead(advertisement.time).abs() <= JUST_NOW;
        let withdrawn = self.withdrawn.get(&key).map(|(date, _)| *date).filter(|date| !is_outdone(date));
        if date.max(withdrawn).is_some_and(|known| advertisement.time <= known) {
            return Reception::Ignore;
        }
        if cancel {
            self.remote.remove(&key);
            self.remember_withdrawal(key, advertisement.time, now.tick);
            return Reception::PassOn { news: current.is_some() };
        }
        if !self.remote.admits(&key, from.message.len(), from.neighbour) {
            return Reception::NoRoom;
        }
        self.withdrawn.remove(&key);
        let outdated = from.start.is_some_and(|start| advertisement.time < start);
        let expires = outdated.then(|| now.tick + self.unrenewed_time);
        let same = current.is_some_and(|old| {
            old.conn_type == advertisement.conn_type
                && old.tags == advertisement.tags
                && old.work_commands == advertisement.work_commands
        });
        let AdOrigin { message, neighbour: heard_from, reachable, .. } = from;
        let new = NewService { advertisement, now: now.wall, message, heard_from, expires, reachable };
        self.remote.put(&key, new);
        Reception::PassOn { news: !same }
    }

    /// True if no advertisement or withdrawal as late is known of that service.
    pub(super) fn is_newer(&self, heard: &Advertisement) -> bool {
        let key = (heard.node_id.clone(), heard.service);
        let withdrawn = self.withdrawn.get(&key).map(|(date, _)| *date);
        self.remote.date(&key).max(withdrawn).is_none_or(|known| known < heard.time)
    }

    fn receive_own(&mut self, heard: &Advertisement, cancel: bool) -> Reception {
        let offered = self.local.contains_key(&heard.service);
        let settled = if offered { heard.time <= self.last_date } else { cancel };
        if settled || self.phantoms.len() >= self.max_per_node {
            return Reception::Ignore;
        }
        self.last_date = self.last_date.max(heard.time);
        if !offered {
            self.phantoms.insert(heard.service);
        }
        Reception::Correct
    }

    fn remember_withdrawal(&mut self, key: AdKey, date: Timestamp, tick: Tick) {
        if self.withdrawn.len() >= MOST_WITHDRAWN {
            let keep = self.withdrawn_time;
            self.withdrawn.retain(|_, (_, since)| tick.since(*since) < keep);
            if self.withdrawn.len() >= MOST_WITHDRAWN {
                self.withdrawn.pop_first();
            }
        }
        self.withdrawn.insert(key, (date, tick));
    }

    /// `node` restarted at `start`: its earlier advertisements hold only if they are renewed.
    pub(super) fn outdate(&mut self, node: &NodeId, start: Timestamp, now: Tick) {
        self.remote.outdate(node, start, now + self.unrenewed_time);
    }

    /// Nodes can be reached from now on, or no longer.
    pub(super) fn set_reachable(&mut self, nodes: &[NodeId], reachable: bool) {
        nodes.iter().for_each(|node| self.remote.set_reachable(node, reachable));
    }

    /// The dates of the services of reachable nodes, and of the own ones as they were last announced.
    pub(super) fn digest(&self) -> Digest {
        let mut digest = self.remote.digest();
        let own = self.own.hash();
        self.announced
            .iter()
            .for_each(|(service, ad)| digest.toggle(own, dated(*service, ad.advertisement.time)));
        digest
    }

    /// Drops services that were not renewed in time. Returns whether there were any, and when the next one is due.
    pub(super) fn expire(&mut self, now: Tick) -> (bool, Option<Tick>) {
        let (due, next) = self.remote.due(now);
        let any = !due.is_empty();
        due.into_iter().for_each(|key| self.drop_heard(key, now));
        (any, next)
    }

    /// Drops all services of a node that is gone for good.
    pub(super) fn forget_node(&mut self, node: &NodeId, now: Tick) {
        self.remote.of(node).into_iter().for_each(|key| self.drop_heard(key, now));
    }

    /// Drops a service as if it had been withdrawn, so a neighbour that repeats it is not believed.
    fn drop_heard(&mut self, key: AdKey, now: Tick) {
        if let Some(date) = self.remote.remove(&key) {
            self.remember_withdrawal(key, date, now);
        }
    }

    /// Notes how much is remembered.
    pub(super) fn measure(&self, tables: &mut Tables) {
        tables.services = self.remote.len() as u64;
        tables.service_bytes = self.remote.bytes() as u64;
        tables.withdrawn = self.withdrawn.len() as u64;
    }

    /// True if another node offers something.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        self.remote.knows(node)
    }

    /// Offers an own service from now on.
    ///
    /// # Errors
    /// If its advertisement would be too large; nothing changes then.
    pub(super) fn offer(
        &mut self,
        service: ServiceName,
        offer: LocalService,
        now: Timestamp,
    ) -> Result<(), WireError> {
        self.check_size(self.own_advertisement(service, &offer, now))?;
        self.announced.remove(&service);
        self.local.insert(service, offer);
        Ok(())
    }

    fn check_size(&self, advertisement: Advertisement) -> Result<(), WireError> {
        let message = AdvertisementMessage { advertisement, cancel: false }.message()?;
        if message.len() > self.max_own {
            return Err(WireError::TooLarge { what: AdvertisementMessage::WHAT, len: message.len() });
        }
        Ok(())
    }

    /// Stops offering a service; false if it was not on offer.
    pub(super) fn stop_offering(&mut self, service: ServiceName) -> bool {
        self.announced.remove(&service);
        self.local.remove(&service).is_some()
    }

    /// Sets the work types in the own control service's advertisement.
    ///
    /// # Errors
    /// If the advertisement would be too large with them; nothing changes then.
    pub(super) fn set_work_commands(
        &mut self,
        commands: Vec<WorkCommand>,
        now: Timestamp,
    ) -> Result<(), WireError> {
        let before = std::mem::replace(&mut self.work_commands, commands);
        let plain = LocalService { conn_type: ConnType::STREAM_TLS, tags: control_tags() };
        let control = self.local.iter().find(|(_, offer)| offer.tags.get("type") == plain.tags.get("type"));
        let (service, offer) = control.map_or((ServiceName::CONTROL, &plain), |(s, offer)| (*s, offer));
        if let Err(error) = self.check_size(self.own_advertisement(service, offer, now)) {
            self.work_commands = before;
            return Err(error);
        }
        self.announced.clear();
        Ok(())
    }

    /// One message for each own service, as it was last announced, so that nodes which know it do not pass it on again.
    pub(super) fn announced_messages(&mut self, now: Timestamp) -> Vec<Bytes> {
        let services: Vec<ServiceName> = self.local.keys().copied().collect();
        let message = |service| match self.announced.get(&service) {
            Some(announced) => announced.clone(),
            None => self.own_message(service, now),
        };
        services.into_iter().map(message).filter_map(|ad| ad.message().ok()).collect()
    }

    /// The own services are to be announced soon.
    pub(super) fn request_announcement(&mut self, now: Tick) {
        self.throttle.request(now);
    }

    /// When the own services are to be announced next.
    pub(super) fn due(&self) -> Tick {
        [self.throttle.due(), self.corrections.due(), self.newcomers.due()]
            .into_iter()
            .flatten()
            .fold(self.next, Tick::min)
    }

    /// True if they are to be announced now.
    pub(super) fn take_due(&mut self, now: Tick) -> bool {
        self.throttle.take(now) || self.due() <= now
    }

    /// One message for each own service, dated now, and one for each service to be withdrawn again.
    pub(super) fn own_messages(&mut self, now: Timestamp) -> Vec<AdvertisementMessage> {
        let phantoms = std::mem::take(&mut self.phantoms);
        let services: BTreeSet<ServiceName> = self.local.keys().copied().chain(phantoms).collect();
        services.into_iter().map(|service| self.own_message(service, now)).collect()
    }

    /// The message that offers or withdraws an own service. Dates grow by whole milliseconds, as controllers read them.
    pub(super) fn own_message(&mut self, service: ServiceName, now: Timestamp) -> AdvertisementMessage {
        let tick = SignedDuration::from_millis(1);
        self.last_date = now.max(self.last_date.checked_add(tick).unwrap_or(now));
        match self.local.get(&service) {
            Some(offer) => {
                let advertisement = self.own_advertisement(service, offer, self.last_date);
                let message = AdvertisementMessage { advertisement, cancel: false };
                self.announced.insert(service, message.clone());
                message
            }
            None => AdvertisementMessage {
                advertisement: Advertisement {
                    node_id: self.own.clone(),
                    service,
                    time: self.last_date,
                    conn_type: ConnType::DATAGRAM,
                    tags: None,
                    work_commands: None,
                },
                cancel: true,
            },
        }
    }

    fn own_advertisement(
        &self,
        service: ServiceName,
        offer: &LocalService,
        time: Timestamp,
    ) -> Advertisement {
        let control = offer.tags.get("type").is_some_and(|kind| kind == CONTROL_SERVICE);
        let work_commands = (control && !self.work_commands.is_empty()).then(|| self.work_commands.clone());
        Advertisement {
            node_id: self.own.clone(),
            service,
            time,
            conn_type: offer.conn_type,
            tags: Some(offer.tags.clone()),
            work_commands,
        }
    }

    /// The messages of other nodes' services after `last`, or of all if it is `None`, to be passed on.
    pub(super) fn messages_after(&self, last: Option<&AdKey>) -> impl Iterator<Item = (&AdKey, Bytes)> {
        self.remote.messages_after(last)
    }

    /// All services on offer, by node, a node's control service first; our own are dated now.
    pub(super) fn list(&self, now: Timestamp) -> Vec<Arc<Advertisement>> {
        let own =
            self.local.iter().map(|(service, offer)| self.own_advertisement(*service, offer, now).into());
        let mut all: Vec<Arc<Advertisement>> = self.remote.advertisements().cloned().chain(own).collect();
        let place = |ad: &Advertisement| (!is_control(ad), ad.service);
        all.sort_by(|a, b| a.node_id.cmp(&b.node_id).then_with(|| place(a).cmp(&place(b))));
        all
    }
}

impl Mesh {
    /// Announces a service of this node. Refused, with an [`Event::UpdateTooLarge`], if its description is too
    /// long for a link.
    pub fn advertise(&mut self, service: ServiceName, offer: LocalService, now: Now) {
        let offered = self.services.offer(service, offer, now.wall);
        self.announce_or_refuse(offered, now);
    }

    /// Replaces the work types in the control service's advertisement. Refused, with an
    /// [`Event::UpdateTooLarge`], if they are too long for a link.
    pub fn set_work_commands(&mut self, commands: Vec<WorkCommand>, now: Now) {
        let set = self.services.set_work_commands(commands, now.wall);
        self.announce_or_refuse(set, now);
    }

    fn announce_or_refuse(&mut self, changed: Result<(), WireError>, now: Now) {
        match changed {
            Ok(()) => self.services.request_announcement(now.tick),
            Err(error) => self.outbox.report(Event::UpdateTooLarge(error.into())),
        }
    }

    /// An advertisement on an established session, or on one that contests another.
    pub(super) fn handle_advertisement(
        &mut self,
        session: SessionId,
        message: Bytes,
        now: Now,
    ) -> Result<(), WireError> {
        let ad = AdvertisementMessage::parse(&message)?;
        self.confirm_alive(session);
        let node = ad.advertisement.node_id.clone();
        self.counters.advertisements_heard += 1;
        self.sessions.count(session, |stats| stats.advertisements += 1);
        self.report_flood(session, now.tick);
        let own_way = self.own_way(&node, session);
        if own_way.is_some_and(|own_way| self.withholds_service(own_way, &ad, &message)) {
            return Ok(());
        }
        let Some(neighbour) = self.sessions.peer(session).or_else(|| self.sessions.contested_peer(session))
        else {
            return Ok(());
        };
        let (start, reachable) = (self.lsdb.start_of(&node), self.lsdb.reaches(&node));
        match self.services.receive(ad, AdOrigin { message: &message, neighbour, start, reachable }, now) {
            Reception::Ignore => {}
            Reception::Incredible => {
                self.counters.malformed += 1;
                self.sessions.count(session, |stats| stats.malformed += 1);
            }
            Reception::NoRoom => {
                self.counters.no_room_for_services += 1;
                self.report_full_table(session, node);
            }
            Reception::PassOn { news } => {
                self.counters.advertisements_accepted += 1;
                self.note_if_absent(&node, now.tick);
                if news {
                    self.outbox.report(Event::OffersChanged);
                }
                if start.is_some() {
                    self.aging.sweep_by(Some(now.tick + self.options.unrenewed_time));
                }
                self.flood(&message, &[session, own_way.unwrap_or(session)]);
            }
            // Throttled, because two nodes with our ID correct each other without end.
            Reception::Correct => self.services.corrections.request(now.tick),
        }
        Ok(())
    }

    pub(super) fn flood_own_advertisements(&mut self, now: Now) {
        self.services.throttle.note_done(now.tick);
        self.services.corrections.note_done(now.tick);
        self.services.next = now.tick + self.jittered(self.options.advertise_interval);
        self.services.newcomers.note_announced(now.tick);
        for ad in self.services.own_messages(now.wall) {
            self.flood_own_advertisement(&ad);
        }
    }

    /// Withdraws a service, if it was on offer.
    pub(super) fn withdraw(&mut self, service: ServiceName, now: Now) {
        if self.services.stop_offering(service) {
            let withdrawal = self.services.own_message(service, now.wall);
            self.flood_own_advertisement(&withdrawal);
        }
    }

    fn flood_own_advertisement(&mut self, ad: &AdvertisementMessage) {
        // The size of own services was checked when they were offered.
        if let Ok(message) = ad.message() {
            self.flood(&message, &[]);
        }
    }
}

fn control_tags() -> BTreeMap<String, String> {
    BTreeMap::from([("type".to_owned(), CONTROL_SERVICE.to_owned())])
}

fn is_control(ad: &Advertisement) -> bool {
    ad.tags.as_ref().and_then(|tags| tags.get("type")).is_some_and(|kind| kind == CONTROL_SERVICE)
}
