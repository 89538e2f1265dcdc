//! The configuration of a running node: reading it again, and following what is new in it.
//!
//! Owns the rule that a reload happens as a whole or not at all: everything is read, checked and compared before
//! anything is touched, and what can fail comes before what cannot. How parts start and stop is `parts`' business.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use tokio::sync::Mutex;
use tracing::{info, warn};

use super::parts::{Parts, StartError};
use super::wiring;
use crate::config::typed::LogLevel;
use crate::config::typed::work::WorkCommand;
use crate::config::{self, Config, Loaded, ReloadPlan, Sources};
use crate::control::{LogLevels, Reload, ReloadError};
use crate::node::NodeHandle;
use crate::telemetry::Log;
use crate::work::Registry;

/// What of a node a configuration can change.
pub(super) struct Node {
    pub(super) handle: NodeHandle,
    pub(super) work: Registry,
    pub(super) log: Log,
}

/// Reads a node's configuration again when asked to.
pub(super) struct Reloader {
    me: Weak<Self>,
    node: Node,
    state: Mutex<State>,
}

struct State {
    config: Config,
    sources: Sources,
    /// None before the start and after the end.
    parts: Option<Parts>,
}

impl Reloader {
    /// A node of which no part runs yet.
    pub(super) fn new(node: Node, config: Config, sources: Sources) -> Arc<Self> {
        let state = Mutex::new(State { config, sources, parts: None });
        Arc::new_cyclic(|me| Self { me: me.clone(), node, state })
    }

    /// Starts the configuration's parts. A reload that is asked for meanwhile waits.
    pub(super) async fn start(&self, mut parts: Parts) -> Result<(), StartError> {
        let mut state = self.state.lock().await;
        let started = parts.start_all(state.config.parts()).await;
        match started {
            Ok(()) => state.parts = Some(parts),
            Err(_) => parts.stop_all().await,
        }
        started
    }

    /// Stops all parts; nothing is reloaded from here on.
    pub(super) async fn stop(&self) {
        if let Some(mut parts) = self.state.lock().await.parts.take() {
            parts.stop_all().await;
        }
    }

    async fn follow_sources(&self) -> Result<(), ReloadError> {
        let mut state = self.state.lock().await;
        let state = &mut *state;
        let Some(parts) = &mut state.parts else {
            return Err(ReloadError::Invalid("the node is starting or stopping".to_owned()));
        };
        if state.sources.files().is_empty() {
            let cause = "no configuration file was provided, reload function not set";
            return Err(ReloadError::Invalid(cause.to_owned()));
        }
        let Loaded { config, warnings, sources } = read(&state.sources).await?;
        let plan =
            config::plan(&state.config, &config).map_err(|e| ReloadError::NotReloadable(e.to_string()))?;
        for warning in &warnings {
            warn!(%warning, "configuration");
        }
        self.apply(parts, &plan, &state.config).await.map_err(ReloadError::Invalid)?;
        info!(
            added = plan.added.len(),
            removed = plan.removed.len(),
            unchanged = plan.unchanged.len(),
            firewall = plan.firewall.is_some(),
            work_types = plan.work_commands.is_some(),
            "reloaded"
        );
        (state.config, state.sources) = (config, sources);
        Ok(())
    }

    /// Steps that can fail come first; each later failure takes back the steps before it.
    async fn apply(&self, parts: &mut Parts, plan: &ReloadPlan, old: &Config) -> Result<(), String> {
        if let Some(commands) = &plan.work_commands {
            self.set_work_types(commands, old)?;
        }
        if let Err(error) = parts.change(&plan.removed, &plan.added).await {
            if plan.work_commands.is_some() {
                self.set_work_types(&old.work_commands, old)?;
            }
            return Err(error.to_string());
        }
        if plan.work_commands.is_some() {
            self.node.handle.set_work_commands(self.node.work.work_commands());
        }
        if let Some(rules) = &plan.firewall {
            self.node.handle.set_firewall(rules.clone());
        }
        if let Some((level, trace)) = plan.log {
            self.node.log.set(level, trace);
        }
        Ok(())
    }

    /// Those of `old` that no reload changes stay.
    fn set_work_types(&self, commands: &[WorkCommand], old: &Config) -> Result<(), String> {
        let types = wiring::work_types(commands, &old.work_python);
        self.node.work.set_work_types(types).map_err(|error| error.to_string())
    }
}

/// Reads files on a thread of its own: a file system may take its time.
async fn read(sources: &Sources) -> Result<Loaded, ReloadError> {
    let sources = sources.clone();
    let loaded = tokio::task::spawn_blocking(move || sources.load_again()).await;
    let loaded = loaded.map_err(|error| ReloadError::Invalid(format!("reading failed: {error}")))?;
    loaded.map_err(|errors| ReloadError::Invalid(one_line(&errors.to_string())))
}

/// Answers on the control socket are one line.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

impl Reload for Reloader {
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<(), ReloadError>> + Send + '_>> {
        Box::pin(async {
            let Some(me) = self.me.upgrade() else {
                return Err(ReloadError::Invalid("the node is stopping".to_owned()));
            };
            // A task of its own: who asked may be cut off by the very change.
            let reload = tokio::spawn(async move { me.follow_sources().await });
            reload.await.unwrap_or_else(|error| Err(ReloadError::Invalid(format!("reload failed: {error}"))))
        })
    }
}

impl LogLevels for Log {
    fn level(&self) -> &'static str {
        let (level, trace) = self.get();
        if trace { "trace" } else { level.name() }
    }

    fn set_level(&self, name: &str) -> Result<(), String> {
        if name.eq_ignore_ascii_case("trace") {
            self.set(LogLevel::Debug, true);
            return Ok(());
        }
        let level = name.parse().map_err(|_| {
            format!("{name:?} is no log level: there are error, warning, info, debug and trace")
        })?;
        self.set(level, false);
        Ok(())
    }
}
