//! Which hosts may be reached, by their names and by the addresses that these really have.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regex::Regex;

/// The name that every machine has for itself.
const LOCALHOST: &str = "localhost";

/// Hosts that were named; without any, all but this machine and what only its own network knows.
#[derive(Debug)]
pub(super) struct Hosts(Vec<Named>);

#[derive(Debug)]
enum Named {
    Exactly(String),
    By(Regex),
}

impl Named {
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exactly(name) => name.eq_ignore_ascii_case(text),
            Self::By(expression) => expression.is_match(text),
        }
    }
}

impl Hosts {
    /// Names, and expressions between slashes.
    pub(super) fn new(names: &[String]) -> Result<Self, regex::Error> {
        let named =
            names.iter().map(|name| match name.strip_prefix('/').and_then(|rest| rest.strip_suffix('/')) {
                Some(expression) => Regex::new(&format!("^(?:{expression})$")).map(Named::By),
                None => Ok(Named::Exactly(name.clone())),
            });
        Ok(Self(named.collect::<Result<_, _>>()?))
    }

    fn names(&self, text: &str) -> bool {
        self.0.iter().any(|named| named.matches(text))
    }

    /// Whether a host may be reached whose address somebody else finds.
    pub(super) fn allow_name(&self, host: &str) -> bool {
        match host.parse() {
            Ok(address) => self.allow(host, address),
            Err(_) if host.eq_ignore_ascii_case(LOCALHOST) => self.names(host),
            Err(_) => self.0.is_empty() || self.names(host),
        }
    }

    /// Whether a connection that leads to an address of this machine may stay: its other addresses are near as well.
    pub(super) fn allow_own(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_near(address) || self.names(&address.to_string())
    }

    /// Whether a host may be reached at this address.
    pub(super) fn allow(&self, host: &str, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if self.names(&address.to_string()) {
            return true;
        }
        let is_own_name = host.eq_ignore_ascii_case(LOCALHOST) && address.is_loopback();
        if is_near(address) { is_own_name && self.names(host) } else { self.0.is_empty() || self.names(host) }
    }
}

/// Servers of clouds that give credentials to whoever asks, at addresses that are none of the link.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// This machine, and what only its link or its cloud knows.
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
        Hosts::new(&names).unwrap().allow(host, address.parse().unwrap())
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
