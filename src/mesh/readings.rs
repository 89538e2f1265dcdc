//! Messages that many meshes in one process read: what one has read the next one takes as read, if it is the same to
//! the last byte, the name of the neighbour that passes it on aside.
//!
//! Owns which bytes say the same. A message is taken as read only if our own printing gives those bytes, so that
//! whoever passes it on under another name prints what it would have printed without this. Messages are forgotten
//! as others come. For simulations alone: a real node reads each message for itself.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::pool::Pool;
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::routing::Glance;
use crate::wire::{NodeId, RoutingUpdate, WireError};

/// An update as it came in.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) update: RoutingUpdate,
    /// Length of its message.
    pub(super) size: usize,
    text: Option<Arc<Text>>,
}

impl Received {
    /// What is read in any mesh, by itself.
    ///
    /// # Errors
    /// [`WireError::Json`] if it is no update.
    pub(super) fn parse(message: &[u8]) -> Result<Self, WireError> {
        Ok(Self { update: RoutingUpdate::parse(message)?, size: message.len(), text: None })
    }

    /// What a mesh of the pool has read before, or can be read for all of them.
    pub(super) fn shared(message: &[u8], pool: &Pool) -> Option<Self> {
        let (head, name) = Text::split(message)?;
        let forwarder = pool.roster(|names| names.find(name).and_then(|slot| names.name(slot).cloned()))?;
        let place = place(head);
        let kept = pool.readings(|readings| readings.updates.get(place)?.clone());
        let reading = match kept.filter(|reading| reading.text.head == head) {
            Some(reading) => reading,
            None => {
                let update = RoutingUpdate::parse(message).ok()?;
                if update.message().ok()? != message {
                    return None;
                }
                let text = Arc::new(Text { head: Bytes::copy_from_slice(head) });
                let reading = Arc::new(Reading { update, text });
                pool.readings(|readings| Readings::put(&mut readings.updates, place, reading.clone()));
                reading
            }
        };
        let update = RoutingUpdate { forwarding_node: forwarder, ..reading.update.clone() };
        Some(Self { update, size: message.len(), text: Some(reading.text.clone()) })
    }

    pub(super) fn glance(&self) -> Glance<'_> {
        Glance {
            node_id: self.update.node_id.as_ref().map_or("", NodeId::as_str).into(),
            epoch: self.update.epoch,
            sequence: self.update.sequence,
            forwarding_node: self.update.forwarding_node.as_str().into(),
            suspected_duplicate: self.update.suspected_duplicate,
        }
    }

    /// The message by which this node passes it on.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if no link could carry it under this name.
    pub(super) fn passed_on(self, own: &NodeId) -> Result<Bytes, WireError> {
        match self.text.and_then(|text| text.under(own)) {
            Some(message) => Ok(message),
            None => RoutingUpdate { forwarding_node: own.clone(), ..self.update }.message(),
        }
    }
}

/// Reads an advertisement, or takes it as read.
///
/// # Errors
/// [`WireError::Json`] if it is none.
pub(super) fn advertisement(message: &Bytes, pool: Option<&Pool>) -> Result<AdvertisementMessage, WireError> {
    let Some(pool) = pool else { return AdvertisementMessage::parse(message) };
    let place = place(message);
    let kept = pool.readings(|readings| readings.advertisements.get(place)?.clone());
    if let Some(kept) = kept.filter(|kept| kept.0 == message) {
        return Ok(kept.1.clone());
    }
    let read = AdvertisementMessage::parse(message)?;
    let kept = Arc::new((Bytes::copy_from_slice(message), read.clone()));
    pool.readings(|readings| Readings::put(&mut readings.advertisements, place, kept));
    Ok(read)
}

/// An update's message without the name of whoever passes it on.
#[derive(Debug, Clone)]
pub(super) struct Text {
    head: Bytes,
}

impl Text {
    const KEY: &[u8] = br#""ForwardingNode":""#;
    const TAIL: &[u8] = br#"","SuspectedDuplicate":0}"#;

