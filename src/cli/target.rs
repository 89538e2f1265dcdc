//! Which node to talk to: the options in front of the command, their environment variables, and the usual places if
//! none is given.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgAction, Args, builder::BoolishValueParser};

use super::cert::NodeProfiles;
use super::completion::sockets;
use super::endpoint::{DEFAULT_SOCKETS, Endpoint, EndpointDialer};
use super::exit::{Exit, Failure};
use super::output::Output;
use crate::rpc::{Client, Deadlines};
use crate::tls::{ClientOptions, ClientProfile, Files};

/// Options about the node's control socket.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// Control socket: a path, unix:PATH, tcp://HOST:PORT or tls://HOST:PORT [default: the first usual path that
    /// exists]
    #[arg(long, env = "RECEPTORCTL_SOCKET", value_name = "ADDRESS", add = sockets())]
    socket: Option<String>,

    /// Node configuration that holds the profile named by --tls-client (tls:// sockets only)
    #[arg(long, short, env = "RECEPTORCTL_CONFIG", value_name = "FILE",
        conflicts_with_all = ["rootcas", "key", "cert"])]
    config: Option<PathBuf>,

    /// TLS profile for the control socket (tls:// sockets only)
    #[arg(long, env = "RECEPTORCTL_TLSCLIENT", value_name = "NAME")]
    tls_client: Option<String>,

    /// Root CA bundle for the control socket (tls:// sockets only)
    #[arg(long, value_name = "FILE")]
    rootcas: Option<PathBuf>,

    /// Private key for the control socket (tls:// sockets only)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Certificate for the control socket (tls:// sockets only)
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// Accept any certificate from the control socket (tls:// sockets only)
    #[arg(long, value_name = "BOOL", action = ArgAction::Set,
        value_parser = BoolishValueParser::new(), default_value = "false")]
    insecureskipverify: bool,

    /// How long to wait for an answer [default: 30; for cancel and release: until the unit's processes have ended]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

impl Target {
    /// The client for the node these options name.
    pub(super) fn client(&self, node_profiles: NodeProfiles, output: Output) -> Result<Client, Failure> {
        let endpoint = match &self.socket {
            Some(text) => text.parse::<Endpoint>().map_err(|error| Failure::usage(error.to_string()))?,
            None => {
                let (endpoint, is_obvious) = usual_socket(&DEFAULT_SOCKETS)?;
                if !is_obvious {
                    output.note(&format!("meshctl: the node at {endpoint}; --socket names another one"));
                }
                endpoint
            }
        };
        let usual = Deadlines::default();
        let deadlines = match self.timeout {
            Some(limit) => {
                Deadlines { connect: usual.connect.min(limit), answer: limit, ending: limit, ..usual }
            }
            None => usual,
        };
        let profile = match endpoint {
            Endpoint::Unix(_) | Endpoint::Tcp { tls: false, .. } => None,
            Endpoint::Tcp { tls: true, .. } => {
                let profile = ClientProfile::open(self.tls_options(node_profiles)?, None);
                Some(profile.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?)
            }
        };
        Ok(Client::new(EndpointDialer::new(endpoint, profile), deadlines))
    }

    /// The TLS settings: from the configuration file if one is given, else from the options.
    fn tls_options(&self, node_profiles: NodeProfiles) -> Result<ClientOptions, Failure> {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        match (&self.config, given(&self.tls_client)) {
            (Some(file), Some(name)) => return profile_in(file, &name, node_profiles),
            (Some(_), None) => {
                return Err(Failure::usage("--config needs --tls-client, the name of a profile in it"));
            }
            (None, _) => {}
        }
        let identity = self.cert.clone().zip(self.key.clone());
        let files = Files { identity, authorities: self.rootcas.clone(), ..Files::default() };
        let insecure_skip_verify = self.insecureskipverify;
        Ok(ClientOptions {
            name: "of the command line".to_owned(),
            files,
            insecure_skip_verify,
            ..ClientOptions::default()
        })
    }
}

/// The `tls-client` of that name in a node's configuration.
fn profile_in(file: &Path, name: &str, node_profiles: NodeProfiles) -> Result<ClientOptions, Failure> {
    let failed = |text: String| Failure::new(Exit::Failed, text);
    let (_, clients) = node_profiles(file).map_err(failed)?;
    let missing = || failed(format!("{}: there is no tls-client {name} in it", file.display()));
    clients.into_iter().find(|client| client.name == name).ok_or_else(missing)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is not a number of seconds above 0");
    let number: f64 = text.parse().map_err(|_| invalid())?;
    if number > 0.0 { Duration::try_from_secs_f64(number).map_err(|_| invalid()) } else { Err(invalid()) }
}

/// The first of the places that has a socket, and whether the choice is obvious: it is the first place, meshd's, and no
/// other place has a socket.
pub(super) fn usual_socket(places: &[&str]) -> Result<(Endpoint, bool), Failure> {
    let there = |path: &&&str| match std::fs::metadata(path) {
        Ok(_) => true,
        // A socket that may not be examined is reported when it is dialled.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    };
    let mut found = places.iter().filter(there);
    match found.next() {
        Some(path) => {
            let is_obvious = places.first() == Some(path) && found.next().is_none();
            Ok((Endpoint::Unix(PathBuf::from(path)), is_obvious))
        }
        None => Err(Failure::new(
            Exit::Unreachable,
            format!(
                "no control socket at {}: is meshd running? give --socket or set RECEPTORCTL_SOCKET",
                places.join(", ")
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_usual_socket_that_exists_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (first, second) = (path("a"), path("b"));
        let error = usual_socket(&[&first, &second]).unwrap_err();
        assert!(error.message.contains(&format!("{first}, {second}")), "{error}");
        std::fs::write(&second, "").unwrap();
        assert_eq!(usual_socket(&[&first, &second]), Ok((Endpoint::Unix((&second).into()), false)));
        assert_eq!(usual_socket(&[&second, &first]), Ok((Endpoint::Unix((&second).into()), true)));
        std::fs::write(&first, "").unwrap();
        assert_eq!(usual_socket(&[&first, &second]), Ok((Endpoint::Unix(first.clone().into()), false)));
    }

    #[test]
    fn a_timeout_is_positive() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["0", "-1", "x", "NaN", "inf", "1e300"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
