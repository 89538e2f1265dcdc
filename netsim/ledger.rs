//! The books on datagrams: each one that is sent has a number, every copy's end is written down, and what
//! has no end at all was lost silently, which is never right.

use std::collections::BTreeMap;

use meshd_core::wire::{DATA_HEADER_LEN, DataHeader, MessageType, Problem, ServiceName, Unreachable};

/// What became of a datagram; of several copies, of one of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// It came where it should.
    Delivered,
    /// Its sender got a notice why it did not.
    Unreachable(Problem),
    /// A node counted it as undeliverable and said nothing, as the protocol has it.
    Counted,
    /// The simulator lost it, or the notice about it.
    DroppedByLink,
}

#[derive(Debug, Default)]
struct Entry {
    fates: Vec<Fate>,
    /// At which node with how many hops left it was seen.
    trail: BTreeMap<usize, u8>,
    circled: bool,
}

/// All datagrams of a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Vec<Entry>,
}

impl Ledger {
    /// Opens the books on one more datagram; its number is the service that it comes from.
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
        // A duplicate has the same hops left; one that comes round again has fewer.
        let before = *entry.trail.entry(node).or_insert(header.hops);
        entry.circled |= before != header.hops;
    }

    pub(crate) fn end(&mut self, id: usize, fate: Fate) {
        self.entries[id].fates.push(fate);
    }

    /// What became of a datagram; nothing yet if empty.
    pub(crate) fn fates(&self, id: usize) -> &[Fate] {
        &self.entries[id].fates
    }

    pub(crate) fn circled(&self, id: usize) -> bool {
        self.entries[id].circled
    }

    /// Those without any end.
    pub(crate) fn silently_lost(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|&id| self.entries[id].fates.is_empty()).collect()
    }
}
