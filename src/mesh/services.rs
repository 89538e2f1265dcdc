//! Services on offer: which advertisements of other nodes are believed, and the own ones.
//!
//! Of two advertisements of a service the later one counts, by the date in it. A withdrawal is remembered
//! for a while: without that, a ring of nodes would pass it round for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

use super::service_table::{HeardTable, Key};
use super::status::Offers;
use super::{Now, Options, Tick};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{Advertisement, ConnType, NodeId, ServiceName, WireError, WorkCommand};

/// The tag by which a control service is recognised.
const CONTROL_SERVICE: &str = "Control Service";

/// An own service, as it is advertised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// How it is spoken to.
    pub conn_type: ConnType,
    /// Its description.
    pub tags: BTreeMap<String, String>,
}

/// The furthest that a date may be ahead of our clock: 200 years, so that a clock which starts in 1970 believes in
/// today. The latest date that can be written would stay for good: its node could say nothing later.
const MOST_AHEAD: SignedDuration = SignedDuration::from_hours(200 * 366 * 24);

/// Remembered withdrawals: at most this many, the oldest is forgotten first.
const MOST_WITHDRAWN: usize = 16_384;

/// All that is on offer.
#[derive(Debug)]
pub(super) struct Adverts {
    own: NodeId,
    withdrawn_time: Duration,
    max_per_node: usize,
    max_own: usize,
    unrenewed_time: Duration,
    heard: HeardTable,
    withdrawn: BTreeMap<Key, (Timestamp, Tick)>,
    offers: BTreeMap<ServiceName, Offer>,
    /// What was last told of each own service, as long as it still holds.
    standing: BTreeMap<ServiceName, AdvertisementMessage>,
    /// Services of ours that somebody still believes in and that are to be withdrawn once more.
    phantoms: BTreeSet<ServiceName>,
    work_commands: Vec<WorkCommand>,
    /// The latest date that an own advertisement carried: they only grow, whatever the clock does.
    last_date: Timestamp,
}

/// What a received advertisement asks of this node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reception {
    /// Known already.
    Ignore,
    /// Dated so far ahead that its node could never correct it.
    Incredible,
    /// Beyond the bounds.
    NoRoom,
    /// To be passed on as it came.
    PassOn {
        /// True if it says more than that the service is still there.
        news: bool,
    },
    /// Somebody still believes in a service of ours that we do not offer, or not like that: all own
    /// services are to be told soon.
    Correct,
}

impl Adverts {
    pub(super) fn new(own: NodeId, options: &Options) -> Self {
        Self {
            own,
            withdrawn_time: options.withdrawn_time,
            max_per_node: options.max_services_per_node,
            max_own: options.max_own_message,
            unrenewed_time: options.unrenewed_time,
            heard: HeardTable::new(options),
            withdrawn: BTreeMap::new(),
            offers: BTreeMap::new(),
            standing: BTreeMap::new(),
            phantoms: BTreeSet::new(),
            work_commands: Vec::new(),
            last_date: Timestamp::UNIX_EPOCH,
        }
    }

    /// Takes an advertisement heard from the neighbour `teller`, with the message in which it came. `born` is when the
    /// present life of its node began, if that is known.
    pub(super) fn receive(
        &mut self,
        heard: AdvertisementMessage,
        message: &[u8],
        teller: &NodeId,
        born: Option<Timestamp>,
        now: Now,
    ) -> Reception {
        let AdvertisementMessage { advertisement, cancel } = heard;
        if advertisement.time.duration_since(now.wall) > MOST_AHEAD {
            return Reception::Incredible;
        }
        if advertisement.node_id == self.own {
            return self.receive_own(&advertisement, cancel);
        }
        let key = (advertisement.node_id.clone(), advertisement.service);
        let current = self.heard.get(&key).cloned();
        let date = current.as_ref().map(|current| current.advertisement.time);
        let withdrawn = self.withdrawn.get(&key).map(|(date, _)| *date);
        if date.max(withdrawn).is_some_and(|known| advertisement.time <= known) {
            return Reception::Ignore;
        }
        if cancel {
            self.heard.remove(&key);
            self.remember_withdrawal(key, advertisement.time, now.tick);
            return Reception::PassOn { news: current.is_some() };
        }
        if !self.heard.admits(&key, message.len(), teller) {
            return Reception::NoRoom;
        }
        self.withdrawn.remove(&key);
        let of_the_past = born.is_some_and(|born| advertisement.time < born);
        let expires = of_the_past.then(|| now.tick + self.unrenewed_time);
        let same = current.is_some_and(|old| {
            let old = &old.advertisement;
            old.conn_type == advertisement.conn_type && old.tags == advertisement.tags
        });
        self.heard.put(&key, advertisement, message, teller, expires);
        Reception::PassOn { news: !same }
    }

