//! Services on offer: those of other nodes as they were heard, and the own ones.
//!
//! Of two advertisements of a service the later one counts, by the date in it. A withdrawal is remembered
//! for a while: without that, a ring of nodes would pass it round for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};

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

#[derive(Debug)]
struct Heard {
    advertisement: Arc<Advertisement>,
    message: Bytes,
    /// It is dated before its node's present life, and is dropped then unless it is renewed.
    expires: Option<Tick>,
}

/// Remembered withdrawals: at most this many, the oldest is forgotten first.
const MOST_WITHDRAWN: usize = 16_384;

/// All that is on offer.
#[derive(Debug)]
pub(super) struct Adverts {
    own: NodeId,
    withdrawn_time: Duration,
    max_nodes: usize,
    max_per_node: usize,
    max_bytes: usize,
    max_own: usize,
    unrenewed_time: Duration,
    /// Length of all messages in `heard`.
    bytes: usize,
    heard: BTreeMap<NodeId, BTreeMap<ServiceName, Heard>>,
    withdrawn: BTreeMap<(NodeId, ServiceName), (Timestamp, Tick)>,
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
            max_nodes: options.max_nodes,
            max_per_node: options.max_services_per_node,
            max_bytes: options.max_table_bytes,
            max_own: options.max_own_message,
            unrenewed_time: options.unrenewed_time,
            bytes: 0,
            heard: BTreeMap::new(),
            withdrawn: BTreeMap::new(),
            offers: BTreeMap::new(),
            standing: BTreeMap::new(),
            phantoms: BTreeSet::new(),
            work_commands: Vec::new(),
            last_date: Timestamp::UNIX_EPOCH,
        }
    }

    /// Takes an advertisement heard from a neighbour, with the message in which it came. `born` is when the
    /// present life of its node began, if that is known.
    pub(super) fn receive(
        &mut self,
        heard: AdvertisementMessage,
        message: Bytes,
        born: Option<Timestamp>,
        now: Now,
    ) -> Reception {
        let AdvertisementMessage { advertisement, cancel } = heard;
        if advertisement.node_id == self.own {
            return self.receive_own(&advertisement, cancel);
        }
        let key = (advertisement.node_id.clone(), advertisement.service);
        let services = self.heard.get(&key.0);
        let current = services.and_then(|services| services.get(&key.1)).map(|h| h.advertisement.time);
        let withdrawn = self.withdrawn.get(&key).map(|(date, _)| *date);
        if current.max(withdrawn).is_some_and(|known| advertisement.time <= known) {
            return Reception::Ignore;
        }
        if cancel {
            self.forget(&key);
            self.remember_withdrawal(key, advertisement.time, now.tick);
            return Reception::PassOn { news: current.is_some() };
        }
        let full = services.map_or(self.heard.len() >= self.max_nodes, |s| s.len() >= self.max_per_node);
        if current.is_none() && (full || self.bytes + message.len() > self.max_bytes) {
            return Reception::NoRoom;
        }
        self.withdrawn.remove(&key);
        let of_the_past = born.is_some_and(|born| advertisement.time < born);
        let expires = of_the_past.then(|| now.tick + self.unrenewed_time);
        self.bytes += message.len();
        let heard = Heard { advertisement: advertisement.into(), message, expires };
        let said = heard.advertisement.clone();
        let before = self.heard.entry(key.0).or_default().insert(key.1, heard);
        if let Some(old) = &before {
            self.bytes -= old.message.len();
        }
        let same = |old: &Heard| {
            old.advertisement.conn_type == said.conn_type && old.advertisement.tags == said.tags
        };
        Reception::PassOn { news: !before.as_ref().is_some_and(same) }
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

    fn forget(&mut self, (node, service): &(NodeId, ServiceName)) {
        if let Some(services) = self.heard.get_mut(node) {
            self.bytes -= services.remove(service).map_or(0, |old| old.message.len());
            if services.is_empty() {
                self.heard.remove(node);
            }
        }
    }

    fn remember_withdrawal(&mut self, key: (NodeId, ServiceName), date: Timestamp, tick: Tick) {
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
        let services = self.heard.get_mut(node).into_iter().flat_map(BTreeMap::values_mut);
        for heard in services.filter(|heard| heard.advertisement.time < born) {
            heard.expires.get_or_insert(now + self.unrenewed_time);
        }
    }

    /// Drops what has not been renewed in time; whether anything was, and when the next one is due.
    pub(super) fn expire(&mut self, now: Tick) -> (bool, Option<Tick>) {
        let all = || self.heard.iter().flat_map(|(node, services)| services.iter().map(move |s| (node, s)));
        let dated = || all().filter_map(|(node, (service, heard))| Some((heard.expires?, node, service)));
        let next = dated().map(|(due, ..)| due).filter(|due| *due > now).min();
        let due: Vec<_> = dated().filter(|(due, ..)| *due <= now).map(|(_, n, s)| (n.clone(), *s)).collect();
        let any = !due.is_empty();
        due.into_iter().for_each(|key| self.drop_heard(key, now));
        (any, next)
    }

    /// Drops all services of a node that is gone for good.
    pub(super) fn forget_node(&mut self, node: &NodeId, now: Tick) {
        let services: Vec<ServiceName> =
            self.heard.get(node).into_iter().flatten().map(|(s, _)| *s).collect();
        services.into_iter().for_each(|service| self.drop_heard((node.clone(), service), now));
    }

    /// As if it had been withdrawn: whoever tells of it once more is not believed.
    fn drop_heard(&mut self, key: (NodeId, ServiceName), now: Tick) {
        let date = self.heard.get(&key.0).and_then(|s| Some(s.get(&key.1)?.advertisement.time));
        self.forget(&key);
        if let Some(date) = date {
            self.remember_withdrawal(key, date, now);
        }
    }

    /// Services known of others, bytes of their advertisements, withdrawals remembered.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let services = self.heard.values().map(BTreeMap::len).sum();
        (services, self.bytes, self.withdrawn.len())
    }

    /// The nodes that offered something.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.heard.keys()
    }

    /// What each node offers: service and date, the own ones as they were last told.
    pub(super) fn dates(&self) -> impl Iterator<Item = (&NodeId, ServiceName, Timestamp)> {
        let heard = self.heard.iter().flat_map(|(node, services)| {
            services.iter().map(move |(service, heard)| (node, *service, heard.advertisement.time))
        });
        let own = self.standing.iter().map(|(service, ad)| (&self.own, *service, ad.advertisement.time));
        heard.chain(own)
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

    /// What others offer, as messages to pass on.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&NodeId, &Bytes)> {
        let of = |(node, services)| {
            let services: &BTreeMap<ServiceName, Heard> = services;
            services.values().map(move |heard| (node, &heard.message))
        };
        self.heard.iter().flat_map(of)
    }

    /// All that is on offer, by node, control services first; the own ones dated now.
    pub(super) fn list(&self, now: Timestamp) -> Vec<Arc<Advertisement>> {
        let mut by_node: BTreeMap<&NodeId, Vec<Arc<Advertisement>>> = self
            .heard
            .iter()
            .map(|(node, services)| (node, services.values().map(|h| h.advertisement.clone()).collect()))
            .collect();
        let own =
            self.offers.iter().map(|(service, offer)| self.own_advertisement(*service, offer, now).into());
        by_node.entry(&self.own).or_default().extend(own);
        for services in by_node.values_mut() {
            services.sort_by_key(|ad| (!is_control(ad), ad.service));
        }
        by_node.into_values().flatten().collect()
    }
}

fn control_tags() -> BTreeMap<String, String> {
    BTreeMap::from([("type".to_owned(), CONTROL_SERVICE.to_owned())])
}

fn is_control(ad: &Advertisement) -> bool {
    ad.tags.as_ref().and_then(|tags| tags.get("type")).is_some_and(|kind| kind == CONTROL_SERVICE)
}
