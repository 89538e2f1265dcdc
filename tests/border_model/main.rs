//! A model of the border between a controller and its instances, searched state by state.
//!
//! Two control nodes, one instance, one store, one job of at most two attempts. Between any two steps something may fail, as
//! often as a `Scope` says. The rules are parameters: those of before must break as they did, and those of now must hold.
//! Rows of the job are the product's own (`controller::core`); leases, copies of outputs and the instance are modelled here.
//! docs/adr/0030-border-model.md says what is modelled and what is not.
//!
//! - `rules`: what differs between searches; `world`: the state; `step`: what can happen, in words.
//! - `border`: what happens; of it `owner`: attempts, `units`: what clients see. `rows`: the job. `check`: the search.
//! - `ticks`: a model of its own, of the schedule that two control nodes keep.

#![allow(missing_docs, reason = "a test target: its items are explained where the name does not")]

mod border;
mod check;
mod owner;
mod rows;
mod rules;
mod step;
mod ticks;
mod units;
mod world;

use std::time::Instant;

use border::Border;
use rules::Property::{NothingStays, OneEnd, OneRun, OwnersStay, WholeAtOwner, WholeElsewhere};
use rules::{
    Commits, Compare, End, Fault, Flush, Lease, Mismatch, Property, Release, Released, Rules, Scope, Send,
    Unknown,
};

const CRASH: &[Fault] = &[Fault::Crash];
const CUT: &[Fault] = &[Fault::Cut];
const PAUSE: &[Fault] = &[Fault::Pause];
const CLOCK_STEP: &[Fault] = &[Fault::ClockStep];
const LOST_ANSWER: &[Fault] = &[Fault::LostAnswer];
const DELAY: &[Fault] = &[Fault::Delay];
const CANCEL: &[Fault] = &[Fault::Cancel];
const LOST_COMMITS: &[Fault] = &[Fault::LostCommits];
/// What the rules of now bear together.
const ALL: &[Fault] = &[
    Fault::Crash,
    Fault::Cut,
    Fault::Pause,
    Fault::ClockStep,
    Fault::LostAnswer,
    Fault::Delay,
    Fault::Cancel,
];

const fn scope(faults: &'static [Fault], budget: u8) -> Scope {
    Scope { faults, budget, retries: 0, tells: 1 }
}

/// The runner may be killed before it tells of success, and the job is retried: copies of its output differ in what they
/// have of the first attempt.
const fn retried(faults: &'static [Fault], budget: u8) -> Scope {
    Scope { faults, budget, retries: 1, tells: 2 }
}

/// The properties that break, each with a shortest history, which is printed.
fn broken(name: &str, rules: Rules, scope: Scope) -> Vec<(Property, String)> {
    let begun = Instant::now();
    let found = check::search(&mut Border::new(rules, scope));
    println!("\n{name}: {} states, {:.1} s", found.states, begun.elapsed().as_secs_f64());
    for (property, history) in &found.broken {
        println!("{property:?} breaks:\n{history}");
    }
    assert!(found.states > 200, "{name}: hardly anything was searched");
    found.broken.into_iter().collect()
}

fn properties(found: &[(Property, String)]) -> Vec<Property> {
    found.iter().map(|(property, _)| *property).collect()
}

/// Each kind of fault alone, once, and what it breaks in which way.
#[test]
fn the_former_rules_break_as_they_did() {
    /// What fails, and each property that breaks, with a step of its history.
    type Case = (&'static str, &'static [Fault], &'static [(Property, &'static str)]);
    const GIVES_UP: &str = "c1's unit has waited a minute";
    const NO_CHILD: &str = "c2 finds no child any more";
    const STALE_SEND: &str = "c1 sends unit 1\n";
    let cases: [Case; 9] = [
        ("H5, and an empty output", CUT, &[(WholeAtOwner, NO_CHILD), (WholeElsewhere, GIVES_UP)]),
        ("M7, and an empty output", CRASH, &[(WholeAtOwner, NO_CHILD), (WholeElsewhere, GIVES_UP)]),
        (
            "M8: a second run, or one that nobody ends",
            PAUSE,
            &[
                (WholeAtOwner, NO_CHILD),
                (WholeElsewhere, GIVES_UP),
                (OneRun, STALE_SEND),
                (NothingStays, STALE_SEND),
            ],
        ),
        ("M5", CLOCK_STEP, &[(OwnersStay, "c2 takes the job over")]),
        ("a released unit runs again", DELAY, &[(OneRun, "unit 1 arrives at e1")]),
        ("nothing", LOST_ANSWER, &[]),
        ("nothing", CANCEL, &[]),
        ("nothing", &[Fault::Kill], &[]),
        (
            "a second run, unknown to the store",
            LOST_COMMITS,
            &[(OneEnd, "the store loses"), (OneRun, "c1 sends unit 2"), (NothingStays, "the store loses")],
        ),
    ];
    for (name, faults, expected) in cases {
        let found = broken(&format!("before, {faults:?}: {name}"), Rules::former(), scope(faults, 1));
        let expected_properties: Vec<_> = expected.iter().map(|(property, _)| *property).collect();
        assert_eq!(properties(&found), expected_properties, "{name}");
        for ((property, history), (_, step)) in found.iter().zip(expected) {
            assert!(history.contains(step), "{property:?} breaks in another way:\n{history}");
        }
    }
}

