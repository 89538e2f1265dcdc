//! What the kernel knows of this process, under the names that Prometheus' own clients use.

use std::fs;

use jiff::Timestamp;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::exposition::Exposition;

/// Adds the families; what the kernel does not tell is left out.
pub(super) fn write(page: &mut Exposition, since: Timestamp) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    page.counter("process_cpu_seconds_total", "Processor time that the daemon has used.").put(&[], cpu);
    let since = since.as_millisecond() as f64 / 1e3;
    page.gauge("process_start_time_seconds", "When the daemon was started.").put(&[], since);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (key, name, help, unit) in [
        ("VmRSS:", "process_resident_memory_bytes", "Resident memory of the daemon.", 1024),
        ("VmSize:", "process_virtual_memory_bytes", "Virtual memory of the daemon.", 1024),
        ("Threads:", "process_threads", "Threads of the daemon.", 1),
    ] {
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next());
        if let Some(value) = value.and_then(|value| value.parse::<u64>().ok()) {
            page.gauge(name, help).put(&[], value * unit);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open descriptors of the daemon.").put(&[], open.count());
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        page.gauge("process_max_fds", "Descriptors that the daemon may open.").put(&[], most);
    }
}
