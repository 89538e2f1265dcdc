//! Makes the configuration of a node from its record: one file, which is rewritten when the record changes.
//!
//! Owns where a node's files are, and the text of this file. An operator's additions stand in files beside it.

use serde_json::{Value, json};

use super::record::{NodeRole, Record};

/// The directory of all configuration.
pub(crate) const ETC: &str = "/etc/meshd";
/// The directory whose files together are the configuration.
pub(crate) const CONF_D: &str = "/etc/meshd/conf.d";
/// The file of the node itself. The package installs one with only a control socket.
pub(crate) const NODE_FILE: &str = "/etc/meshd/conf.d/00-local.yml";
/// The directory of what the daemon must not lose.
pub(crate) const DATA: &str = "/var/lib/meshd";
/// The directory of the control socket, which a reboot empties.
pub(super) const RUN: &str = "/run/meshd";
/// The socket that `meshctl` tries first.
pub(crate) const SOCKET: &str = "/run/meshd/meshd.sock";

pub(crate) const CERTIFICATE: &str = "/etc/meshd/tls/node.crt";
pub(crate) const KEY: &str = "/etc/meshd/tls/node.key";
/// Certificate and key together, while the daemon puts new ones in place.
pub(crate) const NEXT: &str = "/etc/meshd/tls/node.next";
/// What a renewal asks for that was not answered yet.
pub(crate) const ASKING: &str = "/etc/meshd/tls/node.asking";
pub(crate) const AUTHORITY: &str = "/etc/meshd/tls/ca.crt";
pub(crate) const REVOKED: &str = "/etc/meshd/tls/ca.crl";
pub(crate) const SIGNING_KEY: &str = "/etc/meshd/work.key";
pub(crate) const VERIFICATION_KEY: &str = "/etc/meshd/work.pub";

/// The name of both TLS profiles.
pub(crate) const PROFILE: &str = "mesh";
/// The first line of a file that may be overwritten.
pub(super) const MARK: &str = "# Written by meshctl, which writes it again: add files of your own beside it.";

/// Directives, each with the reason why it is there.
pub(super) struct Text(String);

impl Text {
    pub(super) fn new() -> Self {
        Self(format!("{MARK}\n"))
    }

    /// The text of a file that is written only if it is not there.
    pub(super) fn once() -> Self {
        Self("# Written by meshctl, which leaves it alone: change it as you like.\n".to_owned())
    }

    pub(super) fn why(&mut self, comment: &str) -> &mut Self {
        self.0 += &format!("\n# {comment}\n");
        self
    }

    /// Adds a directive. JSON's scalars are valid YAML, and need no rules about quotes.
    pub(super) fn directive(&mut self, name: &str, parameters: &[(&str, Value)]) -> &mut Self {
        self.0 += &format!("- {name}:\n");
        for (key, value) in parameters {
            self.0 += &format!("    {key}: {value}\n");
        }
        self
    }

    /// Adds both profiles, with the files at the places that all nodes use.
    pub(super) fn profiles(&mut self, more: &[(&'static str, Value)]) -> &mut Self {
        let own = |authorities: &'static str| {
            let files = [("cert", CERTIFICATE), ("key", KEY), (authorities, AUTHORITY)];
            let mut all = vec![("name", json!(PROFILE))];
            all.extend(files.map(|(name, path)| (name, json!(path))));
            all.extend(more.iter().cloned());
            all
        };
        let mut server = own("clientcas");
        server.push(("requireclientcert", json!(true)));
        self.why("Who connects shows a certificate of the mesh's authority, and so does this node.");
        self.directive("tls-server", &server).directive("tls-client", &own("rootcas"))
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// The configuration of the node of this record.
pub(crate) fn of(record: &Record) -> String {
    let mut text = Text::new();
    text.directive("node", &[("id", json!(record.node)), ("datadir", json!(DATA))]);
    text.directive("log-level", &[("level", json!("info"))]);
    control_service(&mut text);
    text.profiles(&[("crl", json!(REVOKED))]);
    links(&mut text, record);
    if record.role != NodeRole::Control {
        text.why("Asks for a new certificate in time, over the mesh.");
        text.directive("renewal", &[("tlsclient", json!(PROFILE))]);
    }
    match record.role {
        NodeRole::Control => {
            text.why("Signs jobs, which run nowhere without a signature.");
            text.directive(
                "work-signing",
                &[("privatekey", json!(SIGNING_KEY)), ("tokenexpiration", json!("5m"))],
            );
            text.directive("work-verification", &[("publickey", json!(VERIFICATION_KEY))]);
        }
        NodeRole::Hop => {}
        NodeRole::Execution | NodeRole::Hybrid => {
            text.why("Runs what the control node has signed.");
            text.directive("work-verification", &[("publickey", json!(VERIFICATION_KEY))]);
            runner(&mut text);
        }
    }
    text.finish()
}

pub(super) fn control_service(text: &mut Text) {
    text.why("Members of the socket's group may do everything; through the mesh a certificate is asked for.");
    let service = [("filename", json!(SOCKET)), ("permissions", json!("0660")), ("tls", json!(PROFILE))];
    text.directive("control-service", &service);
}

fn links(text: &mut Text, record: &Record) {
    if let Some(address) = &record.dials {
        text.why("The link into the mesh.");
        let (directive, address) = match address.split_once("://") {
            None => ("tcp-peer", address.as_str()),
            Some(("quic", address)) => ("quic-peer", address),
            Some(_) => ("ws-peer", address.as_str()),
        };
        text.directive(directive, &[("address", json!(address)), ("tls", json!(PROFILE))]);
    }
    if let Some(port) = record.listens {
        text.why("Other nodes connect here.");
        text.directive("tcp-listener", &[("port", json!(port)), ("tls", json!(PROFILE))]);
    }
    if record.role == NodeRole::Control {
        // Peers have files of their own, which come and go.
        text.directive("local-only", &[]);
    }
}

/// The work type that controllers submit jobs to.
fn runner(text: &mut Text) {
    let parameters = [
        ("worktype", json!("ansible-runner")),
        ("command", json!("ansible-runner")),
        ("params", json!("worker")),
        ("allowruntimeparams", json!(true)),
        ("verifysignature", json!(true)),
    ];
    text.directive("work-command", &parameters);
}
