//! What a submission asked for, as its unit keeps it: enough to decide whether another submission under the same ID
//! repeats it. Knows nothing of the caller.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize, Serializer};

/// A hash of node, work type and parameters. It does not contain secret parameters.
///
/// Stored as bytes, because every status has one, and a `u128` would enlarge each status by its alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AskedHash([u8; 16]);

impl AskedHash {
    /// Hashes a submission.
    pub fn of(node: &str, work_type: &str, params: &BTreeMap<String, String>) -> Self {
        let mut hash = Context::new(&SHA256);
        let pairs = params.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        for part in [node, work_type].into_iter().chain(pairs) {
            // The lengths are hashed too, so that no two submissions yield the same bytes.
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut half = [0; 16];
        half.copy_from_slice(&hash.finish().as_ref()[..16]);
        Self(half)
    }
}

impl fmt::Debug for AskedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Serialize for AskedHash {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{self:?}"))
    }
}

/// Reads the hash in a status file. An unknown text counts as none, so that the rest of the status can be used.
pub(super) fn lenient<'de, D: Deserializer<'de>>(d: D) -> Result<Option<AskedHash>, D::Error> {
    let text = serde_json::Value::deserialize(d)?;
    let number = text.as_str().and_then(|text| u128::from_str_radix(text, 16).ok());
    Ok(number.map(|number| AskedHash(number.to_be_bytes())))
}
