//! Keys as `ssh-keygen` writes them: a private key file in OpenSSH's format, and a public key in one line.
//!
//! Owns their conversion into what the library for signatures reads. It refuses to know files, and which keys a node
//! asks for.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use simple_asn1::{ASN1Block, BigInt, BigUint};
use ssh_key::Mpint;
use ssh_key::private::{KeypairData, RsaKeypair};
use ssh_key::public::KeyData;

use super::keys::{PrivateKey, Problem, PublicKey};

/// PKCS #8 up to the 32 bytes of an Ed25519 key (RFC 8410, section 7).
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// True if a public key's line begins here, of whatever kind.
pub(super) fn is_public(file: &[u8]) -> bool {
    let file = file.trim_ascii_start();
    ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| file.starts_with(kind.as_bytes()))
}

/// Reads `ssh-rsa BASE64 [COMMENT]` or `ssh-ed25519 BASE64 [COMMENT]`.
pub(super) fn public_key(file: &[u8]) -> Result<PublicKey, Problem> {
    let text = std::str::from_utf8(file).map_err(|_| Problem::Unusable)?.trim();
    // A second line would pass for the first one's comment.
    match text.lines().count() {
        1 => {}
        lines => return Err(Problem::SeveralLines(lines)),
    }
    let key = ssh_key::PublicKey::from_openssh(text).map_err(|_| Problem::Unusable)?;
    match key.key_data() {
        KeyData::Ed25519(key) => {
            Ok(PublicKey { algorithm: Algorithm::EdDSA, key: DecodingKey::from_ed_der(&key.0) })
        }
        KeyData::Rsa(key) => {
            check_length(&key.n)?;
            let key = DecodingKey::from_rsa_raw_components(bytes(&key.n)?, bytes(&key.e)?);
            Ok(PublicKey { algorithm: Algorithm::RS512, key })
        }
        // Kinds of keys that no signature here is made with.
        _ => Err(Problem::Unusable),
    }
}

/// Reads what stands between `-----BEGIN OPENSSH PRIVATE KEY-----` and its end.
pub(super) fn private_key(file: &[u8]) -> Result<PrivateKey, Problem> {
    let key = ssh_key::PrivateKey::from_openssh(file).map_err(|_| Problem::Unusable)?;
    match key.key_data() {
        KeypairData::Encrypted(_) => Err(Problem::Encrypted),
        KeypairData::Ed25519(pair) => {
            let der = [&ED25519_PKCS8[..], pair.private.as_ref()].concat();
            Ok(PrivateKey { algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(&der) })
        }
        KeypairData::Rsa(pair) => {
            check_length(&pair.public.n)?;
            Ok(PrivateKey { algorithm: Algorithm::RS512, key: EncodingKey::from_rsa_der(&pkcs1(pair)?) })
        }
        _ => Err(Problem::Unusable),
    }
}

/// The key as PKCS #1 has it, which names two exponents that OpenSSH leaves out.
fn pkcs1(pair: &RsaKeypair) -> Result<Vec<u8>, Problem> {
    let number = |number: &Mpint| Ok(BigUint::from_bytes_be(bytes(number)?));
    let (public, private) = (&pair.public, &pair.private);
    let (d, p, q) = (number(&private.d)?, number(&private.p)?, number(&private.q)?);
    let one = BigUint::from(1u8);
    if p <= one || q <= one {
        return Err(Problem::Unusable);
    }
    let (of_p, of_q) = (&d % (&p - &one), &d % (&q - &one));
    let version = BigUint::ZERO;
    let numbers =
        [version, number(&public.n)?, number(&public.e)?, d, p, q, of_p, of_q, number(&private.iqmp)?];
    let numbers = numbers.into_iter().map(|number| ASN1Block::Integer(0, BigInt::from(number))).collect();
    simple_asn1::to_der(&ASN1Block::Sequence(0, numbers)).map_err(|_| Problem::Unusable)
}

fn check_length(modulus: &Mpint) -> Result<(), Problem> {
    match bytes(modulus)?.len() * 8 {
        2048..=8192 => Ok(()),
        bits => Err(Problem::RsaLength(bits)),
    }
}

/// A number without leading zeros; no number of a key is below zero.
fn bytes(number: &Mpint) -> Result<&[u8], Problem> {
    number.as_positive_bytes().ok_or(Problem::Unusable)
}
