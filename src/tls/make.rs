//! Makes keys, authorities, requests and certificates, in the forms that receptor nodes read and write.
//!
//! Works on PEM texts; files and questions to people are `commands`' business. Times are arguments.

use std::net::IpAddr;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::KeySize;
use jiff::{Span, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PublicKeyData, RevokedCertParams, SanType, SerialNumber,
};

use super::names::{Facts, NODE_ID_OID, Names};

/// Kind of a key to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// RSA of 2048, 3072, 4096 or 8192 bits.
    Rsa(u32),
    /// ECDSA on the curve P-256.
    EcdsaP256,
    /// Ed25519; for signatures of work, not for TLS with receptor nodes.
    Ed25519,
}

/// Why something could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// No such length.
    #[error("cannot make an RSA key of {0} bits: use 2048, 3072, 4096 or 8192")]
    Bits(u32),
    /// The system or the library refuses to make a key.
    #[error("failed to make a key: {0}")]
    Key(String),
    /// A key that was given cannot be used.
    #[error("the private key cannot be used: {0}")]
    BadKey(String),
    /// A name cannot stand in a certificate.
    #[error("{0:?} cannot stand in a certificate")]
    Name(String),
    /// A request cannot be read, or its signature is wrong.
    #[error("the certificate request cannot be used: {0}")]
    Request(String),
    /// A request without names makes a certificate that names nobody.
    #[error("the certificate request names no node, no host and no address: make one with nodeid or dnsname")]
    NoNames,
    /// The authority's certificate cannot be used.
    #[error("the authority's certificate cannot be used: {0}")]
    Authority(String),
    /// The key does not belong to the certificate.
    #[error("the authority's private key does not belong to its certificate")]
    Mismatch,
    /// The certificate would be valid at no time.
    #[error("the certificate would end on {end}, before it begins on {start}")]
    Validity {
        /// Its start.
        start: Timestamp,
        /// Its end.
        end: Timestamp,
    },
    /// The library refuses to write a certificate.
    #[error("failed to make the certificate: {0}")]
    Other(String),
}

/// The validity of a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dates {
    /// Start; now if not given.
    pub not_before: Option<Timestamp>,
    /// End; years later if not given.
    pub not_after: Option<Timestamp>,
}

/// Years that an authority and a certificate live by default, as with receptor.
const AUTHORITY_YEARS: i64 = 10;
const CERTIFICATE_YEARS: i64 = 1;

impl Dates {
    fn fill(self, now: Timestamp, years: i64) -> Result<(Timestamp, Timestamp), MakeError> {
        let start = self.not_before.unwrap_or(now);
        let later = || start.checked_add(Span::new().hours(years * 8766)).unwrap_or(Timestamp::MAX);
        let end = self.not_after.unwrap_or_else(later);
        if end <= start {
            return Err(MakeError::Validity { start, end });
        }
        Ok((start, end))
    }
}

/// A private key in PEM (PKCS#8).
///
/// # Errors
/// [`MakeError::Bits`], or [`MakeError::Key`] if the library fails.
pub fn private_key(kind: KeyKind) -> Result<String, MakeError> {
    let failed = |e: rcgen::Error| MakeError::Key(e.to_string());
    let pair = match kind {
        KeyKind::Rsa(bits) => rsa(bits)?,
        KeyKind::EcdsaP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?,
        KeyKind::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(failed)?,
    };
    Ok(pair.serialize_pem())
}

fn rsa(bits: u32) -> Result<KeyPair, MakeError> {
    let size = match bits {
        2048 => KeySize::Rsa2048,
        3072 => KeySize::Rsa3072,
        4096 => KeySize::Rsa4096,
        8192 => KeySize::Rsa8192,
        _ => return Err(MakeError::Bits(bits)),
    };
    let failed = |_| MakeError::Key("the library gives no reason".to_owned());
    let pair = aws_lc_rs::rsa::KeyPair::generate(size).map_err(failed)?;
    let der: Pkcs8V1Der<'_> = pair.as_der().map_err(failed)?;
    KeyPair::try_from(der.as_ref()).map_err(|e| MakeError::Key(e.to_string()))
}

/// The public half of a private key, in PEM (SPKI).
///
/// # Errors
/// If the key cannot be read.
pub fn public_key(private_key: &str) -> Result<String, MakeError> {
    read_key(private_key).map(|pair| pair.public_key_pem())
}

/// The public half of a private key, as a certificate holds it (SPKI, in DER).
///
/// # Errors
/// If the key cannot be read.
pub fn public_key_der(private_key: &str) -> Result<Vec<u8>, MakeError> {
    read_key(private_key).map(|pair| pair.subject_public_key_info())
}

