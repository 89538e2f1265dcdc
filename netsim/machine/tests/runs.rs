//! The machine with real runtimes in it.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use meshd_machine::{Host, now, on_host, run};

fn history(seed: u64) -> Vec<String> {
    run(seed, || {
        let notes = Arc::new(Mutex::new(Vec::new()));
        let (sender, receiver) = mpsc::channel::<u32>();
        let mut all = Vec::new();
        for host in 1..=3 {
            let (notes, sender) = (notes.clone(), sender.clone());
            let begin = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    for round in 0..5 {
                        tokio::time::sleep(Duration::from_millis(100 * u64::from(host))).await;
                        let read = tokio::task::spawn_blocking(move || {
                            std::thread::sleep(Duration::from_secs(1));
                            round
                        });
                        let read = read.await.unwrap();
                        notes.lock().unwrap().push(format!("{host} {read} {:?}", now()));
                        sender.send(host).unwrap();
                    }
                });
            };
            all.push(on_host(Host(host), || std::thread::spawn(begin)));
        }
        drop(sender);
        let order: Vec<u32> = receiver.iter().collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        let map: HashMap<u32, u32> = (0..20).map(|n| (n, n)).collect();
        let mut notes = notes.lock().unwrap().clone();
        notes.push(format!("{order:?} {:?}", map.keys().collect::<Vec<_>>()));
        notes
    })
}

#[test]
fn time_is_virtual_and_a_seed_repeats() {
    if let Ok(seed) = std::env::var("SEED") {
        for line in history(seed.parse().unwrap()) {
            println!("note {line}");
        }
        return;
    }
    let child = |seed: &str| {
        let run = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("--nocapture")
            .env("SEED", seed)
            .output()
            .unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        let lines: Vec<String> = text.lines().filter(|l| l.contains("note ")).map(str::to_owned).collect();
        assert!(lines.len() > 10, "{text} {}", String::from_utf8_lossy(&run.stderr));
        lines
    };
    assert_eq!(child("1"), child("1"));
    assert_ne!(child("1"), child("2"));
}
