//! Who makes a request: where it came in, who the caller is, and which rights that gives; all are decided once, here.
//! Also owns what a unit keeps of its caller. Knows neither sockets nor what each request needs, which
//! `control::access` and `registry::rights` decide.

use std::fmt;
use std::str::FromStr;

use serde::de::Deserializer;
use serde::{Deserialize, Serialize, Serializer};

use crate::wire::NameHash;

/// Where a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// This node's own Unix socket.
    Unix,
    /// A TCP port, with TLS or without.
    #[default]
    Tcp,
    /// The mesh.
    Mesh {
        /// The node that the stream comes from.
        node: NameHash,
        /// Whether a client certificate that was demanded and verified names that node. Otherwise only the sender
        /// claims to be it.
        certified: bool,
    },
}

/// Who a caller is, as the socket or service that let it in found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CallerName {
    /// Nothing is known.
    #[default]
    Unknown,
    /// A user of this machine, as the kernel reports.
    User(u32),
    /// The common name of a verified client certificate.
    Certificate(std::sync::Arc<str>),
    /// A client of the page's API that may submit jobs, as its token or certificate names it.
    Web(String),
    /// A host that asks the authority for a certificate, by its address.
    Host(String),
    /// The schedule of a saved job, by the job's name.
    Schedule(String),
    /// The address at which a forge starts a saved job, by the job's name.
    Hook(String),
}

impl fmt::Display for CallerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::User(uid) => write!(f, "unix:{uid}"),
            Self::Certificate(name) => write!(f, "cert:{name}"),
            Self::Web(name) => write!(f, "web:{name}"),
            Self::Host(address) => write!(f, "host:{address}"),
            Self::Schedule(name) => write!(f, "schedule:{name}"),
            Self::Hook(name) => write!(f, "hook:{name}"),
        }
    }
}

/// What a caller may do without a signature. Each level includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Rights {
    /// What everybody may.
    #[default]
    Anybody,
    /// Make this node act towards other nodes, sign for the caller, or act on itself.
    Trusted,
    /// Submit jobs in its own name, because it is known who the caller is.
    Operator,
    /// Everything: over the Unix socket, with a client certificate over TCP, or as an administrator by the page's API.
    Admin,
}

/// Who asks.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Where the request came in.
    pub origin: Origin,
    /// The rights of this caller.
    pub rights: Rights,
    /// The signature that came with the request.
    pub signature: Option<String>,
    /// Who the caller is.
    pub credentials: CallerName,
}

impl Caller {
    /// A caller on this node's own Unix socket.
    pub fn local() -> Self {
        Self::new(Origin::Unix, true, CallerName::User(rustix::process::geteuid().as_raw()))
    }

    /// A caller on a socket or service. `trusted` is what the settings of that socket or service say of all its
    /// callers, or of those with a certificate that it demands.
    pub fn new(origin: Origin, trusted: bool, credentials: CallerName) -> Self {
        let rights = match (origin, trusted, &credentials) {
            (Origin::Unix, _, _) | (Origin::Tcp, true, CallerName::Certificate(_)) => Rights::Admin,
            (_, false, _) => Rights::Anybody,
            (Origin::Tcp | Origin::Mesh { .. }, true, _) => Rights::Trusted,
        };
        Self { origin, rights, signature: None, credentials }
    }

    /// A client of the page's API, as an administrator or an operator.
    pub fn of_page(name: String, is_admin: bool) -> Self {
        let rights = if is_admin { Rights::Admin } else { Rights::Operator };
        Self { origin: Origin::Tcp, rights, signature: None, credentials: CallerName::Web(name) }
    }

    /// What a file of this node asks for: whoever may write the file has decided what it starts.
    pub fn of_file(credentials: CallerName) -> Self {
        Self { origin: Origin::Tcp, rights: Rights::Admin, signature: None, credentials }
    }

