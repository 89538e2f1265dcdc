//! Commands that make certificates: each runs alone and ends.
//!
//! Owns their declarations. It refuses to make keys or write files.

use std::net::IpAddr;
use std::path::PathBuf;

use jiff::Timestamp;

use super::super::declare::directive;
use super::super::parameters::{grammar, number};
use crate::tls::commands::RequestKey;
use crate::tls::make::{CertSubject, KeyKind};
use crate::wire::NodeId;

directive! {
    /// Makes a certificate authority
    "cert-init" in Certificates [exclusive];
    struct CertInit {
        /// name of the authority
        common_name "commonname": String [required],
        /// length of the RSA key
        bits: RsaBits [required],
        /// start of validity, RFC 3339; now if not given
        not_before "notbefore": Option<Timestamp>,
        /// end of validity, RFC 3339; in ten years if not given
        not_after "notafter": Option<Timestamp>,
        /// certificate file to write
        out_cert "outcert": PathBuf [required],
        /// private key file to write
        out_key "outkey": PathBuf [required],
    }
    check ends_first(not_before, not_after);
}

/// A certificate request to make.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRequest {
    /// The names that it asks for.
    pub names: CertSubject,
    /// The key.
    pub key: RequestKey,
    /// Request file to write.
    pub out: PathBuf,
}

directive! {
    /// Makes a certificate request
    "cert-makereq" in Certificates [exclusive];
    CertMakeRequest => NewRequest {
        /// name in the certificate
        common_name "commonname": String [required],
        /// length of the RSA key to make, with outkey
        bits: Option<RsaBits>,
        /// DNS names in the certificate
        dns "dnsname": Vec<String>,
        /// IP addresses in the certificate
        addresses "ipaddress": Vec<IpAddr>,
        /// node IDs in the certificate
        node_ids "nodeid": Vec<NodeId>,
        /// request file to write
        out "outreq": PathBuf [required],
        /// private key file to use
        in_key "inkey": Option<PathBuf>,
        /// private key file to make and write
        out_key "outkey": Option<PathBuf>,
    }
    check no_key(in_key, out_key, bits);
    make NewRequest {
        names: CertSubject { common_name, dns, addresses, node_ids: node_ids.iter().map(NodeId::to_string).collect() },
        key: request_key(&in_key, &out_key, &bits).ok()?,
        out,
    }
}

directive! {
    /// Signs a certificate request
    "cert-signreq" in Certificates [exclusive];
    struct CertSignRequest {
        /// request file
        request "req": PathBuf [required],
        /// certificate file of the authority
        ca_cert "cacert": PathBuf [required],
        /// private key file of the authority
        ca_key "cakey": PathBuf [required],
        /// start of validity, RFC 3339; now if not given
        not_before "notbefore": Option<Timestamp>,
        /// end of validity, RFC 3339; in a year if not given
        not_after "notafter": Option<Timestamp>,
        /// certificate file to write
        out_cert "outcert": PathBuf [required],
        /// sign without asking
        verify: bool,
    }
    check ends_first(not_before, not_after);
}

grammar! {
    /// The length of an RSA key: shorter ones are broken, longer ones take minutes to make.
    struct RsaBits => u32 = Int number(1024..=16_384, "an RSA key has 1024 to 16384 bits");
}

fn ends_first(not_before: &Option<Timestamp>, not_after: &Option<Timestamp>) -> Option<&'static str> {
    let (start, end) = not_before.zip(*not_after)?;
    (end <= start).then_some("`notafter` must be later than `notbefore`")
}

fn no_key(in_key: &Option<PathBuf>, out_key: &Option<PathBuf>, bits: &Option<u32>) -> Option<&'static str> {
    request_key(in_key, out_key, bits).err()
}

fn request_key(
    in_key: &Option<PathBuf>,
    out_key: &Option<PathBuf>,
    bits: &Option<u32>,
) -> Result<RequestKey, &'static str> {
    match (in_key, out_key, bits) {
        (Some(file), None, None) => Ok(RequestKey::Existing(file.clone())),
        (None, Some(file), Some(bits)) => Ok(RequestKey::New(KeyKind::Rsa(*bits), file.clone())),
        (None, Some(_), None) => Err("`outkey` makes a new key and needs its length in `bits`"),
        (Some(_), None, Some(_)) => {
            Err("`bits` is for a new key, with `outkey`; the one in `inkey` has its length")
        }
        (Some(_), Some(_), _) => Err("`inkey` and `outkey` exclude each other"),
        (None, None, _) => Err("a key is needed: `inkey` to use one, or `outkey` and `bits` to make one"),
    }
}
