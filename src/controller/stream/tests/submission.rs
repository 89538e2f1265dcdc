use super::super::*;
use super::{recorded, zip};
use crate::controller::core::JobKind;
use crate::controller::header::Header;
use crate::controller::refusal::{Awaited, HeaderFault, LINE_LIMIT, Refusal, StreamFault};
use crate::rpc::strict::Misfit;

const NO_LIMIT: u64 = u64::MAX;

fn check(stream: &[u8], chunk: usize) -> Result<WholeSubmission, Refusal> {
    let mut submission = Submission::new(NO_LIMIT, None);
    for part in stream.chunks(chunk) {
        submission.push(part)?;
    }
    submission.finish()
}

fn with_header(header: &str) -> Vec<u8> {
    [header.as_bytes(), b"\n", &recorded("ok.in")].concat()
}

const HEADER: &str = r#"{"controller": 1, "kind": "ad_hoc", "forks": 4}"#;

#[test]
fn a_stream_of_the_runner_is_a_job_with_all_defaults() {
    let stream = recorded("ok.in");
    for chunk in [1, 2, 3, 7, 64, 4096, stream.len()] {
        let accepted = check(&stream, chunk).unwrap();
        assert_eq!(accepted.header, Header::default());
        assert_eq!(accepted.header_length, 0);
        assert_eq!(accepted.length, stream.len() as u64);
        assert_eq!(stream[accepted.kwargs_length as usize - 1], b'\n');
        assert!(stream[accepted.kwargs_length as usize..].starts_with(b"{\"zipfile\": "));
        assert_eq!(accepted.asked.forks, None);
    }
}

#[test]
fn a_header_stands_in_front_of_it() {
    let stream = with_header(HEADER);
    for chunk in [1, 5, stream.len()] {
        let accepted = check(&stream, chunk).unwrap();
        assert_eq!(accepted.header.kind, JobKind::AdHoc);
        assert_eq!(accepted.header_length as usize, HEADER.len() + 1);
        assert!(stream[accepted.header_length as usize..].starts_with(b"{\"kwargs\": "));
        assert_eq!(accepted.kwargs_length, check(&recorded("ok.in"), 100).unwrap().kwargs_length);
    }
    let mut submission = Submission::new(NO_LIMIT, None);
    submission.push(&stream[..HEADER.len()]).unwrap();
    assert!(submission.header().is_none());
    submission.push(b"\n").unwrap();
    assert!(submission.header().is_some());
}

#[test]
fn a_header_may_come_as_a_parameter_but_not_twice() {
    let header = Header { forks: Some(7), ..Header::default() };
    let mut submission = Submission::new(NO_LIMIT, Some(header.clone()));
    submission.push(&recorded("ok.in")).unwrap();
    assert_eq!(submission.finish().unwrap().header, header);
    let twice = Submission::new(NO_LIMIT, Some(header)).push(&with_header(HEADER));
    assert_eq!(twice, Err(StreamFault::Unexpected(Awaited::Kwargs, 0).into()));
}

#[test]
fn an_object_with_controller_is_a_header_whatever_else_it_has() {
    let both = r#"{"controller": 1, "kwargs": {}}"#;
    let refused = check(&with_header(both), 100).unwrap_err();
    assert!(matches!(refused, Refusal::Header(HeaderFault::Key(Misfit::UnknownKey { .. }))), "{refused}");
    let mut submission = Submission::new(NO_LIMIT, Some(Header::default()));
    let refused = submission.push(format!("{both}\n").as_bytes());
    assert_eq!(refused, Err(StreamFault::Unexpected(Awaited::Kwargs, 0).into()));
}

#[test]
fn a_stream_that_is_cut_is_refused_at_every_byte() {
    let stream = with_header(HEADER);
    for end in 0..stream.len() {
        let error = check(&stream[..end], 50).unwrap_err();
        assert!(
            matches!(error, Refusal::Stream(StreamFault::EndsEarly(_, at)) if at == end as u64),
            "{end}: {error}"
        );
    }
}

