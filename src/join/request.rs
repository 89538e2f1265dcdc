//! What a new host or a node that renews asks of the authority, and the answer. Both are carried by nodes that need not
//! be trusted: the request is signed by a token's key or by the certificate that is to be renewed, and what is granted
//! by the authority, for this one request.
//!
//! Owns both texts (JSON) and their signatures. It refuses to know who may have what: `desk` decides.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::JoinError;
use super::invite::TokenSecret;
use crate::tls::make::{self, CertSubject, MakeError};
use crate::tls::proof::{self, HASH};

/// The longest request, in bytes.
pub(crate) const MOST_ASKED: usize = 16 << 10;
/// The longest answer, in bytes. A list of ten thousand revoked certificates has half of it while there are two authorities.
pub(crate) const MOST_ANSWERED: usize = 4 << 20;

/// A request for a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CertificateRequest {
    /// The text of an [`WantedCertificate`], byte for byte as it was signed.
    pub(super) asked: String,
    /// Why it should be granted.
    pub(super) proof: RequestProof,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WantedCertificate {
    /// The name of the node.
    pub(crate) node: String,
    /// The request for a certificate, in PEM.
    pub(crate) request: String,
    /// The address at which a host without a token asks, where it would be linked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dials: Option<String>,
}

/// A signature, in base64, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RequestProof {
    /// None: a person has to decide.
    None,
    /// Of the secret in a token for this node.
    Token(String),
    /// Of the certificate that this node has.
    Certificate {
        /// The certificate, in PEM.
        certificate: String,
        /// The signature.
        signature: String,
    },
}

/// What comes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CertificateAnswer {
    /// The text of a [`Granted`], byte for byte as the authority has signed it, and that signature in base64.
    Granted {
        /// The text.
        granted: String,
        /// The signature.
        signature: String,
    },
    /// A person has not decided yet: the same is asked again. The authority's certificate, in PEM, which nobody signs.
    Waiting(String),
    /// It is not granted. Nobody signs this, so it may be a lie of a node on the way.
    Refused(String),
    /// Nobody could decide for the moment: the same may be asked again.
    Busy(String),
}

/// Everything that a node needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Granted {
    /// Its certificate, in PEM.
    pub(crate) certificate: String,
    /// The authority's, in PEM.
    pub(crate) authority: String,
    /// The list of revoked certificates, in PEM.
    pub(crate) revoked: String,
    /// The key that verifies jobs, for a node that runs some.
    pub(crate) verification_key: Option<String>,
    /// The configuration, for a new node.
    pub(crate) configuration: Option<String>,
    /// The time of the authority, for hosts whose clock is wrong.
    pub(crate) at: Timestamp,
}

impl WantedCertificate {
    /// What a host with this private key, in PEM, wants to have as this node.
    ///
    /// # Errors
    /// The key cannot be used.
    pub(crate) fn new(node: &str, key: &str, dials: Option<String>) -> Result<Self, MakeError> {
        let (node, names) = (node.to_owned(), CertSubject::default());
        let names = CertSubject { common_name: node.clone(), node_ids: vec![node.clone()], ..names };
        Ok(Self { request: make::request(&names, key)?, node, dials })
    }
}

impl CertificateRequest {
    /// Asks without a token.
    pub(crate) fn by_approval(asked: &WantedCertificate) -> Self {
        Self { asked: text(asked), proof: RequestProof::None }
    }

    /// Asks by a token.
    ///
    /// # Errors
    /// The library refuses.
    pub(crate) fn by_token(asked: &WantedCertificate, secret: &TokenSecret) -> Result<Self, JoinError> {
        let asked = text(asked);
        let signature = STANDARD.encode(secret.key()?.sign(&to_ask(&asked)));
        Ok(Self { asked, proof: RequestProof::Token(signature) })
    }

    /// Asks by the certificate that is to be renewed, and its key, both in PEM.
    ///
    /// # Errors
    /// The key cannot be used.
    pub(crate) fn by_certificate(
        asked: &WantedCertificate,
        certificate: String,
        key: &str,
    ) -> Result<Self, JoinError> {
        let asked = text(asked);
        let signature = STANDARD.encode(proof::sign(key, &to_ask(&asked))?);
        Ok(Self { asked, proof: RequestProof::Certificate { certificate, signature } })
    }

