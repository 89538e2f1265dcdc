//! Runs the fuzz targets over their corpus and over mutations of it, on every change.
//!
//! The targets are in `fuzz/src/lib.rs`; for longer searches use the fuzzer, see `fuzz/README.md`.

#[path = "fuzz/src/lib.rs"]
mod targets;

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty: the test would check nothing", folder.display());
    files.iter().map(|file| std::fs::read(file).expect("readable")).collect()
}

/// A member of the corpus with some bytes replaced, cut and repeated.
fn mutated(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let member = prop::sample::select(corpus);
    (member, edits, any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
        |(mut bytes, edits, from, to)| {
            for (at, byte) in edits {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            let (from, to) = (from.index(bytes.len() + 1), to.index(bytes.len() + 1));
            if from < to {
                bytes.truncate(to);
            } else if from - to < 512 {
                let repeated = bytes[to..from].to_vec();
                bytes.extend(repeated);
            }
            bytes
        },
    )
}

fn search(name: &str, target: fn(&[u8]), inputs: impl Strategy<Value = Vec<u8>>, cases: u32) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let played = TestRunner::new(config).run(&inputs, |bytes| {
        target(&bytes);
        Ok(())
    });
    played.unwrap_or_else(|finding| panic!("{name}: {finding}"));
}

#[test]
fn no_bytes_do_harm() {
    let cases = std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    for (name, target) in targets::TARGETS {
        let corpus = corpus(name);
        corpus.iter().for_each(|bytes| target(bytes));
        // Configurations need files, which are slow.
        let cases = if *name == "configuration" { cases / 4 } else { cases };
        search(name, *target, mutated(corpus), cases);
        search(name, *target, proptest::collection::vec(any::<u8>(), 0..300), cases / 4);
    }
}
