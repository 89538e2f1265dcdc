//! Turns a runner's stream into what ansible-playbook prints: the text of its events. Colours stay on a terminal,
//! unless NO_COLOR is set; no other control sequence of a managed host reaches the terminal. Hands artifacts on, if
//! they are wanted. Reads no other keys of an event than those here.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::artifacts::Artifacts;
use super::report::more_hosts;
use crate::cli::exit::Failure;
use crate::cli::output::Output;
use crate::cli::table;
use crate::cli::terminal::{Colours, shown};
use crate::controller::stream::{Piece, Scanner};
use crate::rpc::report::controller::{HostStats, JobDetail};
use crate::rpc::report::{JobKind, Lenient};

/// Longer lines are left out.
const LONGEST_LINE: usize = 4 << 20;
const STATS: &str = "playbook_on_stats";
const KEEPALIVE: &str = "keepalive";
const STARTING: &str = "starting";

/// A line of the runner.
#[derive(Debug, Deserialize)]
struct EventLine {
    status: Option<String>,
    job_explanation: Option<String>,
    zipfile: Option<u64>,
    eof: Option<IgnoredAny>,
    event: Option<String>,
    counter: Option<u64>,
    uuid: Option<String>,
    stdout: Option<String>,
    start_line: Option<u64>,
    end_line: Option<u64>,
}

/// Most empty lines restored at the end of an event's text, where the runner cuts them off.
const EMPTY_LINES: u64 = 2;

impl EventLine {
    /// The text that ansible prints for it, with the empty lines at its end.
    fn text(&self, colours: Colours) -> String {
        let mut text = shown(self.stdout.as_deref().unwrap_or_default(), colours);
        if !text.is_empty() {
            text.push('\n');
        }
        let printed = text.bytes().filter(|byte| *byte == b'\n').count() as u64;
        let lines = self.end_line.unwrap_or(0).saturating_sub(self.start_line.unwrap_or(0));
        for _ in 0..lines.saturating_sub(printed).min(EMPTY_LINES) {
            text.push('\n');
        }
        text
    }
}

/// A playbook whose output is being read.
pub(super) struct Playbook {
    scanner: Scanner,
    colours: Colours,
    artifacts: Option<Artifacts>,
    /// The recap was printed.
    has_recap: bool,
    /// Why the attempt that was read last ended.
    ended: Option<String>,
}

impl Playbook {
    /// A playbook of which nothing was read yet.
    pub(super) fn new(output: Output, artifacts: Option<Artifacts>) -> Self {
        Self::coloured(output.colours(), artifacts)
    }

    pub(super) fn coloured(colours: Colours, artifacts: Option<Artifacts>) -> Self {
        let scanner = Scanner::new(LONGEST_LINE);
        Self { scanner, colours, artifacts, has_recap: false, ended: None }
    }

