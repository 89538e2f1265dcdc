//! The commands that make certificates, from files to files, in receptor's terms.
//!
//! Owns how files are written: whole or not at all, keys readable by their owner only. Their
//! contents are `make`'s business; the caller decides whom to ask before signing.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::error::{FileError, FileProblem};
use super::files::{self, wrong};
use super::make::{self, CertSubject, Dates, KeyKind, MakeError};
use super::names::Names;
use crate::os::replace::replace;

/// Why a command on certificates did nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A file cannot be used or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Nothing can be made from the contents of the files.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The user did not want to sign.
    #[error("not signed: you did not answer yes")]
    Declined,
    /// A file is there already.
    #[error("{} exists: meshctl never overwrites a key, because whatever was signed with it would be lost", .0.display())]
    KeyExists(PathBuf),
}

/// Makes an authority: a key and its own certificate.
///
/// # Errors
/// [`CommandError`]; nothing is left half done.
pub fn init(
    common_name: &str,
    kind: KeyKind,
    dates: Dates,
    out_cert: &Path,
    out_key: &Path,
) -> Result<(), CommandError> {
    let key = make::private_key(kind)?;
    let certificate = make::authority(common_name, &key, dates, Timestamp::now())?;
    write_key(out_key, &key)?;
    Ok(write(out_cert, &certificate, 0o644)?)
}

/// Where the key of a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestKey {
    /// The key in this file.
    Existing(PathBuf),
    /// A new key, which is written to this file.
    New(KeyKind, PathBuf),
}

/// Makes a request for a certificate.
///
/// # Errors
/// [`CommandError`]; nothing is left half done.
pub fn make_request(names: &CertSubject, key: &RequestKey, out: &Path) -> Result<(), CommandError> {
    let text = match key {
        RequestKey::Existing(path) => read_text(path)?,
        RequestKey::New(kind, _) => make::private_key(*kind)?,
    };
    let request = make::request(names, &text)?;
    if let RequestKey::New(_, path) = key {
        write_key(path, &text)?;
    }
    Ok(write(out, &request, 0o644)?)
}

/// Signs a request, if `agree` accepts the names in it.
///
/// # Errors
/// [`CommandError`]; nothing is left half done.
pub fn sign_request(
    request: &Path,
    authority: (&Path, &Path),
    dates: Dates,
    out_cert: &Path,
    agree: impl FnOnce(&Names) -> bool,
) -> Result<(), CommandError> {
    let text = read_text(request)?;
    let names = make::requested_names(&text)?;
    if !names.is_empty() && !agree(&names) {
        return Err(CommandError::Declined);
    }
    let (cert, key) = (read_text(authority.0)?, read_text(authority.1)?);
    let certificate = make::sign(&text, &cert, &key, dates, Timestamp::now())?;
    Ok(write(out_cert, &certificate, 0o644)?)
}

/// Makes a pair of keys for signing work: private, and public (SPKI).
///
/// # Errors
/// [`CommandError`]; nothing is left half done.
pub fn generate_key(kind: KeyKind, private: &Path, public: &Path) -> Result<(), CommandError> {
    let key = make::private_key(kind)?;
    let half = make::public_key(&key)?;
    write_key(private, &key)?;
    Ok(write(public, &half, 0o644)?)
}

fn read_text(path: &Path) -> Result<String, FileError> {
    String::from_utf8(files::read(path)?)
        .map_err(|_| wrong(path, FileProblem::Pem("it is not text".to_owned())))
}

fn write_key(path: &Path, key: &str) -> Result<(), CommandError> {
    if path.try_exists().unwrap_or(true) {
        return Err(CommandError::KeyExists(path.to_owned()));
    }
    Ok(write(path, key, 0o600)?)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    replace(path, text.as_bytes(), mode).map_err(|error| wrong(path, FileProblem::Write(error)))
}
