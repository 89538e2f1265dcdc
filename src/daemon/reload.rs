//! The configuration of a running node: reading it again, and following what is new in it.
//!
//! Owns the rule that a reload happens as a whole or not at all: everything is read, checked and compared before
//! anything is touched, and what can fail comes before what cannot. How components start and stop is `components`' business.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use tokio::sync::Mutex;
use tracing::{error, info, warn};

use super::components::{Components, StartError};
use super::watch::FileUser;
use super::{systemd, wiring};
use crate::config::{self, Config, ConfigErrors, Loaded, ReloadPlan, Sources, Warning};
use crate::control::{LogLevels, ProcessLife, Reload, ReloadError};
use crate::controller::service::Controller;
use crate::stream;
use crate::telemetry::{Log, LogLevel};
use crate::tls::{ProfileSet, Profiles};
use crate::work::signing::{Signer, Verifier};
use crate::work::{self, Registry};

/// Reads a node's configuration again when asked to.
///
/// It owns the node's services, so these have only weak references to it.
pub(super) struct Reloader {
    log: Log,
    life: ProcessLife,
    controller: Option<Controller>,
    state: Mutex<Applied>,
}

struct Applied {
    config: Config,
    sources: Sources,
    /// Warnings already logged, which a reload does not repeat.
    warned: Vec<Warning>,
    /// None before the start and after the end.
    components: Option<Components>,
}

impl Reloader {
    /// For a node whose components do not run yet.
    pub(super) fn new(
        log: Log,
        life: ProcessLife,
        config: Config,
        sources: Sources,
        warned: Vec<Warning>,
        controller: Option<Controller>,
    ) -> Arc<Self> {
        let state = Mutex::new(Applied { config, sources, warned, components: None });
        Arc::new(Self { log, life, controller, state })
    }

    /// Starts the configuration's components. A reload that is asked for meanwhile waits.
    pub(super) async fn start(&self, mut components: Components) -> Result<(), StartError> {
        let mut state = self.state.lock().await;
        let started = components.start_all(state.config.components()).await;
        match started {
            Ok(()) => state.components = Some(components),
            Err(_) => components.stop_all().await,
        }
        started
    }

    /// Stops all components; nothing is reloaded from here on.
    pub(super) async fn stop(&self) {
        if let Some(mut components) = self.state.lock().await.components.take() {
            components.stop_all().await;
        }
    }

    /// The configuration in force, and where it comes from.
    pub(super) async fn in_force(&self) -> (Config, Sources) {
        let state = self.state.lock().await;
        (state.config.clone(), state.sources.clone())
    }

    async fn follow_sources(&self) -> Result<(), ReloadError> {
        let mut state = self.state.lock().await;
        systemd::reloading();
        let outcome = self.change(&mut state).await;
        self.life.note_reload(outcome.is_ok());
        systemd::reloaded(&outcome);
        outcome
    }

    async fn change(&self, state: &mut Applied) -> Result<(), ReloadError> {
        let Some(components) = &mut state.components else {
            return Err(ReloadError::Invalid("the node is starting or stopping".to_owned()));
        };
        if state.sources.files().is_empty() {
            let cause = "no configuration file was provided, reload function not set";
            return Err(ReloadError::Invalid(cause.to_owned()));
        }
        let Loaded { config, warnings, sources, .. } = read(&state.sources).await?;
        let plan = config::plan(&state.config, &config).map_err(|error| ReloadError::NotReloadable {
            why: error.to_string(),
            of_receptor: error.of_receptor(),
        })?;
        self.apply(components, &plan, &state.config, &config).await.map_err(ReloadError::Invalid)?;
        for Warning { at, text } in warnings.iter().filter(|warning| !state.warned.contains(warning)) {
            warn!(%at, warning = %text, "configuration");
        }
        if config.is_alone() {
            warn!(
                "no listener and no peer are left: the node keeps running, but will not start with this configuration"
            );
        }
        info!(
            added = plan.added.len(),
            removed = plan.removed.len(),
            unchanged = plan.unchanged.len(),
            firewall = plan.firewall.is_some(),
            work_types = plan.work_types,
            tls = plan.tls,
            keys = plan.signing || plan.verification,
            "reloaded"
        );
        (state.config, state.sources, state.warned) = (config, sources, warnings);
        Ok(())
    }

