//! Stands in for ansible-runner where jobs are measured: as little of its own as a native program needs. Compiled by
//! `rustc` alone. Prints when it began (`began`, nanoseconds since 1970), then as many bytes of events as the stream's
//! `bytes` asks for.

use std::io::{BufRead, BufWriter, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

fn main() -> std::io::Result<()> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let mut out = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    if std::env::args().any(|argument| argument == "--worker-info") {
        let size = "{\"cpu_count\": 64, \"mem_in_bytes\": 274877906944, \"runner_version\": \"2.4.0\", \"uuid\": \"u\"}";
        return writeln!(out, "{size}");
    }
    let mut input = std::io::stdin().lock();
    let mut kwargs = String::new();
    input.read_line(&mut kwargs)?;
    let mut rest = Vec::new();
    input.read_to_end(&mut rest)?;
    let asked = kwargs.split_once("\"bytes\": ").map_or("", |(_, after)| after);
    let digits: String = asked.chars().take_while(char::is_ascii_digit).collect();
    let wanted: usize = digits.parse().unwrap_or(0);
    writeln!(out, "{{\"status\": \"starting\", \"began\": {began}}}")?;
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
