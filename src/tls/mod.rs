//! Trust between nodes: TLS profiles and certificates.
//!
//! - [`profile`]: a `tls-server` or `tls-client`, made of its `options`; `profile_set` has them all and watches their
//!   files.
//! - `material`: what a profile's files hold, read by `files`. `names` and `fingerprint` read certificates.
//! - `verify`: whether a peer's certificate is accepted, as one function; `short_keys`: an exception for authorities.
//!   `revocation`: the connections let in.
//! - [`make`]: keys, authorities, requests, certificates; [`commands`] does the same with files.
//! - [`access`]: what clients of the page and its API may do, and the file with their tokens.
//! - [`inspect`]: what is in certificate files, and whether a node would accept it.
//! - [`crl`]: revocation lists that come from elsewhere.
//! - [`proof`]: signatures over messages, and hashes of keys.
//! - [`handshake`]: TLS over any byte stream. Streams of the mesh take their settings from the profile.
//! - [`error`]: what can be wrong, in words.
//!
//! This room opens files and speaks TLS over streams that it is given. It knows nothing of links, services or
//! configuration.

pub mod access;
pub mod commands;
pub mod crl;
pub mod error;
mod files;
mod fingerprint;
pub mod handshake;
pub mod inspect;
pub mod make;
mod material;
mod names;
mod options;
pub mod profile;
mod profile_set;
pub mod proof;
mod read_ahead;
mod revocation;
mod short_keys;
mod verify;

pub use access::AccessLevel;
pub use error::{HandshakeError, ProfileError, Rejection};
pub use fingerprint::Fingerprint;
pub use handshake::{Handshakes, Secured};
pub use names::{Facts, NODE_ID_OID, Names};
pub use options::{ClientOptions, Files, ServerOptions};
pub use profile::{ClientProfile, Profile, ServerProfile};
pub use profile_set::{ProfileSet, Profiles, UnknownProfile};
pub use revocation::Guard;
pub use verify::{Expected, HandshakeVerdict, Role};

#[cfg(test)]
pub(crate) mod tests;