    fn receive_own(&mut self, heard: &Advertisement, cancel: bool) -> Reception {
        let offered = self.offers.contains_key(&heard.service);
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

    fn remember_withdrawal(&mut self, key: Key, date: Timestamp, tick: Tick) {
        if self.withdrawn.len() >= MOST_WITHDRAWN {
            let keep = self.withdrawn_time;
            self.withdrawn.retain(|_, (_, since)| tick.since(*since) < keep);
            if self.withdrawn.len() >= MOST_WITHDRAWN {
                self.withdrawn.pop_first();
            }
        }
        self.withdrawn.insert(key, (date, tick));
    }

    /// A new life of `node` began at `born`: what it said in an earlier one holds only if it is renewed.
    pub(super) fn outlive(&mut self, node: &NodeId, born: Timestamp, now: Tick) {
        self.heard.outdate(node, born, now + self.unrenewed_time);
    }

    /// Drops what has not been renewed in time; whether anything was, and when the next one is due.
    pub(super) fn expire(&mut self, now: Tick) -> (bool, Option<Tick>) {
        let (due, next) = self.heard.due(now);
        let any = !due.is_empty();
        due.into_iter().for_each(|key| self.drop_heard(key, now));
        (any, next)
    }

    /// Drops all services of a node that is gone for good.
    pub(super) fn forget_node(&mut self, node: &NodeId, now: Tick) {
        self.heard.of(node).into_iter().for_each(|key| self.drop_heard(key, now));
    }

    /// As if it had been withdrawn: whoever tells of it once more is not believed.
    fn drop_heard(&mut self, key: Key, now: Tick) {
        if let Some(gone) = self.heard.remove(&key) {
            self.remember_withdrawal(key, gone.advertisement.time, now);
        }
    }

    /// Services known of others, bytes of their advertisements, withdrawals remembered.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        (self.heard.len(), self.heard.bytes(), self.withdrawn.len())
    }

    /// True if another node has offered something.
    pub(super) fn knows(&self, node: &NodeId) -> bool {
        self.heard.knows(node)
    }

    /// When each service of other nodes was dated last.
    pub(super) fn dates(&self) -> impl Iterator<Item = (&Key, Timestamp)> {
        self.heard.iter().map(|(key, offered)| (key, offered.advertisement.time))
    }

    /// The date of one of them.
    pub(super) fn date_of(&self, key: &Key) -> Option<Timestamp> {
        self.heard.get(key).map(|offered| offered.advertisement.time)
    }

    /// The own services as they were last told, with their dates.
    pub(super) fn own_dates(&self) -> impl Iterator<Item = (ServiceName, Timestamp)> {
        self.standing.iter().map(|(service, ad)| (*service, ad.advertisement.time))
    }

    /// Offers an own service from now on.
    ///
    /// # Errors
    /// If its advertisement would be too large; nothing changes then.
    pub(super) fn offer(
        &mut self,
        service: ServiceName,
        offer: Offer,
        now: Timestamp,
    ) -> Result<(), WireError> {
        self.check_size(self.own_advertisement(service, &offer, now))?;
        self.standing.remove(&service);
        self.offers.insert(service, offer);
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
        self.standing.remove(&service);
        self.offers.remove(&service).is_some()
    }

