//! Errors of the API server, sorted into the classes that callers decide by. Each class keeps the server's
//! own message word for word, as clients search it.

use std::time::Duration;

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// There was no complete answer: no connection, a broken one, or a timeout. The server may have executed
    /// the request.
    #[error(transparent)]
    Unreachable(ApiUnreachable),
    /// 429 and 5xx: the server, or the kubelet behind it, cannot serve the request now.
    #[error("{message}")]
    Busy {
        /// The server's message.
        message: String,
        /// How long the server asks us to wait.
        retry_after: Option<Duration>,
    },
    /// 401: the credential is invalid or has expired.
    #[error("{0}")]
    Unauthorized(String),
    /// 403: the credential does not permit this.
    #[error("{0}")]
    Forbidden(String),
    /// 403: a quota leaves no room for another pod in the namespace.
    #[error("{0}")]
    Quota(String),
    /// 404.
    #[error("{0}")]
    NotFound(String),
    /// 409: the name is taken, or the pod is not the expected one.
    #[error("{0}")]
    Conflict(String),
    /// Any other error; a retry would not help.
    #[error("{0}")]
    Rejected(String),
}

/// There was no complete answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ApiUnreachable {
    /// Which server, and the cause.
    pub text: String,
    /// There was a connection: the server may have executed the request.
    pub was_connected: bool,
    /// How long waiting is worth while.
    pub patience: AnswerPatience,
}

/// How long waiting for an answer is worth while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerPatience {
    /// Not at all: no server with this address and authority ever answered, and waiting corrects neither.
    None,
    /// A little: no server with this address and authority ever answered, but there may be an outage.
    Short,
    /// As long as an outage may last: address and authority are right.
    Outage,
}

impl From<String> for ApiUnreachable {
    fn from(text: String) -> Self {
        Self { text, was_connected: true, patience: AnswerPatience::Outage }
    }
}

impl From<&str> for ApiUnreachable {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl ApiError {
    /// Classifies an HTTP answer, with the message of its Status object.
    pub fn from_status(code: u16, message: String, retry_after: Option<Duration>) -> Self {
        match code {
            401 => Self::Unauthorized(message),
            // The API has no other mark for quotas; AWX goes by the same words.
            403 if message.contains("exceeded quota") => Self::Quota(message),
            403 => Self::Forbidden(message),
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            408 | 429 | 500..=599 => Self::Busy { message, retry_after },
            _ => Self::Rejected(message),
        }
    }

    /// Whether the same request may succeed later by itself.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Busy { .. } => true,
            Self::Unauthorized(_)
            | Self::Forbidden(_)
            | Self::Quota(_)
            | Self::NotFound(_)
            | Self::Conflict(_)
            | Self::Rejected(_) => false,
        }
    }

    /// Whether the server may have executed the request. It did not if it refused the request or was never reached.
    pub fn may_have_been_executed(&self) -> bool {
        match self {
            Self::Unreachable(error) => error.was_connected,
            other => other.is_passing(),
        }
    }

    /// How long a request that may succeed later by itself is worth repeating.
    pub fn patience(&self) -> AnswerPatience {
        match self {
            Self::Unreachable(error) => error.patience,
            Self::Busy { .. }
            | Self::Unauthorized(_)
            | Self::Forbidden(_)
            | Self::Quota(_)
            | Self::NotFound(_)
            | Self::Conflict(_)
            | Self::Rejected(_) => AnswerPatience::Outage,
        }
    }

    /// How long the server asks us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { retry_after, .. } => *retry_after,
            Self::Unreachable(_)
            | Self::Unauthorized(_)
            | Self::Forbidden(_)
            | Self::Quota(_)
            | Self::NotFound(_)
            | Self::Conflict(_)
            | Self::Rejected(_) => None,
        }
    }
}

/// The server's messages when it could not reach the kubelet after it had accepted the stream.
const NEVER_ATTACHED: [&str; 2] = ["error dialing backend", "unable to upgrade connection"];

/// Whether an error on an attach stream means that the container was never attached to, so that no data sent
/// over this stream can have reached it. The API server upgrades a WebSocket before it connects to the
/// kubelet; only the text of the error shows the result.
pub fn was_never_attached(message: &str) -> bool {
    NEVER_ATTACHED.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_classes_and_keep_their_words() {
        let quota =
            "pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
        let class = |code, message: &str| ApiError::from_status(code, message.to_owned(), None);
        assert_eq!(class(403, quota), ApiError::Quota(quota.into()));
        assert_eq!(class(403, quota).to_string(), quota);
        assert_eq!(class(403, "no"), ApiError::Forbidden("no".into()));
        for code in [408, 429, 500, 502, 503, 504] {
            assert!(class(code, "later").is_passing(), "{code}");
        }
        for code in [400, 401, 403, 404, 405, 409, 410, 422] {
            assert!(!class(code, "never").is_passing(), "{code}");
        }
        let busy = ApiError::from_status(429, String::new(), Some(Duration::from_secs(7)));
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn a_kubelet_that_was_not_reached_got_nothing() {
        assert!(was_never_attached("error dialing backend: remote error: tls: internal error"));
        assert!(was_never_attached("unable to upgrade connection: container worker not found in pod w_ns"));
        assert!(!was_never_attached("stream error: broken pipe"));
    }
}
