//! Which authorities a mesh trusts: one, or two while a new one takes the place of the former. Nodes are told over the mesh.
//!
//! Owns that text (JSON) and its signatures: a node believes an authority that it trusts already, and no earlier text than
//! it has. It refuses to know when the authorities change.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::JoinError;
use crate::tls::make;
use crate::tls::proof::{self, pem_blocks};

/// The authorities of a mesh.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TrustedAuthorities {
    /// Rises with each change; the time of the change, in milliseconds since 1970.
    pub(crate) number: u64,
    /// Their certificates, in PEM; the first one signs new certificates.
    pub(crate) certificates: String,
}

/// The same as it travels.
#[derive(Debug, Serialize, Deserialize)]
struct SignedAuthorities {
    /// The text of [`TrustedAuthorities`], byte for byte as it was signed.
    authorities: String,
    /// In base64, of an authority that was trusted before.
    signature: String,
}

impl TrustedAuthorities {
    /// The text that travels, signed by this key.
    ///
    /// # Errors
    /// The key cannot be used.
    pub(super) fn sign(&self, key: &str) -> Result<String, JoinError> {
        let authorities = serde_json::to_string(self).unwrap_or_default();
        let signature = STANDARD.encode(proof::sign(key, &to_sign(&authorities))?);
        Ok(serde_json::to_string(&SignedAuthorities { authorities, signature }).unwrap_or_default())
    }

    /// Reads what one of the trusted authorities, in PEM, has signed.
    ///
    /// # Errors
    /// It is something else, or none of them has signed it.
    pub(crate) fn read(text: &str, trusted: &str) -> Result<Self, &'static str> {
        let wrong = "this does not say which authorities are trusted";
        let SignedAuthorities { authorities, signature } = serde_json::from_str(text).map_err(|_| wrong)?;
        let signature = STANDARD.decode(signature).unwrap_or_default();
        let is_by = |certificate: &str| proof::has_signed(certificate, &to_sign(&authorities), &signature);
        if !pem_blocks(trusted, "CERTIFICATE").into_iter().any(is_by) {
            return Err("no authority that is trusted here says which ones are trusted");
        }
        let read: Self = serde_json::from_str(&authorities).map_err(|_| wrong)?;
        let all = pem_blocks(&read.certificates, "CERTIFICATE");
        let is_authority = |one: &&str| make::facts(one).is_ok_and(|facts| facts.is_ca);
        match !all.is_empty() && all.iter().all(is_authority) {
            true => Ok(read),
            false => Err(wrong),
        }
    }
}

/// Those of the authorities in `own` that sign each revocation list: which the text names that they have signed, or else
/// the first one. Others may stand there by hand.
pub(crate) fn list_signers(signed: &str, own: &str) -> String {
    let trusted = TrustedAuthorities::read(signed, own).map_or_else(|_| String::new(), |it| it.certificates);
    let (named, all) = (pem_blocks(&trusted, "CERTIFICATE"), pem_blocks(own, "CERTIFICATE"));
    let signers: String =
        all.iter().filter(|one| named.contains(one)).map(|one| format!("{one}\n")).collect();
    match signers.is_empty() {
        true => all.first().copied().unwrap_or_default().to_owned(),
        false => signers,
    }
}

/// What is signed. The words in front keep a signature from meaning something elsewhere.
fn to_sign(authorities: &str) -> Vec<u8> {
    [b"meshd names the authorities\0".as_slice(), authorities.as_bytes()].concat()
}
