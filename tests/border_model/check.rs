//! A search, breadth first, through all states that a model can reach: the first history that comes to a broken property is
//! a shortest one. Then it goes backwards from the states in which all is done: what cannot come there any more without a
//! fault is stuck. It knows nothing of the model.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What is searched.
pub(crate) trait Model {
    type State: Copy + Hash + fmt::Debug;
    type Step: Copy + fmt::Display;
    type Property: Copy + Ord;

    fn start(&self) -> Self::State;
    /// All that can happen next. Nothing happens in a broken state.
    fn next(&mut self, state: &Self::State, found: &mut Vec<(Self::Step, Self::State)>);
    /// Whether it happens only if something fails.
    fn is_fault(&self, step: Self::Step) -> bool;
    fn broken(&self, state: &Self::State) -> Option<Self::Property>;
    /// Whether nothing is left to do.
    fn is_done(&mut self, state: &Self::State) -> bool;
    /// The property that stuck states break.
    fn stuck(&self) -> Self::Property;
}

/// What was found.
pub(crate) struct Found<P> {
    pub(crate) states: usize,
    /// A shortest history for each broken property.
    pub(crate) broken: BTreeMap<P, String>,
}

/// No search may grow beyond this.
const MOST: usize = 8_000_000;

struct Search<M: Model> {
    states: Vec<M::State>,
    /// How a state was first reached.
    from: Vec<(u32, Option<M::Step>)>,
    known: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    /// Steps that are no faults: the states behind those of each state, and where they begin.
    repairs: Vec<u32>,
    begins: Vec<u32>,
}

/// Searches all of it.
pub(crate) fn search<M: Model>(model: &mut M) -> Found<M::Property> {
    let mut search = Search::<M> {
        states: Vec::new(),
        from: Vec::new(),
        known: HashMap::default(),
        repairs: Vec::new(),
        begins: Vec::new(),
    };
    let mut broken = BTreeMap::new();
    search.reach(model.start(), 0, None);
    let mut next = Vec::new();
    let mut at = 0;
    while at < search.states.len() {
        assert!(search.states.len() < MOST, "the bounds are too wide for this model");
        let state = search.states[at];
        search.begins.push(index(search.repairs.len()));
        if let Some(property) = model.broken(&state) {
            broken.entry(property).or_insert_with(|| search.history(at));
        }
        next.clear();
        model.next(&state, &mut next);
        for (step, state) in next.drain(..) {
            let to = search.reach(state, index(at), Some(step));
            if !model.is_fault(step) {
                search.repairs.push(to);
            }
        }
        at += 1;
    }
    search.begins.push(index(search.repairs.len()));
    if let Some(at) = search.stuck(model) {
        let state = format!("{}   stuck: {:?}\n", search.history(at), search.states[at]);
        broken.insert(model.stuck(), state);
    }
    Found { states: search.states.len(), broken }
}

impl<M: Model> Search<M> {
    /// The number of a state.
    fn reach(&mut self, state: M::State, from: u32, step: Option<M::Step>) -> u32 {
        let mut hasher = Fingerprint(0);
        state.hash(&mut hasher);
        let new = index(self.states.len());
        let at = *self.known.entry(hasher.finish()).or_insert(new);
        if at == new {
            self.states.push(state);
            self.from.push((from, step));
        }
        at
    }

    /// The steps to a state, one a line.
    fn history(&self, mut at: usize) -> String {
        let mut steps = Vec::new();
        while let (from, Some(step)) = self.from[at] {
            steps.push(step);
            at = from as usize;
        }
        let line = |(at, step): (usize, &M::Step)| format!("  {:2}. {step}\n", at + 1);
        steps.iter().rev().enumerate().map(line).collect()
    }

    /// The first state from which the end is not reached any more.
    fn stuck(&self, model: &mut M) -> Option<usize> {
        let count = self.states.len();
        let mut befores = vec![0_u32; count + 1];
        self.repairs.iter().for_each(|to| befores[*to as usize + 1] += 1);
        (0..count).for_each(|at| befores[at + 1] += befores[at]);
        let mut place = befores.clone();
        let mut before = vec![0_u32; self.repairs.len()];
        for at in 0..count {
            for to in &self.repairs[self.begins[at] as usize..self.begins[at + 1] as usize] {
                before[place[*to as usize] as usize] = index(at);
                place[*to as usize] += 1;
            }
        }
        let mut can_end = vec![false; count];
        let mut left = Vec::new();
        for (at, state) in self.states.iter().enumerate() {
            if model.broken(state).is_some() || model.is_done(state) {
                can_end[at] = true;
                left.push(at);
            }
        }
        while let Some(at) = left.pop() {
            for from in &before[befores[at] as usize..befores[at + 1] as usize] {
                if !std::mem::replace(&mut can_end[*from as usize], true) {
                    left.push(*from as usize);
                }
            }
        }
        can_end.iter().position(|can| !can)
    }
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("there are fewer")
}

/// 64 bits stand for a state: that two of some millions are the same is as good as excluded.
struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn write_isize(&mut self, value: isize) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 29);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("fingerprints alone")
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
