//! Errors by whose text a client decides: each text is in the table of `rpc`.

use crate::control::{ReloadError, RequestRefusal, reload};
use crate::rpc::request::RequestError;
use crate::rpc::{ErrorCode, ErrorLine};
use crate::work::WorkError;
use crate::work::signing::SignatureError;

fn code(error: impl ToString) -> ErrorCode {
    ErrorLine::new(error.to_string()).code()
}

#[test]
fn what_this_program_prints_is_in_the_table() {
    let unit = || "abcd".to_owned();
    for (error, wanted) in [
        (WorkError::UnknownUnit(unit()), ErrorCode::UnknownUnit),
        (WorkError::Released { unit: unit(), seconds: 3 }, ErrorCode::ReleasedUnit),
        (WorkError::UnknownType("sh".to_owned()), ErrorCode::UnknownWorkType),
        (WorkError::InUse(unit()), ErrorCode::UnitIdInUse),
        (WorkError::SubmittedAgain(unit()), ErrorCode::SubmittedAgain),
        (WorkError::EndedEarly(unit()), ErrorCode::Other),
        (WorkError::UnexpectedSignature, ErrorCode::Signature),
        (WorkError::OtherPayload, ErrorCode::Signature),
        (SignatureError::Empty.into(), ErrorCode::Signature),
        (SignatureError::Replayed.into(), ErrorCode::Signature),
        (SignatureError::Busy.into(), ErrorCode::SignatureNotYet),
        (SignatureError::Earlier.into(), ErrorCode::SignatureNotYet),
        (WorkError::UnknownProfile("unknown work unit".to_owned()), ErrorCode::UnknownTlsProfile),
    ] {
        assert_eq!(code(&error), wanted, "{error}");
    }
    assert_eq!(code(RequestError::UnknownCommand), ErrorCode::UnknownCommand);
    assert_eq!(code(RequestError::BadSubcommand), ErrorCode::UnknownCommand);
    assert_eq!(code(RequestRefusal::NotAllowed("reload")), ErrorCode::NotAllowed);
    let fixed = ReloadError::NotReloadable { why: String::new(), of_receptor: "node: id".to_owned() };
    assert_eq!(code(reload::line(&fixed)), ErrorCode::NeedsRestart);
    assert_eq!(code(reload::line(&ReloadError::Invalid("line 3".to_owned()))), ErrorCode::BadConfiguration);
}
