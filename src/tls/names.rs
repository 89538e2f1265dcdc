//! What a certificate says about its owner: node IDs, host names, addresses, common name, dates.
//!
//! Owns the otherName in which receptor meshes keep node IDs. It reads single certificates and believes
//! nothing that they say: `verify` decides which are trusted.

use std::fmt;
use std::net::IpAddr;

use jiff::Timestamp;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use x509_parser::der_parser::asn1_rs::{self, Any, TaggedExplicit, Utf8String};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509CertificationRequest, X509Version};

use crate::os::hex;

/// The otherName type of node IDs: its value is a UTF8String.
pub const NODE_ID_OID: [u64; 9] = [1, 3, 6, 1, 4, 1, 2312, 19, 1];

/// A certificate, or a request for one, cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(&'static str);

/// The names in a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// The subject's common name, or the whole subject where it has none.
    pub subject: String,
    /// Node IDs.
    pub node_ids: Vec<String>,
    /// DNS names.
    pub dns: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
}

/// What a certificate says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its names.
    pub names: Names,
    /// Who signed it: common name, or the whole name.
    pub issuer: String,
    /// Its number, in hexadecimal.
    pub serial: String,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of its validity.
    pub not_after: Timestamp,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// Whether servers may show it: its extended key usage says so, or it has none.
    pub for_servers: bool,
    /// Whether clients may show it.
    pub for_clients: bool,
    /// Kind of its key, such as `RSA 2048`.
    pub key: String,
    /// Bits of its key, if that is an RSA key.
    pub rsa_bits: Option<usize>,
    /// Its X.509 version, which is 3 unless something very old or `openssl x509 -req` without extensions made it.
    pub version: u32,
    /// Whether its issuer and its subject have the same name.
    pub is_self_issued: bool,
    /// Whether it says that it is no authority, instead of saying nothing about it.
    pub denies_ca: bool,
}

impl Facts {
    /// Reads a certificate.
    ///
    /// # Errors
    /// If it is no X.509 certificate.
    pub fn of(certificate: &[u8]) -> Result<Self, Unreadable> {
        let (rest, parsed) = X509Certificate::from_der(certificate)
            .map_err(|_| Unreadable("it is not an X.509 certificate"))?;
        if !rest.is_empty() {
            return Err(Unreadable("bytes follow the certificate"));
        }
        let validity = parsed.validity();
        let usage = parsed.extended_key_usage().ok().flatten();
        let time = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp()).map_err(|_| Unreadable("its dates are out of range"))
        };
        Ok(Self {
            names: Names::of_parsed(&parsed)?,
            issuer: display(parsed.issuer()),
            serial: hex::print(parsed.raw_serial()),
            not_before: time(validity.not_before)?,
            not_after: time(validity.not_after)?,
            is_ca: parsed.is_ca(),
            for_servers: usage.as_ref().is_none_or(|usage| usage.value.any || usage.value.server_auth),
            for_clients: usage.as_ref().is_none_or(|usage| usage.value.any || usage.value.client_auth),
            key: key_kind(parsed.public_key()),
            rsa_bits: rsa_bits(parsed.public_key()),
            version: parsed.version().0 + 1,
            is_self_issued: parsed.issuer().as_raw() == parsed.subject().as_raw(),
            denies_ca: parsed.basic_constraints().ok().flatten().is_some_and(|found| !found.value.ca),
        })
    }
}

/// Seconds before its end at which a certificate is soon over, and the part of its life that this is at most. A node
/// that renews in time never gets there.
const SOON: i64 = 30 * 86_400;
const SOON_PART: i64 = 5;

impl Facts {
    /// Whether it has expired or soon does.
    pub fn ends_soon(&self, now: Timestamp) -> bool {
        let life = self.not_after.as_second().saturating_sub(self.not_before.as_second());
        self.not_after.as_second().saturating_sub(now.as_second()) < SOON.min(life / SOON_PART)
    }
}

/// The key of a certificate that is older than version 3, which the TLS library does not read.
pub(super) fn key_of_old(certificate: &[u8]) -> Option<SubjectPublicKeyInfoDer<'_>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let key = parsed.tbs_certificate.subject_pki.raw;
    (parsed.version() != X509Version::V3).then(|| SubjectPublicKeyInfoDer::from(key))
}

