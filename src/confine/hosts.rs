//! Which hosts may be reached, by their names and by the addresses that the names resolve to. Refuses to know who
//! connects.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regex::Regex;

/// The name that every machine has for itself.
const LOCALHOST: &str = "localhost";

/// The hosts that may be reached. If none is named, all but those that [`is_near`] finds.
#[derive(Debug)]
pub(super) struct AllowedHosts(Vec<HostPattern>);

#[derive(Debug)]
enum HostPattern {
    Exactly(String),
    By(Regex),
    Any,
}

impl HostPattern {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exactly(name) => name.eq_ignore_ascii_case(text),
            Self::By(expression) => expression.is_match(text),
            Self::Any => true,
        }
    }
}

impl AllowedHosts {
    /// Takes names, and expressions between slashes.
    pub(super) fn new(names: &[String]) -> Result<Self, regex::Error> {
        let named =
            names.iter().map(|name| match name.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
                Some(expression) => Regex::new(&format!("^(?:{expression})$")).map(HostPattern::By),
                None => Ok(HostPattern::Exactly(name.clone())),
            });
        Ok(Self(named.collect::<Result<_, _>>()?))
    }

    /// Any host; those that are near only with `near`.
    pub(super) fn unnamed(near: bool) -> Self {
        Self(near.then_some(HostPattern::Any).into_iter().collect())
    }

    fn is_named(&self, text: &str) -> bool {
        self.0.iter().any(|named| named.matches(text))
    }

    /// Whether a host may be reached through another proxy, which resolves its name.
    pub(super) fn allows_name(&self, host: &str) -> bool {
        match host.parse() {
            Ok(address) => self.allows(host, address),
            Err(_) if host.eq_ignore_ascii_case(LOCALHOST) => self.is_named(host),
            Err(_) => self.0.is_empty() || self.is_named(host),
        }
    }

    /// Whether a connection to an address of this machine may stay. Loopback and link-local addresses were checked
    /// before; any other address of this machine has to be named.
    pub(super) fn allows_own_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_near(address) || self.is_named(&address.to_string())
    }

    /// Whether a host may be reached at this address.
    pub(super) fn allows(&self, host: &str, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if self.is_named(&address.to_string()) {
            return true;
        }
        let is_own_name = host.eq_ignore_ascii_case(LOCALHOST) && address.is_loopback();
        if is_near(address) {
            is_own_name && self.is_named(host)
        } else {
            self.0.is_empty() || self.is_named(host)
        }
    }
}

/// Metadata servers of clouds, which give credentials to anybody, at addresses that are not link-local.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Whether an address is this machine's, link-local, or a cloud's metadata server.
fn is_near(address: IpAddr) -> bool {
    METADATA.contains(&address)
        || match address {
            IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.octets()[0] == 0,
            IpAddr::V6(v6) => {
                v6.is_loopback() || v6 == Ipv6Addr::UNSPECIFIED || v6.segments()[0] & 0xffc0 == 0xfe80
            }
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(names: &[&str], host: &str, address: &str) -> bool {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        AllowedHosts::new(&names).unwrap().allows(host, address.parse().unwrap())
    }

    #[test]
    fn names_bound_hosts_and_what_is_near_is_named_by_its_address() {
        for (names, host, address, expected) in [
            (&[][..], "git.example", "192.0.2.1", true),
            (&[], "git.example", "127.0.0.1", false),
            (&[], "git.example", "169.254.169.254", false),
            (&[], "git.example", "::ffff:127.0.0.1", false),
            (&[], "git.example", "fe80::1", false),
            (&[], "git.example", "0.0.0.0", false),
            (&[], "git.example", "168.63.129.16", false),
            (&[], "git.example", "fd00:ec2::254", false),
            (&[], "localhost", "127.0.0.1", false),
            (&["git.example"], "git.example", "192.0.2.1", true),
            (&["git.example"], "GIT.example", "10.0.0.1", true),
            (&["git.example"], "git.example", "127.0.0.1", false),
            (&["git.example"], "other.example", "192.0.2.1", false),
            (&["192.0.2.1"], "other.example", "192.0.2.1", true),
            (&["/.*\\.example/"], "git.example", "192.0.2.1", true),
            (&["/.*\\.example/"], "git.example.org", "192.0.2.1", false),
            (&["127.0.0.1"], "git.example", "::ffff:127.0.0.1", true),
            (&["localhost"], "localhost", "::1", true),
            (&["localhost"], "git.example", "::1", false),
        ] {
            assert_eq!(allows(names, host, address), expected, "{names:?} {host} {address}");
        }
    }
}
