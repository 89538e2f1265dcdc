//! `meshctl install`: makes this host a node of the mesh, by a token, an approval or a bundle.
//!
//! Owns the order of the steps and what is said of them. `join` knows what belongs to a node, `enrol` how to ask for it,
//! and `link` whether peers answer.

mod link;

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use jiff::Timestamp;
use serde_json::json;

use super::exit::{Exit, Failure};
use super::output::Output;
use super::service::HostService;
use crate::config::Config;
use crate::enrol;
use crate::join::address::NodeAddress;
use crate::join::bundle::Bundle;
use crate::join::configuration::{CONF_D, NODE_FILE};
use crate::join::install::Kit;
use crate::join::invite::{SCHEME, Token};
use crate::join::joining::{Joining, clock_note, joined};
use crate::join::place::FileTree;
use crate::join::request::{CertificateRequest, NotGranted};
use crate::join::{JoinError, host};
use crate::rpc::report::finding::Severity;

#[derive(Debug, Args)]
pub(super) struct Install {
    /// Token that `meshctl node invite` printed (`-` reads it from standard input), or file that `meshctl node add` or
    /// `meshctl node renew` made on the control node
    #[arg(value_name = "TOKEN|FILE", value_hint = ValueHint::FilePath, required_unless_present = "ask")]
    from: Option<String>,
    /// Ask a node to let this host in, without a token, and wait for an approval: HOST[:PORT], wss://HOST[:PORT]/PATH or
    /// quic://HOST[:PORT]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "from")]
    ask: Option<NodeAddress>,
    /// ID that this host asks for [default: its name]
    #[arg(long, value_name = "NODE", requires = "ask")]
    name: Option<String>,
    /// The fingerprint was compared with that on the control node, or need not be: do not ask
    #[arg(long, requires = "ask")]
    yes: bool,
    /// Only put the files in place and check them; start nothing
    #[arg(long)]
    no_start: bool,
    /// Put the files into another system's tree, such as an image; nothing is started
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        Self::new(Exit::Failed, error.to_string())
    }
}

/// The outcome of an installation.
struct Installed {
    node: String,
    changed: Vec<PathBuf>,
    linked: Vec<String>,
    notes: Vec<String>,
    /// Why the node does not work.
    fault: Option<String>,
}

impl Install {
    pub(super) async fn run(self, output: Output) -> Result<Exit, Failure> {
        let file = self.from.as_deref().filter(|from| *from != "-" && !from.starts_with(SCHEME));
        if let Some(error) = file.and_then(|file| std::fs::metadata(file).err()) {
            let file = file.unwrap_or_default();
            return Err(Failure::usage(format!(
                "invalid value '{file}' for '[TOKEN|FILE]': cannot read it: {error}"
            )));
        }
        let is_here = self.root.as_os_str() == "/";
        if is_here && !rustix::process::geteuid().is_root() {
            return Err(Failure::usage("meshctl install writes to /etc: run it as root, or give --root"));
        }
        let account = host::account(&self.root)?;
        let mut tree = FileTree::new(&self.root, account);
        let starts = is_here && !self.no_start;
        if starts && !host::has_unit(&tree) {
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "there is no {}: install meshd's package, or give --no-start and start `meshd --config-dir {CONF_D}` by other means",
                    host::UNIT
                ),
            ));
        }
        let mut notes = Vec::new();
        if is_here && account.is_none() {
            notes.push(
                "this host has no user meshd: run the same command again once it has, to give that user the files"
                    .to_owned(),
            );
        }
        let from = self.from.unwrap_or_default();
        let (kit, joining) = match (&self.ask, token(&from)?) {
            (Some(address), _) => {
                by_approval(&mut tree, address, (self.name, self.yes), &mut notes, output).await?
            }
            (None, Some(token)) => by_token(&mut tree, token, &mut notes, output).await?,
            (None, None) => (KitSource::Kit(of_bundle(from.as_ref(), &mut notes)?), None),
        };
        let config = match kit {
            KitSource::Here(config) => *config,
            KitSource::Kit(kit) => {
                // A clock that is wrong may be why.
                let with_notes = |error: JoinError| {
                    let told: Vec<_> =
                        std::iter::once(error.to_string()).chain(notes.iter().cloned()).collect();
                    Failure::new(Exit::Failed, told.join("\n"))
                };
                let config = kit.check(&mut tree).map_err(with_notes)?;
                kit.place(&mut tree)?;
                config
            }
        };
        host::prepare_for_jobs(&mut tree, runs_jobs(&config))?;
        joining.map_or(Ok(()), |joining| joining.end(&tree))?;
        let mut outcome = Installed {
            node: config.node.id.to_string(),
            changed: tree.changed().to_vec(),
            linked: Vec::new(),
            notes,
            fault: None,
        };
        if is_here {
            bring_up(&config, &mut tree, starts, &mut outcome).await?;
        }
        outcome.print(output)
    }
}

