//! Streams that bring files below `project/`, in zips as programs write them.

use std::io::{Cursor, Write};

use ::zip::ZipWriter;
use ::zip::write::SimpleFileOptions;
use base64::Engine;

use super::super::*;
use crate::controller::refusal::{Refusal, StreamFault};

const SYNCED: &str = r#"{"controller": 1, "sync": {"url": "https://git.example/a"}}"#;

fn check(header: &str, zip: &[u8], chunk: usize) -> Result<(), Refusal> {
    let body = base64::engine::general_purpose::STANDARD.encode(zip);
    let stream =
        format!("{header}\n{{\"kwargs\": {{}}}}\n{{\"zipfile\": {}}}\n{body}{{\"eof\": true}}\n", zip.len());
    let mut submission = Submission::new(u64::MAX, None);
    stream.as_bytes().chunks(chunk).try_for_each(|part| submission.push(part))?;
    match submission.finish()?.unjudged {
        Some(zip) => Ok(zip.judge(&mut Cursor::new(stream))?),
        None => Ok(()),
    }
}

/// Fills a zip with these entries.
fn fill<W: Write + std::io::Seek>(zip: &mut ZipWriter<W>, names: &[&str], options: SimpleFileOptions) {
    for name in names {
        match name.ends_with('/') {
            true => zip.add_directory(*name, SimpleFileOptions::default()).unwrap(),
            false => {
                zip.start_file(*name, options).unwrap();
                let text: String = (0..3_000).map(|number| format!("line {number} of {name}\n")).collect();
                zip.write_all(text.as_bytes()).unwrap();
            }
        }
    }
}

/// A zip whose entries have their sizes before them.
fn packed(names: &[&str], options: SimpleFileOptions) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    fill(&mut zip, names, options);
    zip.finish().unwrap().into_inner()
}

/// A zip that was written to a pipe: the sizes come after the entries, as Python writes them.
fn streamed(names: &[&str], options: SimpleFileOptions) -> Vec<u8> {
    let mut zip = ZipWriter::new_stream(Vec::new());
    fill(&mut zip, names, options);
    zip.finish().unwrap().into_inner()
}

#[test]
fn a_stream_brings_no_project_beside_a_synced_one() {
    let fault = Err(Refusal::Stream(StreamFault::Project));
    let plain = SimpleFileOptions::default();
    let large = plain.large_file(true);
    for (names, is_refused) in [
        (&["inventory/hosts", "project/site.yml"][..], true),
        (&["rc", "project/roles/"], true),
        // The runner gives such names to files that it reaches through links.
        (&["inventory/hosts", "./project/site.yml"], true),
        (&["inventory/hosts", "./project"], true),
        (&["a", "../project//x"], true),
        (&["a", "x/../project", "/project/x"], true),
        (&["inventory/hosts", "project/", "env/extravars", "projects/x", "a/project/x"], false),
    ] {
        let expected = if is_refused { fault.clone() } else { Ok(()) };
        for zip in
            [packed(names, plain), packed(names, large), streamed(names, plain), streamed(names, large)]
        {
            for chunk in [1, 3, 4096] {
                assert_eq!(check(SYNCED, &zip, chunk), expected, "{names:?}");
            }
            assert_eq!(check(r#"{"controller": 1}"#, &zip, 4096), Ok(()));
        }
    }
    assert_eq!(check(SYNCED, &packed(&[], plain), 100), Ok(()));
}

/// Where the directory of a zip begins.
fn directory_of(zip: &[u8]) -> usize {
    let at = zip.len() - 6;
    u32::from_le_bytes(zip[at..at + 4].try_into().unwrap()) as usize
}

#[test]
fn the_directory_alone_says_what_a_zip_brings() {
    let fault = Err(Refusal::Stream(StreamFault::Project));
    let stored = SimpleFileOptions::default().compression_method(::zip::CompressionMethod::Stored);
    let plain = packed(&["inventory/x"], stored);
    let (content, directory) = (&plain[..directory_of(&plain)], &plain[directory_of(&plain)..]);
    // The header before the file still says inventory/x.
    let renamed = [content, &replaced(directory, b"inventory/x", b"project/..x")].concat();
    assert_eq!(check(SYNCED, &renamed, 4096), fault);
    let padded = [content, &replaced(directory, b"inventory/x", b"project\0/xy")].concat();
    assert_eq!(check(SYNCED, &padded, 4096), fault);
    // Here the header says project/..x, but nobody reads it.
    let header = [&replaced(content, b"inventory/x", b"project/..x"), directory].concat();
    assert_eq!(check(SYNCED, &header, 4096), Ok(()));
}

fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|window| window == old).unwrap();
    [&bytes[..at], new, &bytes[at + old.len()..]].concat()
}

