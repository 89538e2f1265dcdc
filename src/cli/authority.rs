//! `meshctl authority`: a new authority takes the place of the former one, a step at a time.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::exit::{Exit, Failure};
use super::node::NodePlaces;
use super::output::Output;
use super::table::count;
use crate::join::rotation::{Rotation, RotationStep};

#[derive(Debug, Subcommand)]
pub(super) enum AuthorityCommand {
    /// Begin to replace the authority, or go on to the next step once all nodes are ready for it
    Rotate(Rotate),
    /// Show which step it is, and which nodes are not that far
    Show(Show),
}

#[derive(Debug, Args)]
pub(super) struct Rotate {
    /// Do not wait for nodes that are not that far: with the last step, they have to be invited again
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    places: NodePlaces,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    places: NodePlaces,
}

impl AuthorityCommand {
    pub(super) fn run(self, output: Output) -> Result<Exit, Failure> {
        match self {
            Self::Show(Show { places }) => {
                let (own, _tree) = places.open()?;
                let rotation = places.authority(&own)?.rotation(Timestamp::now())?;
                output.answer(&json(rotation.as_ref()), || said(rotation.as_ref()))
            }
            Self::Rotate(rotate) => rotate.run(output),
        }
    }
}

impl Rotate {
    fn run(self, output: Output) -> Result<Exit, Failure> {
        let (own, _tree) = self.places.open()?;
        let authority = self.places.authority(&own)?;
        let before = authority.rotation(Timestamp::now())?;
        if before.as_ref().is_some_and(|rotation| !rotation.waits_for.is_empty()) && !self.force {
            output.answer(&json(before.as_ref()), || {
                format!("{}\nThe next step waits for them; --force does not.", said(before.as_ref()))
            })?;
            return Ok(Exit::Failed);
        }
        authority.rotate(own.config().node.id.as_str(), Timestamp::now())?;
        let rotation = self.places.authority(&own)?.rotation(Timestamp::now())?;
        output.answer(&json(rotation.as_ref()), || match rotation {
            Some(_) => said(rotation.as_ref()),
            None => "Step 3 of 3: the former authority is forgotten, and its key is deleted here.".to_owned(),
        })
    }
}

fn json(rotation: Option<&Rotation>) -> Value {
    let step = rotation.map(|rotation| match rotation.step {
        RotationStep::Trusting => "trusting",
        RotationStep::Renewing => "renewing",
    });
    json!({"step": step, "waits_for": rotation.map(|rotation| &rotation.waits_for)})
}

fn said(rotation: Option<&Rotation>) -> String {
    let Some(Rotation { step, waits_for }) = rotation else {
        return "There is one authority; `meshctl authority rotate` begins to replace it.".to_owned();
    };
    let (text, not_yet) = match step {
        RotationStep::Trusting => {
            ("Step 1 of 3: nodes learn to trust the new authority besides the former one", "do not yet")
        }
        RotationStep::Renewing => (
            "Step 2 of 3: nodes get certificates of the new authority, one in a second",
            "still have one of the former authority",
        ),
    };
    match waits_for.as_slice() {
        [] => format!("{text}; all have. `meshctl authority rotate` goes on"),
        some => format!("{text}. {} {not_yet}: {}", count(some.len() as u64, "node"), some.join(", ")),
    }
}
