//! Tells from the types of an error why a request has no answer: whether the server may have got the request, and
//! whether the server's address or authority may be wrong. Also words the error, without the texts of libraries that
//! only pass it on.

use std::error::Error;
use std::{io, iter};

use hyper_util::client::legacy;
use tokio::time::error::Elapsed;

use super::connect::CONNECT_WITHIN;
use super::resolver::LookupFailed;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoApiAnswer {
    /// A connection was made: the server may have got the request.
    pub(super) was_connected: bool,
    /// The name does not exist, or TLS failed because the peer is not trusted or speaks something else.
    pub(super) is_misdirected: bool,
}

impl NoApiAnswer {
    /// Looks through an error and its causes.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut found = Self { was_connected: true, is_misdirected: false };
        for error in causes(error) {
            let is_unknown = error.downcast_ref::<LookupFailed>().is_some_and(|failed| failed.is_unknown);
            found.is_misdirected |= is_unknown || error.is::<rustls::Error>();
            found.was_connected &= !is_connect(error);
        }
        found
    }
}

/// The texts of an error and its causes, each once.
pub(super) fn words(error: &(dyn Error + 'static)) -> String {
    let chain: Vec<_> = causes(error).collect();
    // Only the innermost cause says why there is no connection.
    let is_unconnected = chain.iter().any(|error| is_connect(*error));
    let mut texts: Vec<String> = Vec::new();
    for (error, below) in chain.iter().zip((0..chain.len()).rev()) {
        let passes_on = error.is::<kube::Error>()
            || error.is::<legacy::Error>()
            || error.is::<hyper::Error>()
            || error.is::<io::Error>();
        if below > 0 && (is_unconnected || passes_on) {
            continue;
        }
        let text = match error.is::<Elapsed>() {
            true => format!("no connection within {} s", CONNECT_WITHIN.as_secs()),
            false => error.to_string(),
        };
        if !texts.iter().any(|said| said.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

/// An error and its causes, the outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| match error.downcast_ref::<io::Error>() {
        // Its `source()` would skip the error that it wraps.
        Some(wrapping) => wrapping.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    })
}

fn is_connect(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use rustls::{CertificateError, Error as TlsError};

    use super::*;

    #[test]
    fn an_untrusted_certificate_is_found_however_it_is_wrapped() {
        let tls = TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        let wrapped = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls));
        assert!(NoApiAnswer::of(&wrapped).is_misdirected);
        assert!(!NoApiAnswer::of(&io::Error::from(io::ErrorKind::ConnectionRefused)).is_misdirected);
    }

    #[test]
    fn libraries_that_pass_an_error_on_add_no_words_and_others_do() {
        let cause = || io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(words(&kube::Error::Service(cause().into())), "connection reset");
        let plugin = kube::client::AuthError::AuthExecStart(cause());
        let said = words(&kube::Error::Auth(plugin));
        assert!(!said.contains("auth error") && said.contains("connection reset"), "{said}");
        assert!(said.len() > "connection reset".len(), "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_takes_too_long_is_called_so() {
        let late = tokio::time::timeout(CONNECT_WITHIN, std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(words(&io::Error::new(io::ErrorKind::TimedOut, late)), "no connection within 10 s");
    }
}
