//! `meshctl work results`: a unit's output, from any byte on, until the unit ends.

use clap::Args;

use super::follow;
use crate::cli::{
    Context,
    exit::{Exit, Failure},
};

/// Arguments of `meshctl work results`.
#[derive(Debug, Args)]
pub(crate) struct Results {
    /// Unit ID
    unit_id: String,
    /// First byte to print
    #[arg(long, value_name = "BYTE", default_value_t = 0)]
    start: u64,
}

impl Results {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        follow::follow(context, &self.unit_id, self.start).await
    }
}
