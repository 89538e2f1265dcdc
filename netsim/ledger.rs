//! A record of all datagrams: each has a number, and the end of every copy is noted. A datagram without any end was
//! lost silently, which is never right.

use std::collections::BTreeMap;

use meshd_core::wire::{DATA_HEADER_LEN, DataHeader, MessageType, Problem, ServiceName, Unreachable};

/// The end of one copy of a datagram.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It reached its receiver.
    Delivered,
    /// Its sender got a notice with the reason for the failure.
    Unreachable(Problem),
    /// A node counted it as undeliverable and sent no notice, which the protocol allows.
    Counted,
    /// A link lost it, or the notice about it.
    DroppedByLink,
}

#[derive(Debug, Default)]
struct Entry {
    fates: Vec<Fate>,
    /// The hops that it had left when each node first saw it.
    trail: BTreeMap<usize, u8>,
    circled: bool,
}

/// All datagrams of a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Records a new datagram. Returns its number, and the sending service that is named by the number.
    pub(crate) fn open(&mut self) -> (usize, ServiceName) {
        self.entries.push(Entry::default());
        let id = self.entries.len() - 1;
        (id, ServiceName::new(&format!("d{id:07x}")).expect("8 bytes"))
    }

    /// The number of the datagram that a message carries or gives notice of, with the header.
    pub(crate) fn id_of(message: &[u8]) -> Option<(usize, DataHeader)> {
        if MessageType::of(message).ok()? != MessageType::Data {
            return None;
        }
        let header = DataHeader::parse(message).ok()?;
        let service = if header.to_service == ServiceName::UNREACH {
            Unreachable::parse(&message[DATA_HEADER_LEN..]).ok()?.from_service
        } else {
            header.from_service
        };
        Some((Self::id_of_service(service)?, header))
    }

    pub(crate) fn id_of_service(service: ServiceName) -> Option<usize> {
        usize::from_str_radix(service.to_text().strip_prefix('d')?, 16).ok()
    }

    /// A message has come to a node.
    pub(crate) fn visit(&mut self, id: usize, node: usize, header: &DataHeader) {
        if header.to_service == ServiceName::UNREACH {
            return;
        }
        let entry = &mut self.entries[id];
        // A duplicate has the same hops left; a datagram that circled has fewer.
        let before = *entry.trail.entry(node).or_insert(header.hops);
        entry.circled |= before != header.hops;
    }

    pub(crate) fn end(&mut self, id: usize, fate: Fate) {
        self.entries[id].fates.push(fate);
    }

    /// All ends of a datagram's copies so far.
    pub(crate) fn fates(&self, id: usize) -> &[Fate] {
        &self.entries[id].fates
    }

    pub(crate) fn circled(&self, id: usize) -> bool {
        self.entries[id].circled
    }

    /// The datagrams without any end.
    pub(crate) fn silently_lost(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|&id| self.entries[id].fates.is_empty()).collect()
    }
}
