//! Keys and certificates of the demo: an authority of its own, a certificate for each node, a pair of keys for
//! signing. They live in the demo's directory and go with it.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::exit::{Exit, Failure};
use crate::tls::commands::{self, CommandError, RequestKey};
use crate::tls::make::{Dates, KeyKind, Subject};

/// Name of the profile that listeners and services use.
pub const SERVER: &str = "mesh-server";
/// Name of the profile that dialers use.
pub const CLIENT: &str = "mesh";

/// Makes all files.
///
/// # Errors
/// If one cannot be made or written.
pub fn prepare(dir: &Path, nodes: &[&str]) -> Result<(), Failure> {
    make(dir, nodes).map_err(|error| Failure::new(Exit::Failed, format!("cannot make certificates: {error}")))
}

fn make(dir: &Path, nodes: &[&str]) -> Result<(), CommandError> {
    let (ca, ca_key) = (dir.join("ca.crt"), dir.join("ca.key"));
    commands::init("demo authority", KeyKind::EcdsaP256, Dates::default(), &ca, &ca_key)?;
    for node in nodes {
        let names = Subject {
            common_name: (*node).to_owned(),
            addresses: vec![std::net::Ipv4Addr::LOCALHOST.into()],
            node_ids: vec![(*node).to_owned()],
            ..Subject::default()
        };
        let file = |ending: &str| dir.join(format!("{node}.{ending}"));
        let key = RequestKey::New(KeyKind::EcdsaP256, file("key"));
        commands::make_request(&names, &key, &file("req"))?;
        commands::sign_request(&file("req"), (&ca, &ca_key), Dates::default(), &file("crt"), |_| true)?;
    }
    // RSA, which every node of a receptor mesh verifies.
    commands::generate_key(KeyKind::Rsa(2048), &dir.join("work.key"), &dir.join("work.pub"))
}

/// A node's two profiles.
pub fn profiles(dir: &Path, node: &str) -> [Value; 2] {
    let (cert, key) = (dir.join(format!("{node}.crt")), dir.join(format!("{node}.key")));
    let ca = dir.join("ca.crt");
    [
        json!({"tls-server": {"name": SERVER, "cert": cert, "key": key, "clientcas": ca,
            "requireclientcert": true}}),
        json!({"tls-client": {"name": CLIENT, "cert": cert, "key": key, "rootcas": ca}}),
    ]
}

/// For the node that signs. A Go node does not start without an expiration.
pub fn signing(dir: &Path) -> Value {
    json!({"work-signing": {"privatekey": dir.join("work.key"), "tokenexpiration": "5m"}})
}

/// For the node that verifies.
pub fn verification(dir: &Path) -> Value {
    json!({"work-verification": {"publickey": dir.join("work.pub")}})
}
