//! AWX's install bundle for an execution or hop node: configures what its playbook would, from the same variables.
//!
//! Owns which of these variables count here, and names each unknown one. The node's ID comes from the certificate.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::JoinError;
use super::authority::facts;
use super::bundle::Bundle;
use super::configuration::{DATA, PROFILE, Text, VERIFICATION_KEY, control_service};
use super::install::Kit;

/// The file with the playbook's variables; it marks a bundle of AWX.
pub(super) const VARIABLES: &str = "group_vars/all.yml";
/// Files that only the playbook needs.
const OF_THE_PLAYBOOK: [&str; 3] = ["install_receptor.yml", "inventory.yml", "requirements.yml"];

/// The variables. A missing one has the default of receptor's role.
#[derive(Deserialize)]
struct AwxVariables {
    #[serde(default)]
    receptor_tls: bool,
    #[serde(default)]
    receptor_verify: bool,
    #[serde(default)]
    receptor_mintls13: bool,
    #[serde(default = "yes")]
    receptor_listener: bool,
    #[serde(default)]
    receptor_local_only: bool,
    #[serde(default = "tcp")]
    receptor_protocol: String,
    #[serde(default = "port")]
    receptor_port: u16,
    #[serde(default)]
    receptor_log_level: Option<String>,
    #[serde(default)]
    receptor_peers: Vec<AwxPeer>,
    #[serde(default)]
    receptor_work_commands: Map<String, Value>,
    custom_worksign_public_keyfile: Option<String>,
    custom_tls_certfile: Option<String>,
    custom_tls_keyfile: Option<String>,
    custom_ca_certfile: Option<String>,
    receptor_user: Option<String>,
    // Ignored: the package and the administrator decide about users and programs.
    #[serde(default, rename = "receptor_group")]
    _group: Value,
    #[serde(default, rename = "podman_user")]
    _podman_user: Value,
    #[serde(default, rename = "podman_group")]
    _podman_group: Value,
    #[serde(default, rename = "additional_python_packages")]
    _packages: Value,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

/// A neighbour that the node dials.
#[derive(Deserialize)]
struct AwxPeer {
    #[serde(alias = "host")]
    address: String,
    port: Option<u16>,
    #[serde(default = "tcp")]
    protocol: String,
}

fn yes() -> bool {
    true
}

fn tcp() -> String {
    "tcp".to_owned()
}

fn port() -> u16 {
    super::record::PORT
}

/// Makes a kit of AWX's bundle.
///
/// # Errors
/// What is missing in it, or cannot be configured.
pub(super) fn kit(mut bundle: Bundle) -> Result<Kit, JoinError> {
    let wrong = |reason: String| JoinError::Host(format!("AWX's bundle: {reason}"));
    let text = bundle.take(VARIABLES).unwrap_or_default();
    let text = String::from_utf8(text).map_err(|_| wrong(format!("{VARIABLES} is not text")))?;
    let variables = AwxVariables::read(&text).map_err(wrong)?;
    let mut file = |given: &Option<String>, usual: &str| {
        let name = given.as_deref().unwrap_or(usual);
        bundle.take(name).ok_or_else(|| wrong(format!("there is no {name} in it")))
    };
    let certificate = file(&variables.custom_tls_certfile, "receptor/tls/receptor.crt")?;
    let key = file(&variables.custom_tls_keyfile, "receptor/tls/receptor.key")?;
    let authority = file(&variables.custom_ca_certfile, "receptor/tls/ca/mesh-CA.crt")?;
    let verification_key = file(&variables.custom_worksign_public_keyfile, "receptor/work_public_key.pem");
    let found = facts(&String::from_utf8_lossy(&certificate))?;
    let [node] = found.names.node_ids.as_slice() else {
        return Err(wrong(format!("its certificate names {}, not one node", found.names)));
    };
    let configuration = variables.configuration(node).map_err(wrong)?;
    for name in OF_THE_PLAYBOOK {
        bundle.take(name);
    }
    let mut unused: Vec<String> = bundle.names().map(str::to_owned).collect();
    unused.extend(
        variables.unknown.keys().map(|key| format!("{key} in {VARIABLES}, which meshctl does not know")),
    );
    unused.extend(
        variables
            .receptor_user
            .iter()
            .map(|user| format!("receptor_user {user}, as the service has a user of its own")),
    );
    let verification_key =
        if variables.receptor_verify { Some(verification_key?) } else { verification_key.ok() };
    Ok(Kit {
        configuration,
        certificate,
        key,
        authority,
        revoked: None,
        verification_key,
        signing_key: None,
        unused,
    })
}

impl AwxVariables {
    fn read(text: &str) -> Result<Self, String> {
        serde_saphyr::from_str(text).map_err(|error| format!("{VARIABLES}: {error}"))
    }