    /// Reads a request.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MOST_ASKED {
            return Err(format!("the request has more than {MOST_ASKED} bytes"));
        }
        serde_json::from_slice(bytes)
            .map_err(|error| format!("this is not a request for a certificate: {error}"))
    }

    /// Its text.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        text(self).into_bytes()
    }

    /// Whether it asks for the same as the other one, so that one answer is good for both.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.asked == other.asked
    }

    /// What it asks for; nothing says yet that it may.
    pub(super) fn asked(&self) -> Result<WantedCertificate, String> {
        serde_json::from_str(&self.asked)
            .map_err(|error| format!("this is not a request for a certificate: {error}"))
    }

    /// Whether the owner of a token with this public key has signed it.
    pub(super) fn is_by_token(&self, key: &[u8]) -> bool {
        match &self.proof {
            RequestProof::Token(signature) => {
                proof::knows_secret(key, &to_ask(&self.asked), &bytes(signature))
            }
            RequestProof::Certificate { .. } | RequestProof::None => false,
        }
    }

    /// The certificate whose owner has signed it.
    pub(super) fn certificate(&self) -> Option<&str> {
        match &self.proof {
            RequestProof::Certificate { certificate, signature }
                if proof::has_signed(certificate, &to_ask(&self.asked), &bytes(signature)) =>
            {
                Some(certificate)
            }
            RequestProof::Certificate { .. } | RequestProof::Token(_) | RequestProof::None => None,
        }
    }

    /// Grants it in the authority's name.
    ///
    /// # Errors
    /// The key cannot be used.
    pub(super) fn grant(
        &self,
        granted: &Granted,
        authority_key: &str,
    ) -> Result<CertificateAnswer, JoinError> {
        let granted = text(granted);
        let signature = STANDARD.encode(proof::sign(authority_key, &to_grant(&self.asked, &granted))?);
        Ok(CertificateAnswer::Granted { granted, signature })
    }

    /// The authority's certificate in an answer that grants something, in PEM. Nothing says yet that it is the right one.
    ///
    /// # Errors
    /// It grants nothing.
    pub(crate) fn authority_of(answer: &[u8]) -> Result<String, NotGranted> {
        let broken =
            |error: serde_json::Error| NotGranted::Broken(format!("the answer cannot be read: {error}"));
        match serde_json::from_slice(answer).map_err(broken)? {
            CertificateAnswer::Granted { granted, .. } => {
                Ok(serde_json::from_str::<Granted>(&granted).map_err(broken)?.authority)
            }
            _ => Err(NotGranted::Broken("the answer grants nothing".to_owned())),
        }
    }

    /// What was granted, if the authority with the hash of this key says so; else why nothing was.
    ///
    /// # Errors
    /// The reason, and whether another way to the authority may do better.
    pub(crate) fn open(&self, answer: &[u8], authority: &[u8; HASH]) -> Result<Granted, NotGranted> {
        self.open_by(answer, std::slice::from_ref(authority))
    }

    /// The same, if one of the authorities with these hashes says so.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_by(&self, answer: &[u8], authorities: &[[u8; HASH]]) -> Result<Granted, NotGranted> {
        let read =
            |error: serde_json::Error| NotGranted::Broken(format!("the answer cannot be read: {error}"));
        let (granted, signature) = match serde_json::from_slice(answer).map_err(read)? {
            CertificateAnswer::Granted { granted, signature } => (granted, signature),
            CertificateAnswer::Waiting(authority) => return Err(NotGranted::Waiting(authority)),
            CertificateAnswer::Refused(why) => return Err(NotGranted::Refused(why)),
            CertificateAnswer::Busy(why) => return Err(NotGranted::Busy(why)),
        };
        let whole: Granted = serde_json::from_str(&granted).map_err(read)?;
        let is_it = proof::key_of_certificate(&whole.authority).is_ok_and(|key| authorities.contains(&key));
        if !is_it {
            return Err(NotGranted::Broken(
                "the answer is from another authority than the token's".to_owned(),
            ));
        }
        match proof::has_signed(&whole.authority, &to_grant(&self.asked, &granted), &bytes(&signature)) {
            true => Ok(whole),
            false => Err(NotGranted::Broken("the answer was changed on its way".to_owned())),
        }
    }
}

/// Why there is no certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotGranted {
    /// A person has not decided yet. The authority's certificate, in PEM.
    #[error("nobody has decided about it yet")]
    Waiting(String),
    /// The authority refuses, or somebody on the way says so.
    #[error("{0}")]
    Refused(String),
    /// Nobody could decide for the moment.
    #[error("{0}")]
    Busy(String),
    /// The answer is none, or not the authority's.
    #[error("{0}")]
    Broken(String),
}

impl CertificateAnswer {
    /// Its text.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        text(self).into_bytes()
    }
}

fn text<T: Serialize>(value: &T) -> String {
    // Maps with other keys than strings would fail, and there are none.
    serde_json::to_string(value).unwrap_or_default()
}

fn bytes(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap_or_default()
}

/// What the one who asks signs. The words in front keep a signature from meaning something elsewhere.
fn to_ask(asked: &str) -> Vec<u8> {
    [b"meshd asks for a certificate\0".as_slice(), asked.as_bytes()].concat()
}

/// What the authority signs: it holds for this request alone.
fn to_grant(asked: &str, granted: &str) -> Vec<u8> {
    [b"meshd grants a certificate\0".as_slice(), &proof::hash(asked.as_bytes()), granted.as_bytes()].concat()
}