/// Where everything comes from.
enum KitSource {
    /// It is in place.
    Here(Box<Config>),
    /// A bundle, or an answer.
    Kit(Kit),
}

/// The token that was given; `None` if it is a file.
fn token(from: &str) -> Result<Option<Token>, Failure> {
    let text = match from {
        "-" => io::read_to_string(io::stdin())
            .map_err(|error| Failure::usage(format!("standard input: {error}")))?,
        token if token.starts_with(SCHEME) => token.to_owned(),
        _ => return Ok(None),
    };
    text.trim().parse().map(Some).map_err(Failure::usage)
}

fn of_bundle(path: &Path, notes: &mut Vec<String>) -> Result<Kit, JoinError> {
    let bundle = Bundle::read(path)?;
    if bundle.is_exposed {
        notes.push(format!("{} holds a private key and others can read it: remove it", path.display()));
    }
    let kit = Kit::of(bundle, path)?;
    notes.extend(kit.unused.iter().map(|name| format!("not used: {name}")));
    Ok(kit)
}

/// What the authority grants, unless this host has joined by this token before.
async fn by_token(
    tree: &mut FileTree,
    token: Token,
    notes: &mut Vec<String>,
    output: Output,
) -> Result<(KitSource, Option<Joining>), Failure> {
    if let Some(config) = joined(tree, &token, Timestamp::now())? {
        return Ok((KitSource::Here(Box::new(config)), None));
    }
    let (authority, addresses) = (token.authority, token.addresses.clone());
    let joining = Joining::begin(tree, &token)?;
    let (request, open) =
        (joining.request.to_bytes(), |answer: &[u8]| match joining.request.open(answer, &authority) {
            Err(NotGranted::Waiting(_)) => {
                Err(NotGranted::Broken("it waits for an approval, which a token needs not".to_owned()))
            }
            answer => answer,
        });
    let granted = enrol::ask(&addresses, &request, open, tries_again(output)).await;
    let granted = granted.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    notes.extend(clock_note(&granted, Timestamp::now()));
    Ok((KitSource::Kit(joining.kit(granted)?), Some(joining)))
}

/// Says that nobody has answered yet.
fn tries_again(output: Output) -> impl Fn(&[String]) {
    move |failures| output.note(&format!("{}\nTrying again for two minutes...", failures.join("\n")))
}

