//! The configuration of a node, made of its record: one file, which is written again when the record changes.
//!
//! Owns where a node's files are, and the words of the file. What an operator adds stands in files beside it.

use serde_json::{Value, json};

use super::record::{NodeRole, Record};

/// The directory of all configuration.
pub(crate) const ETC: &str = "/etc/meshd";
/// The directory whose files are one configuration.
pub(crate) const CONF_D: &str = "/etc/meshd/conf.d";
/// The file of the node itself. The package brings one, with a control socket and nothing else.
pub(crate) const NODE_FILE: &str = "/etc/meshd/conf.d/00-local.yml";
/// Where the daemon keeps what it must not lose.
pub(crate) const DATA: &str = "/var/lib/meshd";
/// The directory of the control socket, which does not outlive the machine.
pub(super) const RUN: &str = "/run/meshd";
/// Where `meshctl` looks first.
pub(crate) const SOCKET: &str = "/run/meshd/meshd.sock";

pub(crate) const CERTIFICATE: &str = "/etc/meshd/tls/node.crt";
pub(crate) const KEY: &str = "/etc/meshd/tls/node.key";
pub(crate) const AUTHORITY: &str = "/etc/meshd/tls/ca.crt";
pub(crate) const REVOKED: &str = "/etc/meshd/tls/ca.crl";
pub(crate) const SIGNING_KEY: &str = "/etc/meshd/work.key";
pub(crate) const VERIFICATION_KEY: &str = "/etc/meshd/work.pub";

/// The name of both TLS profiles.
pub(crate) const PROFILE: &str = "mesh";
/// How a file begins that may be overwritten.
pub(super) const MARK: &str = "# Written by meshctl, which writes it again: add files of your own beside it.";

/// Directives, each with why it stands there.
pub(super) struct Text(String);

impl Text {
    pub(super) fn new() -> Self {
        Self(format!("{MARK}\n"))
    }

    pub(super) fn why(&mut self, comment: &str) -> &mut Self {
        self.0 += &format!("\n# {comment}\n");
        self
    }

    /// JSON's scalars are YAML's, and need no rules about quotes.
    pub(super) fn directive(&mut self, name: &str, parameters: &[(&str, Value)]) -> &mut Self {
        self.0 += &format!("- {name}:\n");
        for (key, value) in parameters {
            self.0 += &format!("    {key}: {value}\n");
        }
        self
    }

    /// Both profiles, of the files where all nodes have theirs.
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
        text.directive("tcp-peer", &[("address", json!(address)), ("tls", json!(PROFILE))]);
    }
    if let Some(port) = record.listens {
        text.why("Other nodes connect here.");
        text.directive("tcp-listener", &[("port", json!(port)), ("tls", json!(PROFILE))]);
    }
    if record.role == NodeRole::Control {
        // Peers come and go by files of their own.
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