pub(super) fn read_key(pem: &str) -> Result<KeyPair, MakeError> {
    KeyPair::from_pem(pem).map_err(|e| MakeError::BadKey(e.to_string()))
}

/// An authority's own certificate, in PEM.
///
/// # Errors
/// An unusable key or name.
pub fn authority(common_name: &str, key: &str, dates: Dates, now: Timestamp) -> Result<String, MakeError> {
    let made = authority_parameters(common_name, dates, now)?.self_signed(&read_key(key)?);
    Ok(made.map_err(|e| MakeError::Other(e.to_string()))?.pem())
}

/// A certificate for an authority of this name and key that another authority signs, in PEM: whoever trusts that one
/// trusts what the first one signs as well.
///
/// # Errors
/// As [`authority`], or the other one's certificate or key cannot be used.
pub fn cross_certificate(
    (common_name, key): (&str, &str),
    (by, by_key): (&str, &str),
    dates: Dates,
    now: Timestamp,
) -> Result<String, MakeError> {
    let mut params = authority_parameters(common_name, dates, now)?;
    params.use_authority_key_identifier_extension = true;
    let made = params.signed_by(&read_key(key)?, &issuer(by, by_key)?);
    Ok(made.map_err(|e| MakeError::Other(e.to_string()))?.pem())
}

fn authority_parameters(
    common_name: &str,
    dates: Dates,
    now: Timestamp,
) -> Result<CertificateParams, MakeError> {
    let mut params = parameters(subject(common_name), dates.fill(now, AUTHORITY_YEARS)?)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// Names for a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertSubject {
    /// Its common name.
    pub common_name: String,
    /// DNS names.
    pub dns: Vec<String>,
    /// IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Node IDs.
    pub node_ids: Vec<String>,
}

/// A request for a certificate, in PEM.
///
/// # Errors
/// An unusable key or name.
pub fn request(names: &CertSubject, key: &str) -> Result<String, MakeError> {
    let key = read_key(key)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(&names.common_name);
    params.subject_alt_names = alternative_names(names)?;
    let made = params.serialize_request(&key).map_err(|e| MakeError::Other(e.to_string()))?;
    made.pem().map_err(|e| MakeError::Other(e.to_string()))
}

fn alternative_names(names: &CertSubject) -> Result<Vec<SanType>, MakeError> {
    let mut all = Vec::new();
    for name in &names.dns {
        let text = name.as_str().try_into().map_err(|_| MakeError::Name(name.clone()))?;
        all.push(SanType::DnsName(text));
    }
    all.extend(names.addresses.iter().copied().map(SanType::IpAddress));
    let node = |id: &String| SanType::OtherName((NODE_ID_OID.to_vec(), id.as_str().into()));
    all.extend(names.node_ids.iter().map(node));
    Ok(all)
}

/// The names that a request asks for.
///
/// # Errors
/// If it is no request.
pub fn requested_names(request: &str) -> Result<Names, MakeError> {
    let parsed = pem_section(request, "CERTIFICATE REQUEST").map_err(MakeError::Request)?;
    Names::of_request(&parsed).map_err(|e| MakeError::Request(e.to_string()))
}

/// The certificate that an authority makes from a request, in PEM. It has the names of the request, and the uses of a
/// node: server and client. Nothing else that the request asks for is granted.
///
/// # Errors
/// An unusable request, authority or key.
pub fn sign(
    request: &str,
    authority: &str,
    authority_key: &str,
    dates: Dates,
    now: Timestamp,
) -> Result<String, MakeError> {
    if requested_names(request)?.is_empty() {
        return Err(MakeError::NoNames);
    }
    let asked = read_request(request)?;
    let names = (asked.params.distinguished_name, asked.params.subject_alt_names);
    sign_key(&asked.public_key, names, (authority, authority_key), dates, now)
}

/// The same with these names, whatever the request asks for.
///
/// # Errors
/// As [`sign`], or a name that cannot stand in a certificate.
pub fn sign_names(
    request: &str,
    names: &CertSubject,
    authority: &str,
    authority_key: &str,
    dates: Dates,
    now: Timestamp,
) -> Result<String, MakeError> {
    let names = (subject(&names.common_name), alternative_names(names)?);
    sign_key(&read_request(request)?.public_key, names, (authority, authority_key), dates, now)
}

/// A request whose signature shows that its maker has the key.
fn read_request(request: &str) -> Result<CertificateSigningRequestParams, MakeError> {
    CertificateSigningRequestParams::from_pem(request).map_err(|e| MakeError::Request(e.to_string()))
}