/// The bare key of a certificate, as the verification of signatures gets it.
pub(super) fn bare_key(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.public_key().subject_public_key.data.to_vec())
}

impl Names {
    /// The names in a certificate.
    ///
    /// # Errors
    /// If it is no certificate, or its alternative names cannot be read.
    pub fn of(certificate: &[u8]) -> Result<Self, Unreadable> {
        Facts::of(certificate).map(|facts| facts.names)
    }

    /// The names in a certificate request.
    ///
    /// # Errors
    /// If it is no request, or its alternative names cannot be read.
    pub fn of_request(request: &[u8]) -> Result<Self, Unreadable> {
        let (_, parsed) = X509CertificationRequest::from_der(request)
            .map_err(|_| Unreadable("it is not a certificate request"))?;
        let info = &parsed.certification_request_info;
        let mut names = Self { subject: display(&info.subject), ..Self::default() };
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let x509_parser::extensions::ParsedExtension::SubjectAlternativeName(san) = extension {
                san.general_names.iter().try_for_each(|name| names.add(name))?;
            }
        }
        Ok(names)
    }

    fn of_parsed(parsed: &X509Certificate<'_>) -> Result<Self, Unreadable> {
        let mut names = Self { subject: display(parsed.subject()), ..Self::default() };
        let san = parsed
            .subject_alternative_name()
            .map_err(|_| Unreadable("its subject alternative names cannot be read"))?;
        for name in san.iter().flat_map(|san| &san.value.general_names) {
            names.add(name)?;
        }
        Ok(names)
    }

    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), Unreadable> {
        match name {
            GeneralName::DNSName(name) => self.dns.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
                self.addresses
                    .push(address.map_err(|_| Unreadable("an IP address in it has an impossible length"))?);
            }
            GeneralName::OtherName(oid, value) if oid.iter().is_some_and(|oid| oid.eq(NODE_ID_OID)) => {
                self.node_ids
                    .push(utf8_string(value).ok_or(Unreadable("a node ID in it is not a UTF8String"))?);
            }
            // Names of other kinds are ignored.
            _ => {}
        }
        Ok(())
    }

    /// True if nothing but a subject is named.
    pub fn is_empty(&self) -> bool {
        self.node_ids.is_empty() && self.dns.is_empty() && self.addresses.is_empty()
    }
}

impl fmt::Display for Names {
    /// All names on one line, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.node_ids.iter().map(|name| format!("node {}", printable(name))));
        parts.extend(self.dns.iter().map(|name| format!("host {}", printable(name))));
        parts.extend(self.addresses.iter().map(|address| format!("address {address}")));
        if parts.is_empty() {
            return write!(f, "none (subject {})", self.subject);
        }
        f.write_str(&parts.join(", "))
    }
}

/// The value of an otherName: `[0] EXPLICIT UTF8String`.
fn utf8_string(value: &[u8]) -> Option<String> {
    let (_, tagged) = TaggedExplicit::<Any<'_>, asn1_rs::Error, 0>::from_der(value).ok()?;
    Utf8String::try_from(tagged.into_inner()).ok().map(|text| text.string())
}

fn display(name: &x509_parser::x509::X509Name<'_>) -> String {
    let common = name.iter_common_name().next().and_then(|name| name.as_str().ok());
    printable(&common.map_or_else(|| name.to_string(), str::to_owned))
}

/// The text without control characters, for logs and terminals.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn rsa_bits(key: &x509_parser::x509::SubjectPublicKeyInfo<'_>) -> Option<usize> {
    match key.parsed() {
        Ok(x509_parser::public_key::PublicKey::RSA(rsa)) => Some(rsa.key_size()),
        Ok(_) | Err(_) => None,
    }
}

fn key_kind(key: &x509_parser::x509::SubjectPublicKeyInfo<'_>) -> String {
    use x509_parser::public_key::PublicKey;
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => format!("RSA {}", rsa.key_size()),
        Ok(PublicKey::EC(point)) => format!("ECDSA P-{}", point.key_size()),
        Ok(_) | Err(_) => match key.algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" => "Ed25519".to_owned(),
            other => other.to_owned(),
        },
    }
}
