//! `meshctl health`: whether the node does its work, as a probe asks.

use clap::Args;

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::rpc::report::node::Section;
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(super) struct Health {}

impl Health {
    pub(super) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let fields = vec![Section::Health.to_string()];
        let answer = context.client.command(&Request::Status { fields: Some(fields) }).await?;
        let Some(health) = super::status::read(&answer)?.health else {
            return Err(Failure::new(Exit::Failed, "this node does not tell of its health: it is no meshd"));
        };
        context.output.answer(&serde_json::json!(health), || {
            let (links, units, seconds) = (health.links, health.work_units, health.uptime_seconds);
            format!("{}: {links} links, {units} work units, up {seconds} s", health.status)
        })?;
        Ok(if health.is_ready() { Exit::Success } else { Exit::Failed })
    }
}
