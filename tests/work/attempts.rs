//! Attempts of jobs on other nodes: units that have no directory on their control node.

use std::time::Duration;

use meshd::controller::children::RegistryChildren;
use meshd::controller::core::{ChildEnd, Known};
use meshd::controller::driver::world::{ChildInput, ChildNews, ChildRequest, ChildStream, Children as _};
use meshd::rpc::OutputBound;
use meshd::work::{FarUnit, Leftovers, State};

use crate::harness::*;
use crate::owner::Owner;
use crate::remote::{Pair, child};

const UNIT: &str = "c000000abn1a1r00000001";

/// A shell script as an attempt.
fn script(text: &str) -> ChildRequest {
    ChildRequest { params: shlex::try_quote(text).unwrap().into_owned(), ..child(UNIT) }
}

/// Reads all output to the end.
async fn read(mut stream: Box<dyn ChildStream>) -> (Vec<u8>, ChildEnd, String) {
    let mut all = Vec::new();
    loop {
        match within(stream.next()).await {
            ChildNews::Accepted | ChildNews::Missing => {}
            ChildNews::Output(bytes) => all.extend_from_slice(&bytes),
            ChildNews::Ended { end, detail } => return (all, end, detail),
        }
    }
}

/// Reads the first `count` bytes.
async fn read_some(stream: &mut Box<dyn ChildStream>, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        if let ChildNews::Output(bytes) = within(stream.next()).await {
            all.extend_from_slice(&bytes);
        }
    }
    all
}

/// The names of the units' directories on this node.
fn directories(pair: &Pair) -> Vec<String> {
    let units = std::fs::read_dir(pair.temp.path().join("near/n1")).unwrap();
    let names = units.map(|unit| unit.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('c')).collect()
}

/// How many units the other node has.
async fn there(pair: &Pair) -> usize {
    pair.far.list(None).await.unwrap().len()
}

/// Gives this node a controller whose store keeps IDs, or is away.
async fn serve(pair: &Pair, keeps: bool) -> (RegistryChildren, Owner) {
    let owner = Owner::new(keeps);
    pair.near.serve_jobs(Box::new(owner.clone())).await;
    (RegistryChildren(pair.near.clone()), owner)
}

#[tokio::test]
async fn an_attempt_reads_its_job_s_files_and_has_no_directory_here() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let (children, _) = serve(&pair, true).await;
        let (payload, size) = (pair.temp.path().join("payload"), 3_000_000);
        std::fs::write(&payload, bytes(size)).unwrap();
        let input = ChildInput { head: b"head\n".to_vec(), files: vec![(payload.clone(), 1_000_000)] };
        let max_stdout = OutputBound { bytes: u64::MAX, setting: "x".into() };
        let request =
            ChildRequest { work_type: "cat".into(), params: String::new(), max_stdout, ..child(UNIT) };
        pair.mesh.take_down("n2");
        within(children.send(request, input)).await.unwrap();
        // The attempt has opened it, so it may be deleted before it is read.
        std::fs::remove_file(&payload).unwrap();
        assert_eq!(children.known(UNIT), Known::Here);
        pair.mesh.set("n2", pair.far.clone());
        pair.mesh.flap();
        let (output, end, _) = read(children.follow(UNIT.to_owned(), 0).await).await;
        assert!(output == [b"head\n", &bytes(size)[1_000_000..]].concat(), "{} bytes", output.len());
        assert_eq!(end, ChildEnd::Succeeded);
        assert_eq!((directories(&pair), there(&pair).await), (vec![], 1));
        assert!(pair.near.list(None).await.unwrap().is_empty(), "it is a unit to nobody here");
        assert!(pair.near.status(UNIT).await.is_err() && pair.near.results(UNIT, 0, &me()).await.is_err());
        // The output can be read again from any byte on.
        let (again, ..) = read(children.follow(UNIT.to_owned(), 2_000_000).await).await;
        assert!(again == output[2_000_000..], "{} bytes", again.len());
        assert!(within(children.release(UNIT.to_owned(), Leftovers::Stay)).await);
        assert_eq!((children.known(UNIT), there(&pair).await), (Known::Unknown, 0));
    }
}

