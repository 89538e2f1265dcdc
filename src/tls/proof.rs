//! Proofs outside of a handshake: signatures over messages by keys of certificates and of tokens, and hashes of keys.
//!
//! Works on PEM texts. It refuses to know what is signed, and who is believed.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rcgen::SigningKey as _;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use webpki::RawPublicKeyEntity;
use x509_parser::prelude::{FromDer, X509Certificate, X509CertificationRequest};

use super::make::{MakeError, pem_section, public_key_der, read_key};

/// Bytes of a SHA-256.
pub const HASH: usize = 32;

/// Signs a message with a private key in PEM, by the algorithm with which it signs certificates.
///
/// # Errors
/// The key cannot be used.
pub fn sign(private_key: &str, message: &[u8]) -> Result<Vec<u8>, MakeError> {
    read_key(private_key)?.sign(message).map_err(|error| MakeError::BadKey(error.to_string()))
}

/// Whether the key of the first certificate of a PEM text has signed the message.
pub fn has_signed(certificate: &str, message: &[u8], signature: &[u8]) -> bool {
    let Ok(der) = pem_section(certificate, "CERTIFICATE") else { return false };
    let Ok((_, parsed)) = X509Certificate::from_der(&der) else { return false };
    let key = SubjectPublicKeyInfoDer::from(parsed.public_key().raw);
    let Ok(key) = RawPublicKeyEntity::try_from(&key) else { return false };
    let all = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.all;
    all.iter().any(|algorithm| key.verify_signature(*algorithm, message, signature).is_ok())
}

/// The SHA-256 of the public key of the first certificate of a PEM text.
///
/// # Errors
/// There is no certificate in it.
pub fn key_of_certificate(certificate: &str) -> Result<[u8; HASH], MakeError> {
    let der = pem_section(certificate, "CERTIFICATE").map_err(MakeError::Other)?;
    let (_, parsed) = X509Certificate::from_der(&der).map_err(|error| MakeError::Other(error.to_string()))?;
    Ok(hash(parsed.public_key().raw))
}

/// The hashes of the keys of all certificates of a PEM text.
pub fn keys_of_certificates(certificates: &str) -> Vec<[u8; HASH]> {
    let all = pem_blocks(certificates, "CERTIFICATE").into_iter();
    all.filter_map(|one| key_of_certificate(one).ok()).collect()
}

/// Whether a private key is that of the first certificate of a PEM text.
pub fn is_key_of(private_key: &str, certificate: &str) -> bool {
    let public = public_key_der(private_key).map(|public| hash(&public));
    public.is_ok_and(|public| key_of_certificate(certificate).is_ok_and(|own| own == public))
}

/// The sections of a kind in a PEM text, as they stand there.
pub fn pem_blocks<'a>(text: &'a str, kind: &str) -> Vec<&'a str> {
    let (begin, end) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let parts = text.split_inclusive(end.as_str()).filter(|part| part.ends_with(&end));
    parts.filter_map(|part| part.rfind(&begin).map(|at| &part[at..])).collect()
}

/// The SHA-256 of the public key for which a request in PEM asks for a certificate.
///
/// # Errors
/// It is no request.
pub fn key_of_request(request: &str) -> Result<[u8; HASH], MakeError> {
    let der = pem_section(request, "CERTIFICATE REQUEST").map_err(MakeError::Request)?;
    let (_, parsed) =
        X509CertificationRequest::from_der(&der).map_err(|error| MakeError::Request(error.to_string()))?;
    Ok(hash(parsed.certification_request_info.subject_pki.raw))
}

/// The SHA-256 of bytes.
pub fn hash(bytes: &[u8]) -> [u8; HASH] {
    let mut hash = [0; HASH];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// A key pair (Ed25519) that is made of a secret. Whoever knows the public half cannot pose as one who knows the secret.
pub struct SecretKey(Ed25519KeyPair);

impl SecretKey {
    /// The same secret always makes the same keys.
    ///
    /// # Errors
    /// The library refuses.
    pub fn of(secret: &[u8]) -> Result<Self, MakeError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&hash(secret));
        pair.map(Self).map_err(|error| MakeError::Key(error.to_string()))
    }

    /// The public half.
    pub fn public(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    /// Signs a message.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }
}

/// Whether the secret behind this public half has signed the message.
pub fn knows_secret(public: &[u8], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(message, signature).is_ok()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::make::{self, Dates, KeyKind};
    use super::*;

    #[test]
    fn what_a_key_signs_its_certificate_proves_and_no_other() {
        for kind in [KeyKind::EcdsaP256, KeyKind::Rsa(2048), KeyKind::Ed25519] {
            let key = make::private_key(kind).unwrap();
            let certificate = make::authority("a", &key, Dates::default(), Timestamp::now()).unwrap();
            let signature = sign(&key, b"granted").unwrap();
            assert!(has_signed(&certificate, b"granted", &signature), "{kind:?}");
            assert!(!has_signed(&certificate, b"Granted", &signature));
            let other = make::private_key(kind).unwrap();
            assert!(!has_signed(&certificate, b"granted", &sign(&other, b"granted").unwrap()));
        }
    }

    #[test]
    fn a_request_and_its_certificate_have_one_key() {
        let key = make::private_key(KeyKind::EcdsaP256).unwrap();
        let request = make::request(&make::CertSubject::default(), &key).unwrap();
        let certificate = make::authority("a", &key, Dates::default(), Timestamp::now()).unwrap();
        assert_eq!(key_of_request(&request).unwrap(), key_of_certificate(&certificate).unwrap());
        key_of_request(&certificate).unwrap_err();
        key_of_certificate(&request).unwrap_err();
    }

    #[test]
    fn a_secret_is_proved_without_being_told() {
        let (known, other) = (SecretKey::of(b"secret").unwrap(), SecretKey::of(b"another").unwrap());
        let signature = known.sign(b"message");
        assert!(knows_secret(SecretKey::of(b"secret").unwrap().public(), b"message", &signature));
        assert!(!knows_secret(other.public(), b"message", &signature));
        assert!(!knows_secret(known.public(), b"Message", &signature));
        assert!(!knows_secret(b"", b"message", &signature) && !knows_secret(known.public(), b"message", b""));
    }
}
