//! Trust between nodes: TLS profiles and certificates.
//!
//! - [`profile`]: a `tls-server` or `tls-client`; `profile_set` has them all and watches their files.
//! - `core`: what both kinds have in common; when files are read again, and connections judged again.
//! - `material`: what a profile's files hold, read by `files`. `names` and `fingerprint` read certificates.
//! - `verify`: whether a peer's certificate is accepted, as one function. `revocation`: who was let in.
//! - [`make`]: keys, authorities, requests, certificates; [`commands`] does so from files to files.
//! - [`inspect`]: what is in certificate files, and whether a node would accept it.
//! - [`handshake`]: TLS over any byte stream; `handshakes`: many of them, on a listener; `ahead`: few system
//!   calls for much. Streams of the mesh take their settings from the profile.
//! - [`error`]: what can be wrong, in words.
//!
//! This room opens files and speaks TLS over what it is handed. It has never heard of links, streams,
//! services or configuration.

mod ahead;
pub mod commands;
mod core;
pub mod error;
mod files;
mod fingerprint;
pub mod handshake;
mod handshakes;
pub mod inspect;
pub mod make;
mod material;
mod names;
pub mod profile;
mod profile_set;
mod revocation;
mod verify;

pub use error::{HandshakeError, ProfileError, Rejection};
pub use fingerprint::Fingerprint;
pub use handshake::Secured;
pub use handshakes::Handshakes;
pub use material::Files;
pub use names::{Facts, NODE_ID_OID, Names};
pub use profile::{ClientOptions, ClientProfile, ServerOptions, ServerProfile};
pub use profile_set::{ProfileSet, Profiles, UnknownProfile};
pub use revocation::Guard;
pub use verify::{Expected, Verdict};

#[cfg(test)]
pub(crate) mod tests;
