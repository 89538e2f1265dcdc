//! `node forget`: has this node forget one that is gone for good.

use serde_json::{Value, json};

use super::{Context, RequestRefusal};

pub(super) async fn forget(context: &Context, name: &str) -> Result<Value, RequestRefusal> {
    let node = context.node_named(name).ok_or(RequestRefusal::NoSuchNode)?;
    context.node.forget(&node).await?;
    tracing::info!(%node, "forgotten on demand");
    Ok(json!({ "forgotten": node }))
}
