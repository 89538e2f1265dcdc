//! `meshctl cert verify`: whether a node would accept a certificate, by an authority's file or by a TLS profile of a
//! node's configuration. Owns the arguments and the choice of the profile; `tls` verifies, by the function that
//! handshakes use.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::{
    cli::{
        existing_path,
        exit::{Exit, Failure},
        output::Output,
    },
    tls::{
        ClientOptions, Role, ServerOptions,
        inspect::{self, VerifyingParty},
    },
};

/// The TLS profiles of one node's configuration.
type ConfiguredProfiles = (Vec<ServerOptions>, Vec<ClientOptions>);
/// Reads the TLS profiles; the daemon provides this. An error says everything that is wrong with the configuration.
pub(crate) type NodeProfiles = fn(&Path) -> Result<ConfiguredProfiles, String>;

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Certificate file, the node's certificate first
    #[arg(value_parser = existing_path())]
    file: PathBuf,
    /// File of the authorities to trust
    #[arg(long, value_name = "FILE", required_unless_present = "profile", value_parser = existing_path())]
    ca: Option<PathBuf>,
    /// Revocation lists
    #[arg(long, value_name = "FILE", requires = "ca", value_parser = existing_path())]
    crl: Option<PathBuf>,
    /// Node configuration, a file or a directory, with the TLS profile that decides
    #[arg(long, value_name = "PATH", conflicts_with = "ca", requires = "profile", value_parser = existing_path())]
    config: Option<PathBuf>,
    /// Name of the tls-server, which verifies clients, or of the tls-client, which verifies servers
    #[arg(long, value_name = "NAME", conflicts_with = "ca", requires = "config")]
    profile: Option<String>,
    /// Node ID that the certificate must name
    #[arg(long, conflicts_with = "host")]
    node: Option<String>,
    /// Host name or address that the certificate must name
    #[arg(long)]
    host: Option<String>,
    /// What the certificate is used for [default: server, or what the profile verifies]
    #[arg(long, value_enum)]
    purpose: Option<For>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum For {
    Server,
    Client,
}

impl Verify {
    pub(super) fn run(self, output: Output, node_profiles: NodeProfiles) -> Result<Exit, Failure> {
        let verifier = self.verifier(node_profiles)?;
        let checked = inspect::verify(&verifier, &self.file, self.node.as_deref(), self.host.as_deref());
        checked.map_err(|error| failed(error.to_string()))?;
        output.answer(&json!({"accepted": true}), || format!("{}: accepted", self.file.display()))
    }

    fn verifier(&self, node_profiles: NodeProfiles) -> Result<VerifyingParty, Failure> {
        match (&self.config, &self.profile, &self.ca) {
            (Some(config), Some(name), _) => {
                self.profile(node_profiles(config).map_err(failed)?, config, name)
            }
            (_, _, Some(ca)) => {
                let role = match self.purpose {
                    Some(For::Client) => Role::Client,
                    Some(For::Server) | None => Role::Server,
                };
                let verifier = VerifyingParty::by_authorities(ca, self.crl.as_deref(), role);
                verifier.map_err(|error| failed(error.to_string()))
            }
            (_, _, None) => Err(Failure::usage("give --ca, or --config and --profile")),
        }
    }

    /// The verifier of this profile. A name may belong to a tls-server, to a tls-client, or to one of each.
    fn profile(
        &self,
        (servers, clients): ConfiguredProfiles,
        config: &Path,
        name: &str,
    ) -> Result<VerifyingParty, Failure> {
        let server = servers.into_iter().find(|options| options.name == name);
        let client = clients.into_iter().find(|options| options.name == name);
        let server = server.filter(|_| self.purpose != Some(For::Server));
        let client = client.filter(|_| self.purpose != Some(For::Client));
        let verifier = match (server, client) {
            (Some(server), None) => VerifyingParty::by_server(server),
            (None, Some(client)) => VerifyingParty::by_client(client),
            (Some(_), Some(_)) => {
                let text = "a tls-server and a tls-client have this name: choose one with --purpose";
                return Err(Failure::usage(text));
            }
            (None, None) => {
                let kind = match self.purpose {
                    Some(For::Server) => "tls-client",
                    Some(For::Client) => "tls-server",
                    None => "TLS profile",
                };
                return Err(failed(format!("{}: there is no {kind} named {name:?}", config.display())));
            }
        };
        verifier.map_err(|error| failed(error.to_string()))
    }
}

fn failed(text: String) -> Failure {
    Failure::new(Exit::Failed, text)
}
