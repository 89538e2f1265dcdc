//! Streams of the real ansible-runner 2.4.3 (`tests/vectors/runner`), whole, split and cut at every byte.

mod events;
mod failures;
mod kwargs;
mod output;
mod project;
mod submission;

/// A recorded stream.
fn recorded(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/runner").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A zip of that many bytes, as the runner writes one.
fn zip(bytes: usize) -> Vec<u8> {
    use base64::Engine;
    let body = base64::engine::general_purpose::STANDARD.encode(vec![7; bytes]);
    format!("{{\"zipfile\": {bytes}}}\n{body}").into_bytes()
}