fn sign_key(
    key: &rcgen::PublicKey,
    (name, alternatives): (DistinguishedName, Vec<SanType>),
    (authority, authority_key): (&str, &str),
    dates: Dates,
    now: Timestamp,
) -> Result<String, MakeError> {
    let issuer = issuer(authority, authority_key)?;
    let mut params = parameters(name, dates.fill(now, CERTIFICATE_YEARS)?)?;
    params.subject_alt_names = alternatives;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    let made = params.signed_by(key, &issuer).map_err(|e| MakeError::Other(e.to_string()))?;
    Ok(made.pem())
}

/// A revocation list in PEM, with this number: of two lists the higher one is the later. `revoked` has the serial number of each revoked certificate, in hexadecimal, with the
/// time.
///
/// # Errors
/// An unusable authority or key.
pub fn revocation_list(
    authority: &str,
    authority_key: &str,
    revoked: &[(String, Timestamp)],
    number: u64,
    now: Timestamp,
) -> Result<String, MakeError> {
    let entry = |(serial, at): &(String, Timestamp)| {
        Ok(RevokedCertParams {
            serial_number: SerialNumber::from_slice(&bytes_of(serial)?),
            revocation_time: time(*at)?,
            reason_code: None,
            invalidity_date: None,
        })
    };
    // The end is far off, because nodes use a list until they get a newer one.
    let (this_update, next_update) = Dates::default().fill(now, AUTHORITY_YEARS)?;
    let params = CertificateRevocationListParams {
        this_update: time(this_update)?,
        next_update: time(next_update)?,
        crl_number: SerialNumber::from_slice(&number.to_be_bytes()),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect::<Result<_, MakeError>>()?,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let made = params.signed_by(&issuer(authority, authority_key)?);
    made.and_then(|list| list.pem()).map_err(|e| MakeError::Other(e.to_string()))
}

fn bytes_of(serial: &str) -> Result<Vec<u8>, MakeError> {
    let byte = |at: usize| serial.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<Vec<u8>> = (0..serial.len()).step_by(2).map(byte).collect();
    bytes.ok_or_else(|| MakeError::Other(format!("{serial:?} is not a serial number")))
}

/// What a certificate in PEM says about itself.
///
/// # Errors
/// If there is none in the text.
pub fn facts(certificate: &str) -> Result<Facts, MakeError> {
    let der = pem_section(certificate, "CERTIFICATE").map_err(MakeError::Other)?;
    Facts::of(&der).map_err(|e| MakeError::Other(e.to_string()))
}

fn issuer(authority: &str, authority_key: &str) -> Result<Issuer<'static, KeyPair>, MakeError> {
    let key = read_key(authority_key)?;
    let der = pem_section(authority, "CERTIFICATE").map_err(MakeError::Authority)?;
    let facts = Facts::of(&der).map_err(|e| MakeError::Authority(e.to_string()))?;
    if !facts.is_ca {
        let text = format!("{} is not an authority (it has no CA flag)", facts.names.subject);
        return Err(MakeError::Authority(text));
    }
    if !contains(&der, key.der_bytes()) {
        return Err(MakeError::Mismatch);
    }
    Issuer::from_ca_cert_der(&der.into(), key).map_err(|e| MakeError::Authority(e.to_string()))
}

/// Whether a certificate is for this public key, which it holds verbatim.
fn contains(certificate: &[u8], public_key: &[u8]) -> bool {
    certificate.windows(public_key.len()).any(|window| window == public_key)
}

fn subject(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn parameters(
    distinguished_name: DistinguishedName,
    (start, end): (Timestamp, Timestamp),
) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name;
    params.serial_number = Some(serial());
    params.not_before = time(start)?;
    params.not_after = time(end)?;
    Ok(params)
}

/// A random serial number: positive, of 16 bytes, and never the same twice.
fn serial() -> rcgen::SerialNumber {
    let mut bytes = rand::random::<u128>().to_be_bytes();
    bytes[0] = bytes[0] & 0x7f | 0x40;
    rcgen::SerialNumber::from_slice(&bytes)
}

fn time(at: Timestamp) -> Result<time::OffsetDateTime, MakeError> {
    time::OffsetDateTime::from_unix_timestamp(at.as_second())
        .map_err(|_| MakeError::Other(format!("a certificate cannot hold the date {at}")))
}

/// The first section of that kind.
pub(super) fn pem_section(text: &str, kind: &str) -> Result<Vec<u8>, String> {
    use rustls::pki_types::pem::{PemObject, SectionKind};
    let wanted = |found: &SectionKind| match kind {
        "CERTIFICATE" => *found == SectionKind::Certificate,
        _ => *found == SectionKind::Csr,
    };
    for section in <(SectionKind, Vec<u8>) as PemObject>::pem_slice_iter(text.as_bytes()) {
        let (found, bytes) = section.map_err(|e| e.to_string())?;
        if wanted(&found) {
            return Ok(bytes);
        }
    }
    Err(format!("there is no section {kind}"))
}
