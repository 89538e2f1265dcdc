//! What a submission asked for, as its unit keeps it: enough to decide whether another one under the same ID repeats it.
//! Knows nothing of the caller.

use std::collections::BTreeMap;
use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize, Serializer};

/// Work type and parameters, hashed. Secrets among them are not kept by this.
///
/// As bytes, since every unit has one: a number would align each status to its own size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Asked([u8; 16]);

impl Asked {
    /// That of a submission.
    pub fn of(node: &str, work_type: &str, params: &BTreeMap<String, String>) -> Self {
        let mut hash = Context::new(&SHA256);
        let pairs = params.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        for part in [node, work_type].into_iter().chain(pairs) {
            // With their lengths, so that no two submissions make one text.
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let mut half = [0; 16];
        half.copy_from_slice(&hash.finish().as_ref()[..16]);
        Self(half)
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Serialize for Asked {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{self:?}"))
    }
}

/// Reads it in a status file. One that cannot be understood is as good as none: the rest of the status counts.
pub(super) fn lenient<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Asked>, D::Error> {
    let text = serde_json::Value::deserialize(d)?;
    let number = text.as_str().and_then(|text| u128::from_str_radix(text, 16).ok());
    Ok(number.map(|number| Asked(number.to_be_bytes())))
}
