//! Which names clients may use for this server. A foreign site can let its own name resolve to this host; to a browser,
//! this server then belongs to the foreign page. `Host`, the name that the browser was given, tells the two apart; for
//! a change, so does `Origin`, the page that makes it.

use std::net::{IpAddr, Ipv6Addr};

use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;

use super::server::HttpClient;

const LOCALHOST: &str = "localhost";

/// The names that are accepted.
pub(super) struct ServerNames {
    /// In lower case, with a port if only that port is meant. If empty, the names of the address are accepted.
    given: Vec<String>,
    /// The host in the configured address.
    own: String,
    /// Whether any IP address is accepted too. This is safe, because a foreign site needs a name.
    any_address: bool,
}

impl ServerNames {
    pub(super) fn new(given: Vec<String>, own: &str, any_address: bool) -> Self {
        let own = if own.contains(':') { format!("[{own}]") } else { own.to_ascii_lowercase() };
        Self { given, own, any_address }
    }

    /// The name that a request uses for this server; `None` if it is missing, ambiguous or not accepted.
    pub(super) fn called(&self, client: &HttpClient, head: &Parts) -> Option<Authority> {
        let called = only(&head.headers, &HOST).and_then(authority)?;
        let is_contradicted = head.uri.authority().is_some_and(|other| !is_same(other, &called));
        Some(called).filter(|called| !is_contradicted && self.has(called, client.local))
    }

    fn has(&self, called: &Authority, local: IpAddr) -> bool {
        let (whole, host) = (called.as_str().to_ascii_lowercase(), called.host().to_ascii_lowercase());
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if self.any_address && (host == LOCALHOST || bare.parse::<IpAddr>().is_ok()) {
            return true;
        }
        if !self.given.is_empty() {
            return self.given.iter().any(|name| *name == host || *name == whole);
        }
        let address = match local {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        host == address || host == self.own || (local.is_loopback() && host == LOCALHOST)
    }
}

/// Whether a request comes from a page of the server that it calls.
pub(super) fn is_own_page(headers: &HeaderMap, called: &Authority, is_secured: bool) -> bool {
    let Some((scheme, origin)) = only(headers, &ORIGIN).and_then(|origin| origin.split_once("://")) else {
        return false;
    };
    // If this server has no TLS, a proxy may add TLS.
    let is_scheme = scheme == "https" || (scheme == "http" && !is_secured);
    is_scheme && authority(origin).is_some_and(|origin| is_same(&origin, called))
}

/// The value of a header that occurs exactly once.
pub(super) fn only<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok();
    first.filter(|_| all.next().is_none())
}

/// A host, with or without a port. Checked here, because the crate accepts anything in and after the brackets of an
/// address.
fn authority(text: &str) -> Option<Authority> {
    let authority: Authority = text.parse().ok().filter(|_| !text.contains('@'))?;
    let (host, rest) = text.split_at(authority.host().len());
    let is_port = rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    let is_host = host
        .strip_prefix('[')
        .is_none_or(|rest| rest.strip_suffix(']').is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()));
    (is_host && (rest.is_empty() || is_port)).then_some(authority)
}

fn is_same(one: &Authority, other: &Authority) -> bool {
    one.as_str().eq_ignore_ascii_case(other.as_str())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn called(hosts: &ServerNames, local: &str, host: &[&str], uri: &str) -> bool {
        let (local, host_of) = (local.parse().unwrap(), local.parse().unwrap());
        let client = HttpClient { host: host_of, local, is_secured: false, certificate: None };
        let mut request = Request::builder().uri(uri);
        for one in host {
            request = request.header(HOST, *one);
        }
        hosts.called(&client, &request.body(()).unwrap().into_parts().0).is_some()
    }

    #[test]
    fn a_server_is_called_by_its_address_unless_other_names_are_given() {
        let own = ServerNames::new(Vec::new(), "localhost", false);
        for host in ["localhost", "LOCALHOST:27191", "127.0.0.1", "127.0.0.1:1"] {
            assert!(called(&own, "127.0.0.1", &[host], "/"), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.",
            "a@localhost",
            "127.0.0.2",
            "[::1]",
            "127.1",
        ] {
            assert!(!called(&own, "127.0.0.1", &[host], "/"), "{host}");
        }
        assert!(
            !called(&own, "127.0.0.1", &[], "/")
                && !called(&own, "127.0.0.1", &["localhost", "localhost"], "/")
        );
        assert!(called(&own, "::1", &["[::1]:27191"], "/") && !called(&own, "::1", &["[::1].evil"], "/"));
        assert!(called(&own, "127.0.0.1", &["localhost"], "http://localhost/"));
        assert!(!called(&own, "127.0.0.1", &["localhost"], "http://evil.example/"));
        let any = ServerNames::new(Vec::new(), "0.0.0.0", false);
        assert!(
            called(&any, "192.0.2.1", &["192.0.2.1:443"], "/")
                && !called(&any, "192.0.2.1", &["localhost"], "/")
        );
        let names = || vec!["mesh.example".to_owned(), "other.example:8443".to_owned()];
        let for_probes = ServerNames::new(names(), "127.0.0.1", true);
        for host in ["127.0.0.1", "192.0.2.7:27190", "[2001:db8::1]:27190", "localhost", "mesh.example"] {
            assert!(called(&for_probes, "127.0.0.1", &[host], "/"), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "127.1",
            "other.example",
            "[::1].evil",
            "[::1]evil:80",
            "[127.0.0.1]",
            "[localhost]",
            "mesh.example:+80",
            "mesh.example:80:80",
        ] {
            assert!(!called(&for_probes, "127.0.0.1", &[host], "/"), "{host}");
        }
        let given = ServerNames::new(names(), "127.0.0.1", false);
        for (host, is_one) in [
            ("mesh.example", true),
            ("Mesh.example:9", true),
            ("other.example:8443", true),
            ("other.example", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(called(&given, "127.0.0.1", &[host], "/"), is_one, "{host}");
        }
    }

    #[test]
    fn a_page_is_the_servers_own_if_its_origin_is_what_the_server_is_called() {
        let is_own = |origin: &[&str], is_secured| {
            let mut headers = HeaderMap::new();
            for one in origin {
                headers.append(ORIGIN, one.parse().unwrap());
            }
            is_own_page(&headers, &"mesh.example:81".parse().unwrap(), is_secured)
        };
        assert!(is_own(&["http://mesh.example:81"], false) && is_own(&["https://MESH.example:81"], true));
        assert!(is_own(&["https://mesh.example:81"], false), "behind a proxy with TLS");
        assert!(!is_own(&["http://mesh.example:81"], true));
        for origin in [
            "null",
            "",
            "http://mesh.example",
            "http://mesh.example:82",
            "http://evil.example:81",
            "ftp://mesh.example:81",
        ] {
            assert!(!is_own(&[origin], false), "{origin}");
        }
        assert!(!is_own(&[], false) && !is_own(&["http://mesh.example:81", "http://mesh.example:81"], false));
    }
}
