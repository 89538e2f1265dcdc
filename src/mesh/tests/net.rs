//! A few nodes joined by perfect links: in order, without loss, with one millisecond of delay, in virtual
//! time. Keeps a log of all messages, for tests that count.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::solo::{EPOCH, at, node};
use crate::mesh::{Event, LinkPolicy, Mesh, Now, Options, SessionId, Tick};

const DELAY: Duration = Duration::from_millis(1);

/// One message that was sent.
pub(super) struct Sent {
    pub(super) from: String,
    pub(super) message: Bytes,
}

/// The nodes and what travels between them.
#[derive(Default)]
pub(super) struct Net {
    pub(super) nodes: BTreeMap<String, Mesh>,
    pub(super) events: Vec<(String, Event)>,
    pub(super) log: Vec<Sent>,
    ends: BTreeMap<(String, SessionId), (String, SessionId)>,
    flying: VecDeque<(Duration, String, SessionId, Bytes)>,
    time: Duration,
    sessions: u64,
    born: u64,
}

impl Net {
    /// Nodes of these names, linked as given, after five seconds in which they get to know each other.
    pub(super) fn of(names: &[&str], links: &[(&str, &str)]) -> Self {
        let mut net = Self::default();
        for name in names {
            net.add(name, EPOCH);
        }
        for (a, b) in links {
            net.join(a, b);
        }
        net.run(Duration::from_secs(5));
        net
    }

    pub(super) fn add(&mut self, name: &str, epoch: u64) {
        self.add_with(name, epoch, Options::default());
    }

    pub(super) fn add_with(&mut self, name: &str, epoch: u64, options: Options) {
        self.born += 1;
        let rng = SmallRng::seed_from_u64(self.born);
        let mesh = Mesh::new(node(name), epoch, options, rng, self.now());
        self.nodes.insert(name.to_owned(), mesh);
    }

    pub(super) fn now(&self) -> Now {
        at(self.time)
    }

    pub(super) fn mesh(&mut self, name: &str) -> &mut Mesh {
        self.nodes.get_mut(name).unwrap()
    }

    /// Links two nodes; the session has the same number at both ends.
    pub(super) fn join(&mut self, a: &str, b: &str) -> SessionId {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let now = self.now();
        for (one, other) in [(a, b), (b, a)] {
            self.ends.insert((one.to_owned(), session), (other.to_owned(), session));
            self.mesh(one).handle_session_opened(session, LinkPolicy::default(), now);
        }
        session
    }

    /// Ends a session at both ends, like a connection reset.
    pub(super) fn part(&mut self, session: SessionId) {
        let now = self.now();
        self.ends.retain(|(_, s), _| *s != session);
        for mesh in self.nodes.values_mut() {
            mesh.handle_session_closed(session, now);
        }
    }

    /// Takes a node away; its neighbours notice.
    pub(super) fn remove(&mut self, name: &str) {
        let gone: Vec<SessionId> =
            self.ends.keys().filter(|(of, _)| of == name).map(|(_, session)| *session).collect();
        gone.into_iter().for_each(|session| self.part(session));
        self.nodes.remove(name);
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, by: Duration) {
        let end = self.time + by;
        loop {
            self.drain();
            let arrival = self.flying.front().map(|(when, ..)| *when);
            let timers = self.nodes.values().filter_map(|m| m.poll_timeout().map(|(due, _)| due));
            let timer = timers.min().map(Tick::since_origin);
            let Some(next) = arrival.into_iter().chain(timer).min().filter(|&next| next <= end) else {
                break;
            };
            self.time = self.time.max(next);
            self.step(arrival == Some(next));
        }
        self.time = end;
    }

    fn step(&mut self, arrival: bool) {
        let now = self.now();
        if arrival {
            let (_, to, session, message) = self.flying.pop_front().unwrap();
            if let Some(mesh) = self.nodes.get_mut(&to) {
                mesh.handle_packet(session, message, now);
            }
            return;
        }
        for mesh in self.nodes.values_mut() {
            mesh.handle_timeout(now);
        }
    }

    fn drain(&mut self) {
        let mut closed = Vec::new();
        let now = self.now();
        for (name, mesh) in &mut self.nodes {
            // Links have room for everything here.
            let behind: Vec<SessionId> = mesh.behind().collect();
            behind.into_iter().for_each(|session| mesh.handle_room(session, usize::MAX, now));
            while let Some(transmit) = mesh.poll_transmit() {
                let end = (name.clone(), transmit.session);
                self.log.push(Sent { from: name.clone(), message: transmit.message.clone() });
                if let Some((to, session)) = self.ends.get(&end) {
                    self.flying.push_back((self.time + DELAY, to.clone(), *session, transmit.message));
                }
            }
            while let Some(event) = mesh.poll_event() {
                if matches!(event, Event::Behind { .. }) {
                    continue;
                }
                if let Event::CloseSession { session, .. } = &event {
                    closed.push((name.clone(), *session));
                }
                self.events.push((name.clone(), event));
            }
        }
        let now = self.now();
        for (name, session) in closed {
            if let Some((other, session)) = self.ends.remove(&(name, session)) {
                self.ends.remove(&(other.clone(), session));
                // Messages sent before the end of a session still arrive before it.
                let (early, late) = std::mem::take(&mut self.flying)
                    .into_iter()
                    .partition(|f| f.1 == other && f.2 == session);
                self.flying = late;
                let early: VecDeque<(Duration, String, SessionId, Bytes)> = early;
                if let Some(mesh) = self.nodes.get_mut(&other) {
                    for (_, _, _, message) in early {
                        mesh.handle_packet(session, message, now);
                    }
                    mesh.handle_session_closed(session, now);
                }
            }
        }
    }

    /// The forwarding table of a node, by names.
    pub(super) fn routes(&self, of: &str) -> BTreeMap<String, String> {
        let table = self.nodes[of].routing_table();
        table.iter().map(|(to, via)| (to.to_string(), via.to_string())).collect()
    }
}
