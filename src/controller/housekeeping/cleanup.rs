//! The runner's own clean-up on instances: directories of jobs that ended without a clean-up, and images that a newer
//! image of the same name has replaced. The directories of active jobs are named one by one, because the runner's own
//! check of what still runs is not reliable.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::super::core::{ChildId, InstanceName, NodeState, NodeType};
use super::super::driver::world::{ChildInput, ChildNews, ChildRequest, Children as _};
use super::super::service::Service;
use super::super::store::Error;
use crate::controller::children::RegistryChildren;
use crate::controller::health::output_bound;
use crate::controller::options::RUNNER_TYPE;
use crate::work::Leftovers;
use crate::work::jobs::private_dir;

/// How long a clean-up may take.
const BUDGET: Duration = Duration::from_secs(600);
/// Minutes for which a directory is left alone after it was changed.
const GRACE: u32 = 60;
/// The most bytes of names of other instances' directories, because a unit's parameters and a process's arguments are
/// limited.
const LONGEST_NAMES: usize = 32 << 10;
/// The program that prunes images. Without it the runner still clears away its directories, and then fails.
const PODMAN: &str = "podman";

impl Service {
    /// Starts a clean-up on every instance that runs jobs, and returns their names.
    pub(in crate::controller) async fn clean_up(&self) -> Result<Vec<String>, Error> {
        let active = self.active_directories().await?;
        let mut names = Vec::new();
        for instance in self.driver.store.registry().await?.plain_instances() {
            let is_own = instance.name == self.driver.node;
            let runs_jobs = matches!(instance.node_type, NodeType::Execution | NodeType::Hybrid);
            let is_fit = instance.node_state == NodeState::Ready && instance.enabled && instance.offer.runner;
            if !(is_own || runs_jobs && is_fit) {
                continue;
            }
            names.push(instance.name.to_string());
            let words = words(&active, &instance.name);
            let request = self.clean_up_request(&instance.name, instance.offer, &words);
            let this = self.clone();
            self.cleaning.lock().insert(request.unit.clone());
            tokio::spawn(async move { this.run_clean_up(request).await });
        }
        Ok(names)
    }

    /// The directories of attempts that are not released, by instance.
    async fn active_directories(&self) -> Result<BTreeMap<InstanceName, Vec<String>>, Error> {
        let mut active: BTreeMap<InstanceName, Vec<String>> = BTreeMap::new();
        for (unit, node) in self.driver.store.unswept_nodes().await? {
            if ChildId::parse(&unit).is_some() {
                active.entry(node).or_default().push(private_dir(&unit));
            }
        }
        Ok(active)
    }

    fn clean_up_request(
        &self,
        node: &InstanceName,
        offer: super::super::core::Offer,
        active: &[String],
    ) -> ChildRequest {
        let options = self.driver.options();
        let is_own = *node == self.driver.node;
        let install = self.driver.install;
        let work_type = if is_own { &options.runner.name } else { RUNNER_TYPE };
        ChildRequest {
            unit: format!("c{install:08x}k{:016x}", rand::random::<u64>()),
            node: node.clone(),
            work_type: work_type.to_owned(),
            params: params(install, &options.run_dir, active),
            run_dir: None,
            signed: offer.secure && !is_own,
            tls: options.tls_client.clone().filter(|_| offer.tls && !is_own),
            ttl: (!is_own).then_some(BUDGET),
            max_stdout: output_bound("clean-up"),
            far: None,
            pod: None,
        }
    }

    async fn run_clean_up(self, request: ChildRequest) {
        let children = RegistryChildren(self.registry.clone());
        let (unit, node) = (request.unit.clone(), request.node.clone());
        let ended = tokio::time::timeout(BUDGET, async {
            children.send(request, ChildInput { head: Vec::new(), files: Vec::new() }).await?;
            let mut stream = children.follow(unit.clone(), 0).await;
            loop {
                if let ChildNews::Ended { end, detail } = stream.next().await {
                    return Ok((end, detail));
                }
            }
        });
        match ended.await {
            Ok(Ok((end, detail))) => tracing::debug!(instance = %node, ?end, detail, "clean-up ended"),
            Ok(Err::<_, String>(error)) => {
                tracing::warn!(instance = %node, error, "the clean-up did not start");
            }
            Err(_) => tracing::warn!(instance = %node, "the clean-up took too long"),
        }
        children.cancel(unit.clone()).await;
        children.release(unit.clone(), Leftovers::End).await;
        // A unit that could not be released is an orphan from here on.
        self.cleaning.lock().remove(&unit);
    }
}

/// The directories that a clean-up of an instance leaves alone: its own, and as many of other instances as may be
/// named, because two nodes may be on one machine.
fn words(active: &BTreeMap<InstanceName, Vec<String>>, instance: &InstanceName) -> Vec<String> {
    let own = active.get(instance).into_iter().flatten();
    let mut left = LONGEST_NAMES;
    let others = active.iter().filter(|(node, _)| *node != instance).flat_map(|(_, words)| words);
    let others = others.take_while(|word| {
        left = left.saturating_sub(word.len() + 1);
        left > 0
    });
    own.chain(others).cloned().collect()
}

/// The arguments of the runner, with each active directory as a word of its own.
fn params(install: u32, run_dir: &Path, active: &[String]) -> String {
    let exclude = match active {
        [] => String::new(),
        words => format!(" --exclude-strings {}", words.join(" ")),
    };
    let run_dir = run_dir.display();
    format!(
        "cleanup{exclude} --file-pattern={run_dir}/meshd_c{install:08x}n* --grace-period={GRACE} --image-prune \
         --process-isolation-executable={PODMAN}"
    )
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, InstanceName, params, words};

    #[test]
    fn the_directories_of_other_instances_are_left_alone_too_as_many_as_may_be_named() {
        let of = |node: &str, count: usize| {
            let words = (0..count).map(|n| format!("meshd_{node}_{n}_{}", "x".repeat(50))).collect();
            (InstanceName::from(node), words)
        };
        let active: BTreeMap<_, Vec<String>> = [of("e1", 1000), of("e2", 2), of("e3", 1000)].into();
        let named = words(&active, &"e2".into());
        assert_eq!(named[..2], active[&InstanceName::from("e2")]);
        assert!(named.len() > 400 && named.len() < 600, "{}", named.len());
        assert_eq!(words(&active, &"e1".into())[..1000], active[&InstanceName::from("e1")]);
        assert_eq!(words(&active, &"unknown".into()).len(), named.len() - 2);
    }

    #[test]
    fn a_clean_up_leaves_each_active_directory_alone_by_a_word_of_its_own() {
        let words = |active: &[&str]| {
            let active: Vec<String> = active.iter().map(|unit| (*unit).to_owned()).collect();
            shlex::split(&params(0xab, std::path::Path::new("/runs"), &active)).unwrap()
        };
        let rest = [
            "--file-pattern=/runs/meshd_c000000abn*",
            "--grace-period=60",
            "--image-prune",
            "--process-isolation-executable=podman",
        ];
        assert_eq!(words(&[]), [&["cleanup"][..], &rest].concat());
        let two = ["meshd_c000000abn1a1r0", "meshd_c000000abn2a1r0"];
        assert_eq!(words(&two), [&["cleanup", "--exclude-strings"][..], &two, &rest].concat());
    }
}
