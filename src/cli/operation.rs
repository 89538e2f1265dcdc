//! Asks a controller, and prints the answer: as text for people, or as the node's JSON if the user wants that. `rpc`
//! defines the questions and the answers.

use std::pin::pin;

use futures_util::{StreamExt as _, stream};
use serde::de::DeserializeOwned;

use super::CliContext;
use super::exit::{Exit, Failure};
use super::table::{Column, Layout};
use crate::rpc::operation::{OperationCode, OperationError, Question};

/// Questions asked at the same time, because a node that is busy or far away takes long for each.
const AT_ONCE: usize = 8;

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Call(error) => error.into(),
            OperationError::Refused(refused) => {
                // The node that would have to answer cannot be reached.
                let is_away = refused.code.known() == Some(OperationCode::OwnerAway);
                Self::new(if is_away { Exit::Unreachable } else { Exit::Failed }, refused.message)
            }
        }
    }
}

/// Asks, and prints the answer as this text.
pub(super) async fn show<A: DeserializeOwned>(
    context: &CliContext,
    question: Question<A>,
    text: impl Fn(&A) -> String,
) -> Result<Exit, Failure> {
    each(context, [((), question)], |(), answer| context.output.line(&text(answer))).await
}

/// Asks for things that are called `what`, and prints them under these columns.
pub(super) async fn list<A: DeserializeOwned, T>(
    context: &CliContext,
    question: Question<A>,
    what: &str,
    things: impl Fn(&A) -> Vec<T>,
    columns: &[Column<T>],
    layout: Layout,
) -> Result<Exit, Failure> {
    each(context, [((), question)], |(), answer| context.output.list(what, &things(answer), columns, layout))
        .await
}

/// Has something done, and prints that in these words.
pub(super) async fn act<A: DeserializeOwned>(
    context: &CliContext,
    question: Question<A>,
    words: impl Fn(&A) -> String,
) -> Result<Exit, Failure> {
    each(context, [((), question)], |(), answer| context.output.done(&words(answer))).await
}

/// Asks a question about each of several things, and prints the answers in their order. The others are asked even if
/// one is refused.
///
/// # Errors
/// The last refusal, or standard output cannot be written.
pub(super) async fn each<T, A: DeserializeOwned>(
    context: &CliContext,
    questions: impl IntoIterator<Item = (T, Question<A>)>,
    print: impl Fn(T, &A) -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let mut last = Ok(Exit::Success);
    let ask = async |(thing, question): (T, Question<A>)| (thing, question.ask(&context.client).await);
    let mut answers = pin!(stream::iter(questions).map(ask).buffered(AT_ONCE));
    while let Some((thing, answer)) = answers.next().await {
        match answer {
            Ok(answer) if context.output.json => context.output.value(&answer.json)?,
            Ok(answer) => print(thing, &answer.report)?,
            Err(error) => {
                if let Err(before) = std::mem::replace(&mut last, Err(error.into())) {
                    context.output.failure(&before);
                }
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::operation::OperationRefusal;

    #[test]
    fn who_cannot_be_reached_has_refused_nothing() {
        for (code, exit) in [(OperationCode::OwnerAway, 69), (OperationCode::NotFound, 1)] {
            let refused = OperationError::from(OperationRefusal::new(code, "x"));
            assert_eq!(Failure::from(refused).exit.code(), exit, "{code:?}");
        }
    }
}
