//! What the control node's surroundings say about capacity: AWX's variables, which win over the settings, and whether
//! the node runs in a pod.

use crate::controller::core::{Cpus, HealthResult, MEMORY_RESERVE, Rates, memory_from_override};

/// The variables of a control node that count for capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    forks_per_cpu: Option<u32>,
    mib_per_fork: Option<u32>,
    cpus: Option<Cpus>,
    memory: Option<u64>,
    in_pod: bool,
}

impl Surroundings {
    /// Reads them from the environment of this process.
    pub fn of_process() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Reads them through `variable`. Rates that are no positive numbers are ignored.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let rate = |name| variable(name)?.trim().parse().ok().filter(|rate| *rate > 0);
        let given = |name| variable(name).filter(|text| !text.is_empty());
        Self {
            forks_per_cpu: rate("SYSTEM_TASK_FORKS_CPU"),
            mib_per_fork: rate("SYSTEM_TASK_FORKS_MEM"),
            cpus: given("SYSTEM_TASK_ABS_CPU").map(|text| Cpus::from_override(&text)),
            memory: given("SYSTEM_TASK_ABS_MEM").map(|text| memory_from_override(&text)),
            in_pod: given("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }

    /// Whether the node runs in a pod.
    pub fn is_in_pod(&self) -> bool {
        self.in_pod
    }

    /// How forks are counted on every instance. The arguments are the settings: forks per processor, MiB per fork,
    /// bytes that jobs cannot use.
    pub fn rates(&self, forks_per_cpu: u32, mib_per_fork: u32, memory_reserve: Option<u64>) -> Rates {
        let reserve = if self.in_pod { 0 } else { MEMORY_RESERVE };
        Rates {
            forks_per_cpu: self.forks_per_cpu.unwrap_or(forks_per_cpu),
            mib_per_fork: self.mib_per_fork.unwrap_or(mib_per_fork),
            memory_reserve: memory_reserve.unwrap_or(reserve),
        }
    }

    /// Corrects the control node's own report, because in a pod the runner sees the whole machine.
    pub fn correct(&self, report: HealthResult) -> HealthResult {
        HealthResult {
            cpus: self.cpus.unwrap_or(report.cpus),
            memory: self.memory.unwrap_or(report.memory),
            ..report
        }
    }
}
