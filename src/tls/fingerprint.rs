//! Hashes of certificates, as operators pin and block them.
//!
//! Owns their notation and comparison. It refuses to know why a certificate is pinned or blocked.

use std::fmt;

use aws_lc_rs::digest::{Algorithm, SHA224, SHA256, SHA384, SHA512, digest};

/// The hash of a certificate's DER encoding; its length says by which algorithm.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fingerprint {
    /// SHA-224.
    Sha224([u8; 28]),
    /// SHA-256.
    Sha256([u8; 32]),
    /// SHA-384.
    Sha384([u8; 48]),
    /// SHA-512.
    Sha512([u8; 64]),
}

impl Fingerprint {
    /// The SHA-256 of a certificate.
    pub fn sha256(certificate: &[u8]) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self::Sha256(bytes)
    }

    /// Whether this is the hash of that certificate.
    pub fn is_of(&self, certificate: &[u8]) -> bool {
        digest(self.algorithm(), certificate).as_ref() == self.bytes()
    }

    fn algorithm(&self) -> &'static Algorithm {
        match self {
            Self::Sha224(_) => &SHA224,
            Self::Sha256(_) => &SHA256,
            Self::Sha384(_) => &SHA384,
            Self::Sha512(_) => &SHA512,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Sha224(bytes) => bytes,
            Self::Sha256(bytes) => bytes,
            Self::Sha384(bytes) => bytes,
            Self::Sha512(bytes) => bytes,
        }
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = &'static str;

    /// Reads hexadecimal digits, with or without colons between them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str = "a fingerprint must be 56 (SHA-224), 64 (SHA-256), 96 (SHA-384) or 128 (SHA-512) \
                              hexadecimal digits, colons allowed";
        let digits: Option<Vec<u8>> =
            text.chars().filter(|c| *c != ':').map(|c| Some(c.to_digit(16)? as u8)).collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or(WANTED)?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let bytes = bytes.as_slice();
        let short = bytes.try_into().map(Self::Sha224).or_else(|_| bytes.try_into().map(Self::Sha256));
        let any = short.or_else(|_| bytes.try_into().map(Self::Sha384));
        any.or_else(|_| bytes.try_into().map(Self::Sha512)).map_err(|_| WANTED)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.bytes().iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_read_printed_and_compared() {
        for algorithm in [&SHA224, &SHA256, &SHA384, &SHA512] {
            let hash: String =
                digest(algorithm, b"certificate").as_ref().iter().map(|b| format!("{b:02X}")).collect();
            let fingerprint: Fingerprint = hash.parse().unwrap();
            assert!(fingerprint.is_of(b"certificate"));
            assert!(!fingerprint.is_of(b"another"));
            assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        }
        for text in ["", "ab", &"a".repeat(63), &"g".repeat(64), &"é".repeat(32)] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }
}
