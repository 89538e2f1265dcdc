//! The fuzz targets: one function for each parser of bytes from a peer, a client or a file. The fuzzer and
//! the property tests of CI call the same functions; a panic is a finding.
//!
//! Each function also checks an invariant of accepted input, usually that printing and parsing it again gives
//! the same value.

pub(crate) mod pods;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use meshd::controller::header::Header;
use meshd::controller::stream::{KwargsChange, Submission, WorkerOutput};
use meshd::mesh::{LinkPolicy, LocalService, Mesh, Now, Options, SessionId, Tick};
use meshd::rpc::request::Request;
use meshd::tls::{Facts, Names};
use meshd::wire::advertisement::AdvertisementMessage;
use meshd::wire::frame;
use meshd::wire::{ConnType, DataHeader, MessageType, NodeId, RoutingUpdate, ServiceName};
use meshd::work::signing::{Subject, Verifier};
use meshd::work::status::Status;

/// A target.
pub(crate) type Target = fn(&[u8]);

/// All targets by name, which is also the name of their corpus directory.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("frame", frame),
    ("data_header", data_header),
    ("routing_update", routing_update),
    ("advertisement", advertisement),
    ("control_line", control_line),
    ("configuration", configuration),
    ("status_file", status_file),
    ("token", token),
    ("certificate_names", certificate_names),
    ("operations", operations),
    ("job_header", job_header),
    ("submission", submission),
    ("worker_output", worker_output),
    ("log_stream", pods::log_stream),
    ("attach_stream", pods::attach_stream),
    ("pod_status", pods::pod_status),
    ("kubeconfig", pods::kubeconfig),
];

/// Frames come out of a buffer whole, however it was filled.
pub(crate) fn frame(data: &[u8]) {
    let cut = data.len() / 2;
    let mut whole = BytesMut::from(data);
    let mut pieces = BytesMut::from(&data[..cut]);
    let mut first: Vec<BytesMut> = std::iter::from_fn(|| frame::next_message(&mut pieces)).collect();
    pieces.extend_from_slice(&data[cut..]);
    first.extend(std::iter::from_fn(|| frame::next_message(&mut pieces)));
    let all: Vec<BytesMut> = std::iter::from_fn(|| frame::next_message(&mut whole)).collect();
    assert_eq!(all, first);
    assert_eq!(whole, pieces);
    let used: usize = all.iter().map(|message| message.len() + frame::PREFIX_LEN).sum();
    assert_eq!(used + whole.len(), data.len());
    for message in all {
        assert_eq!(
            frame::prefix(message.len()).map(|p| usize::from(u16::from_le_bytes(p))),
            Some(message.len())
        );
    }
}

/// A header prints as it was read.
pub(crate) fn data_header(data: &[u8]) {
    let kind = MessageType::of(data);
    if let Ok(header) = DataHeader::parse(data) {
        let printed = header.message(&data[meshd::wire::DATA_HEADER_LEN..]);
        assert_eq!(DataHeader::parse(&printed).expect("just printed"), header);
        assert!(kind.is_err() || printed[36..] == data[36..]);
        let _shown = (header.from_service.to_text(), header.to_service.to_text());
    }
}

/// An accepted update has the same meaning when it is forwarded.
pub(crate) fn routing_update(data: &[u8]) {
    if let Ok(update) = RoutingUpdate::parse(data)
        && let Ok(message) = update.message()
    {
        assert_eq!(RoutingUpdate::parse(&message).expect("just printed"), update);
    }
}

/// The same for advertisements.
pub(crate) fn advertisement(data: &[u8]) {
    if let Ok(ad) = AdvertisementMessage::parse(data)
        && let Ok(message) = ad.message()
    {
        assert_eq!(AdvertisementMessage::parse(&message).expect("just printed"), ad);
    }
}

