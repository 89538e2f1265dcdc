//! Addresses of repositories, registries and API servers, and whether one lies below another.
//!
//! An address that two programs could read differently (escapes in dots, backslashes, a password) is refused
//! rather than interpreted: the answer decides who gets a secret.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An absolute address: scheme, host, port and path.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Url {
    text: String,
    scheme: String,
    user: Option<String>,
    host: String,
    port: Option<u16>,
    path: Vec<String>,
}

/// Why a text is no address. The text itself is not shown: it may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is in none of the known forms.
    #[error("write it as https://HOST/PATH, ssh://USER@HOST/PATH or file:///PATH")]
    Form,
    /// It holds a password.
    #[error("it holds a password: put it into a credential")]
    Password,
    /// Its path goes up, or could be read in two ways.
    #[error("its path may not contain ., .., \\, %, ? or #")]
    Path,
    /// It is very long.
    #[error("it is longer than 2000 characters")]
    Long,
}

impl Url {
    /// Parses an address.
    ///
    /// # Errors
    /// [`UrlError`] says what is not understood.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.len() > 2_000 {
            return Err(UrlError::Long);
        }
        // Other bytes are refused, because git, curl and meshd could treat them differently.
        if text.contains(|c: char| !c.is_ascii_graphic()) {
            return Err(UrlError::Form);
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Form)?;
        let scheme = scheme.to_ascii_lowercase();
        let letters = scheme.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if scheme.is_empty() || !letters {
            return Err(UrlError::Form);
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = path_segments(path)?;
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(UrlError::Password);
        }
        let plain_user = |user: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            !user.is_empty() && !user.starts_with('-') && user.bytes().all(plain)
        };
        if user.is_some_and(|user| !plain_user(user)) {
            return Err(UrlError::Form);
        }
        let (host, port) = host_and_port(place)?;
        let is_file = scheme == "file";
        if host.is_empty() != is_file || (is_file && (port.is_some() || user.is_some() || path.is_empty())) {
            return Err(UrlError::Form);
        }
        let port = port.or(usual_port(&scheme));
        Ok(Self { text: text.to_owned(), scheme, user: user.map(str::to_owned), host, port, path })
    }

    /// The text that was parsed.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The scheme, in lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user in front of the host.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The directory that it names, if it is on this machine.
    pub fn local_path(&self) -> Option<PathBuf> {
        (self.scheme == "file").then(|| Path::new("/").join(self.path.join("/")))
    }

    /// The server's name in ssh's file of known hosts, if the address is for ssh.
    pub fn ssh_server(&self) -> Option<String> {
        let host = self.host.trim_matches(['[', ']']);
        (self.scheme == "ssh").then(|| match self.port {
            None | Some(22) => host.to_owned(),
            Some(port) => format!("[{host}]:{port}"),
        })
    }

    /// Whether it is `prefix` or lies below it: the same scheme, host and port, and a path that begins with
    /// the same whole segments. The user does not matter.
    pub fn is_below(&self, prefix: &Self) -> bool {
        self.scheme == prefix.scheme
            && self.host == prefix.host
            && self.port == prefix.port
            && self.path.starts_with(&prefix.path)
    }
}

impl TryFrom<String> for Url {
    type Error = UrlError;

    fn try_from(text: String) -> Result<Self, UrlError> {
        Self::parse(&text)
    }
}

impl From<Url> for String {
    fn from(url: Url) -> Self {
        url.text
    }
}

fn path_segments(path: &str) -> Result<Vec<String>, UrlError> {
    if path.contains(['\\', '%', '?', '#']) {
        return Err(UrlError::Path);
    }
    let segments = path.split('/').filter(|segment| !segment.is_empty());
    let segments: Vec<String> = segments.map(str::to_owned).collect();
    if segments.iter().any(|segment| segment == "." || segment == "..") {
        return Err(UrlError::Path);
    }
    Ok(segments)
}

