//! Addresses as configured: a host and port, the URL of a WebSocket, an IP network.
//!
//! Owns splitting, checking and printing. Host names are not looked up here, because they may not resolve yet when
//! the configuration is read.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// A host, by name or address, and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port; 0 only where the system may choose.
    pub port: u16,
}

impl fmt::Display for HostPort {
    /// As it can be dialled: an IPv6 address is in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl HostPort {
    /// Reads `host:port` or `[ipv6]:port` to connect to; `:port` means this machine.
    pub(super) fn to_dial(text: &str) -> Result<Self, &'static str> {
        const WANTED: &str =
            "an address is host:port, such as 192.0.2.1:2222, [2001:db8::1]:2222 or name:2222";
        let (host, port) = text.rsplit_once(':').ok_or(WANTED)?;
        let port = parse_port(port)?;
        if port == 0 {
            return Err("port 0 cannot be connected to");
        }
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match bare {
            Some(inner) if inner.contains(':') => Ok(Self { host: check_host(inner)?, port }),
            None if host.is_empty() => Ok(Self { host: THIS_MACHINE.to_owned(), port }),
            None if !host.contains(':') => Ok(Self { host: check_host(host)?, port }),
            Some(_) | None => Err(WANTED),
        }
    }

    /// Whether only this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        let address: Option<IpAddr> = self.host.parse().ok();
        address.map_or(self.host == THIS_MACHINE, |address| address.is_loopback())
    }

    /// Reads an address to listen on: `port`, `:port` or `host:port`.
    pub(super) fn to_listen(text: &str) -> Result<Self, &'static str> {
        match text.rsplit_once(':') {
            None => Ok(Self { host: ANY.to_owned(), port: parse_port(text)? }),
            Some((host, port)) => {
                let host = if host.is_empty() { ANY.to_owned() } else { bind_host(host)? };
                Ok(Self { host, port: parse_port(port)? })
            }
        }
    }
}

/// All local addresses.
pub(super) const ANY: &str = "0.0.0.0";
const THIS_MACHINE: &str = "localhost";

/// Checks a host to listen on; brackets around an IPv6 address are optional.
pub(super) fn bind_host(text: &str) -> Result<String, &'static str> {
    check_host(text.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(text))
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    // The standard library would accept a sign.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or("a port is 0 to 65535")
}

fn check_host(host: &str) -> Result<String, &'static str> {
    let address = host.split('%').next().is_some_and(|host| host.parse::<IpAddr>().is_ok());
    let name_byte =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') || !byte.is_ascii();
    if address || (!host.is_empty() && host.len() <= 253 && host.bytes().all(name_byte)) {
        Ok(host.to_owned())
    } else {
        Err("a host is a name or an IP address")
    }
}

/// The address of a WebSocket server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WsUrl {
    /// True for `wss`.
    pub secure: bool,
    /// The server's address; without a port in the URL, the port is 80 or 443.
    pub server: HostPort,
    /// Path and query, beginning with a slash.
    pub path: String,
}

impl fmt::Display for WsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.secure { "wss" } else { "ws" }, self.server, self.path)
    }
}

impl WsUrl {
    /// Reads `ws://host[:port][/path]`. Controllers write no scheme; `has_tls` then decides.
    pub(super) fn parse(text: &str, has_tls: bool) -> Result<Self, &'static str> {
        const WANTED: &str = "an address is a URL such as ws://host:port/path or wss://host/path";
        let (scheme, rest) = text.split_once("://").unwrap_or((if has_tls { "wss" } else { "ws" }, text));
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "ws" | "http" => false,
            "wss" | "https" => true,
            _ => return Err(WANTED),
        };
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (server, path) = rest.split_at(split);
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        if path.chars().any(|c| c.is_whitespace() || c.is_control()) || server.contains('@') {
            return Err(WANTED);
        }
        // A colon inside brackets belongs to an IPv6 address.
        let has_port = server.rfind(':').is_some_and(|colon| server.rfind(']').is_none_or(|end| colon > end));
        let server = match (has_port, secure) {
            (true, _) => HostPort::to_dial(server)?,
            (false, true) => HostPort::to_dial(&format!("{server}:443"))?,
            (false, false) => HostPort::to_dial(&format!("{server}:80"))?,
        };
        Ok(Self { secure, server, path })
    }
}

/// Reads an IP network; bits after the prefix are set to 0.
pub(super) fn network(text: &str) -> Result<IpNet, &'static str> {
    let network: IpNet = text.parse().map_err(|_| "a network is address/bits, such as 10.0.0.0/30")?;
    Ok(network.trunc())
}