    /// Whether this caller has these rights.
    pub fn may(&self, rights: Rights) -> bool {
        self.rights >= rights
    }

    /// Whether the request came over this node's own Unix socket, whose permissions make a signature unnecessary.
    pub fn is_local(&self) -> bool {
        self.origin == Origin::Unix
    }

    /// What a unit keeps of this caller.
    pub fn submitter(&self) -> Submitter {
        match self.origin {
            Origin::Mesh { node, certified } => Submitter::Node { node, certified },
            Origin::Unix | Origin::Tcp if self.may(Rights::Trusted) => Submitter::Operator,
            Origin::Unix | Origin::Tcp => Submitter::Stranger,
        }
    }
}

/// Who submitted a unit, as its status file keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Submitter {
    /// A trusted client of this node's Unix socket or TCP port. All of them are one caller.
    Operator,
    /// A node of the mesh. With a certificate, it is another caller than a node that only claims the same ID.
    Node {
        /// The hash of the node's ID.
        node: NameHash,
        /// Whether a certificate proved the ID.
        certified: bool,
    },
    /// A client of a TCP port without [`Rights::Trusted`].
    Stranger,
}

impl Submitter {
    /// Whether both are known to be the same caller. Two strangers never are, because nothing tells them apart.
    pub fn is_same_caller(self, other: Self) -> bool {
        self == other && self != Self::Stranger
    }
}

const OPERATOR: &str = "operator";
const STRANGER: &str = "stranger";
const NODE: &str = "node:";
const CERTIFIED: &str = "certified-node:";

impl fmt::Display for Submitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str(OPERATOR),
            Self::Stranger => f.write_str(STRANGER),
            Self::Node { node, certified } => {
                write!(f, "{}{:016x}", if *certified { CERTIFIED } else { NODE }, node.0)
            }
        }
    }
}

/// A text that names no submitter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown submitter")]
pub struct UnknownSubmitter;

impl FromStr for Submitter {
    type Err = UnknownSubmitter;

    fn from_str(text: &str) -> Result<Self, UnknownSubmitter> {
        let node = |hash: &str, certified| {
            let hash = u64::from_str_radix(hash, 16).map_err(|_| UnknownSubmitter)?;
            Ok(Self::Node { node: NameHash(hash), certified })
        };
        match text {
            OPERATOR => Ok(Self::Operator),
            STRANGER => Ok(Self::Stranger),
            _ => match (text.strip_prefix(NODE), text.strip_prefix(CERTIFIED)) {
                (Some(hash), _) => node(hash, false),
                (None, Some(hash)) => node(hash, true),
                (None, None) => Err(UnknownSubmitter),
            },
        }
    }
}

impl Serialize for Submitter {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// Reads the submitter in a status file. An unknown text counts as none, so that the rest of the status can be used.
pub(super) fn lenient<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Submitter>, D::Error> {
    let text = serde_json::Value::deserialize(d)?;
    Ok(text.as_str().and_then(|text| text.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Submitter; 4] = [
        Submitter::Operator,
        Submitter::Stranger,
        Submitter::Node { node: NameHash(0x12), certified: false },
        Submitter::Node { node: NameHash(0x12), certified: true },
    ];

    #[test]
    fn a_submitter_is_kept_as_text() {
        for submitter in ALL {
            assert_eq!(submitter.to_string().parse(), Ok(submitter));
        }
        for bad in ["", "node:", "node:x", "certified-node:", "somebody"] {
            assert_eq!(bad.parse::<Submitter>(), Err(UnknownSubmitter), "{bad}");
        }
    }

    #[test]
    fn who_showed_no_certificate_is_not_the_one_who_did_and_strangers_are_nobody() {
        for (i, one) in ALL.into_iter().enumerate() {
            for (j, other) in ALL.into_iter().enumerate() {
                let same = i == j && one != Submitter::Stranger;
                assert_eq!(one.is_same_caller(other), same, "{one} {other}");
            }
        }
    }
}