/// Lines become requests, or errors that fit on one line.
pub(crate) fn control_line(data: &[u8]) {
    match Request::parse(data) {
        Ok(request) => assert!(!request.name().is_empty()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Files become configurations or errors.
pub(crate) fn configuration(data: &[u8]) {
    let folder = tempfile::tempdir().expect("room for a file");
    let file = folder.path().join("fuzz.yml");
    std::fs::write(&file, data).expect("room for a file");
    let args = vec!["--config".to_owned(), file.display().to_string()];
    match meshd::config::load(args, &meshd::config::Environment::of_process()) {
        Ok(_) => {}
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}

/// An accepted status is written and read back unchanged.
pub(crate) fn status_file(data: &[u8]) {
    match Status::parse(data) {
        Ok(status) => {
            let line = status.to_line();
            let again = Status::parse(&line).expect("just printed");
            assert_eq!(again.to_line(), line);
            let _shown = (status.report(true), status.report(false));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Signatures are accepted or rejected with a reason; a token that is accepted twice has no ID of its own.
pub(crate) fn token(data: &[u8]) {
    static VERIFIER: LazyLock<Verifier> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("room for a file");
        let file = folder.path().join("work.pub");
        std::fs::write(&file, include_str!("../../../certs/work.pub")).expect("room for a file");
        Verifier::open(&file, NodeId::new("execution").expect("valid")).expect("a good key")
    });
    let text = String::from_utf8_lossy(data);
    let params = BTreeMap::from([("params".to_owned(), "x".to_owned())]);
    let submission = Subject { work_type: Some("cat"), params: Some(&params), ..Subject::default() };
    let about_unit = Subject { unit: Some("abcdefgh"), ..Subject::default() };
    for subject in [submission, about_unit] {
        if let Err(refusal) = VERIFIER.verify(&text, &subject) {
            assert!(!refusal.to_string().is_empty());
        }
    }
}

/// The contents of a certificate or request are safe to print on a terminal, and the same for every caller.
pub(crate) fn certificate_names(data: &[u8]) {
    if let Ok(facts) = Facts::of(data) {
        assert_eq!(Names::of(data).as_ref(), Ok(&facts.names));
        shown(&facts.names);
        assert!(!facts.issuer.contains(char::is_control));
    }
    if let Ok(names) = Names::of_request(data) {
        shown(&names);
    }
}

fn shown(names: &Names) {
    assert_eq!(names.is_empty(), names.to_string().starts_with("none"), "{names}");
    assert!(!names.to_string().contains(char::is_control), "{names:?}");
}

/// The bytes are a small program for the core: sessions, messages, time, services. The core's output must
/// stay bounded, and it must always know its next timeout.
pub(crate) fn operations(data: &[u8]) {
    let mut time = Duration::ZERO;
    let now = |time: Duration| {
        let wall = Timestamp::from_second(1_800_000_000).expect("in range");
        Now { tick: Tick::at(time), wall: wall.checked_add(time).expect("in range") }
    };
    let id = NodeId::new("fuzzed").expect("valid");
    let mut mesh = Mesh::new(id, 5 << 24, Options::default(), SmallRng::seed_from_u64(1), now(time));
    let mut rest = data;
    for _ in 0..200 {
        let Some((&operation, tail)) = rest.split_first() else { break };
        let (argument, tail) = tail.split_at(tail.len().min(1));
        let argument = argument.first().copied().unwrap_or_default();
        rest = tail;
        let session = SessionId(u64::from(argument % 8));
        match operation % 8 {
            0 => mesh.handle_session_opened(session, LinkPolicy::default(), now(time)),
            1 => mesh.handle_session_closed(session, now(time)),
            2..=4 => {
                let length = rest.len().min(usize::from(operation) * 4);
                let (message, tail) = rest.split_at(length);
                rest = tail;
                mesh.handle_packet(session, Bytes::copy_from_slice(message), now(time));
            }
            5 => mesh.handle_packet(session, said(argument, operation), now(time)),
            6 => {
                time += Duration::from_millis(u64::from(argument) * 100);
                mesh.handle_timeout(now(time));
            }
            _ => {
                let service = ServiceName::from_wire([argument; 8]);
                let offer = LocalService { conn_type: ConnType::DATAGRAM, tags: Default::default() };
                mesh.advertise(service, offer, now(time));
                mesh.unbind(service, now(time));
            }
        }
        for session in mesh.behind().collect::<Vec<_>>() {
            mesh.handle_room(session, usize::MAX, now(time));
        }
        let sent = std::iter::from_fn(|| mesh.poll_transmit()).count();
        assert!(sent < 2_000, "{sent} messages after one operation");
        while mesh.poll_event().is_some() {}
        assert!(mesh.poll_timeout().is_some());
        let _status = mesh.status(now(time));
    }
}

/// An accepted header is stored and read back unchanged.
pub(crate) fn job_header(data: &[u8]) {
    match Header::parse(data) {
        Ok(header) => {
            let text = header.to_string();
            assert_eq!(Header::parse(text.as_bytes()).expect("just printed"), header);
            let _named = (header.credentials(), header.needs_admin(), header.size(None).impact(header.kind));
        }
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
}

/// A submission is judged the same however its bytes are split, and its kwargs line can be rewritten.
pub(crate) fn submission(data: &[u8]) {
    let read = |size: usize| {
        let mut submission = Submission::new(1 << 20, None);
        data.chunks(size).try_for_each(|part| submission.push(part))?;
        submission.finish()
    };
    let whole = read(data.len().max(1));
    assert_eq!(read(3).is_ok(), whole.is_ok());
    match whole {
        Ok(accepted) => {
            let end = (accepted.header_length + accepted.kwargs_length) as usize;
            let hosts = ["a".to_owned()];
            let change = KwargsChange { limit: Some(&hosts), ..KwargsChange::of(&accepted.header) };
            let line = change.apply(&data[accepted.header_length as usize..end]).expect("a kwargs line");
            assert!(line.ends_with(b"\n"));
            if let Some(zip) = accepted.unjudged {
                let _judged = zip.judge(&mut std::io::Cursor::new(data));
            }
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
}

/// The output of any program is read, and cut where lines and zips are whole.
pub(crate) fn worker_output(data: &[u8]) {
    let read = |data: &[u8], size: usize| {
        let mut output = WorkerOutput::default();
        data.chunks(size).for_each(|part| output.push(part));
        output.finish();
        output
    };
    let (whole, parts) = (read(data, data.len().max(1)), read(data, 7));
    assert_eq!((whole.whole(), whole.events()), (parts.whole(), parts.events()));
    assert_eq!(whole.zip(), parts.zip());
    let _code = whole.zip().and_then(|zip| zip.exit_code(&mut Cursor::new(data)));
    let cut = read(&data[..whole.whole() as usize], 64);
    assert_eq!(cut.whole(), whole.whole());
}

/// A well-formed message from one of a few neighbours.
fn said(who: u8, what: u8) -> Bytes {
    let name = |i: u8| NodeId::new(format!("n{}", i % 5)).expect("valid");
    let links = (what & 64 != 0).then(|| NodeId::new("fuzzed").expect("valid"));
    let update = RoutingUpdate {
        node_id: Some(name(who ^ what >> 3)),
        update_id: format!("{who:04}{what:04}"),
        epoch: u64::from(what >> 6),
        sequence: u64::from(who),
        connections: Arc::new(links.into_iter().map(|node| (node, meshd::wire::Cost::DEFAULT)).collect()),
        forwarding_node: name(who),
        suspected_duplicate: if what & 32 == 0 { 0 } else { 5 << 24 },
    };
    update.message().expect("short")
}
