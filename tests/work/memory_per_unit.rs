//! The cost of finished units: memory for each, and the time of a start and of a list with many of them.
//! `KEPT_UNITS` sets their number (10,000). Prints its measurements with `--nocapture`.

use std::time::{Duration, Instant};

use crate::daemon::{Daemon, scratch_in_memory};

/// The most bytes of memory per unit.
const BOUND: u64 = 1024;
/// The most additional bytes after a list of all units: printing it leaves this in the allocator's free
/// lists.
const LEFT_BY_A_LIST: u64 = 64;

const LOCAL: &str =
    r#"{"State":2,"Detail":"exit status 0","StdoutSize":0,"WorkType":"ansible-runner","ExtraData":null}"#;
const REMOTE: &str = r#"{"State":3,"Detail":"exit status 2","StdoutSize":0,"WorkType":"remote","ExtraData":{"RemoteNode":"execution-1.example.com","RemoteWorkType":"ansible-runner","RemoteParams":{"params":"--private-data-dir=/tmp/awx_1234_abcdefgh --delete"},"RemoteUnitID":"abcd1234","RemoteStarted":true,"LocalCancelled":false,"LocalReleased":false,"SignWork":true,"TLSClient":"tlsclient","Expiration":"0001-01-01T00:00:00Z"}}"#;

/// The cost of a start with that many units: memory before and after a list, and the time to its answer.
fn measure(units: u32, status: &str) -> (u64, u64, Duration) {
    // Creating the units is not part of the measurement, and takes a busy disk a minute.
    let temp = scratch_in_memory();
    let dir = temp.path();
    let config = format!(
        "- node: {{id: n1, datadir: {0}/data}}\n- log-level: error\n- local-only\n\
         - control-service: {{service: control, filename: {0}/s}}\n\
         - work-command: {{worktype: ansible-runner, command: 'true'}}\n",
        dir.display()
    );
    std::fs::write(dir.join("c.yml"), config).unwrap();
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(dir.join("data/n1")).unwrap();
    for number in 0..units {
        let unit = dir.join(format!("data/n1/u{number:07}"));
        builder.create(&unit).unwrap();
        std::fs::write(unit.join("status"), status).unwrap();
    }
    let begun = Instant::now();
    let daemon = Daemon::start(dir);
    let first = daemon.ask("work status u0000000");
    assert!(units == 0 || first.contains("exit status"), "{first}");
    let loaded = daemon.memory();
    drop(daemon);
    let restarted = Instant::now();
    let daemon = Daemon::start(dir);
    let list = daemon.ask("work list");
    let took = restarted.elapsed();
    assert_eq!(list.matches("\"StateName\"").count(), units as usize);
    println!("{units} units: first start {:?}", begun.elapsed() - took);
    (loaded, daemon.memory(), took)
}

#[test]
fn a_kept_unit_costs_less_than_a_kibibyte() {
    let units: u32 = std::env::var("KEPT_UNITS").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let (none, none_listed, _) = measure(0, LOCAL);
    for (kind, status) in [("local", LOCAL), ("remote", REMOTE)] {
        let (loaded, listed, took) = measure(units, status);
        let each = |after: u64, before: u64| after.saturating_sub(before) / u64::from(units);
        let (kept, after_list) = (each(loaded, none), each(listed, none_listed));
        println!(
            "{units} {kind} units: {kept} bytes each, {after_list} after a list, which came {took:?} after start"
        );
        assert!(
            kept <= BOUND && after_list <= BOUND + LEFT_BY_A_LIST,
            "{kind}: {kept}, {after_list} after a list"
        );
    }
}
