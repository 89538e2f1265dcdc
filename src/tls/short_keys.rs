//! Signatures by authorities whose RSA keys are shorter than 2048 bits.
//!
//! Owns one exception: an operator who names such an authority vouches for it. The exception holds for that very key,
//! so intermediate certificates and handshakes still need keys of 2048 bits.

use aws_lc_rs::signature::{self, RsaParameters, UnparsedPublicKey};
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};

/// The fewest bits that are accepted of all other RSA keys.
pub(super) const LEAST_BITS: usize = 2048;

/// RSA with one hash, which accepts short keys of some authorities.
#[derive(Debug)]
struct Rsa<'a> {
    keys: &'a [Vec<u8>],
    usual: &'static dyn SignatureVerificationAlgorithm,
    short: &'static RsaParameters,
}

impl SignatureVerificationAlgorithm for Rsa<'_> {
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.usual.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.usual.signature_alg_id()
    }

    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        if !self.keys.iter().any(|short| short == key) {
            return self.usual.verify_signature(key, message, signature);
        }
        UnparsedPublicKey::new(self.short, key).verify(message, signature).map_err(|_| InvalidSignature)
    }
}

/// Calls `verify` with the algorithms that may sign certificates: the usual ones, and RSA with these short `keys`.
pub(super) fn with_algorithms<T>(
    keys: &[Vec<u8>],
    verify: impl FnOnce(&[&dyn SignatureVerificationAlgorithm]) -> T,
) -> T {
    if keys.is_empty() {
        return verify(webpki::ALL_VERIFICATION_ALGS);
    }
    let sha256 = Rsa {
        keys,
        usual: webpki::aws_lc_rs::RSA_PKCS1_2048_8192_SHA256,
        short: &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
    };
    let sha512 = Rsa {
        keys,
        usual: webpki::aws_lc_rs::RSA_PKCS1_2048_8192_SHA512,
        short: &signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    };
    // The first algorithm that fits decides.
    let mut all: Vec<&dyn SignatureVerificationAlgorithm> = vec![&sha256, &sha512];
    all.extend(webpki::ALL_VERIFICATION_ALGS);
    verify(&all)
}