    /// The work types that the own control service tells of.
    ///
    /// # Errors
    /// If the advertisement would be too large with them; nothing changes then.
    pub(super) fn set_work_commands(
        &mut self,
        commands: Vec<WorkCommand>,
        now: Timestamp,
    ) -> Result<(), WireError> {
        let before = std::mem::replace(&mut self.work_commands, commands);
        let plain = Offer { conn_type: ConnType::STREAM_TLS, tags: control_tags() };
        let control = self.offers.iter().find(|(_, offer)| offer.tags.get("type") == plain.tags.get("type"));
        let (service, offer) = control.map_or((ServiceName::CONTROL, &plain), |(s, offer)| (*s, offer));
        if let Err(error) = self.check_size(self.own_advertisement(service, offer, now)) {
            self.work_commands = before;
            return Err(error);
        }
        self.standing.clear();
        Ok(())
    }

    /// One message for each own service, as it was last told: those who know it need not hear of it again.
    pub(super) fn standing_messages(&mut self, now: Timestamp) -> Vec<AdvertisementMessage> {
        let services: Vec<ServiceName> = self.offers.keys().copied().collect();
        let message = |service| match self.standing.get(&service) {
            Some(standing) => standing.clone(),
            None => self.own_message(service, now),
        };
        services.into_iter().map(message).collect()
    }

    /// One message for each own service, dated now, and one for each that has to be withdrawn again.
    pub(super) fn own_messages(&mut self, now: Timestamp) -> Vec<AdvertisementMessage> {
        let phantoms = std::mem::take(&mut self.phantoms);
        let services: BTreeSet<ServiceName> = self.offers.keys().copied().chain(phantoms).collect();
        services.into_iter().map(|service| self.own_message(service, now)).collect()
    }

    /// The message that says how an own service stands: on offer, or withdrawn.
    pub(super) fn own_message(&mut self, service: ServiceName, now: Timestamp) -> AdvertisementMessage {
        let tick = SignedDuration::from_nanos(1);
        self.last_date = now.max(self.last_date.checked_add(tick).unwrap_or(now));
        match self.offers.get(&service) {
            Some(offer) => {
                let advertisement = self.own_advertisement(service, offer, self.last_date);
                let message = AdvertisementMessage { advertisement, cancel: false };
                self.standing.insert(service, message.clone());
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

    fn own_advertisement(&self, service: ServiceName, offer: &Offer, time: Timestamp) -> Advertisement {
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

    /// What others offer after that one, or from the first one on, as messages to pass on.
    pub(super) fn messages_after(&self, last: Option<&Key>) -> impl Iterator<Item = (&Key, Bytes)> {
        self.heard.after(last).map(|(key, offered)| (key, offered.message.clone()))
    }

    /// What others offer, as messages to pass on.
    pub(super) fn messages(&self, wanted: impl Fn(&NodeId) -> bool) -> impl Iterator<Item = Bytes> {
        let heard = self.heard.iter().filter(move |((node, _), _)| wanted(node));
        heard.map(|(_, offered)| offered.message.clone())
    }

    /// All that is on offer, by node, control services first; the own ones dated now.
    pub(super) fn list(&self, now: Timestamp) -> Offers {
        let mut all = self.heard.listed().clone();
        for (service, offer) in &self.offers {
            let own = self.own_advertisement(*service, offer, now);
            all.set(place(&own), own.into());
        }
        all
    }
}

fn control_tags() -> BTreeMap<String, String> {
    BTreeMap::from([("type".to_owned(), CONTROL_SERVICE.to_owned())])
}

/// Where an advertisement stands in a list.
pub(super) fn place(ad: &Advertisement) -> (NodeId, bool, ServiceName) {
    (ad.node_id.clone(), !is_control(ad), ad.service)
}

fn is_control(ad: &Advertisement) -> bool {
    ad.tags.as_ref().and_then(|tags| tags.get("type")).is_some_and(|kind| kind == CONTROL_SERVICE)
}
