//! How nodes get their certificates.
//!
//! Owns the declaration. It refuses to open files.

use std::path::PathBuf;
use std::time::Duration;

use super::super::components::SoleResource;
use super::super::declare::directive;
use super::super::parameters::{TlsClientName, any, grammar};
use crate::wire::ServiceName;

directive! {
    /// Gets this node's certificate renewed in time, over the mesh
    "renewal" in Services [singleton];
    struct Renewal {
        /// tls-client profile that shows it
        tls_client "tlsclient": TlsClientName,
    }
}

directive! {
    /// Gives certificates to new hosts, and to nodes that renew theirs
    "enrolment" in Services [singleton];
    struct Enrolment {
        /// directory of the mesh's authority
        authority: AuthorityDirectory,
        /// let hosts ask without a token
        ask: bool = "false",
        /// its key is kept on another host
        offline: bool = "false",
        /// how long those certificates are valid
        lifetime: Duration = "8766h",
        /// key that nodes verify jobs by: public, or the one that signs
        work_key "workkey": Option<PathBuf>,
    }
    check key_needed(ask, offline);
}

grammar! {
    /// The directory of an authority, whose node offers a service to those who want certificates.
    struct AuthorityDirectory => PathBuf = Text any, describe |path, facts| {
        facts.label(path.display());
        facts.claims.extend(ServiceName::new("enrol").ok().map(SoleResource::Service));
    };
}

fn key_needed(ask: &bool, offline: &bool) -> Option<&'static str> {
    (*ask && *offline).then_some("hosts that `ask` need the authority's key, which is `offline`")
}