#[test]
fn the_forks_of_the_stream_are_read_as_number_or_text() {
    for (kwargs, forks) in [
        (r#"{"forks": 5}"#, Some(5)),
        (r#"{"forks": "5"}"#, Some(5)),
        (r#"{"forks": null}"#, None),
        (r#"{"forks": [5]}"#, None),
        ("{}", None),
    ] {
        let stream = format!("{{\"kwargs\": {kwargs}}}\n{{\"eof\": true}}\n");
        assert_eq!(check(stream.as_bytes(), 9).unwrap().asked.forks, forks, "{kwargs}");
    }
}

#[test]
fn zips_of_every_length_end_where_the_runner_ends_them() {
    for bytes in 0..40 {
        let end = b"{\"eof\": true}\n".as_slice();
        let start = b"{\"kwargs\": {}}\n".as_slice();
        let stream = [start, &zip(bytes), end].concat();
        assert_eq!(check(&stream, 3).unwrap().length, stream.len() as u64);
        if bytes > 0 {
            let short = [start, &zip(bytes)[..zip(bytes).len() - 1], end].concat();
            assert!(matches!(check(&short, 3), Err(Refusal::Stream(StreamFault::BadZip(_)))), "{bytes}");
            let spaced = [start, &zip(bytes)[..zip(bytes).len() - 1], b" \n=".as_slice(), end].concat();
            assert_eq!(check(&spaced, 3).is_ok(), bytes % 3 != 0, "{bytes}");
        }
        let long = [start, &zip(bytes), b"A".as_slice(), end].concat();
        let error = check(&long, 3).unwrap_err();
        assert!(
            matches!(error, Refusal::Stream(StreamFault::Unexpected(Awaited::End, _))),
            "{bytes}: {error}"
        );
    }
}

#[test]
fn another_order_is_refused_with_its_place() {
    let kwargs = "{\"kwargs\": {}}\n";
    for (stream, awaited, at) in [
        (format!("{kwargs}{kwargs}"), Awaited::ZipOrEnd, 15),
        (format!("{kwargs}{{\"status\": \"starting\"}}\n"), Awaited::ZipOrEnd, 15),
        (format!("{kwargs}{{\"eof\": true}}\nx\n"), Awaited::Nothing, 29),
        (format!("{kwargs}{{\"eof\": true}}\n{{\"eof\": true}}\n"), Awaited::Nothing, 29),
        (format!("{kwargs}{{\"eof\": true}}\nx"), Awaited::Nothing, 30),
        (format!("{kwargs}{{\"zipfile\": -1}}\n"), Awaited::ZipOrEnd, 15),
        (format!("{kwargs}{{\"zipfile\": 3}}\nAAAA{{\"zipfile\": 3}}\n"), Awaited::End, 34),
        (format!("{kwargs}\n"), Awaited::ZipOrEnd, 15),
        ("{\"controller\": 1}\n{\"eof\": true}\n".to_owned(), Awaited::Kwargs, 18),
        ("{\"kwargs\": 5}\n".to_owned(), Awaited::FirstLine, 0),
    ] {
        let error = check(stream.as_bytes(), 4).unwrap_err();
        assert_eq!(error, StreamFault::Unexpected(awaited, at).into(), "{stream}");
    }
    for first in ["", "hello", "[]", "{}", "{\"eof\": true}", "\u{fffd}"] {
        assert_eq!(check(format!("{first}\n").as_bytes(), 4), Err(Refusal::NoHeader), "{first}");
    }
    let zip = format!("{kwargs}{{\"zipfile\": 9}}\nAAAA{{AAA");
    assert_eq!(check(zip.as_bytes(), 4), Err(StreamFault::BadZip(34).into()));
}

#[test]
fn a_hundred_megabytes_of_header_are_refused_after_one() {
    let part = vec![b'x'; 1 << 16];
    let mut submission = Submission::new(NO_LIMIT, None);
    let mut sent = 0;
    let refusal = loop {
        match submission.push(&part) {
            Ok(()) => sent += part.len(),
            Err(refusal) => break refusal,
        }
        assert!(sent < 100_000_000);
    };
    assert_eq!(refusal, Refusal::LongFirstLine);
    assert_eq!(sent, LINE_LIMIT);
    let whole =
        [b"{\"controller\": 1, \"name\": \"".to_vec(), vec![b'x'; LINE_LIMIT], b"\"}\n".to_vec()].concat();
    assert_eq!(check(&whole, whole.len()), Err(Refusal::LongFirstLine));
    let kwargs = [b"{\"controller\": 1}\n{\"kwargs\": \"".to_vec(), vec![b'x'; LINE_LIMIT]].concat();
    assert_eq!(check(&kwargs, 1000), Err(StreamFault::LongLine(Awaited::Kwargs).into()));
}

#[test]
fn a_payload_beyond_the_limit_is_refused() {
    let stream = recorded("ok.in");
    let length = stream.len() as u64;
    let push = |limit| {
        let mut submission = Submission::new(limit, None);
        stream.chunks(10).try_for_each(|part| submission.push(part))
    };
    assert_eq!(push(length), Ok(()));
    assert_eq!(push(length - 1), Err(Refusal::TooLarge { limit: length - 1 }));
}
