//! Three daemons as processes, `near`, `hop` and `far`, linked only through the hop: near submits, far runs. Owns their
//! configurations; `daemon` sends them requests.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::daemon::{Daemon, scratch_in_memory};
use crate::port::free_port;
use crate::until::until;

pub(crate) struct Three {
    /// In the order of [`NAMES`].
    pub(crate) nodes: [Daemon; 3],
    temp: TempDir,
}

pub(crate) const NAMES: [&str; 3] = ["near", "hop", "far"];

impl Three {
    pub(crate) fn start() -> Self {
        let temp = scratch_in_memory();
        let port = free_port();
        let nodes = NAMES.map(|name| {
            let dir = temp.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            let link = match name {
                "hop" => format!("tcp-listener: {{bindaddr: 127.0.0.1, port: {port}}}"),
                _ => format!("tcp-peer: {{address: '127.0.0.1:{port}'}}"),
            };
            let config = format!(
                "- node: {{id: {name}, datadir: {dir}/data}}\n- log-level: info\n- {link}\n\
                 - control-service: {{service: control, filename: {dir}/s}}\n\
                 - work-command: {{worktype: sh, command: sh, params: '-c', allowruntimeparams: true}}\n",
                dir = dir.display()
            );
            std::fs::write(dir.join("c.yml"), config).unwrap();
            Daemon::start(&dir)
        });
        let three = Self { nodes, temp };
        three.meet();
        three
    }

    pub(crate) fn near(&self) -> &Daemon {
        &self.nodes[0]
    }

    pub(crate) fn far(&self) -> &Daemon {
        &self.nodes[2]
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.temp.path()
    }

    /// Waits until near and far have routes to each other.
    pub(crate) fn meet(&self) {
        for (node, other) in [(self.near(), "far"), (self.far(), "near")] {
            until("a route", || {
                let status: Value = serde_json::from_str(&node.ask("status")).ok()?;
                status["RoutingTable"][other].is_string().then_some(())
            });
        }
    }

    /// The request to near that lets far run a script.
    pub(crate) fn request(unit: &str, script: &str) -> String {
        let params = shlex::try_quote(script).unwrap().into_owned();
        let request = json!({
            "command": "work", "subcommand": "submit", "node": "far", "worktype": "sh", "params": params,
            "workUnitID": unit,
        });
        request.to_string()
    }
}
