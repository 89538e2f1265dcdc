//! Names and labels of pods. The same node and unit always give the same labels. This module knows neither
//! pods nor the API.

use std::fmt::Write as _;

use highway::{HighwayHash, HighwayHasher};

/// The label that names the node that created a pod.
pub const NODE_LABEL: &str = "meshd/node";
/// The label that names the unit of a pod.
pub const UNIT_LABEL: &str = "meshd/unit";
/// The label that names the data directory of the unit.
pub const STORE_LABEL: &str = "meshd/store";

/// The longest value of a label, in bytes.
const LONGEST_VALUE: usize = 63;
/// The letters of the API server's own random names; they form no words.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Number of random letters in a name.
const CHOSEN: usize = 5;

/// The name prefix of a work type's pods.
pub fn prefix(work_type: &str) -> String {
    format!("{}-", work_type.to_lowercase())
}

/// The number from which [`pod_name`] makes the letters of a unit's pod, if these are not random.
pub fn letters_of(unit: &str) -> u64 {
    HighwayHasher::default().hash64(unit.as_bytes())
}

/// A pod's name: the prefix, cut to what the API server accepts, and letters, which are random or made from the unit's
/// ID.
pub fn pod_name(prefix: &str, mut letters: u64) -> String {
    let mut name: String = prefix.chars().take(LONGEST_VALUE - CHOSEN).collect();
    for _ in 0..CHOSEN {
        name.push(char::from(LETTERS[(letters % LETTERS.len() as u64) as usize]));
        letters /= LETTERS.len() as u64;
    }
    name
}

/// The creator of a pod, as shown by its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The node.
    pub node: String,
    /// The unit.
    pub unit: String,
    /// The random ID of the unit's data directory.
    pub store: String,
}

impl Owner {
    /// The labels of a unit on a node.
    pub fn new(node: &str, unit: &str, store: &str) -> Self {
        Self { node: label_value(node), unit: label_value(unit), store: label_value(store) }
    }

    /// Whether a pod with these labels belongs to a unit of this data directory that no longer exists.
    /// `is_here` says whether a value of [`UNIT_LABEL`] is that of an existing unit.
    pub fn is_orphan(&self, store: &str, is_here: impl Fn(&str) -> bool) -> bool {
        self.store == label_value(store) && !is_here(&self.unit)
    }

    /// The labels, by name.
    pub fn labels(&self) -> [(&'static str, &str); 3] {
        [(NODE_LABEL, &self.node), (UNIT_LABEL, &self.unit), (STORE_LABEL, &self.store)]
    }
}

/// The text if it is valid as a label, otherwise a hash of it.
pub fn label_value(text: &str) -> String {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let fits = bytes.len() <= LONGEST_VALUE
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte));
    if fits {
        return text.to_owned();
    }
    let [high, low] = HighwayHasher::default().hash128(bytes);
    let mut hash = String::with_capacity(32);
    let _ = write!(hash, "{high:016x}{low:016x}");
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_prefix_and_five_letters_within_the_servers_bound() {
        assert_eq!(prefix("Kubernetes-Runtime-Auth"), "kubernetes-runtime-auth-");
        assert_eq!(pod_name("automation-job-7-", 0), "automation-job-7-bbbbb");
        assert_ne!(pod_name("w-", 1), pod_name("w-", 2));
        let long = pod_name(&"x".repeat(80), u64::MAX);
        assert_eq!(long.len(), 63);
    }

    #[test]
    fn what_a_label_cannot_hold_is_hashed() {
        for fits in ["a", "node-1", "node_1.example.org", &"x".repeat(63)] {
            assert_eq!(label_value(fits), fits);
        }
        let mut hashes = Vec::new();
        for other in ["", "-a", "a-", "a b", "a:b", "größe", &"x".repeat(64)] {
            let hash = label_value(other);
            assert!(hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{other}: {hash}");
            hashes.push(hash);
        }
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), 7);
    }

    #[test]
    fn a_pod_is_an_orphan_only_of_its_own_store() {
        let owner = Owner::new("n", "abcd1234", "store");
        assert!(owner.is_orphan("store", |_| false));
        assert!(!owner.is_orphan("store", |unit| unit == "abcd1234"));
        assert!(!owner.is_orphan("another", |_| false));
    }

    #[test]
    fn a_nodes_hash_stays_the_same_across_versions() {
        assert_eq!(label_value("10.0.0.1:x"), HASH_OF_A_NODE);
    }

    /// Pods of earlier daemons carry this label.
    const HASH_OF_A_NODE: &str = "017b37db69bff028afbf0bd4f8fe4652";
}
