//! Keys as `ssh-keygen` writes them: a private key file in OpenSSH's format (PROTOCOL.key of OpenSSH), and a public key in
//! one line (RFC 4253, section 6.6).
//!
//! Owns their conversion into what the library for signatures reads. It refuses to know files, and which keys a node
//! asks for.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use simple_asn1::{ASN1Block, BigInt, BigUint};

use super::keys::{PrivateKey, Problem, PublicKey};

/// PKCS #8 up to the 32 bytes of an Ed25519 key (RFC 8410, section 7).
const ED25519_PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
const ED25519: &str = "ssh-ed25519";
const RSA: &str = "ssh-rsa";
/// What a private key begins with.
const MAGIC: &[u8] = b"openssh-key-v1\0";

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
    let mut words = text.split_ascii_whitespace();
    let (kind, blob) = words.next().zip(words.next()).ok_or(Problem::Unusable)?;
    let blob = decoded(blob)?;
    let mut fields = Fields(&blob);
    if fields.text()? != kind {
        return Err(Problem::Unusable);
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
        // Kinds of keys that no signature here is made with.
        _ => return Err(Problem::Unusable),
    };
    fields.end().map(|()| key)
}

/// Reads what stands between `-----BEGIN OPENSSH PRIVATE KEY-----` and its end.
pub(super) fn private_key(file: &[u8]) -> Result<PrivateKey, Problem> {
    let text = std::str::from_utf8(file).map_err(|_| Problem::Unusable)?;
    let body = text.split_once("KEY-----").and_then(|(_, rest)| rest.split_once("-----END"));
    let file = decoded(body.ok_or(Problem::Unusable)?.0)?;
    let mut file = Fields(file.strip_prefix(MAGIC).ok_or(Problem::Unusable)?);
    let (cipher, _kdf, _its_options) = (file.text()?, file.bytes()?, file.bytes()?);
    if cipher != "none" {
        return Err(Problem::Encrypted);
    }
    let (count, _public) = (file.word()?, file.bytes()?);
    let mut fields = Fields(file.bytes()?);
    if count != 1 || fields.word()? != fields.word()? {
        return Err(Problem::Unusable);
    }
    match fields.text()? {
        ED25519 => {
            let (public, pair): (&[u8; 32], &[u8; 64]) = (fields.array()?, fields.array()?);
            let (seed, again) = pair.split_at(32);
            if again != public {
                return Err(Problem::Unusable);
            }
            let der = [&ED25519_PKCS8[..], seed].concat();
            Ok(PrivateKey { algorithm: Algorithm::EdDSA, key: EncodingKey::from_ed_der(&der) })
        }
        RSA => {
            check_length(Fields(fields.0).number()?)?;
            Ok(PrivateKey { algorithm: Algorithm::RS512, key: EncodingKey::from_rsa_der(&pkcs1(fields)?) })
        }
        _ => Err(Problem::Unusable),
    }
}

/// The key as PKCS #1 has it, which names two exponents that OpenSSH leaves out.
fn pkcs1(mut fields: Fields<'_>) -> Result<Vec<u8>, Problem> {
    let mut number = || Ok(BigUint::from_bytes_be(fields.number()?));
    let (n, e, d, of_q_in_p) = (number()?, number()?, number()?, number()?);
    let (p, q) = (number()?, number()?);
    let one = BigUint::from(1u8);
    if p <= one || q <= one {
        return Err(Problem::Unusable);
    }
    let (of_p, of_q) = (&d % (&p - &one), &d % (&q - &one));
    let numbers = [BigUint::ZERO, n, e, d, p, q, of_p, of_q, of_q_in_p];
    let numbers = numbers.into_iter().map(|number| ASN1Block::Integer(0, BigInt::from(number))).collect();
    simple_asn1::to_der(&ASN1Block::Sequence(0, numbers)).map_err(|_| Problem::Unusable)
}

fn check_length(modulus: &[u8]) -> Result<(), Problem> {
    match modulus.len() * 8 {
        2048..=8192 => Ok(()),
        bits => Err(Problem::RsaLength(bits)),
    }
}

/// Base64, with line breaks or without.
fn decoded(text: &str) -> Result<Vec<u8>, Problem> {
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    BASE64_STANDARD.decode(text).map_err(|_| Problem::Unusable)
}

/// Fields as SSH writes them (RFC 4251, section 5): numbers of 4 bytes, and texts of a length that comes before them.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn word(&mut self) -> Result<u32, Problem> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Problem::Unusable)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*word))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Problem> {
        let len = usize::try_from(self.word()?).map_err(|_| Problem::Unusable)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Problem::Unusable)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, Problem> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Problem::Unusable)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], Problem> {
        self.bytes()?.try_into().map_err(|_| Problem::Unusable)
    }

    /// A number without leading zeros; no number of a key is below zero.
    fn number(&mut self) -> Result<&'a [u8], Problem> {
        match self.bytes()? {
            [0, number @ ..] => Ok(number),
            number @ [0..0x80, ..] => Ok(number),
            [] | [0x80..=0xff, ..] => Err(Problem::Unusable),
        }
    }

    fn end(&self) -> Result<(), Problem> {
        if self.0.is_empty() { Ok(()) } else { Err(Problem::Unusable) }
    }
}
