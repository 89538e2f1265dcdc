//! Many units are submitted and released, one after the other and at once: nothing grows. `SOAK_UNITS` sets
//! their number (600).

use crate::harness::*;

/// The resources of this process: descriptors, threads, inotify watches, and resident memory in KiB.
fn held() -> (usize, usize, usize, u64) {
    let descriptors: Vec<_> = std::fs::read_dir("/proc/self/fd").unwrap().flatten().collect();
    let info = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        std::fs::read_to_string(format!("/proc/self/fdinfo/{name}")).unwrap_or_default()
    };
    let watches = descriptors.iter().map(|entry| info(entry).matches("inotify wd").count()).sum();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    (descriptors.len(), field("Threads:") as usize, watches, field("VmRSS:"))
}

/// In its own process, because other tests would be counted too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: counts what the whole process holds: run alone with --ignored --exact soak::nothing_grows"]
async fn nothing_grows() {
    let units: u32 = std::env::var("SOAK_UNITS").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let engine = Engine::new().await;
    burn(&engine, units / 4).await;
    let before = held();
    burn(&engine, units).await;
    let after = held();
    println!("{units} units: (descriptors, threads, watches, KiB) {before:?} -> {after:?}");
    assert!(after.0 <= before.0 + 4 && after.1 <= before.1 + 32, "{before:?} {after:?}");
    assert_eq!(after.2, 0, "watches left");
    assert!(after.3 <= before.3 + 10 * 1024, "{before:?} {after:?}");
    assert_eq!(directories_in(&engine.dir("")), 0);
}

async fn burn(engine: &Engine, units: u32) {
    let jobs: Vec<_> = (0..16)
        .map(|_| {
            let registry = engine.registry.clone();
            tokio::spawn(async move {
                for _ in 0..units / 16 {
                    let id = run(&registry, "echo hello").await;
                    assert_eq!(collect(&registry, &id, 0).await, b"hello\n");
                    registry.release(&id, false, &me()).await.unwrap();
                }
            })
        })
        .collect();
    for job in jobs {
        job.await.unwrap();
    }
}
