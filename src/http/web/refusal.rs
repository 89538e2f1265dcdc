//! Why a request is not carried out: the codes of the API with their status, and the JSON around them.

use http::StatusCode;
use http::header::{ALLOW, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use schemars::JsonSchema;
use serde::Serialize;

use crate::http::answer::{self, HttpAnswer};
use crate::rpc::operation::{OperationCode, OperationRefusal};

/// After how many seconds who has asked too often may ask again.
const RETRY: &str = "2";

/// A code, and words for people.
#[derive(Debug)]
pub(super) struct ApiRefusal {
    code: Code,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    /// The path allows only these methods.
    MethodNotAllowed(&'static str),
    Conflict,
    Refused,
    StoreAway,
    OwnerAway,
    TooLarge,
    TooMany,
    Misdirected,
    /// Too many answers are unread.
    Busy,
}

/// As clients read it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ErrorReport {
    error: ErrorDetail,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ErrorDetail {
    code: &'static str,
    message: String,
}

impl Code {
    const fn parts(self) -> (StatusCode, &'static str) {
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, "bad_request"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed(_) => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::Conflict => (StatusCode::CONFLICT, "conflict"),
            Self::Refused => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
            Self::StoreAway => (StatusCode::SERVICE_UNAVAILABLE, "store_away"),
            Self::OwnerAway => (StatusCode::SERVICE_UNAVAILABLE, "owner_away"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too_many"),
            Self::Misdirected => (StatusCode::MISDIRECTED_REQUEST, "misdirected"),
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        }
    }
}

impl ApiRefusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message)
    }
}

impl From<OperationRefusal> for ApiRefusal {
    fn from(refused: OperationRefusal) -> Self {
        let code = match refused.code.known() {
            Some(OperationCode::BadRequest | OperationCode::UnknownOp) => Code::BadRequest,
            Some(OperationCode::NotFound) => Code::NotFound,
            Some(OperationCode::Conflict) => Code::Conflict,
            Some(OperationCode::StoreAway) => Code::StoreAway,
            Some(OperationCode::OwnerAway) => Code::OwnerAway,
            Some(OperationCode::Refused) | None => Code::Refused,
        };
        Self::new(code, refused.message)
    }
}

impl From<ApiRefusal> for HttpAnswer {
    fn from(refused: ApiRefusal) -> Self {
        let (status, code) = refused.code.parts();
        let told = ErrorReport { error: ErrorDetail { code, message: refused.message } };
        let mut answer = answer::json(status, &told);
        match refused.code {
            Code::Unauthorized => {
                answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Code::TooMany => {
                answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY));
            }
            Code::MethodNotAllowed(allowed) => {
                answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            }
            _ => {}
        }
        answer
    }
}
