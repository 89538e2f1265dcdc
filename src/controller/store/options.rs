//! Which database the store is: the values of `store` and `storepasswordfile`, parsed.
//!
//! A password never stands in the URL: it is read from its file for each connection.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode as Wire, TargetSessionAttrs};

use super::error::Error;
use crate::os::regular_file::read_text;

/// Which database the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Options {
    /// A file of SQLite.
    Sqlite(PathBuf),
    /// A PostgreSQL server.
    Postgres(Box<PostgresOptions>),
}

/// How to reach PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// Hosts, user, database; no password.
    config: Config,
    /// Whose certificate is accepted.
    pub ssl: SslMode,
    /// Read for each connection.
    pub password_file: Option<PathBuf>,
}

/// Whose certificate is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// A certificate for the host's name, signed by an authority in this file, or without a file by one that the system
    /// trusts.
    VerifyFull(Option<PathBuf>),
}

impl Options {
    /// Whether several control nodes may share the store.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// A remote host to which passwords and jobs go without TLS, if there is one.
    pub fn host_in_the_clear(&self) -> Option<String> {
        let Self::Postgres(options) = self else { return None };
        match &options.ssl {
            SslMode::Disable => {}
            SslMode::VerifyFull(_) => return None,
        }
        let addresses = options.config.get_hostaddrs();
        if !addresses.is_empty() {
            return addresses.iter().find(|address| !address.is_loopback()).map(ToString::to_string);
        }
        options.config.get_hosts().iter().find_map(|host| match host {
            Host::Tcp(name) => {
                let is_here = name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
                (!is_here).then(|| name.clone())
            }
            Host::Unix(_) => None,
        })
    }

    /// Parses `sqlite`, which is `default`, `sqlite:PATH` or `postgresql://USER@HOST[,HOST]/DB?…`.
    ///
    /// # Errors
    /// It is none of these, or has a password.
    pub fn parse(store: &str, password_file: Option<PathBuf>, default: &Path) -> Result<Self, Error> {
        match (store, store.strip_prefix("sqlite:")) {
            ("sqlite", _) => Ok(Self::Sqlite(default.to_owned())),
            (_, Some("")) => Err(Error::Settings("sqlite: needs a path".into())),
            (_, Some(path)) => Ok(Self::Sqlite(path.into())),
            (url, None) => {
                PostgresOptions::parse(url, password_file).map(|options| Self::Postgres(Box::new(options)))
            }
        }
    }
}

impl PostgresOptions {
    fn parse(url: &str, password_file: Option<PathBuf>) -> Result<Self, Error> {
        if !url.starts_with("postgresql://") && !url.starts_with("postgres://") {
            return Err(Error::Settings(
                "it must be sqlite, sqlite:PATH or postgresql://USER@HOST/DATABASE".into(),
            ));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut root, mut rest) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", value)) => root = Some(PathBuf::from(decoded(value)?)),
                Some(_) | None => rest.push(pair),
            }
        }
        let plain = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
        // The parser's own error is not shown, because it could repeat a part of the URL.
        let mut config: Config =
            plain.parse().map_err(|_| Error::Settings("the PostgreSQL URL cannot be parsed".into()))?;
        if config.get_password().is_some() {
            return Err(Error::Settings(
                "a password does not belong in the URL: use storepasswordfile, or --password-file of meshctl"
                    .into(),
            ));
        }
        let ssl = match mode {
            Some("disable") => SslMode::Disable,
            Some("verify-full") => SslMode::VerifyFull(root),
            None if config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_))) => SslMode::Disable,
            None => SslMode::VerifyFull(root),
            Some(other) => {
                return Err(Error::Settings(format!(
                    "sslmode={other}: only verify-full, which checks the server's certificate, and disable are supported"
                )));
            }
        };
        complete(&mut config, &ssl);
        Ok(Self { config, ssl, password_file })
    }

    /// The configuration of one connection, with the password as the file has it now.
    pub(super) fn config(&self) -> Result<Config, Error> {
        let mut config = self.config.clone();
        if let Some(path) = &self.password_file {
            config.password(read_password(path)?);
        }
        Ok(config)
    }
}

/// Sets what the URL leaves open, so that a vanished server is noticed within 30 seconds and a standby is never written
/// to.
fn complete(config: &mut Config, ssl: &SslMode) {
    config.ssl_mode(match ssl {
        SslMode::Disable => Wire::Disable,
        SslMode::VerifyFull(_) => Wire::Require,
    });
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(5));
    }
    if config.get_hosts().len() > 1 {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    if config.get_application_name().is_none() {
        config.application_name("meshd");
    }
    config.keepalives_idle(Duration::from_secs(15));
    config.keepalives_interval(Duration::from_secs(5));
    config.keepalives_retries(3);
    config.tcp_user_timeout(Duration::from_secs(30));
}

/// The password, from a file that nobody but its owner may read.
fn read_password(path: &Path) -> Result<String, Error> {
    let mode = fs::metadata(path).map_err(Error::file(path))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Error::Settings(format!(
            "{} has mode {:04o}, so others may read the password: run chmod 0600 on it",
            path.display(),
            mode & 0o7777
        )));
    }
    let text = read_text(path).map_err(Error::file(path))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// A value of a URL, with its percent signs decoded.
fn decoded(value: &str) -> Result<String, Error> {
    let bad = || Error::Settings(format!("{value} in the PostgreSQL URL is not encoded correctly"));
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().ok_or_else(bad)?, rest.next().ok_or_else(bad)?];
            let digits = std::str::from_utf8(&digits).map_err(|_| bad())?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad())
}
