//! `meshctl node renew`: makes new certificates in new bundles, for one node or for all whose certificates end soon.
//! The node of this host gets its own in place.

use std::fmt;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::add::NodePlaces;
use super::note;
use crate::cli::CliContext;
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::Output;
use crate::cli::times::length;
use crate::join::JoinError;
use crate::join::admit::{pack, renew_own};
use crate::join::authority::Authority;
use crate::join::record::Record;
use crate::rpc::report::enrolment::NodeAct;

#[derive(Debug, Args)]
pub(in crate::cli) struct Renew {
    /// ID of the node
    #[arg(required_unless_present = "expiring")]
    node: Option<String>,
    /// Renew all nodes whose certificates expire within this time, as in 60d
    #[arg(long, value_name = "TIME", value_parser = length, conflicts_with = "node", requires = "out")]
    expiring: Option<Duration>,
    /// File to write the bundle to [default: NAME.tar]; with --expiring, directory for all bundles
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,
    #[command(flatten)]
    places: NodePlaces,
}

/// A node whose certificate was renewed.
struct Renewed {
    node: String,
    /// Where the bundle is; `None` for the node of this host.
    bundle: Option<PathBuf>,
}

impl fmt::Display for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bundle {
            Some(file) => {
                write!(
                    f,
                    "{}: {}: copy it to that host, and run meshctl install there",
                    self.node,
                    file.display()
                )
            }
            None => write!(f, "{}: in place", self.node),
        }
    }
}

impl Renew {
    pub(super) async fn run(
        self,
        context: impl Fn() -> Result<CliContext, Failure>,
        output: Output,
    ) -> Result<Exit, Failure> {
        let (own, mut tree) = self.places.open()?;
        let authority = self.places.authority(&own)?;
        let mut renewed = Vec::new();
        for mut record in self.records(&authority)? {
            let node = record.node.clone();
            let bundle = if node == own.config().node.id.as_str() {
                renew_own(&mut record, &own, &authority, &mut tree)?;
                None
            } else {
                let out = self.file_of(&node)?;
                pack(&mut record, &authority, &own, &out)?;
                Some(out)
            };
            renewed.push(Renewed { node, bundle });
        }
        // The daemon may need it to answer.
        drop(authority);
        let names: Vec<&str> = renewed.iter().map(|one| one.node.as_str()).collect();
        note(&own, context(), output, NodeAct::Renew, &names).await;
        let each = |one: &Renewed| json!({"node": one.node, "bundle": one.bundle});
        let json = json!({"renewed": renewed.iter().map(each).collect::<Vec<_>>()});
        output.answer(&json, || match renewed.as_slice() {
            [] => "No certificate expires that soon.".to_owned(),
            renewed => renewed.iter().map(Renewed::to_string).collect::<Vec<_>>().join("\n"),
        })
    }

    fn records(&self, authority: &Authority) -> Result<Vec<Record>, Failure> {
        if let Some(node) = &self.node {
            let record = authority.record(node)?.filter(|record| !record.is_removed());
            return Ok(vec![record.ok_or_else(|| JoinError::Unknown(node.clone()))?]);
        }
        let within =
            SignedDuration::try_from(self.expiring.unwrap_or_default()).unwrap_or(SignedDuration::MAX);
        let limit = Timestamp::now().checked_add(within).unwrap_or(Timestamp::MAX);
        let all = authority.records()?.into_iter();
        Ok(all.filter(|record| record.ends().is_some_and(|end| end < limit)).collect())
    }

    fn file_of(&self, node: &str) -> Result<PathBuf, Failure> {
        let name = format!("{node}.tar");
        match (&self.out, self.expiring) {
            (None, _) => Ok(PathBuf::from(name)),
            (Some(out), None) => Ok(out.clone()),
            (Some(dir), Some(_)) => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
                made.map_err(|error| Failure::new(Exit::Failed, format!("{}: {error}", dir.display())))?;
                Ok(dir.join(name))
            }
        }
    }
}