    /// The text of a message as we print it, unless it says something unusual.
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        Self::split(message).map(|(head, _)| Self { head: Bytes::copy_from_slice(head) })
    }

    fn split(message: &[u8]) -> Option<(&[u8], &str)> {
        let rest = message.strip_suffix(Self::TAIL)?;
        let quote = rest.iter().rposition(|&byte| byte == b'"')?;
        let (head, name) = rest.split_at(quote + 1);
        let plain = head.ends_with(Self::KEY) && is_plain(name);
        plain.then(|| Some((head, std::str::from_utf8(name).ok()?)))?
    }

    /// The message under another name; `None` if that is not to be had by putting them together.
    pub(super) fn under(&self, name: &NodeId) -> Option<Bytes> {
        let name = name.as_str().as_bytes();
        let len = self.head.len() + name.len() + Self::TAIL.len();
        if !is_plain(name) || len > crate::wire::MAX_MESSAGE {
            return None;
        }
        let mut message = BytesMut::with_capacity(len);
        [&self.head, name, Self::TAIL].into_iter().for_each(|part| message.put_slice(part));
        Some(message.freeze())
    }
}

/// True if the name stands in JSON as it is.
fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|&byte| byte >= b' ' && byte != b'"' && byte != b'\\')
}

#[derive(Debug)]
struct Reading {
    update: RoutingUpdate,
    text: Arc<Text>,
}

/// What was read last.
#[derive(Debug, Default)]
pub(super) struct Readings {
    updates: Vec<Option<Arc<Reading>>>,
    advertisements: Vec<Option<Arc<(Bytes, AdvertisementMessage)>>>,
}

/// Messages of each kind that are kept, at most.
const PLACES: usize = 1 << 15;

/// Where a message is kept: its first bytes name the node and the version.
fn place(message: &[u8]) -> usize {
    let mut hasher = DefaultHasher::new();
    hasher.write(message.get(..128).unwrap_or(message));
    (hasher.finish() % PLACES as u64) as usize
}

impl Readings {
    fn put<T>(kept: &mut Vec<Option<Arc<T>>>, place: usize, reading: Arc<T>) {
        if kept.is_empty() {
            kept.resize_with(PLACES, || None);
        }
        kept[place] = Some(reading);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Cost;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn update(forwarder: &str, cost: f64) -> RoutingUpdate {
        RoutingUpdate {
            node_id: Some(node("n")),
            update_id: "abcdefgh".into(),
            epoch: 7,
            sequence: 9,
            connections: Arc::new([(node("ForwardingNode"), Cost::new(cost).unwrap())].into()),
            forwarding_node: node(forwarder),
            suspected_duplicate: 0,
        }
    }

    #[test]
    fn what_is_taken_as_read_is_what_would_be_read_and_passed_on() {
        let pool = Pool::default();
        let names = ["a", "b", "with \"quotes\"", "ü"];
        names.iter().for_each(|name| drop(pool.name(&node(name))));
        let mut shared = 0;
        for (forwarder, cost) in names.into_iter().flat_map(|name| [(name, 1.0), (name, 2.5), (name, 1.0)]) {
            let message = update(forwarder, cost).message().unwrap();
            let read = |received: Received| {
                assert_eq!(received.update, update(forwarder, cost));
                names.map(|own| {
                    Received { text: received.text.clone(), ..Received::parse(&message).unwrap() }
                        .passed_on(&node(own))
                        .unwrap()
                })
            };
            let plainly = read(Received::parse(&message).unwrap());
            if let Some(received) = Received::shared(&message, &pool) {
                shared += 1;
                assert_eq!(read(received), plainly);
            }
        }
        assert_eq!(shared, 9, "all but those under the name that JSON spells otherwise");
    }

    #[test]
    fn what_is_printed_otherwise_or_doubted_is_read_by_itself() {
        let pool = Pool::default();
        // One of them is called what the other one's name may be spelt like.
        ["a", "\\u0061"].iter().for_each(|name| drop(pool.name(&node(name))));
        let message = update("a", 1.0).message().unwrap();
        let text = std::str::from_utf8(&message[1..]).unwrap();
        let variants = [
            text.replace(":9,", ": 9,"),
            text.replace("Duplicate\":0", "Duplicate\":5"),
            text.replace("\"a\"", "\"\\u0061\""),
            text.replace("\"a\"", "\"stranger\""),
            text.replace("1}", "-1}"),
        ];
        for variant in variants {
            assert_ne!(variant, text);
            let message = [&message[..1], variant.as_bytes()].concat();
            assert!(Received::shared(&message, &pool).is_none(), "{variant}");
        }
        assert!(Received::shared(&message, &pool).is_some());
    }
}