#[test]
fn nothing_reaches_the_project_through_a_link() {
    let fault = Err(Refusal::Stream(StreamFault::Project));
    let plain = SimpleFileOptions::default();
    for (links, names, expected) in [
        (&["inventory/a"][..], &["inventory/b"][..], Ok(())),
        (&["a"], &["a/site.yml"], fault.clone()),
        (&["a"], &["a"], fault.clone()),
        (&["x/../project"], &[], fault.clone()),
        (&["project"], &[], fault.clone()),
    ] {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for link in links {
            zip.add_symlink(*link, "project", plain).unwrap();
        }
        let at = names.iter().map(|name| if *name == "a" { "b" } else { name });
        fill(&mut zip, &at.collect::<Vec<_>>(), plain);
        let mut zip = zip.finish().unwrap().into_inner();
        if names == ["a"] {
            let (content, directory) = zip.split_at(directory_of(&zip));
            zip = [content, &replaced(directory, b"b", b"a")].concat();
        }
        assert_eq!(check(SYNCED, &zip, 4096), expected, "{links:?} {names:?}");
    }
}

#[test]
fn a_zip_that_programs_read_differently_brings_nothing_beside_a_synced_project() {
    let whole = packed(&["a", "b"], SimpleFileOptions::default());
    let end = whole.len() - 22;
    let commented = [&whole[..end + 20], &[1, 0, b'x']].concat();
    let prefixed = [b"x", whole.as_slice()].concat();
    let counted = [&whole[..end + 10], &[1], &whole[end + 11..]].concat();
    let directory = directory_of(&whole);
    let damaged = [&whole[..directory], &[0xff; 4], &whole[directory + 4..]].concat();
    let half = whole[..whole.len() / 2].to_vec();
    for zip in [vec![7; 300], half, commented, prefixed, counted, damaged, Vec::new()] {
        for chunk in [1, 4096] {
            assert_eq!(check(SYNCED, &zip, chunk), Err(Refusal::Stream(StreamFault::Unreadable)));
        }
        assert_eq!(check(r#"{"controller": 1}"#, &zip, 100), Ok(()));
    }
}

/// The zip in a stream that Python's zipfile wrote to a pipe, with short and with long sizes after the entries.
fn of_python() -> Vec<u8> {
    let path = "tests/fuzz/corpus/submission/streamed_zip";
    let stream = std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let lines: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
    let body = lines[3].strip_suffix(b"{\"eof\": true}").unwrap();
    base64::engine::general_purpose::STANDARD.decode(body).unwrap()
}

#[test]
fn a_zip_that_python_wrote_to_a_pipe_is_followed() {
    let (zip, name) = (of_python(), b"./projects/x");
    assert_eq!(check(SYNCED, &zip, 100), Ok(()));
    let directory = directory_of(&zip);
    let project = [&zip[..directory], &replaced(&zip[directory..], name, b"./project//x")].concat();
    assert_eq!(check(SYNCED, &project, 100), Err(Refusal::Stream(StreamFault::Project)));
}
