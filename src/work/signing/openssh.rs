//! Keys as `ssh-keygen` writes them: a private key file in OpenSSH's format (PROTOCOL.key of OpenSSH), and a public key in
//! one line (RFC 4253, section 6.6).
//!
//! Owns their conversion into the keys of the library for signatures. Knows neither files nor which keys a node needs.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use simple_asn1::{ASN1Block, BigInt, BigUint};

use super::keys::{KeyProblem, PrivateKey, PublicKey};

/// The PKCS #8 bytes before the 32 bytes of an Ed25519 key (RFC 8410, section 7).
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
const ED25519: &str = "ssh-ed25519";
const RSA: &str = "ssh-rsa";
/// The bytes that a private key begins with.
const MAGIC: &[u8] = b"openssh-key-v1\0";

/// Whether the file begins with the line of a public key, of any kind.
pub(super) fn is_public(file: &[u8]) -> bool {
    let file = file.trim_ascii_start();
    ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| file.starts_with(kind.as_bytes()))
}

/// Reads `ssh-rsa BASE64 [COMMENT]` or `ssh-ed25519 BASE64 [COMMENT]`.
pub(super) fn public_key(file: &[u8]) -> Result<PublicKey, KeyProblem> {
    let text = std::str::from_utf8(file).map_err(|_| KeyProblem::Unusable)?.trim();
    // A second line is refused, because it would be read as the first line's comment.
    match text.lines().count() {
        1 => {}
        lines => return Err(KeyProblem::SeveralLines(lines)),
    }
    let mut words = text.split_ascii_whitespace();
    let (kind, blob) = words.next().zip(words.next()).ok_or(KeyProblem::Unusable)?;
    let blob = decoded(blob)?;
    let mut fields = Fields(&blob);
    if fields.text()? != kind {
        return Err(KeyProblem::Unusable);
    }
    let key = match kind {
        ED25519 => {
            let key: &[u8; 32] = fields.array()?;
            PublicKey { algorithm: Algorithm::EdDSA, key: DecodingKey::from_ed_der(key) }
        }
        RSA => {
            let (e, n) = (fields.number()?, fields.number()?);
            check_length(n)?;
            PublicKey { algorithm: Algorithm::RS512, key: DecodingKey::from_rsa_raw_components(n, e) }
        }
        // Signatures here use no other kind of key.
        _ => return Err(KeyProblem::Unusable),
    };
    fields.end().map(|()| key)
}

/// Reads the text between `-----BEGIN OPENSSH PRIVATE KEY-----` and the matching end line.
pub(super) fn private_key(file: &[u8]) -> Result<PrivateKey, KeyProblem> {
    let text = std::str::from_utf8(file).map_err(|_| KeyProblem::Unusable)?;
    let body = text.split_once("KEY-----").and_then(|(_, rest)| rest.split_once("-----END"));
    let file = decoded(body.ok_or(KeyProblem::Unusable)?.0)?;
    let mut file = Fields(file.strip_prefix(MAGIC).ok_or(KeyProblem::Unusable)?);
    let (cipher, _kdf, _its_options) = (file.text()?, file.bytes()?, file.bytes()?);
    if cipher != "none" {
        return Err(KeyProblem::Encrypted);
    }
    let (count, _public) = (file.word()?, file.bytes()?);
    let mut fields = Fields(file.bytes()?);
    if count != 1 || fields.word()? != fields.word()? {
        return Err(KeyProblem::Unusable);
    }
    match fields.text()? {
        ED25519 => {
            let (public, pair): (&[u8; 32], &[u8; 64]) = (fields.array()?, fields.array()?);
            let (seed, again) = pair.split_at(32);
            if again != public {
                return Err(KeyProblem::Unusable);
            }
            let der = [&ED25519_PKCS8[..], seed].concat();
            Ok(PrivateKey { algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(&der) })
        }
        RSA => {
            check_length(Fields(fields.0).number()?)?;
            Ok(PrivateKey { algorithm: Algorithm::RS512, key: EncodingKey::from_rsa_der(&pkcs1(fields)?) })
        }
        _ => Err(KeyProblem::Unusable),
    }
}

/// Converts an RSA key to PKCS #1. Computes the two exponents that OpenSSH leaves out.
fn pkcs1(mut fields: Fields<'_>) -> Result<Vec<u8>, KeyProblem> {
    let mut number = || Ok(BigUint::from_bytes_be(fields.number()?));
    let (n, e, d, of_q_in_p) = (number()?, number()?, number()?, number()?);
    let (p, q) = (number()?, number()?);
    let one = BigUint::from(1u8);
    if p <= one || q <= one {
        return Err(KeyProblem::Unusable);
    }
    let (of_p, of_q) = (&d % (&p - &one), &d % (&q - &one));
    let numbers = [BigUint::ZERO, n, e, d, p, q, of_p, of_q, of_q_in_p];
    let numbers = numbers.into_iter().map(|number| ASN1Block::Integer(0, BigInt::from(number))).collect();
    simple_asn1::to_der(&ASN1Block::Sequence(0, numbers)).map_err(|_| KeyProblem::Unusable)
}

fn check_length(modulus: &[u8]) -> Result<(), KeyProblem> {
    match modulus.len() * 8 {
        2048..=8192 => Ok(()),
        bits => Err(KeyProblem::RsaLength(bits)),
    }
}

/// Decodes Base64, with or without line breaks.
fn decoded(text: &str) -> Result<Vec<u8>, KeyProblem> {
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64_STANDARD.decode(text).map_err(|_| KeyProblem::Unusable)
}

/// Fields as SSH writes them (RFC 4251, section 5): numbers of 4 bytes, and strings after their length.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn word(&mut self) -> Result<u32, KeyProblem> {
        let (word, rest) = self.0.split_first_chunk().ok_or(KeyProblem::Unusable)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*word))
    }

    fn bytes(&mut self) -> Result<&'a [u8], KeyProblem> {
        let len = usize::try_from(self.word()?).map_err(|_| KeyProblem::Unusable)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(KeyProblem::Unusable)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, KeyProblem> {
        std::str::from_utf8(self.bytes()?).map_err(|_| KeyProblem::Unusable)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], KeyProblem> {
        self.bytes()?.try_into().map_err(|_| KeyProblem::Unusable)
    }

    /// A number without its leading zero byte. Negative numbers are refused, because keys have none.
    fn number(&mut self) -> Result<&'a [u8], KeyProblem> {
        match self.bytes()? {
            [0, number @ ..] => Ok(number),
            number @ [0..0x80, ..] => Ok(number),
            [] | [0x80..=0xff, ..] => Err(KeyProblem::Unusable),
        }
    }

    fn end(&self) -> Result<(), KeyProblem> {
        if self.0.is_empty() { Ok(()) } else { Err(KeyProblem::Unusable) }
    }
}
