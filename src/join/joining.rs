//! The host that asks to become a node: its key, which never leaves it, and the files that say how far it got.
//!
//! Owns these files, so that a host whose answer was lost, or that was switched off in between, asks again with the same
//! key. It refuses to know how the request travels.

use std::fs;
use std::io;

use jiff::{SignedDuration, Timestamp};

use super::JoinError;
use super::address::NodeAddress;
use super::asker::fingerprint;
use super::authority::facts;
use super::configuration::{CERTIFICATE, CONF_D, ETC};
use super::install::{Kit, check_host};
use super::invite::Token;
use super::own::{checked, texts};
use super::place::FileTree;
use super::record::check_name;
use super::request::{CertificateRequest, Granted, WantedCertificate};
use crate::config::Config;
use crate::os::hex;
use crate::os::regular_file::read_text;
use crate::os::replace::replace;
use crate::tls::make::{self, KeyKind};
use crate::tls::proof::{self, HASH};

/// The key of a host that has asked, until it has its certificate.
const NEW_KEY: &str = "/etc/meshd/joining.key";
/// The hash of the token by which this host has joined.
const JOINED_BY: &str = "/etc/meshd/joined-by";
/// The difference between two clocks that is worth a word, in seconds.
const CLOCKS_DIFFER: i64 = 60;

/// The authority of which a host that asks without a token has heard first.
const HEARD_OF: &str = "/etc/meshd/joining.authority";

/// A host that asks.
pub(crate) struct Joining {
    /// What is noted once it has joined by a token.
    token: Option<String>,
    key: String,
    /// What it sends.
    pub(crate) request: CertificateRequest,
}

impl Joining {
    /// Makes a key, unless there is one of an earlier attempt, and a request for this token.
    ///
    /// # Errors
    /// This host is another node already, or a file cannot be written.
    pub(crate) fn begin(tree: &mut FileTree, token: &Token) -> Result<Self, JoinError> {
        let (key, asked) = asked(tree, &token.node, None)?;
        let request = CertificateRequest::by_token(&asked, &token.secret)?;
        Ok(Self { token: Some(hash(token)), key, request })
    }

    /// The same without a token, at the address of a node.
    ///
    /// # Errors
    /// This host is another node already, or a file cannot be written.
    pub(crate) fn begin_asking(
        tree: &mut FileTree,
        node: &str,
        address: &NodeAddress,
    ) -> Result<Self, JoinError> {
        let (key, asked) = asked(tree, node, Some(address.to_string()))?;
        Ok(Self { token: None, key, request: CertificateRequest::by_approval(&asked) })
    }

    /// The hash of the key of the first authority that this host has heard of, and the fingerprint to compare. Another
    /// authority that speaks up later is not believed.
    ///
    /// # Errors
    /// It is another one, or a file cannot be written.
    pub(crate) fn hear_of(
        &self,
        tree: &FileTree,
        authority: &str,
    ) -> Result<([u8; HASH], String), JoinError> {
        let (path, pin) = (tree.path(HEARD_OF), proof::key_of_certificate(authority)?);
        match tree.text(HEARD_OF)? {
            Some(known) if proof::key_of_certificate(&known)? != pin => {
                return Err(JoinError::Host(format!(
                    "another authority answers than before: somebody is in between, or the mesh is another one now; \
                     then remove {}",
                    path.display()
                )));
            }
            Some(_) => {}
            None => replace(&path, authority.as_bytes(), 0o600).map_err(JoinError::of(&path))?,
        }
        let own = proof::hash(&make::public_key_der(&self.key)?);
        Ok((pin, fingerprint(&own, &pin)))
    }

    /// What was granted, with the key.
    ///
    /// # Errors
    /// It has no configuration.
    pub(crate) fn kit(&self, granted: Granted) -> Result<Kit, JoinError> {
        let configuration = granted.configuration.ok_or_else(|| {
            JoinError::Unready("the authority has sent no configuration for this node".to_owned())
        })?;
        Ok(Kit {
            configuration,
            certificate: granted.certificate.into(),
            key: self.key.clone().into(),
            authority: granted.authority.into(),
            revoked: Some(granted.revoked.into()),
            verification_key: granted.verification_key.map(String::into_bytes),
            signing_key: None,
            unused: Vec::new(),
        })
    }

    /// Notes that everything is in place.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn end(&self, tree: &FileTree) -> Result<(), JoinError> {
        let (joined, key, heard) = (tree.path(JOINED_BY), tree.path(NEW_KEY), tree.path(HEARD_OF));
        if let Some(token) = &self.token {
            replace(&joined, token.as_bytes(), 0o600).map_err(JoinError::of(&joined))?;
        }
        if heard.exists() {
            fs::remove_file(&heard).map_err(JoinError::of(&heard))?;
        }
        fs::remove_file(&key).map_err(JoinError::of(&key))
    }
}

/// The key of this host, of an earlier attempt if there was one, and what it asks for.
fn asked(
    tree: &mut FileTree,
    node: &str,
    dials: Option<String>,
) -> Result<(String, WantedCertificate), JoinError> {
    check_name(node)?;
    check_host(tree, node)?;
    tree.directory(ETC)?;
    let path = tree.path(NEW_KEY);
    let key = match read_text(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = make::private_key(KeyKind::EcdsaP256)?;
            replace(&path, key.as_bytes(), 0o600).map_err(JoinError::of(&path))?;
            key
        }
        key => key.map_err(JoinError::of(&path))?,
    };
    let asked = WantedCertificate::new(node, &key, dials)?;
    Ok((key, asked))
}

/// The configuration of a host that has joined by this very token; `None` if it has not, or its certificate has expired.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn joined(tree: &FileTree, token: &Token, now: Timestamp) -> Result<Option<Config>, JoinError> {
    if tree.text(JOINED_BY)?.is_none_or(|known| known != hash(token)) {
        return Ok(None);
    }
    let certificate = tree.text(CERTIFICATE)?.unwrap_or_default();
    let is_valid = facts(&certificate).is_ok_and(|facts| now < facts.not_after);
    let config = checked(&texts(&tree.path(CONF_D))?)?;
    Ok(Some(config).filter(|config| is_valid && config.node.id.as_str() == token.node))
}

/// What is wrong with the clock of this host, if the authority's is right.
pub(crate) fn clock_note(granted: &Granted, now: Timestamp) -> Option<String> {
    let ahead = now.as_second().saturating_sub(granted.at.as_second());
    let length = SignedDuration::from_secs(ahead.saturating_abs());
    let which = if ahead > 0 { "ahead of" } else { "behind" };
    (length.as_secs() >= CLOCKS_DIFFER)
        .then(|| format!("the clock of this host is {length:#} {which} the authority's: set it, or certificates look invalid"))
}

fn hash(token: &Token) -> String {
    hex::print(&proof::hash(token.to_string().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_wrong_is_named() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let (certificate, authority, revoked) = (String::new(), String::new(), String::new());
        let granted =
            Granted { certificate, authority, revoked, verification_key: None, configuration: None, at: now };
        let note = |seconds| clock_note(&granted, now + SignedDuration::from_secs(seconds));
        assert!(note(-3 * 3600).unwrap().contains("is 3h behind the authority's"));
        assert!(note(90).unwrap().contains("1m 30s ahead of the authority's"));
        assert_eq!((note(59), note(-59)), (None, None));
    }
}
