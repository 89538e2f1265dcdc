//! The seam to signatures: who makes them and who checks them is given to the registry, which knows only when one is
//! needed. Without a signer no unit can be signed, without a verifier no signature is accepted.

use std::fmt::Debug;

use crate::wire::NodeId;

/// Makes signatures for requests to other nodes.
pub trait Signer: Debug + Send + Sync + 'static {
    /// A signature that the given node, and no other, accepts for a while.
    ///
    /// # Errors
    /// What is wrong with the key, in words for the operator.
    fn sign(&self, node: &NodeId) -> Result<String, String>;
}

/// Checks signatures of requests to this node.
pub trait Verifier: Debug + Send + Sync + 'static {
    /// Whether a signature was made for the given node, which is this one, and is still good.
    ///
    /// # Errors
    /// What is wrong with it, in words for the client.
    fn verify(&self, signature: &str, node: &NodeId) -> Result<(), String>;
}
