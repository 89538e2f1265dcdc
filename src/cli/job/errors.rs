//! `meshctl job errors`: each failure of a job whole, with its place in the output. Reads the events of failed tasks
//! that the node sends, and knows nothing of how it finds them.

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncBufReadExt as _;

use super::verbs::One;
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::terminal::{Colours, shown};
use crate::controller::stream::UNREACHABLE;
use crate::rpc::operation::{self, EventFilter};

#[derive(Debug, Args)]
pub(in crate::cli) struct ErrorFlags {
    #[command(flatten)]
    one: One,
    /// Only of this host
    #[arg(long)]
    host: Option<String>,
}

/// An event of a task that failed on a host. Modules write much of it, so that any key may be missing.
#[derive(Debug, Deserialize)]
struct FailedEvent {
    event: String,
    start_line: Option<u64>,
    event_data: Failed,
}

#[derive(Debug, Deserialize)]
struct Failed {
    #[serde(default)]
    host: String,
    #[serde(default)]
    task: String,
    #[serde(default)]
    res: Value,
    ignore_errors: Option<bool>,
}

/// What a module may say of its failure, in the order of printing.
const TOLD: [&str; 7] = ["censored", "msg", "rc", "stderr", "stdout", "module_stderr", "module_stdout"];

impl ErrorFlags {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let id = self.one.number(context).await?;
        let filter = EventFilter { id, from: 0, host: self.host, failed: true, follow: false };
        let (_, mut connection) = operation::read_events(filter).begin(&context.client).await?;
        let (mut line, mut is_first) = (Vec::new(), true);
        loop {
            line.clear();
            let read = connection.reader().read_until(b'\n', &mut line).await;
            let count = read.map_err(|error| {
                Failure::new(Exit::Unreachable, format!("the events are cut off: {error}"))
            })?;
            if count == 0 {
                return Ok(Exit::Success);
            }
            let Ok(event) = serde_json::from_slice::<FailedEvent>(&line) else { continue };
            match context.output.json {
                true => context.output.value_line(&event.json())?,
                false => {
                    let gap = if std::mem::take(&mut is_first) { "" } else { "\n" };
                    context.output.line(&format!("{gap}{}", event.text()))?;
                }
            }
        }
    }
}

impl FailedEvent {
    /// The line of the printed output at which it stands, from 1 on.
    fn line(&self) -> Option<u64> {
        self.start_line.map(|line| line.saturating_add(1))
    }

    fn json(&self) -> Value {
        let Failed { host, task, res, ignore_errors } = &self.event_data;
        json!({"event": self.event, "host": host, "task": task, "line": self.line(),
            "ignored": *ignore_errors == Some(true), "result": res})
    }

    /// The host, the task, and what the module says, with every line of that below its name.
    fn text(&self) -> String {
        let Failed { host, task, res, ignore_errors } = &self.event_data;
        let mut said = vec![match self.event.as_str() {
            UNREACHABLE => "unreachable".to_owned(),
            _ => "failed".to_owned(),
        }];
        said.extend(res.get("item").map(|item| format!("item {}", plain(item))));
        said.extend((*ignore_errors == Some(true)).then(|| "ignored".to_owned()));
        said.extend(self.line().map(|line| format!("line {line} of the output")));
        let mut lines = vec![format!("{host}: {task} ({})", said.join(", "))];
        for key in TOLD {
            let text = res.get(key).map(plain).unwrap_or_default();
            let text = text.trim_end();
            match text.lines().count() {
                0 => {}
                1 => lines.push(format!("  {key}: {text}")),
                _ => {
                    lines.push(format!("  {key}:"));
                    lines.extend(text.lines().map(|line| format!("    {line}")));
                }
            }
        }
        shown(&lines.join("\n"), Colours::Dropped)
    }
}

/// A text as it is, anything else as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: Value) -> String {
        serde_json::from_value::<FailedEvent>(event).unwrap().text()
    }

    #[test]
    fn a_failure_is_told_whole_with_its_place() {
        let res =
            json!({"msg": "non-zero return code", "rc": 2, "stderr": "one\ntwo\n", "stdout": "", "cmd": "x"});
        let data = json!({"host": "web2", "task": "Configure", "res": res});
        let event = json!({"event": "runner_on_failed", "start_line": 142, "event_data": data});
        let expected = "\
web2: Configure (failed, line 143 of the output)
  msg: non-zero return code
  rc: 2
  stderr:
    one
    two";
        assert_eq!(text(event), expected);
        let res = json!({"msg": ["odd", "\u{1b}[2J"], "item": {"name": "a"}});
        let data = json!({"host": "h", "task": "t", "res": res, "ignore_errors": true});
        let item = json!({"event": "runner_item_on_failed", "event_data": data});
        assert_eq!(
            text(item),
            "h: t (failed, item {\"name\":\"a\"}, ignored)\n  msg: [\"odd\",\"\\u001b[2J\"]"
        );
        let away = json!({"host": "db\u{1b}]0;x", "res": {"msg": "\u{1b}[31mno route"}});
        let away = text(json!({"event": "runner_on_unreachable", "event_data": away}));
        assert_eq!(away, "db\u{fffd}]0;x:  (unreachable)\n  msg: no route");
    }
}