#[tokio::test]
async fn output_goes_to_the_latest_reader_from_its_byte_on_though_links_break() {
    for go in [false, true] {
        let pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let (children, _) = serve(&pair, true).await;
        let fifo = pair.temp.path().join("fifo");
        let text = format!("seq 1000; mkfifo {0}; read x < {0}; seq 100000", fifo.display());
        within(children.send(script(&text), ChildInput::default())).await.unwrap();
        let first: String = (1..=1000).map(|n| format!("{n}\n")).collect();
        let rest: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
        let mut stream = children.follow(UNIT.to_owned(), 0).await;
        assert_eq!(read_some(&mut stream, first.len()).await, first.as_bytes());
        // The command writes nothing now, but another reader still gets the earlier output again.
        let mut again = children.follow(UNIT.to_owned(), 7).await;
        assert_eq!(read_some(&mut again, first.len() - 7).await, &first.as_bytes()[7..]);
        drop(stream);
        pair.mesh.cut();
        tokio::task::spawn_blocking(move || std::fs::write(fifo, "x\n").unwrap()).await.unwrap();
        let (output, end, _) = read(again).await;
        assert!(output == rest.as_bytes(), "{} of {}", output.len(), rest.len());
        assert_eq!(end, ChildEnd::Succeeded);
    }
}

#[tokio::test]
async fn an_attempt_that_is_sent_again_after_a_restart_is_the_same_unit_there() {
    for go in [false, true] {
        let mut pair = Pair::new().await;
        pair.mesh.pretend_go(go);
        let ran = pair.temp.path().join("ran");
        let text = format!("echo run >> {}; echo out", ran.display());
        let (children, owner) = serve(&pair, true).await;
        within(children.send(script(&text), ChildInput::default())).await.unwrap();
        // The store says that it may be there under this ID.
        let far = owner.told().kept.first().map_or_else(|| UNIT.to_owned(), |(_, far)| far.clone());
        assert_eq!(go, far != UNIT);
        drop(children);
        pair = pair.restart_near().await;
        pair.mesh.set("n2", pair.far.clone());
        pair.mesh.pretend_go(go);
        let (children, _) = serve(&pair, true).await;
        assert_eq!(children.known(UNIT), Known::Unknown);
        let far = FarUnit { id: far, may_be_released: false };
        let request = ChildRequest { far: Some(far), ..script(&text) };
        within(children.send(request, ChildInput::default())).await.unwrap();
        let (output, end, _) = read(children.follow(UNIT.to_owned(), 0).await).await;
        assert_eq!((output, end), (b"out\n".to_vec(), ChildEnd::Succeeded));
        assert_eq!(std::fs::read_to_string(&ran).unwrap(), "run\n", "it ran once");
    }
}

#[tokio::test]
async fn what_another_control_node_may_have_released_is_not_sent_again_to_a_node_that_forgets_it() {
    let mut pair = Pair::new().await;
    pair.mesh.pretend_go(true);
    let ran = pair.temp.path().join("ran");
    let text = format!("echo run >> {}", ran.display());
    let (children, owner) = serve(&pair, true).await;
    within(children.send(script(&text), ChildInput::default())).await.unwrap();
    assert_eq!(read(children.follow(UNIT.to_owned(), 0).await).await.1, ChildEnd::Succeeded);
    let far = owner.told().kept[0].1.clone();
    drop(children);
    pair = pair.restart_near().await;
    pair.far.release(&far, true, &me()).await.unwrap();
    pair.mesh.set("n2", pair.far.clone());
    pair.mesh.pretend_go(true);
    let (children, _) = serve(&pair, true).await;
    let request = ChildRequest { far: Some(FarUnit { id: far, may_be_released: true }), ..script(&text) };
    within(children.send(request, ChildInput::default())).await.unwrap();
    let mut news = children.follow(UNIT.to_owned(), 0).await;
    while !matches!(within(news.next()).await, ChildNews::Missing) {}
    assert!(children.detail(UNIT).unwrap().contains("it may have run there"), "{:?}", children.detail(UNIT));
    assert_eq!((std::fs::read_to_string(&ran).unwrap().as_str(), there(&pair).await), ("run\n", 0));
}

