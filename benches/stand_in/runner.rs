//! Stands in for ansible-runner where jobs are measured: as little of its own as a native program needs. Compiled by
//! `rustc` alone. Prints when it began (`began`, nanoseconds since 1970), then as many bytes of events as the stream's
//! `bytes` asks for. With `spin` so many threads are busy until it is ended. The size of its machine is `--cpus=` and
//! `--memory=`.

use std::io::{BufRead, BufWriter, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

fn main() -> std::io::Result<()> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    if std::env::args().any(|argument| argument == "--worker-info") {
        let given = |flag: &str, other| std::env::args().find_map(|word| word.strip_prefix(flag)?.parse().ok()).unwrap_or(other);
        let (cpus, memory): (u64, u64) = (given("--cpus=", 64), given("--memory=", 256 << 30));
        return writeln!(
            out,
            "{{\"cpu_count\": {cpus}, \"mem_in_bytes\": {memory}, \"runner_version\": \"2.4.0\", \"uuid\": \"u\"}}"
        );
    }
    let mut input = std::io::stdin().lock();
    let mut kwargs = String::new();
    input.read_line(&mut kwargs)?;
    let mut rest = Vec::new();
    input.read_to_end(&mut rest)?;
    let asked = |key: &str| -> usize {
        let asked = kwargs.split_once(key).map_or("", |(_, after)| after);
        let digits: String = asked.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    };
    let wanted = asked("\"bytes\": ");
    writeln!(out, "{{\"status\": \"starting\", \"began\": {began}}}")?;
    let busy: Vec<_> = (0..asked("\"spin\": ")).map(|_| std::thread::spawn(|| loop { std::hint::spin_loop() })).collect();
    if !busy.is_empty() {
        out.flush()?;
    }
    for thread in busy {
        let _ended = thread.join();
    }
    let text = "x".repeat(900);
    let (mut written, mut counter) = (0, 0);
    while written < wanted {
        counter += 1;
        let line = format!(
            "{{\"uuid\": \"u{counter}\", \"counter\": {counter}, \"event\": \"verbose\", \"stdout\": \"{text}\", \"event_data\": {{}}}}\n"
        );
        out.write_all(line.as_bytes())?;
        written += line.len();
    }
    writeln!(out, "{{\"status\": \"successful\"}}\n{{\"eof\": true}}")?;
    out.flush()
}
