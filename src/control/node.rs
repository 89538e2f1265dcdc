//! `node forget`: makes this node forget a node that is gone for good. Whether it may be forgotten is `mesh`'s to
//! decide.

use serde_json::{Value, json};

use super::{Context, RequestRefusal};

pub(super) async fn forget(context: &Context, name: &str) -> Result<Value, RequestRefusal> {
    let node = context.node_named(name).ok_or(RequestRefusal::NoSuchNode)?;
    context.node.forget(&node).await?;
    tracing::info!(%node, "node forgotten on request");
    Ok(json!({ "forgotten": node }))
}
