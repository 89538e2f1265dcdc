//! Looks up the names of API servers, by the system's resolver. Owns the distinction between a name that does not exist
//! and a resolver that fails for now, which the standard library's error does not show.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use dns_lookup::{AddrInfoHints, LookupErrorKind, SockType, getaddrinfo};
use hyper_util::client::legacy::connect::dns::Name;
use tower::Service;

/// The system's resolver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resolver;

/// Why a name has no address.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct LookupFailed {
    /// There is no such name.
    pub(super) is_unknown: bool,
    text: String,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = LookupFailed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, LookupFailed>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), LookupFailed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move {
            let found = tokio::task::spawn_blocking(move || look_up(name.as_str())).await;
            found.unwrap_or_else(|stopped| Err(LookupFailed { is_unknown: false, text: stopped.to_string() }))
        })
    }
}

fn look_up(name: &str) -> Result<std::vec::IntoIter<SocketAddr>, LookupFailed> {
    let hints = AddrInfoHints { socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
    let found = getaddrinfo(Some(name), None, Some(hints)).map_err(|error| LookupFailed {
        is_unknown: matches!(error.kind(), LookupErrorKind::NoName | LookupErrorKind::NoData),
        text: io::Error::from(error).to_string(),
    })?;
    Ok(found.flatten().map(|found| found.sockaddr).collect::<Vec<_>>().into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_and_a_name_that_does_not_exist_is_told_from_them() {
        assert_eq!(look_up("127.0.0.1").unwrap().next().unwrap().ip().to_string(), "127.0.0.1");
        // The name has a blank, so no DNS server is asked.
        assert!(look_up("no such.invalid").unwrap_err().is_unknown);
    }
}
