//! The configured links, and what a reload makes of them: only what differs is touched.

use std::pin::Pin;

use tokio::sync::Mutex;
use tracing::{info, warn};

use super::wiring;
use crate::config::typed::backends::Backend;
use crate::config::{self, Config, Loaded, ReloadPlan, Sources};
use crate::control::{Reload, ReloadError};
use crate::node::{LinkHandle, NodeHandle};
use crate::tls::Profiles;

/// All links of a node.
pub(super) struct Links {
    node: NodeHandle,
    tls: Profiles,
    state: Mutex<State>,
}

struct State {
    config: Config,
    sources: Sources,
    running: Vec<(Backend, LinkHandle)>,
}

impl Links {
    /// None of the links runs yet.
    pub(super) fn new(node: NodeHandle, tls: Profiles, config: Config, sources: Sources) -> Self {
        Self { node, tls, state: Mutex::new(State { config, sources, running: Vec::new() }) }
    }

    /// Starts the links of the configuration.
    pub(super) async fn start_all(&self) -> std::io::Result<()> {
        let mut state = self.state.lock().await;
        for backend in state.config.backends() {
            self.start(&mut state.running, backend).await?;
        }
        Ok(())
    }

    /// Stops all links.
    pub(super) async fn stop_all(&self) {
        let running = std::mem::take(&mut self.state.lock().await.running);
        for (_, link) in running {
            link.stop().await;
        }
    }

    async fn start(&self, running: &mut Vec<(Backend, LinkHandle)>, backend: Backend) -> std::io::Result<()> {
        let spec = wiring::link_spec(&backend, &self.tls)?;
        running.push((backend, self.node.add_link(spec).await?));
        Ok(())
    }

    async fn stop(running: &mut Vec<(Backend, LinkHandle)>, backends: &[Backend]) {
        for backend in backends {
            if let Some(at) = running.iter().position(|(known, _)| known == backend) {
                running.remove(at).1.stop().await;
            }
        }
    }

    /// Follows a plan. If a new link cannot be started, the old ones are put back.
    async fn apply(&self, running: &mut Vec<(Backend, LinkHandle)>, plan: &ReloadPlan) -> Result<(), String> {
        Self::stop(running, &plan.removed).await;
        for (done, backend) in plan.added.iter().enumerate() {
            if let Err(error) = self.start(running, backend.clone()).await {
                Self::stop(running, &plan.added[..done]).await;
                for old in &plan.removed {
                    if let Err(error) = self.start(running, old.clone()).await {
                        warn!(%error, "a link could not be put back after a failed reload");
                    }
                }
                return Err(error.to_string());
            }
        }
        Ok(())
    }

    async fn follow_sources(&self) -> Result<(), ReloadError> {
        let mut state = self.state.lock().await;
        if state.sources.files().is_empty() {
            let cause = "no configuration file was provided, reload function not set";
            return Err(ReloadError::Invalid(cause.to_owned()));
        }
        let Loaded { config, warnings, sources } = state
            .sources
            .load_again()
            .map_err(|errors| ReloadError::Invalid(one_line(&errors.to_string())))?;
        let plan =
            config::plan(&state.config, &config).map_err(|e| ReloadError::NotReloadable(e.to_string()))?;
        for warning in &warnings {
            warn!(%warning, "configuration");
        }
        self.apply(&mut state.running, &plan).await.map_err(ReloadError::Invalid)?;
        info!(
            added = plan.added.len(),
            removed = plan.removed.len(),
            unchanged = plan.unchanged.len(),
            "links"
        );
        (state.config, state.sources) = (config, sources);
        Ok(())
    }
}

/// Answers on the control socket are one line.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

impl Reload for Links {
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<(), ReloadError>> + Send + '_>> {
        Box::pin(self.follow_sources())
    }
}
