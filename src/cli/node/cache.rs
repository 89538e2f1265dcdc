//! `meshctl node cache`: what the node keeps of payloads, so that they need not be sent again.

use clap::Args;

use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::table::{count, size};
use crate::rpc::CallError;
use crate::rpc::report::{self, cache::CacheReport};
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(in crate::cli) struct Cache {
    /// Remove it
    #[arg(long)]
    clear: bool,
}

impl Cache {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let Self { clear } = self;
        let answer = context.client.command(&Request::NodeCache { clear }).await?;
        if clear {
            let number = |key| answer["cleared"][key].as_u64().unwrap_or_default();
            let (pieces, bytes) = (number("pieces"), size(number("bytes")));
            return context
                .output
                .answer(&answer, || format!("Cleared: {}, {bytes}", count(pieces, "piece")));
        }
        let report = report::read(&answer)
            .map_err(|error| CallError::Protocol { question: "node cache", answer: error.to_string() })?;
        context.output.answer(&answer, || render(&report))
    }
}

fn render(report: &CacheReport) -> String {
    if report.most == 0 {
        return "Nothing is kept: payloadcache is 0".to_owned();
    }
    let line =
        |name: &str, pieces: usize, bytes| format!("{name:<24} {}, {}", count(pieces, "piece"), size(bytes));
    let callers = report.callers.iter().map(|one| {
        let name = if one.certified { one.node.clone() } else { format!("{} (no certificate)", one.node) };
        line(&name, one.pieces, one.bytes)
    });
    let more = (report.more_callers > 0).then(|| format!("and {}", count(report.more_callers, "other node")));
    let all = format!("{} of {}", line("In all", report.pieces, report.bytes), size(report.most));
    callers.chain(more).chain([all]).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn callers_are_shown_with_what_they_have_and_without_what_they_have_not() {
        let caller =
            |node: &str, certified| json!({"node": node, "certified": certified, "pieces": 1, "bytes": 4096});
        let answer = json!({"callers": [caller("ctl", true), caller("odd", false)], "more_callers": 1, "pieces": 3,
            "bytes": 12288, "most": 1 << 30});
        assert_eq!(
            render(&report::read(&answer).unwrap()),
            "ctl                      1 piece, 4.0 KiB\n\
             odd (no certificate)     1 piece, 4.0 KiB\n\
             and 1 other node\n\
             In all                   3 pieces, 12.0 KiB of 1.0 GiB"
        );
        assert_eq!(render(&CacheReport::default()), "Nothing is kept: payloadcache is 0");
    }
}