/// What the authority grants once a person has approved it there.
async fn by_approval(
    tree: &mut FileTree,
    address: &NodeAddress,
    (name, is_compared): (Option<String>, bool),
    notes: &mut Vec<String>,
    output: Output,
) -> Result<(KitSource, Option<Joining>), Failure> {
    let node = name.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let joining = Joining::begin_asking(tree, &node, address)?;
    let heard = RefCell::new(None);
    let open = |answer: &[u8]| {
        let hear = |authority: &str| {
            let (pin, fingerprint) =
                joining.hear_of(tree, authority).map_err(|error| NotGranted::Refused(error.to_string()))?;
            if heard.replace(Some(pin)).is_none() {
                output.note(&format!(
                    "{node} asks to become a node, with the fingerprint {fingerprint}\nCompare it on the control node \
                     (meshctl node pending), and approve it there: meshctl node approve {node} --fingerprint {fingerprint}"
                ));
            }
            Ok(pin)
        };
        let known = *heard.borrow();
        match joining.request.open(answer, &known.unwrap_or_default()) {
            Err(NotGranted::Waiting(authority)) => hear(&authority).and(Err(NotGranted::Waiting(authority))),
            // It was approved before this command ran again.
            Err(NotGranted::Broken(_)) if known.is_none() => {
                let authority = CertificateRequest::authority_of(answer)?;
                joining.request.open(answer, &hear(&authority)?)
            }
            answer => answer,
        }
    };
    let granted =
        enrol::ask(std::slice::from_ref(address), &joining.request.to_bytes(), open, tries_again(output))
            .await;
    let granted = granted.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    // Whoever is in between may have answered in the place of the authority, with another fingerprint.
    if !is_compared {
        output.confirm("Is this the fingerprint that the control node shows?").await?;
    }
    notes.extend(clock_note(&granted, Timestamp::now()));
    Ok((KitSource::Kit(joining.kit(granted)?), Some(joining)))
}

/// Checks the node that is in place, starts it, and waits for its links.
async fn bring_up(
    config: &Config,
    tree: &mut FileTree,
    starts: bool,
    outcome: &mut Installed,
) -> Result<(), Failure> {
    let service = HostService::of_this_host();
    host::socket_directory(tree)?;
    let found = service.check(host::account("/".as_ref())?)?.into_iter();
    let (errors, warnings): (Vec<_>, Vec<_>) = found.partition(|one| one.severity == Severity::Error);
    outcome.notes.extend(warnings.iter().map(ToString::to_string));
    if !errors.is_empty() {
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        outcome.fault = Some(format!(
            "{}\nThe files are in place. Fix this, and run the same command again.",
            errors.join("\n")
        ));
        return Ok(());
    }
    if !starts {
        return Ok(());
    }
    if !service.has_systemd() {
        outcome.notes.push(format!("systemd is not running here: start `meshd --config-dir {CONF_D}`"));
        return Ok(());
    }
    // A former run may have put the files in place and then ended, so that another node still runs.
    let is_another = link::running_node(config).await.is_some_and(|id| id != outcome.node);
    let restarts = is_another || tree.has_changed(NODE_FILE) || tree.has_changed(host::DROP_IN);
    service.start(restarts, tree.has_changed(host::DROP_IN), runs_jobs(config))?;
    match link::wait(config).await {
        Ok(linked) => outcome.linked = linked,
        Err(why) => outcome.fault = Some([vec![why], link::faults(config).await].concat().join("\n")),
    }
    Ok(())
}

fn runs_jobs(config: &Config) -> bool {
    !config.work_commands.is_empty() || !config.work_python.is_empty() || config.controller.is_some()
}

impl Installed {
    fn print(self, output: Output) -> Result<Exit, Failure> {
        let Self { node, changed, linked, notes, fault } = self;
        if output.json {
            output.value(&json!({
                "node": node, "changed": !changed.is_empty(), "files": changed, "linked": linked, "notes": notes,
                "error": fault,
            }))?;
            return Ok(if fault.is_some() { Exit::Failed } else { Exit::Success });
        }
        for path in &changed {
            output.line(&format!("wrote {}", path.display()))?;
        }
        for note in &notes {
            output.line(note)?;
        }
        if let Some(fault) = fault {
            return Err(Failure::new(Exit::Failed, fault));
        }
        let state = if changed.is_empty() { "nothing had to be changed" } else { "everything is in place" };
        let links = match linked.as_slice() {
            [] => String::new(),
            linked => format!(", linked to {}", linked.join(", ")),
        };
        output.line(&format!("{node}: {state}{links}"))?;
        Ok(Exit::Success)
    }
}
