//! Why a request has no answer, by the types of its error: whether anything can have reached the server, and whether its
//! address or the authority may be wrong.

use std::error::Error;
use std::io;

use hyper_util::client::legacy;

use super::resolver::LookupFailed;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoAnswer {
    /// A connection was made: the server may have got the request.
    pub(super) was_connected: bool,
    /// The name does not exist, or what answers there is not trusted or speaks something else.
    pub(super) is_misdirected: bool,
}

impl NoAnswer {
    /// Looks through an error and its causes.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut found = Self { was_connected: true, is_misdirected: false };
        let mut next = Some(error);
        while let Some(error) = next {
            let is_unknown = error.downcast_ref::<LookupFailed>().is_some_and(|failed| failed.is_unknown);
            found.is_misdirected |= is_unknown || error.is::<rustls::Error>();
            let is_connect = error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect);
            found.was_connected &= !is_connect;
            next = match error.downcast_ref::<io::Error>() {
                // What it says of its own source leaves the error out that it wraps.
                Some(wrapping) => wrapping.get_ref().map(|inner| inner as &(dyn Error + 'static)),
                None => error.source(),
            };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use rustls::{CertificateError, Error as TlsError};

    use super::*;

    #[test]
    fn an_untrusted_certificate_is_found_however_it_is_wrapped() {
        let tls = TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls));
        assert!(NoAnswer::of(&wrapped).is_misdirected);
        assert!(!NoAnswer::of(&io::Error::from(io::ErrorKind::ConnectionRefused)).is_misdirected);
    }
}