    /// The text of the next bytes.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<String, Failure> {
        let mut text = String::new();
        while let Some(piece) = self.scanner.next(&mut bytes) {
            match piece {
                Piece::Line(line) => {
                    // Other lines are not printed, because the controller keeps them for the job's explanation.
                    let Ok(read) = serde_json::from_slice::<EventLine>(line) else { continue };
                    if let Some(status) = read.status {
                        if status == STARTING {
                            if let Some(why) = self.ended.take() {
                                let why = shown(&why, Colours::Dropped);
                                text.push_str(&format!("\n({why}: it starts again)\n"));
                            }
                            self.has_recap = false;
                            self.artifacts.as_mut().map_or(Ok(()), Artifacts::begin)?;
                        }
                        self.ended = read.job_explanation.or(self.ended.take());
                    } else if let Some(size) = read.zipfile {
                        self.scanner.begin_zip(size);
                        self.artifacts.as_mut().map_or(Ok(()), |it| it.begin_zip(size))?;
                    } else if read.eof.is_none() && read.event.as_deref() != Some(KEEPALIVE) {
                        if let (Some(artifacts), Some(counter), Some(uuid)) =
                            (&self.artifacts, read.counter, &read.uuid)
                        {
                            artifacts.event(counter, uuid, line)?;
                        }
                        self.has_recap |= read.event.as_deref() == Some(STATS) && read.stdout.is_some();
                        text.push_str(&read.text(self.colours));
                    }
                }
                Piece::Zip(part) => self.artifacts.as_mut().map_or(Ok(()), |it| it.zip(part))?,
                Piece::ZipEnd => self.artifacts.as_mut().map_or(Ok(()), Artifacts::end_zip)?,
                Piece::LongLine | Piece::BadZip => {}
            }
        }
        Ok(text)
    }

    /// The last text of a job that has ended: a recap, if its playbook printed none. Modules have none.
    pub(super) fn finish(&mut self, detail: &JobDetail) -> Result<String, Failure> {
        if let Some(artifacts) = &self.artifacts {
            artifacts.finish(&detail.job)?;
        }
        let is_shown = self.has_recap || detail.job.kind == Lenient::Known(JobKind::AdHoc);
        if is_shown || detail.host_stats.is_empty() {
            return Ok(String::new());
        }
        let headings =
            ["PLAY RECAP", "ok", "changed", "unreachable", "failed", "skipped", "rescued", "ignored"];
        let rows = detail.host_stats.iter().map(|(host, stats)| {
            let HostStats { ok, changed, failures, dark, skipped, rescued, ignored } = *stats;
            let counts = [ok, changed, dark, failures, skipped, rescued, ignored];
            std::iter::once(host.clone()).chain(counts.map(|count| count.to_string())).collect::<Vec<_>>()
        });
        let more = more_hosts(detail).map(|more| format!("{more}\n")).unwrap_or_default();
        Ok(format!("\n{}\n{more}", shown(&table::render(headings, rows), Colours::Dropped)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::report;
    use serde_json::json;

    const STREAM: &str = concat!(
        "{\"status\": \"starting\", \"command\": []}\n",
        "{\"counter\": 1, \"uuid\": \"a\", \"event\": \"playbook_on_start\", \"stdout\": \"\"}\n",
        "{\"counter\": 2, \"uuid\": \"b\", \"event\": \"x\", \"stdout\": \"\\r\\nPLAY [all] ***\"}\n",
        "{\"event\": \"keepalive\", \"counter\": 0, \"uuid\": 0}\n",
        "no JSON\n",
        "{\"counter\": 3, \"uuid\": \"c\", \"event\": \"y\", \"stdout\": \"\\u001b[0;32mok: [h]\\u001b[0m\"}\n",
        "{\"status\": \"failed\"}\n{\"zipfile\": 3}\nUEsD{\"eof\": true}\n",
    );

    fn text(playbook: &mut Playbook, bytes: &[u8], step: usize) -> String {
        bytes.chunks(step).map(|part| playbook.push(part).unwrap()).collect()
    }

    #[test]
    fn the_text_of_events_is_printed_however_it_is_cut() {
        for step in [1, 7, 10_000] {
            let mut plain = Playbook::coloured(Colours::Dropped, None);
            assert_eq!(text(&mut plain, STREAM.as_bytes(), step), "\nPLAY [all] ***\nok: [h]\n");
            let mut coloured = Playbook::coloured(Colours::Kept, None);
            let expected = "\nPLAY [all] ***\n\u{1b}[0;32mok: [h]\u{1b}[0m\n";
            assert_eq!(text(&mut coloured, STREAM.as_bytes(), step), expected);
        }
    }

    #[test]
    fn the_empty_lines_that_ansible_prints_are_there() {
        let mut playbook = Playbook::coloured(Colours::Dropped, None);
        let lines = concat!(
            "{\"event\": \"verbose\", \"stdout\": \"\", \"start_line\": 0, \"end_line\": 1}\n",
            "{\"event\": \"x\", \"stdout\": \"a\\r\\nb\", \"start_line\": 1, \"end_line\": 4}\n",
            "{\"event\": \"x\", \"stdout\": \"\", \"start_line\": 4, \"end_line\": 4}\n",
            "{\"event\": \"x\", \"stdout\": \"c\", \"start_line\": 4, \"end_line\": 900000000000}\n",
        );
        assert_eq!(text(&mut playbook, lines.as_bytes(), 9), "\na\nb\n\nc\n\n\n");
    }

    #[test]
    fn a_recap_is_made_only_if_none_was_printed() {
        let counts = json!({"ok": 2, "changed": 1, "dark": 0, "failures": 1, "skipped": 0, "rescued": 0, "ignored": 0});
        let job = report::read(&json!({"host_stats": {"web": counts}})).unwrap();
        let mut playbook = Playbook::coloured(Colours::Dropped, None);
        text(&mut playbook, STREAM.as_bytes(), 100);
        let made = playbook.finish(&job).unwrap();
        assert!(made.contains("PLAY RECAP  ok  changed  unreachable  failed"), "{made}");
        assert!(made.contains("\nweb         2   1        0            1"), "{made}");
        let recap = b"{\"counter\": 4, \"uuid\": \"d\", \"event\": \"playbook_on_stats\", \"stdout\": \"PLAY RECAP\"}\n";
        assert_eq!(text(&mut playbook, recap, 100), "PLAY RECAP\n");
        assert_eq!(playbook.finish(&job).unwrap(), "");
    }

    #[test]
    fn a_lost_attempt_is_named_when_the_next_one_starts() {
        let mut playbook = Playbook::coloured(Colours::Dropped, None);
        let lost = "{\"status\": \"error\", \"job_explanation\": \"attempt 1 was lost\"}\n{\"status\": \"starting\"}\n";
        let text = text(&mut playbook, lost.as_bytes(), 5);
        assert_eq!(text, "\n(attempt 1 was lost: it starts again)\n");
    }

    #[test]
    fn a_managed_host_has_no_say_on_the_terminal() {
        let mut playbook = Playbook::coloured(Colours::Kept, None);
        let lines = concat!(
            "{\"event\": \"x\", \"stdout\": \"\\u001b[31mred\\u001b]52;c;eA==\\u0007\\u009b2J\\u202e\"}\n",
            "{\"status\": \"error\", \"job_explanation\": \"\\u001b]0;PWNED\\u0007\"}\n{\"status\": \"starting\"}\n",
        );
        let text = text(&mut playbook, lines.as_bytes(), 7);
        assert_eq!(text, "\u{1b}[31mred�]52;c;eA==��2J�\n\n(�]0;PWNED�: it starts again)\n");
        let host = report::read(&json!({"host_stats": {"a\u{1b}]0;x\u{7}": {"ok": 1}}})).unwrap();
        let recap = playbook.finish(&host).unwrap();
        assert!(recap.contains("a�]0;x�") && !recap.contains('\u{1b}'), "{recap}");
    }
}
