//! Reads the files of a profile: certificates, keys, revocation lists, blocklists.
//!
//! Owns what counts as a usable file. It refuses to know what the contents are used for, and never puts a
//! file's bytes into a message.

use std::io;
use std::path::Path;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use webpki::{CertRevocationList, OwnedCertRevocationList};

use super::error::{FileError, FileProblem};
use super::fingerprint::Fingerprint;
use crate::os::regular_file;

/// The longest file, in bytes. A bundle of all public authorities has a quarter of a megabyte.
pub(super) const MAX_FILE: u64 = 16 << 20;

/// Reads a whole file, up to [`MAX_FILE`] bytes.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let problem = |error: io::Error| match error.kind() {
        io::ErrorKind::FileTooLarge => FileProblem::TooLarge,
        _ => FileProblem::Read(error),
    };
    regular_file::read(path, MAX_FILE).map_err(|error| wrong(path, problem(error)))
}

/// All certificates of a PEM file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|e| wrong(path, damaged(&e)))?;
    if found.is_empty() {
        return Err(wrong(path, FileProblem::Nothing { wanted: "certificate", found: sections(&bytes) }));
    }
    Ok(found)
}

/// The one private key of a PEM file, in PKCS#1, PKCS#8 or SEC1 form.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let bytes = read(path)?;
    if is_encrypted(&bytes) {
        return Err(wrong(path, FileProblem::Encrypted));
    }
    let found: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(&bytes).collect();
    let mut found = found.map_err(|e| wrong(path, damaged(&e)))?;
    match (found.len(), found.pop()) {
        (1, Some(key)) => Ok(key),
        (_, None) => {
            Err(wrong(path, FileProblem::Nothing { wanted: "private key", found: sections(&bytes) }))
        }
        (count, Some(_)) => Err(wrong(path, FileProblem::SeveralKeys { count })),
    }
}

/// All revocation lists of a PEM file, at least one.
pub(super) fn revocation_lists(path: &Path) -> Result<Vec<CertRevocationList<'static>>, FileError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|e| wrong(path, damaged(&e)))?;
    if found.is_empty() {
        return Err(wrong(path, FileProblem::Nothing { wanted: "revocation list", found: sections(&bytes) }));
    }
    let parse = |(at, list): (usize, &CertificateRevocationListDer<'_>)| {
        OwnedCertRevocationList::from_der(list)
            .map(CertRevocationList::from)
            .map_err(|e| wrong(path, FileProblem::RevocationList { number: at + 1, reason: crl_reason(&e) }))
    };
    found.iter().enumerate().map(parse).collect()
}

/// The reason why a revocation list cannot be used. OpenSSL makes lists of version 1 by default.
fn crl_reason(error: &webpki::Error) -> String {
    match error {
        webpki::Error::UnsupportedCrlVersion | webpki::Error::MalformedExtensions => {
            "it must be of version 2, with a CRL number and the authority's key identifier (openssl: set crl_extensions)"
                .to_owned()
        }
        other => format!("{other:?}"),
    }
}

/// The fingerprints in a blocklist: one on a line, `#` begins a comment. An empty list is a list.
pub(super) fn blocklist(path: &Path) -> Result<Vec<Fingerprint>, FileError> {
    let bytes = read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let entry = |(at, line): (usize, &str)| {
        let entry = line.split('#').next().unwrap_or_default().trim();
        let problem = |reason| wrong(path, FileProblem::BlocklistLine { line: at + 1, reason });
        (!entry.is_empty()).then(|| entry.parse().map_err(problem))
    };
    text.lines().enumerate().filter_map(entry).collect()
}

pub(super) fn wrong(path: &Path, problem: FileProblem) -> FileError {
    FileError { path: path.to_owned(), problem }
}

fn damaged(error: &pem::Error) -> FileProblem {
    FileProblem::Pem(match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no END line".to_owned(),
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed".to_owned(),
        pem::Error::Base64Decode(_) => "a section is not base64".to_owned(),
        pem::Error::NoItemsFound => "it is empty".to_owned(),
        other => other.to_string(),
    })
}

/// The kinds of sections in a file, for a message about the ones that are missing.
fn sections(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let kinds = text.lines().filter_map(|line| {
        let kind = line.trim().strip_prefix("-----BEGIN ")?.strip_suffix("-----")?;
        Some(kind.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(40).collect())
    });
    kinds.take(5).collect()
}

fn is_encrypted(bytes: &[u8]) -> bool {
    let has = |sign: &[u8]| bytes.windows(sign.len()).any(|window| window == sign);
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_certificate_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("pipe");
        crate::os::regular_file::pipe(&path);
        let refused = certificates(&path).unwrap_err().to_string();
        assert!(refused.ends_with("cannot be read: it is not a regular file"), "{refused}");
    }
}
