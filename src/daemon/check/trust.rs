//! The part of `meshd check` that is about certificates and keys: opens each profile as a node would open it, and so
//! reports what a start would report.
//!
//! Owns no rule of its own: `tls` and `work::signing` know what a file must hold.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::CheckFindings;
use crate::config::Config;
use crate::daemon::wiring;
use crate::pods::options::KubernetesType;
use crate::tls::{ClientProfile, Profile, ServerProfile};

impl CheckFindings {
    /// Checks that the files of profiles are readable and whole, and their certificates valid and for this node.
    pub(super) fn profiles(&mut self, config: &Config) {
        for configured in &config.tls_servers {
            match ServerProfile::open(configured.clone(), Some(&config.node.id)) {
                Ok(made) => self.profile(&format!("tls-server {}", made.name()), &made),
                Err(error) => self.add("", error),
            }
        }
        for configured in &config.tls_clients {
            match ClientProfile::open(configured.clone(), Some(&config.node.id)) {
                Ok(made) => self.profile(&format!("tls-client {}", made.name()), &made),
                Err(error) => self.add("", error),
            }
        }
    }

    /// Warns if peers are likely to refuse the own certificate, and of authorities that are trusted only because they
    /// are named. None of this is an error, because peers may know more than this node does.
    fn profile(&mut self, what: &str, profile: &Profile) {
        let expiry = profile.expiry_warning().filter(|_| !self.without_ends);
        let expiry = expiry.map(|warning| format!("the certificate {warning}"));
        let flaw = profile.own_flaw().map(|flaw| format!("peers refuse it: {flaw}"));
        for warning in expiry.into_iter().chain(flaw).chain(profile.authority_warnings()) {
            self.warn(what, warning);
        }
    }

    /// Checks the keys that sign and verify work, and Kubernetes work.
    pub(super) fn keys(&mut self, config: &Config) {
        if let Err(error) = wiring::signer(config) {
            self.add("work-signing", error);
        }
        if let Err(error) = wiring::verifier(config) {
            self.add("work-verification", error);
        }
        for kubernetes in &config.work_kubernetes {
            self.kubernetes(kubernetes);
        }
    }

    /// Checks the files of a work type, and its cluster. Problems of a cluster are no errors, because a cluster that is
    /// away now may be there when the node starts.
    fn kubernetes(&mut self, kind: &KubernetesType) {
        let what = format!("work-kubernetes {}", kind.name);
        let files = [kind.kubeconfig.as_ref(), kind.pod.as_ref()];
        let before = self.list.len();
        self.readable(&what, files);
        if self.list.len() > before || !self.may_run {
            return;
        }
        let owner = kind.kubeconfig.as_ref().and_then(|file| Some(file.metadata().ok()?.uid()));
        if let Some(user) = owner.filter(|user| *user != 0 && rustix::process::geteuid().is_root()) {
            let why = format!("its kubeconfig belongs to user {user}, and may name programs");
            return self.warn(&what, format!("root does not ask the cluster: {why}; check as that user"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => {
                let problems = runtime.block_on(crate::pods::check::problems(kind));
                for problem in problems {
                    self.warn(&what, problem);
                }
            }
            Err(error) => self.lacks(&what, error),
        }
    }

    fn readable<const N: usize>(&mut self, what: &str, files: [Option<&PathBuf>; N]) {
        for path in files.into_iter().flatten() {
            if let Err(error) = crate::os::regular_file::open(path) {
                self.lacks(what, format!("{} cannot be read: {error}", path.display()));
            }
        }
    }
}
