//! `node forget`: makes this node forget a node that is gone for good. Whether it may be forgotten is `mesh`'s to
//! decide. `node cache`: shows what this node keeps of payloads, or removes it.

use serde_json::{Value, json};

use super::{Context, RequestRefusal};

pub(super) async fn forget(context: &Context, name: &str) -> Result<Value, RequestRefusal> {
    let node = context.node_named(name).ok_or(RequestRefusal::NoSuchNode)?;
    context.node.forget(&node).await?;
    tracing::info!(%node, "node forgotten on request");
    Ok(json!({ "forgotten": node }))
}

pub(super) async fn cache(context: &Context, clear: bool) -> Value {
    if !clear {
        return json!(context.work.payload_cache().await);
    }
    let (pieces, bytes) = context.work.clear_payload_cache().await;
    tracing::info!(pieces, bytes, "removed the pieces of payloads on request");
    json!({ "cleared": { "pieces": pieces, "bytes": bytes } })
}
