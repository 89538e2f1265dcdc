//! `meshctl health`: whether the node is ready, for probes.

use clap::Args;

use super::{
    CliContext,
    exit::{Exit, Failure},
};
use crate::rpc::report::node::Section;
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(super) struct Health {}

impl Health {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let fields = vec![Section::Health.to_string()];
        let answer = context.client.command(&Request::Status { fields: Some(fields) }).await?;
        let Some(health) = super::status::read(&answer)?.health else {
            return Err(Failure::new(
                Exit::Failed,
                "this node does not report its health: it is not a meshd node",
            ));
        };
        context.output.answer(&serde_json::json!(health), || {
            let (links, units, seconds) = (health.links, health.work_units, health.uptime_seconds);
            format!("{}: {links} links, {units} work units, up {seconds} s", health.status)
        })?;
        Ok(if health.is_ready() { Exit::Success } else { Exit::Failed })
    }
}
