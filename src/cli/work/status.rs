//! `meshctl work status`: the state of single units.

use clap::Args;
use serde_json::{Map, Value};

use super::{follow::of_unit, units};
use crate::cli::{
    Context,
    exit::{Exit, Failure},
};
use crate::control::client::work_command;

/// Arguments of `meshctl work status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Unit IDs
    #[arg(required = true)]
    unit_ids: Vec<String>,
}

impl Status {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let mut connection = context.client.connect().await?;
        let mut answers = Map::new();
        for id in self.unit_ids {
            let answer = connection
                .command(&work_command("status", &id))
                .await
                .map_err(|error| of_unit(error, context))?;
            answers.insert(id, answer);
        }
        let answers = Value::Object(answers);
        if context.output.json {
            context.output.value(&answers)?;
        } else {
            context.output.line(&units::table(&answers)?)?;
        }
        Ok(Exit::Success)
    }
}