    fn configuration(&self, node: &str) -> Result<String, String> {
        if !self.receptor_tls {
            return Err(
                "receptor_tls is not true: a mesh without certificates is configured by hand".to_owned()
            );
        }
        let mut text = Text::new();
        text.directive("node", &[("id", json!(node)), ("datadir", json!(DATA))]);
        text.directive(
            "log-level",
            &[("level", json!(self.receptor_log_level.as_deref().unwrap_or("info")))],
        );
        control_service(&mut text);
        let min_tls13 = [("mintls13", json!(true))];
        text.profiles(if self.receptor_mintls13 { &min_tls13 } else { &[] });
        if self.receptor_local_only {
            text.directive("local-only", &[]);
        } else {
            self.listener(&mut text)?;
        }
        for peer in &self.receptor_peers {
            peer.directive(&mut text)?;
        }
        if self.receptor_verify {
            text.directive("work-verification", &[("publickey", json!(VERIFICATION_KEY))]);
        }
        for (name, settings) in &self.receptor_work_commands {
            let Value::Object(settings) = settings else {
                return Err(format!("{VARIABLES}: the work command {name} has no settings"));
            };
            // The name is written to the file without quotes.
            if let Some(odd) =
                settings.keys().find(|key| !key.bytes().all(|byte| byte.is_ascii_alphanumeric()))
            {
                return Err(format!(
                    "{VARIABLES}: the work command {name} has a setting {odd:?}, which does not exist"
                ));
            }
            let mut parameters = vec![("worktype", json!(name))];
            parameters.extend(settings.iter().map(|(key, value)| (key.as_str(), value.clone())));
            text.directive("work-command", &parameters);
        }
        Ok(text.finish())
    }

    fn listener(&self, text: &mut Text) -> Result<(), String> {
        if !self.receptor_listener {
            return Ok(());
        }
        let directive = match self.receptor_protocol.as_str() {
            "tcp" => "tcp-listener",
            "ws" | "wss" => "ws-listener",
            other => return Err(format!("{VARIABLES}: receptor_protocol is {other:?}, and not tcp or ws")),
        };
        text.directive(directive, &[("port", json!(self.receptor_port)), ("tls", json!(PROFILE))]);
        Ok(())
    }
}

impl AwxPeer {
    fn directive(&self, text: &mut Text) -> Result<(), String> {
        let address = match self.port {
            Some(port) => format!("{}:{port}", self.address),
            None => self.address.clone(),
        };
        let (directive, address) = match self.protocol.as_str() {
            "tcp" => ("tcp-peer", address),
            "ws" | "wss" if address.contains("://") => ("ws-peer", address),
            "ws" | "wss" => ("ws-peer", format!("wss://{address}")),
            other => {
                return Err(format!("{VARIABLES}: a peer's protocol is {other:?}, and not tcp, ws or wss"));
            }
        };
        text.directive(directive, &[("address", json!(address)), ("tls", json!(PROFILE))]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::configuration::NODE_FILE;
    use super::super::own::checked;
    use super::*;

    #[test]
    fn the_variables_of_awx_make_a_configuration() {
        let text = "receptor_tls: true\nreceptor_verify: true\nreceptor_mintls13: true\nreceptor_listener: true\n\
            receptor_port: 5000\nreceptor_protocol: ws\nother: 1\nreceptor_peers:\n- {address: 'a:1', protocol: tcp}\n\
            - {address: 'wss://b:2/x', protocol: ws}\n- {host: c, port: 3, protocol: wss}\n\
            receptor_work_commands:\n  ansible-runner: {command: ansible-runner, params: 'worker: x', allowruntimeparams: true, verifysignature: true}\n";
        let variables = AwxVariables::read(text).unwrap();
        assert_eq!(variables.unknown.keys().collect::<Vec<_>>(), ["other"]);
        let configuration = variables.configuration("e1").unwrap();
        let config = checked(&[(PathBuf::from(NODE_FILE), configuration)].into()).unwrap();
        assert_eq!(config.tcp_peers[0].address.to_string(), "a:1");
        let urls: Vec<_> = config.ws_peers.iter().map(|peer| peer.address.to_string()).collect();
        assert_eq!(urls, ["wss://b:2/x", "wss://c:3/"]);
        assert_eq!(config.ws_listeners[0].bind.port, 5000);
        assert!(config.tls_servers[0].min_tls13 && config.tls_clients[0].min_tls13);
        assert!(config.work_commands[0].verify_signature && config.work_verification.is_some());
        for (text, said) in [
            ("receptor_tls: false", "receptor_tls is not true"),
            ("receptor_tls: true\nreceptor_protocol: udp", "not tcp or ws"),
            ("receptor_tls: true\nreceptor_peers: [{address: a, protocol: x}]", "not tcp, ws or wss"),
            ("receptor_tls: [", "group_vars/all.yml"),
            (
                "receptor_tls: true\nreceptor_work_commands: {a: {\"b: 1\\n- trace\": 1}}",
                "which does not exist",
            ),
        ] {
            let error = AwxVariables::read(text).and_then(|read| read.configuration("e1")).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