fn host_and_port(place: &str) -> Result<(String, Option<u16>), UrlError> {
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or(UrlError::Form)?;
            let host = host.parse::<std::net::Ipv6Addr>().map_err(|_| UrlError::Form)?;
            (format!("[{host}]"), port)
        }
        None => {
            let (host, port) = place.split_at(place.find(':').unwrap_or(place.len()));
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
            if !host.bytes().all(plain) || host.starts_with('-') {
                return Err(UrlError::Form);
            }
            (host.to_ascii_lowercase(), port)
        }
    };
    let port = match port.strip_prefix(':') {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            Some(digits.parse().map_err(|_| UrlError::Form)?)
        }
        Some(_) => return Err(UrlError::Form),
        None if port.is_empty() => None,
        None => return Err(UrlError::Form),
    };
    Ok((host, port))
}

fn usual_port(scheme: &str) -> Option<u16> {
    match scheme {
        "https" => Some(443),
        "http" => Some(80),
        "ssh" => Some(22),
        _ => None,
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn an_address_lies_below_a_prefix_of_whole_segments() {
        for (address, prefix) in [
            ("https://git.example/team/site.git", "https://git.example"),
            ("https://git.example/team/site.git", "https://git.example/"),
            ("https://git.example/team/site.git", "https://git.example/team"),
            ("https://git.example/team", "https://git.example/team/"),
            ("https://GIT.example:443/team//a", "HTTPS://git.example/team"),
            ("ssh://git@git.example/a", "ssh://git.example:22/a"),
            ("https://[::1]/a", "https://[0:0::1]:443"),
            ("file:///srv/git/a", "file:///srv"),
        ] {
            assert!(url(address).is_below(&url(prefix)), "{address} {prefix}");
        }
        for (address, prefix) in [
            ("https://git.example/team2", "https://git.example/team"),
            ("https://git.example/Team", "https://git.example/team"),
            ("https://git.example", "https://git.example/team"),
            ("http://git.example/team", "https://git.example/team"),
            ("https://git.example:8443/team", "https://git.example/team"),
            ("https://git.example.evil.org/team", "https://git.example/team"),
            ("https://git.example@evil.org/team", "https://git.example/team"),
            ("https://evil.org/https://git.example/team", "https://git.example"),
            ("file:///srv2", "file:///srv"),
        ] {
            assert!(!url(address).is_below(&url(prefix)), "{address} {prefix}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (text, error) in [
            ("", UrlError::Form),
            ("git.example/a", UrlError::Form),
            ("git@git.example:a", UrlError::Form),
            ("-https://git.example/a", UrlError::Form),
            ("https:///a", UrlError::Form),
            ("https://git.example:x/a", UrlError::Form),
            ("https://git.example:70000/a", UrlError::Form),
            ("https://git.example\\@evil.org/a", UrlError::Form),
            ("https://git example/a", UrlError::Form),
            ("https://git.exämple/a", UrlError::Form),
            ("https://a/\n", UrlError::Form),
            ("https://[::1/a", UrlError::Form),
            ("https://[::1]x/a", UrlError::Form),
            ("ssh://-oProxyCommand=x/a", UrlError::Form),
            ("ssh://-o@host/a", UrlError::Form),
            ("https://?a", UrlError::Form),
            ("file://host/a", UrlError::Form),
            ("file://", UrlError::Form),
            ("https://u:p@git.example/a", UrlError::Password),
            ("https://git.example/a/../b", UrlError::Path),
            ("https://git.example/./b", UrlError::Path),
            ("https://git.example/a/%2e%2e/b", UrlError::Path),
            ("https://git.example/a\\..\\b", UrlError::Path),
            ("https://git.example/a?x", UrlError::Path),
            ("https://git.example/a#x", UrlError::Path),
        ] {
            assert_eq!(Url::parse(text), Err(error), "{text}");
        }
        assert_eq!(Url::parse(&format!("https://h/{}", "a".repeat(2_000))), Err(UrlError::Long));
    }
}
