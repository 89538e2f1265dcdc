//! `meshctl node sign` and `meshctl node pending --renewals`: renewals are carried to the authority's key in one file, and
//! the answers back in another.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::add::NodePlaces;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::table::{Column, Layout, always, count};
use crate::cli::times::{ago, length};
use crate::join::authority::Authority;
use crate::join::offline::{self, SigningFile, TakenRenewal, WaitingRenewal};
use crate::join::request::CertificateAnswer;
use crate::os::regular_file::read_text;
use crate::os::replace::replace;

#[derive(Debug, Args)]
pub(in crate::cli) struct Sign {
    /// File that `meshctl node pending --renewals --out FILE` has written; or, on that node, the answers to it
    file: PathBuf,
    /// File to write the answers to
    #[arg(long, value_name = "FILE", default_value = "answers.json")]
    out: PathBuf,
    /// How long the certificates are valid
    #[arg(long, value_name = "TIME", value_parser = length, default_value = "8766h")]
    lifetime: Duration,
    #[command(flatten)]
    places: NodePlaces,
}

const COLUMNS: &[Column<WaitingRenewal>] = &[
    always("NODE", |one, _| one.node.clone()),
    always("ADDRESS", |one, _| one.from.clone()),
    always("SINCE", |one, now| ago(&one.since.to_string(), now)),
    always("STATE", |one, _| state(one)),
];

fn state(one: &WaitingRenewal) -> String {
    match &one.answer {
        None | Some(CertificateAnswer::Waiting(_)) => "waits".to_owned(),
        Some(CertificateAnswer::Granted { .. }) => "signed".to_owned(),
        Some(CertificateAnswer::Refused(why) | CertificateAnswer::Busy(why)) => format!("refused: {why}"),
    }
}

/// Lists the renewals that wait, or writes those that are not signed to a file.
pub(super) fn pending(
    authority: &Authority,
    out: Option<&Path>,
    layout: Layout,
    output: Output,
) -> Result<Exit, Failure> {
    let all = authority.renewals()?;
    if let Some(out) = out {
        let is_signed = |one: &WaitingRenewal| matches!(one.answer, Some(CertificateAnswer::Granted { .. }));
        let waiting: Vec<_> = all.into_iter().filter(|one| !is_signed(one)).collect();
        let number = waiting.len();
        write(out, &SigningFile::Requests(waiting))?;
        return output.answer(&json!({"file": out, "renewals": number}), || {
            let (count, out) = (count(number as u64, "renewal"), out.display());
            format!("wrote {out} with {count}: on the host with the authority's key, run\n    meshctl node sign {out}")
        });
    }
    let one = |one: &WaitingRenewal| json!({"node": one.node, "address": one.from, "since": one.since, "state": state(one)});
    if output.json {
        let renewals: Vec<_> = all.iter().map(one).collect();
        return output.value(&json!({ "renewals": renewals })).map(|()| Exit::Success);
    }
    output.list("renewals that wait", &all, COLUMNS, layout).map(|()| Exit::Success)
}

impl Sign {
    pub(super) fn run(self, output: Output) -> Result<Exit, Failure> {
        let shown = self.file.display();
        let failed = |error: String| Failure::new(Exit::Failed, format!("{shown}: {error}"));
        let text = read_text(&self.file).map_err(|error| failed(error.to_string()))?;
        let file = serde_json::from_str(&text).map_err(|error| {
            failed(format!(
                "this is not what `meshctl node pending --renewals` or `sign` has written: {error}"
            ))
        })?;
        match file {
            SigningFile::Requests(requests) => self.sign(requests, output),
            SigningFile::Answers { renewals, list } => self.take(renewals, &list, output),
        }
    }

    fn sign(&self, requests: Vec<WaitingRenewal>, output: Output) -> Result<Exit, Failure> {
        let answers = offline::sign(&self.places.ca, requests, self.lifetime, Timestamp::now())?;
        write(&self.out, &answers)?;
        let SigningFile::Answers { renewals, .. } = answers else { return Ok(Exit::Success) };
        let each: Vec<_> =
            renewals.iter().map(|one| json!({"node": one.node, "state": state(one)})).collect();
        output.answer(&json!({"file": self.out, "renewals": each}), || {
            let mut said: Vec<String> =
                renewals.iter().map(|one| format!("{}: {}", one.node, state(one))).collect();
            let out = self.out.display();
            said.push(format!("wrote {out}: take it to the node where they wait, and run there"));
            said.push(format!("    meshctl node sign {out}"));
            said.join("\n")
        })
    }

    fn take(&self, renewals: Vec<WaitingRenewal>, list: &str, output: Output) -> Result<Exit, Failure> {
        let (own, _tree) = self.places.open()?;
        let authority = self.places.authority(&own)?;
        let taken = offline::take(&authority, renewals, list, Timestamp::now())?;
        let each: Vec<_> =
            taken.iter().map(|one| json!({"node": one.node, "error": one.result.as_ref().err()})).collect();
        output.answer(&json!({"renewals": each}), || {
            let one = |TakenRenewal { node, result }: &TakenRenewal| match result {
                Ok(()) => format!("{node}: it gets the answer when it asks again"),
                Err(why) => format!("{node}: not taken: {why}"),
            };
            taken.iter().map(one).collect::<Vec<_>>().join("\n")
        })?;
        Ok(if taken.iter().all(|one| one.result.is_ok()) { Exit::Success } else { Exit::Failed })
    }
}

fn write(path: &Path, file: &SigningFile) -> Result<(), Failure> {
    let failed = |error: String| Failure::new(Exit::Failed, format!("{}: {error}", path.display()));
    let text = serde_json::to_string(file).map_err(|error| failed(error.to_string()))?;
    let mode = 0o644;
    // What is there may be a device, or somebody's link.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(failed("this is not a regular file".to_owned()));
    }
    replace(path, format!("{text}\n").as_bytes(), mode).map_err(|error| failed(error.to_string()))
}
