//! Connections as backends make them: dialled with back-off, accepted, broken, closed at both ends. With datagrams
//! nobody notices that the other end is gone, and a listener opens a session at the first message from a new address.

use std::time::Duration;

use meshd_core::mesh::{LinkPolicy, SessionId};

use crate::link::{Kind, Link, State};
use crate::world::{Happening, World};

/// One dialled connection; side 0 is the dialer. Each side has its own session, or none.
pub(crate) struct Wire {
    pub link: usize,
    pub nodes: [usize; 2],
    pub sessions: [Option<SessionId>; 2],
    /// Only for streams: broken for good, though perhaps nobody has noticed.
    pub dead: bool,
    pub last_arrival: [Duration; 2],
}

impl World {
    /// Breaks the wire if it is a stream: it carries nothing from now on.
    pub(crate) fn break_wire(&mut self, id: usize, silent: bool) {
        let wire = &mut self.wires[id];
        if self.links[wire.link].kind == Kind::Stream {
            wire.dead = true;
            if !silent {
                let delay = self.links[wire.link].delay;
                for side in 0..2 {
                    self.schedule(delay, Happening::Closed { wire: id, side });
                }
            }
        }
    }

    /// Cuts a link or restores it. A stream that was cut stays dead even if the link returns.
    pub(crate) fn set_link(&mut self, link: usize, state: State) {
        self.links[link].state = state;
        let wires: Vec<usize> = (0..self.wires.len()).filter(|&id| self.wires[id].link == link).collect();
        match state {
            State::Up => {}
            State::Silent => wires.into_iter().for_each(|id| self.break_wire(id, true)),
            State::Down => wires.into_iter().for_each(|id| self.break_wire(id, false)),
        }
    }

    pub(crate) fn dial(&mut self, link: usize, side: usize) {
        let Link { nodes, kind, state, delay, .. } = self.links[link];
        let (dialer, listener) = (nodes[side], nodes[1 - side]);
        let alive = |node: usize| self.nodes[node].mesh.is_some();
        let busy = self
            .wires
            .iter()
            .any(|w| w.link == link && w.nodes == [dialer, listener] && w.sessions[0].is_some());
        if !alive(dialer) || busy {
            return;
        }
        let stream = kind == Kind::Stream;
        if stream && (state != State::Up || !alive(listener)) {
            return self.redial(link, side);
        }
        let id = self.wires.len();
        let nodes = [dialer, listener];
        let last_arrival = [self.now; 2];
        self.wires.push(Wire { link, nodes, sessions: [None; 2], dead: false, last_arrival });
        if stream {
            self.schedule(delay, Happening::Accept(id));
        }
        self.open(id, 0);
    }

    pub(crate) fn redial(&mut self, link: usize, side: usize) {
        let tries = self.back_off.entry((link, side)).or_default();
        let wait = Duration::from_secs_f64((5.0 * 1.5_f64.powi(*tries as i32)).min(20.0));
        *tries = (*tries + 1).min(10);
        self.schedule(wait, Happening::Dial { link, side });
    }

    pub(crate) fn open(&mut self, wire: usize, side: usize) {
        let session = SessionId(self.number());
        let state = &mut self.wires[wire];
        let (node, link) = (state.nodes[side], state.link);
        if state.dead || self.nodes[node].mesh.is_none() {
            return;
        }
        state.sessions[side] = Some(session);
        self.ends.insert(session, (wire, side));
        let policy = LinkPolicy { cost: self.links[link].cost, ..LinkPolicy::default() };
        let now = self.clock_of(node);
        self.with_mesh(node, |mesh| mesh.handle_session_opened(session, policy, now));
    }

    pub(crate) fn on_close(&mut self, session: SessionId) {
        let Some(&(id, side)) = self.ends.get(&session) else { return };
        self.forget_end(id, side);
        let wire = &self.wires[id];
        let (link, dialer) = (wire.link, wire.nodes[0]);
        if self.links[link].kind == Kind::Stream && !wire.dead {
            let last = wire.last_arrival[side].max(self.now + self.links[link].delay);
            self.schedule(last - self.now, Happening::Closed { wire: id, side: 1 - side });
        }
        if side == 0 {
            let side = usize::from(self.links[link].nodes[1] == dialer);
            self.redial(link, side);
        }
    }

    pub(crate) fn forget_end(&mut self, wire: usize, side: usize) {
        if let Some(session) = self.wires[wire].sessions[side].take() {
            self.ends.remove(&session);
        }
    }
}