#[tokio::test]
async fn an_output_whose_rest_is_gone_with_its_unit_is_not_taken_for_whole() {
    let pair = Pair::new().await;
    let children = RegistryChildren(pair.near.clone());
    within(children.send(script("echo one; echo two"), ChildInput::default())).await.unwrap();
    let follow = async |from| read(children.follow(UNIT.to_owned(), from).await).await;
    assert_eq!(follow(0).await.0, b"one\ntwo\n");
    assert_eq!(follow(4).await.0, b"two\n", "its node keeps it until the release");
    within(pair.far.release(UNIT, false, &me())).await.unwrap();
    let (output, end, detail) = follow(4).await;
    assert_eq!((output.len(), end), (0, ChildEnd::Released), "{detail}");
    assert!(detail.ends_with("; the rest of its output is gone"), "{detail}");
    assert_eq!(follow(8).await.1, ChildEnd::Succeeded, "nothing of it is missing");
}

#[tokio::test]
async fn who_reads_no_longer_is_told_of_no_end_before_there_is_one() {
    let pair = Pair::new().await;
    let children = RegistryChildren(pair.near.clone());
    let go = pair.temp.path().join("go");
    let text = format!("echo one; until [ -e {} ]; do sleep .1; done; echo two", go.display());
    within(children.send(script(&text), ChildInput::default())).await.unwrap();
    let mut first = children.follow(UNIT.to_owned(), 0).await;
    while !matches!(within(first.next()).await, ChildNews::Output(_)) {}
    let mut second = children.follow(UNIT.to_owned(), 0).await;
    while !matches!(within(second.next()).await, ChildNews::Output(_)) {}
    let told = async { while first.next().await == ChildNews::Accepted {} };
    assert!(tokio::time::timeout(Duration::from_millis(200), told).await.is_err(), "it was told of an end");
    std::fs::write(go, "").unwrap();
    assert_eq!(read(second).await, (b"two\n".to_vec(), ChildEnd::Succeeded, "exit status 0".to_owned()));
    assert_eq!(read(first).await, (b"two\n".to_vec(), ChildEnd::Succeeded, "exit status 0".to_owned()));
}

#[tokio::test]
async fn a_release_that_its_node_does_not_answer_is_not_done() {
    let pair = Pair::new().await;
    let children = RegistryChildren(pair.near.clone());
    within(children.send(script("echo out"), ChildInput::default())).await.unwrap();
    let (_, end, _) = read(children.follow(UNIT.to_owned(), 0).await).await;
    assert_eq!(end, ChildEnd::Succeeded);
    pair.mesh.take_down("n2");
    assert!(!within(children.release(UNIT.to_owned(), Leftovers::End)).await);
    pair.mesh.set("n2", pair.far.clone());
    pair.mesh.flap();
    assert!(within(children.release(UNIT.to_owned(), Leftovers::End)).await);
    assert_eq!(there(&pair).await, 0);
}

#[tokio::test]
async fn the_id_that_a_node_gives_is_kept_before_the_unit_can_start_there() {
    let mut pair = Pair::new().await;
    pair.mesh.pretend_go(true);
    let (children, owner) = serve(&pair, false).await;
    let ran = pair.temp.path().join("ran");
    let text = format!("echo run >> {}; echo out", ran.display());
    within(children.send(script(&text), ChildInput::default())).await.unwrap();
    assert!(children.detail(UNIT).unwrap().contains("the store is away"), "{:?}", children.detail(UNIT));
    assert!(!ran.exists());
    owner.told().keeps = true;
    let (output, end, _) = read(children.follow(UNIT.to_owned(), 0).await).await;
    assert_eq!((output, end), (b"out\n".to_vec(), ChildEnd::Succeeded));
    let kept = owner.told().kept.clone();
    let [(unit, far)] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!((unit.as_str(), pair.far.status(far).await.unwrap().state), (UNIT, State::Succeeded));
    assert_eq!(there(&pair).await, 1, "what came there before is gone");
    // A node that takes the job over finds it by this ID.
    drop(children);
    pair = pair.restart_near().await;
    pair.mesh.set("n2", pair.far.clone());
    pair.mesh.pretend_go(true);
    let children = RegistryChildren(pair.near.clone());
    let far = FarUnit { id: far.clone(), may_be_released: true };
    let request = ChildRequest { far: Some(far), ..script(&text) };
    within(children.adopt(request)).await.unwrap();
    let (output, end, _) = read(children.follow(UNIT.to_owned(), 0).await).await;
    assert_eq!((output, end), (b"out\n".to_vec(), ChildEnd::Succeeded));
    assert!(within(children.release(UNIT.to_owned(), Leftovers::Stay)).await);
    assert_eq!(there(&pair).await, 0);
}
