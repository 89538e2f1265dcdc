//! How a job's header arrives: as a parameter, or as a line in front of the stream. Knows nothing of its content.

use serde_json::{Map, Value};

/// The parameter that may carry a job's header, so that the payload is the runner's stream and attempts can share it.
pub const HEADER: &str = "header";
/// The longest header that is sent as a parameter, because each status of the job repeats it. A longer one stands in
/// front of the stream.
pub const LONGEST_HEADER: usize = 64 << 10;
/// The key of a header's version, which every header has.
pub const VERSION_KEY: &str = "controller";

/// Whether the first line of a payload is a header, whatever other keys it has. Otherwise it is the first line of the
/// runner's stream.
pub fn is_header(line: &[u8]) -> bool {
    serde_json::from_slice::<Map<String, Value>>(line).is_ok_and(|object| object.contains_key(VERSION_KEY))
}