#[test]
fn the_rules_of_now_hold_whatever_fails() {
    assert_eq!(broken("now", Rules::now(), scope(ALL, 3)), []);
}

#[test]
fn the_rules_of_now_hold_for_a_job_that_is_retried() {
    let faults = &[Fault::Kill, Fault::Crash, Fault::Cut];
    assert_eq!(broken("now, retried", Rules::now(), retried(faults, 2)), []);
}

#[test]
fn the_rules_of_now_hold_through_power_cuts() {
    let faults = &[Fault::PowerCut, Fault::Crash, Fault::Cut];
    assert_eq!(broken("now, with power cuts", Rules::now(), scope(faults, 2)), []);
}

#[test]
fn the_rules_of_now_hold_if_the_store_loses_commits() {
    let faults = &[Fault::LostCommits, Fault::Crash, Fault::Cut, Fault::Pause];
    assert_eq!(broken("now, with lost commits", Rules::now(), scope(faults, 2)), []);
}

/// It need not be refused to who released it himself, as long as none of his submissions is still on its way.
#[test]
fn a_released_unit_is_refused_to_its_former_owner_at_least() {
    let rules = Rules { released: Released::RefusedToSenders, ..Rules::now() };
    let faults = &[Fault::Crash, Fault::Cut, Fault::Pause, Fault::LostAnswer, Fault::Cancel];
    assert_eq!(broken("refused to senders", rules, scope(faults, 2)), []);
    let forgotten = Rules { released: Released::Forgotten, ..rules };
    let found = broken("released and forgotten", forgotten, scope(&[Fault::Pause, Fault::LostAnswer], 2));
    assert_eq!(properties(&found), [OneRun]);
}

/// A Go node promises nothing and forgets released IDs. What is sent again after a release runs again there, so answers
/// come here. An operator is asked about what may be on its way.
#[test]
fn a_node_that_promises_nothing_runs_nothing_twice() {
    let rules = Rules { unknown: Unknown::Nothing, released: Released::Forgotten, ..Rules::now() };
    let faults = &[Fault::Crash, Fault::Cut, Fault::Pause, Fault::ClockStep, Fault::Cancel];
    assert_eq!(broken("a Go node", rules, scope(faults, 2)), []);
    let read = Rules { send: Send::AfterRead, ..rules };
    let found = broken("a Go node, a read before a send", read, scope(PAUSE, 1));
    assert_eq!(properties(&found), [OneRun, NothingStays]);
}

/// Each alone changed back.
#[test]
fn each_rule_of_now_is_needed() {
    let now = Rules::now();
    let killed = retried(&[Fault::Kill], 1);
    let cases: [(&str, Rules, Scope, &[Property]); 10] = [
        ("patience", Rules { end: End::Patience, ..now }, scope(CUT, 1), &[WholeAtOwner, WholeElsewhere]),
        ("release", Rules { release: Release::ThenNoted, ..now }, scope(CRASH, 1), &[WholeAtOwner]),
        ("length", Rules { compare: Compare::Length, ..now }, killed, &[WholeElsewhere]),
        ("mismatch", Rules { mismatch: Mismatch::Stays, ..now }, killed, &[NothingStays]),
        (
            "flush",
            Rules { flush: Flush::Sometime, ..now },
            scope(&[Fault::PowerCut], 1),
            &[WholeAtOwner, WholeElsewhere, NothingStays],
        ),
        ("unknown", Rules { unknown: Unknown::Believed, ..now }, scope(PAUSE, 1), &[OneRun, NothingStays]),
        (
            "in memory",
            Rules { unknown: Unknown::PromisedInMemory, ..now },
            scope(&[Fault::Pause, Fault::Crash], 2),
            &[OneRun, NothingStays],
        ),
        ("released", Rules { released: Released::Forgotten, ..now }, scope(DELAY, 1), &[OneRun]),
        ("clock", Rules { lease: Lease::Clock, ..now }, scope(CLOCK_STEP, 1), &[OwnersStay]),
        (
            "commits",
            Rules { commits: Commits::Asynchronous, ..now },
            scope(LOST_COMMITS, 1),
            &[OneEnd, OneRun, NothingStays],
        ),
    ];
    for (name, rules, scope, expected) in cases {
        let found = broken(&format!("without a rule: {name}"), rules, scope);
        assert_eq!(properties(&found), expected, "{name}");
    }
}
