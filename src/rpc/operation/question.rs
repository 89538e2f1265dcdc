//! The client's half: asks for an operation, and reads its typed answer.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Operation, OperationCode, OperationRefusal};
use crate::rpc::request::Request;
use crate::rpc::{CallError, Client, ControlConnection, report};

/// An operation that answers with an `A`.
#[derive(Debug, Clone)]
pub struct Question<A> {
    pub(super) operation: Operation,
    pub(super) answer: PhantomData<fn() -> A>,
}

/// An answer, as a report and as the node wrote it. A node of another release may send more keys.
#[derive(Debug, Clone)]
pub struct Answered<A> {
    /// The keys that are known here.
    pub report: A,
    /// The whole answer.
    pub json: Value,
}

/// Why an operation has no result.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// No answer came.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The controller refuses.
    #[error(transparent)]
    Refused(#[from] OperationRefusal),
}

impl OperationError {
    /// Whether the same question may be answered a little later: the node or its store is away.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Call(error) => error.is_absence(),
            Self::Refused(_) => {
                matches!(self.code(), Some(OperationCode::StoreAway | OperationCode::OwnerAway))
            }
        }
    }

    /// The code of a refusal.
    pub fn code(&self) -> Option<OperationCode> {
        match self {
            Self::Refused(refused) => refused.code.known(),
            Self::Call(_) => None,
        }
    }
}

impl<A: DeserializeOwned> Question<A> {
    /// Requests the operation, and returns the answer.
    ///
    /// # Errors
    /// The node cannot be reached, or refuses.
    pub async fn ask(&self, client: &Client) -> Result<Answered<A>, OperationError> {
        self.begin(client).await.map(|(answer, _)| answer)
    }

    /// The same, and returns the connection too: whatever else the node sends follows on it.
    pub async fn begin(&self, client: &Client) -> Result<(Answered<A>, ControlConnection), OperationError> {
        // The node packs the whole job before it answers.
        let is_long = matches!(self.operation, Operation::StartSaved(_));
        let connected = if is_long { client.connect_for_long().await } else { client.connect().await };
        let mut connection = connected?;
        let request = Request::Controller { operation: self.operation.to_request() };
        let mut answer = connection.command(&request).await?;
        let unread = |error: serde_json::Error| CallError::Protocol {
            question: self.operation.name(),
            answer: error.to_string(),
        };
        if answer["ok"] != true {
            let refused: OperationRefusal = serde_json::from_value(answer["error"].take()).map_err(unread)?;
            return Err(refused.into());
        }
        let json = answer["result"].take();
        let report = report::read(&json).map_err(unread)?;
        Ok((Answered { report, json }, connection))
    }
}