    /// Steps that can fail come first. The last of them is the change of components: if it fails, it undoes itself, and
    /// the firewall gets its old rules back.
    async fn apply(
        &self,
        components: &mut Components,
        plan: &ReloadPlan,
        old: &Config,
        new: &Config,
    ) -> Result<(), String> {
        let context = components.context.clone();
        let trust = read_trust(plan, new, &context.tls).await?;
        let types = wiring::work_types(new);
        work::check_limits(&types)?;
        Registry::check_work_types(types.clone()).map_err(|error| error.to_string())?;
        // The new rules are in force before the new components listen.
        if let Some(rules) = &plan.firewall {
            context.node.set_firewall(rules.clone()).await;
        }
        if let Err(error) = components.change(&plan.removed, &plan.added, trust.tls).await {
            if plan.firewall.is_some() {
                context.node.set_firewall(old.node.firewall_rules.clone()).await;
            }
            return Err(error.to_string());
        }
        if let Some(signer) = trust.signer {
            context.work.set_signer(signer);
        }
        if let Some(verifier) = trust.verifier {
            context.work.set_verifier(verifier);
        }
        if plan.work_types {
            systemd::warn_of_confined_jobs(new);
            // Waiting units follow at once, so this cannot be undone. The types were checked above.
            context.work.set_work_types(types).map_err(|error| error.to_string())?;
            context.node.set_work_commands(context.work.work_commands());
        }
        if let Some(limit) = plan.max_idle {
            context.node.set_max_idle(limit);
        }
        if let Some(time) = plan.forget_after {
            context.node.set_forget_time(time);
        }
        if let Some(quota) = plan.quota {
            context.work.set_quota(quota);
        }
        if let Some(bytes) = plan.disk_reserve {
            context.work.set_disk_reserve(bytes);
        }
        if let Some(bytes) = plan.payload_cache {
            context.work.set_payload_cache(bytes).await;
        }
        if let Some(bytes) = plan.stream_buffers {
            context.streams.set_buffers(bytes.unwrap_or_else(stream::default_buffers));
        }
        if let Some((level, trace)) = plan.log {
            self.log.set(level, trace);
        }
        if let (Some(controller), Some(options)) = (&self.controller, &new.controller) {
            controller.follow(options.clone()).await;
            context.node.set_work_commands(context.work.work_commands());
        }
        Ok(())
    }
}

/// Reads the files of changed TLS profiles and keys, on a thread of its own.
async fn read_trust(plan: &ReloadPlan, new: &Config, tls: &Profiles) -> Result<TrustFiles, String> {
    let (plan, new, tls) = (plan.clone(), new.clone(), tls.clone());
    let read = move || {
        let profiles = plan.tls.then(|| wiring::tls_profiles(&new, &tls)).transpose();
        let signer = plan.signing.then(|| wiring::signer(&new)).transpose();
        let verifier = plan.verification.then(|| wiring::verifier(&new)).transpose();
        Ok(TrustFiles {
            tls: profiles.map_err(|error| error.to_string())?,
            signer: signer.map_err(|error| format!("work-signing: {error}"))?,
            verifier: verifier.map_err(|error| format!("work-verification: {error}"))?,
        })
    };
    tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(format!("reading failed: {error}")))
}

/// The TLS profiles and signing keys that change, read from their files.
struct TrustFiles {
    tls: Option<Arc<ProfileSet>>,
    signer: Option<Option<Arc<Signer>>>,
    verifier: Option<Option<Arc<Verifier>>>,
}

/// Reads files on a thread of its own, because a file system may be slow.
async fn read(sources: &Sources) -> Result<Loaded, ReloadError> {
    let sources = sources.clone();
    let loaded = tokio::task::spawn_blocking(move || sources.load_again()).await;
    let loaded = loaded.map_err(|error| ReloadError::Invalid(format!("reading failed: {error}")))?;
    loaded.map_err(|errors| {
        // Logged one by one, because the log cuts the answer, which is one long value.
        for error in errors.0.iter().take(ConfigErrors::SHOWN) {
            error!(at = %error.at, error = %error.what(), "configuration");
        }
        ReloadError::Invalid(one_line(&errors.to_string()))
    })
}

/// Answers on the control socket are one line.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

impl FileUser for Weak<Reloader> {
    async fn files(&self) -> Vec<PathBuf> {
        let Some(reloader) = self.upgrade() else { return Vec::new() };
        reloader.state.lock().await.sources.watched().to_vec()
    }
}

impl Reload for Weak<Reloader> {
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<(), ReloadError>> + Send + '_>> {
        Box::pin(async {
            let Some(reloader) = self.upgrade() else {
                return Err(ReloadError::Invalid("the node is stopping".to_owned()));
            };
            // In a task of its own, because the reload may close the very connection that requested it.
            let reload = tokio::spawn(async move { reloader.follow_sources().await });
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
        let level = LogLevel::named(name).ok_or_else(|| {
            format!("{name:?} is not a log level: use error, warning, info, debug or trace")
        })?;
        self.set(level, false);
        Ok(())
    }
}
