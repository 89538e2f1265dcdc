//! x
use super::{
    exit::{Exit, Failure},
    output::Output,
};
use clap::Args;
/// x
#[derive(Debug, Args)]
pub struct Demo {}
impl Demo {
    pub(super) async fn run(self, _output: Output) -> Result<Exit, Failure> {
        Ok(Exit::Success)
    }
}
