//! Commands that make certificates: each runs alone and ends.
//!
//! Owns their settings and the rules that hold within one directive. It refuses to make keys or write files.

use std::net::IpAddr;
use std::path::PathBuf;

use jiff::Timestamp;

use super::super::fields::{Fields, Optional};
use crate::wire::NodeId;

/// A command on certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateCommand {
    /// `cert-init`
    Init(CertInit),
    /// `cert-makereq`
    MakeRequest(CertMakeRequest),
    /// `cert-signreq`
    SignRequest(CertSignRequest),
}

/// From when to when a certificate is valid; what is missing is chosen when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Its start.
    pub not_before: Option<Timestamp>,
    /// Its end.
    pub not_after: Option<Timestamp>,
}

/// The directive `cert-init`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertInit {
    /// Name of the authority.
    pub common_name: String,
    /// Length of the RSA key.
    pub bits: u32,
    /// How long it is valid.
    pub validity: Validity,
    /// Certificate file to write.
    pub out_cert: PathBuf,
    /// Private key file to write.
    pub out_key: PathBuf,
}

/// Which key a request is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestKey {
    /// The one in this file.
    Existing(PathBuf),
    /// A new one.
    New {
        /// Length of the RSA key.
        bits: u32,
        /// Private key file to write.
        file: PathBuf,
    },
}

/// The directive `cert-makereq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertMakeRequest {
    /// Name in the certificate.
    pub common_name: String,
    /// DNS names in the certificate.
    pub dns_names: Vec<String>,
    /// IP addresses in the certificate.
    pub ip_addresses: Vec<IpAddr>,
    /// Node IDs in the certificate.
    pub node_ids: Vec<NodeId>,
    /// Request file to write.
    pub out_request: PathBuf,
    /// The key.
    pub key: RequestKey,
}

/// The directive `cert-signreq`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertSignRequest {
    /// Request file.
    pub request: PathBuf,
    /// Certificate file of the authority.
    pub ca_cert: PathBuf,
    /// Private key file of the authority.
    pub ca_key: PathBuf,
    /// How long it is valid.
    pub validity: Validity,
    /// Certificate file to write.
    pub out_cert: PathBuf,
    /// True to sign without asking.
    pub verify: bool,
}

pub(super) fn init(fields: &mut Fields<'_>) -> Option<CertificateCommand> {
    let common_name = fields.must("commonname");
    let bits = bits(fields);
    let validity = validity(fields);
    let out_cert = fields.must_path("outcert");
    let out_key = fields.must_path("outkey");
    Some(CertificateCommand::Init(CertInit {
        common_name: common_name?,
        bits: bits??,
        validity: validity?,
        out_cert: out_cert?,
        out_key: out_key?,
    }))
}

pub(super) fn make_request(fields: &mut Fields<'_>) -> Option<CertificateCommand> {
    let common_name = fields.must("commonname");
    let dns_names = fields.each("dnsname", |name| Ok::<_, std::convert::Infallible>(name.to_owned()));
    let ip_addresses = fields.each("ipaddress", |text| text.parse().map_err(|_| "an IP address is needed"));
    let node_ids = fields.each("nodeid", str::parse::<NodeId>);
    let out_request = fields.must_path("outreq");
    let key = request_key(fields);
    Some(CertificateCommand::MakeRequest(CertMakeRequest {
        common_name: common_name?,
        dns_names: dns_names?,
        ip_addresses: ip_addresses?,
        node_ids: node_ids?,
        out_request: out_request?,
        key: key?,
    }))
}

fn request_key(fields: &mut Fields<'_>) -> Option<RequestKey> {
    let problem = match (fields.path("inkey"), fields.path("outkey"), bits(fields)?) {
        (Some(file), None, None) => return Some(RequestKey::Existing(file)),
        (None, Some(file), Some(bits)) => return Some(RequestKey::New { bits, file }),
        (None, Some(_), None) => "`outkey` makes a new key and needs its length in `bits`",
        (Some(_), None, Some(_)) => {
            "`bits` is for a new key, with `outkey`; the one in `inkey` has its length"
        }
        (Some(_), Some(_), _) => "`inkey` and `outkey` exclude each other",
        (None, None, _) => "a key is needed: `inkey` to use one, or `outkey` and `bits` to make one",
    };
    fields.conflict(problem);
    None
}

pub(super) fn sign_request(fields: &mut Fields<'_>) -> Option<CertificateCommand> {
    let request = fields.must_path("req");
    let ca_cert = fields.must_path("cacert");
    let ca_key = fields.must_path("cakey");
    let validity = validity(fields);
    let out_cert = fields.must_path("outcert");
    Some(CertificateCommand::SignRequest(CertSignRequest {
        request: request?,
        ca_cert: ca_cert?,
        ca_key: ca_key?,
        validity: validity?,
        out_cert: out_cert?,
        verify: fields.flag("verify"),
    }))
}

/// Shorter keys are broken, longer ones take minutes to make.
fn bits(fields: &mut Fields<'_>) -> Optional<u32> {
    fields.number("bits", 1024, 16_384, "an RSA key has 1024 to 16384 bits")
}

fn validity(fields: &mut Fields<'_>) -> Option<Validity> {
    const WANTED: &str = "a time is RFC 3339, such as 2030-01-31T12:00:00Z";
    let not_before = fields.parse("notbefore", |text| text.parse::<Timestamp>().map_err(|_| WANTED));
    let not_after = fields.parse("notafter", |text| text.parse::<Timestamp>().map_err(|_| WANTED));
    let (not_before, not_after) = (not_before?, not_after?);
    if let (Some(start), Some(end)) = (not_before, not_after)
        && end <= start
    {
        fields.conflict("`notafter` must be later than `notbefore`");
        return None;
    }
    Some(Validity { not_before, not_after })
}
