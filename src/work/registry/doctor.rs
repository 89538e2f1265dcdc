//! Tokens for asking another node what is wrong with it. Knows nothing of the answer.

use super::Registry;
use crate::wire::NodeId;
use crate::work::WorkError;
use crate::work::signing::{SignatureError, Subject, Verb};

fn subject() -> Subject<'static> {
    Subject { verb: Verb::Doctor, ..Subject::default() }
}

impl Registry {
    /// A token for asking `node` what is wrong with it.
    ///
    /// # Errors
    /// There is no key in `work-signing`.
    pub fn sign_for_doctor(&self, node: &NodeId) -> Result<String, WorkError> {
        self.executor.remotes.far().sign_for(node, &subject())
    }

    /// Checks such a token, and uses it up.
    ///
    /// # Errors
    /// The token is not accepted, or there is no key in `work-verification`.
    pub fn verify_doctor(&self, token: &str) -> Result<(), SignatureError> {
        let verifier = self.verifier.load_full().ok_or(SignatureError::NoKey)?;
        verifier.verify_bound(token, &subject())
    }
}
