//! The header in front of a job's stream, from the flags.

use super::flags::Placing;
use crate::controller::core::{GroupName, JobId, LaunchGroups, Word};
use crate::controller::header::{Dependency, Header, ProjectSync, RetryWords, RunnerWords};

impl Placing {
    /// The header, in which flags that are given replace its values.
    pub(super) fn onto(self, header: Header) -> Header {
        let (max, unconfirmed) = (self.retry, self.retry_unconfirmed);
        let (image, pull, registry) = (self.image, self.pull, self.registry);
        let has_runner = image.is_some() || pull.is_some() || registry.is_some();
        let runner = RunnerWords { image, pull, registry, ..RunnerWords::default() };
        let (revision, credential) = (self.revision, self.project_credential);
        let sync = self.project_url.map(|url| ProjectSync {
            url,
            revision,
            credential,
            submodules: true,
            requirements: true,
        });
        let launch: Vec<_> = self.group.iter().map(|name| GroupName::from(name.as_str())).collect();
        let groups = LaunchGroups { launch, ..LaunchGroups::default() };
        let need = |key: String| match key.parse() {
            Ok(id) if id > 0 => Dependency::Job(JobId(id)),
            _ => Dependency::Key { key },
        };
        Header {
            name: self.name.or(header.name),
            key: self.job_key.or(header.key),
            labels: given(self.label.into_iter().collect(), header.labels),
            hosts: self.hosts.or(header.hosts),
            groups: if self.group.is_empty() { header.groups } else { groups },
            priority: self.priority.unwrap_or(header.priority),
            depends_on: given(self.depends_on.into_iter().map(need).collect(), header.depends_on),
            exclusive: given(
                self.exclusive.iter().map(|word| Word::from(word.as_str())).collect(),
                header.exclusive,
            ),
            pending_timeout: self.pending_timeout.or(header.pending_timeout),
            timeout: self.job_timeout.or(header.timeout),
            lost_after: self.lost_after.or(header.lost_after),
            retry: max.map_or(header.retry, |max| RetryWords { max, unconfirmed, ..RetryWords::default() }),
            runner: if has_runner { Some(runner) } else { header.runner },
            sync: sync.or(header.sync),
            ..header
        }
    }
}

fn given<T: Default + PartialEq>(flags: T, header: T) -> T {
    if flags == T::default() { header } else { flags }
}
