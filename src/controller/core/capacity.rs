//! How many forks an instance can run, from its processors and its memory.
//!
//! Pure arithmetic on the report of a health check. It ignores whether the instance is ready or enabled.

/// Bytes of memory that jobs cannot use, unless the control node runs in a pod.
pub const MEMORY_RESERVE: u64 = 2 << 30;

/// Forks per processor and memory per fork. AWX's environment variables override the settings before this is
/// built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// Forks per processor (`SYSTEM_TASK_FORKS_CPU`).
    pub forks_per_cpu: u32,
    /// MiB per fork (`SYSTEM_TASK_FORKS_MEM`).
    pub mib_per_fork: u32,
    /// Bytes that jobs cannot use.
    pub memory_reserve: u64,
}

impl Default for Rates {
    fn default() -> Self {
        Self { forks_per_cpu: 4, mib_per_fork: 100, memory_reserve: MEMORY_RESERVE }
    }
}

/// Processors in tenths, since pods may have half a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(u32);

impl Cpus {
    /// Whole processors.
    pub fn whole(count: u32) -> Self {
        Self(count.saturating_mul(10))
    }

    /// The reverse of [`Self::tenths`].
    pub fn of_tenths(tenths: u32) -> Self {
        Self(tenths)
    }

    /// In tenths.
    pub fn tenths(self) -> u32 {
        self.0
    }

    /// Parses `SYSTEM_TASK_ABS_CPU` as AWX does: a number, or thousandths with `m`; at least 0.1, and 1 if it
    /// is invalid.
    pub fn from_override(text: &str) -> Self {
        let (number, unit) = text.strip_suffix('m').map_or((text, 1.0), |number| (number, 1000.0));
        match number.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                Self(((number / unit * 10.0).round_ties_even() as u32).max(1))
            }
            Ok(_) | Err(_) => Self::whole(1),
        }
    }
}

/// Parses `SYSTEM_TASK_ABS_MEM` as AWX does: bytes, or a number with `Ki` to `Ei` or `K` to `E`; 1 byte if it
/// is invalid.
pub fn memory_from_override(text: &str) -> u64 {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = |letter: &str| "KMGTPE".find(letter).map(|at| at as u32 + 1);
    let factor = match (unit.len(), unit.strip_suffix('i')) {
        (0, _) => Some(1),
        (2, Some(letter)) => power(letter).map(|power| 1024u64.pow(power)),
        (1, None) => power(unit).map(|power| 1000u64.pow(power)),
        (_, _) => None,
    };
    match (number.parse::<u64>(), factor) {
        (Ok(number), Some(factor)) => number.saturating_mul(factor).max(1),
        (_, _) => 1,
    }
}

/// Where an instance's capacity lies between the smaller and the larger of its two capacities, in hundredths.
/// 1.00 is the larger one; more is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adjustment(pub u32);

impl Default for Adjustment {
    fn default() -> Self {
        Self(100)
    }
}

/// The forks that an instance's processors and its memory allow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacities {
    /// By its processors.
    pub cpu: u32,
    /// By its memory.
    pub mem: u32,
}

impl Capacities {
    /// Computed from the report of a health check.
    pub fn measure(cpus: Cpus, memory: u64, rates: &Rates) -> Self {
        let mib = memory.saturating_sub(rates.memory_reserve) >> 20;
        let forks = |count: u64| u32::try_from(count).unwrap_or(u32::MAX).max(1);
        Self {
            cpu: forks(u64::from(cpus.0) * u64::from(rates.forks_per_cpu) / 10),
            mem: forks(mib / u64::from(rates.mib_per_fork.max(1))),
        }
    }

    /// What a controller on the same machine leaves of it: all but one processor's share, but at least half.
    pub fn beside_controller(self, cpus: Cpus) -> Self {
        let all = u64::from(cpus.0.max(1));
        let left = all.saturating_sub(u64::from(Cpus::whole(1).0)).max(all / 2);
        let share = |forks: u32| u32::try_from(u64::from(forks) * left / all).unwrap_or(forks).max(1);
        Self { cpu: share(self.cpu), mem: share(self.mem) }
    }

    /// The capacity at an adjustment.
    pub fn adjusted(self, adjustment: Adjustment) -> u32 {
        let (low, high) = (u64::from(self.cpu.min(self.mem)), u64::from(self.cpu.max(self.mem)));
        let raised = low + (high - low) * u64::from(adjustment.0) / 100;
        u32::try_from(raised).unwrap_or(u32::MAX)
    }
}
