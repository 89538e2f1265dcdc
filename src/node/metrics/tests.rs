//! What an exporter is told, by a recorder that keeps everything.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use metrics::atomics::AtomicU64;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use super::*;
use crate::mesh::Told;
use crate::wire::{Cost, NodeId};

#[derive(Default)]
struct Kept {
    numbers: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    described: Mutex<Vec<String>>,
}

impl Kept {
    fn number(&self, key: &Key) -> Arc<AtomicU64> {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = labels.fold(key.name().to_owned(), |name, label| name + &label);
        self.numbers.lock().unwrap().entry(name).or_default().clone()
    }

    fn described(&self, name: &KeyName) {
        self.described.lock().unwrap().push(name.as_str().to_owned());
    }

    fn count(&self, name: &str) -> Option<u64> {
        Some(self.numbers.lock().unwrap().get(name)?.load(Ordering::Relaxed))
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described(&name);
    }
    fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described(&name);
    }
    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
        self.described(&name);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.number(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.number(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn link(session: u64, bytes_out: u64) -> LinkStatus {
    LinkStatus {
        node_id: NodeId::new("peer").unwrap(),
        session,
        transport: "tcp",
        address: String::new(),
        cost: Cost::DEFAULT,
        probed: true,
        rtt: None,
        probe_loss: 0.0,
        queued_bytes: 0,
        dropped: 0,
        packets_in: 0,
        bytes_in: 0,
        packets_out: 0,
        bytes_out,
        told: Told::default(),
    }
}

#[test]
fn every_number_is_told_under_a_name_that_is_explained() {
    let kept = Kept::default();
    metrics::with_local_recorder(&kept, || {
        let counters = Counters { floods: 7, ..Counters::default() };
        let status = Status { counters, ..Status::default() };
        let queues = Queues { service_dropped: 3, ..Queues::default() };
        Publisher::new().tell(&status, &[link(1, 100)], queues);
    });
    assert_eq!(kept.count("meshd_floods_total"), Some(7));
    assert_eq!(kept.count("meshd_services_dropped_total"), Some(3));
    assert_eq!(kept.count("meshd_link_bytes_out_total peer=peer transport=tcp"), Some(100));
    let described = kept.described.lock().unwrap();
    for name in kept.numbers.lock().unwrap().keys() {
        let name = name.split(' ').next().unwrap_or_default();
        assert_eq!(described.iter().filter(|known| *known == name).count(), 1, "{name}");
    }
}

#[test]
fn a_link_counts_on_over_its_sessions() {
    let kept = Kept::default();
    metrics::with_local_recorder(&kept, || {
        let mut publisher = Publisher::new();
        for links in [vec![link(1, 100)], vec![link(1, 150)], vec![], vec![link(2, 30)], vec![link(2, 30)]] {
            publisher.tell(&Status::default(), &links, Queues::default());
        }
        assert_eq!(publisher.told.len(), 1, "ended sessions are forgotten");
    });
    assert_eq!(kept.count("meshd_link_bytes_out_total peer=peer transport=tcp"), Some(180));
}
