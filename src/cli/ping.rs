//! `meshctl ping`: is a node there, and how far away?

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    CliContext,
    completion::nodes,
    exit::{Exit, Failure},
};
use crate::rpc::request::Request;

#[derive(Debug, Args)]
pub(super) struct Ping {
    /// Node to ping
    #[arg(add = nodes())]
    node: String,
    /// Number of pings
    #[arg(long, default_value_t = 4)]
    count: u32,
    /// Seconds between two pings
    #[arg(long, default_value = "1", value_parser = seconds)]
    delay: Duration,
}

impl Ping {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let ping = Request::Ping { target: self.node.clone() };
        let mut connection = context.client.connect().await?;
        let mut exit = Exit::Success;
        for number in 0..self.count {
            if number > 0 {
                sleep(self.delay).await;
            }
            let answer = connection.command(&ping).await?;
            if answer["Success"] != json!(true) {
                exit = Exit::NoReply;
            }
            if context.output.json {
                context.output.value_line(&answer)?;
            } else {
                print(context, &self.node, &answer)?;
            }
        }
        Ok(exit)
    }
}

fn print(context: &CliContext, node: &str, answer: &Value) -> Result<(), Failure> {
    let text = |key: &str| answer[key].as_str();
    if answer["Success"] == json!(true) {
        let (from, time) = (text("From").unwrap_or(node), text("TimeStr").unwrap_or("unknown time"));
        return context.output.line(&format!("Reply from {from} in {time}"));
    }
    let error = text("Error").unwrap_or("no reason given");
    context.output.error(&match (text("From"), text("TimeStr")) {
        (Some(from), Some(time)) if !from.is_empty() => {
            format!("No reply from {node}: {error} from {from} in {time}")
        }
        _ => format!("No reply from {node}: {error}"),
    });
    Ok(())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let invalid = || format!("{text:?} is not a number of seconds");
    Duration::try_from_secs_f64(text.parse().map_err(|_| invalid())?).map_err(|_| invalid())
}
