//! The notation as one JSON object with the keys `command` and, for work, `subcommand`.
//!
//! Keys that a command does not know are ignored, except by submit, where they are the work type's parameters.
//! Nesting is bounded by the JSON reader.

use std::collections::BTreeMap;

use serde_json::error::Category;
use serde_json::{Map, Value};

use super::{
    AdoptRequest, Follow, Request, RequestError, SubmitRequest, WorkRequest, given, integer, position,
};
use crate::work::signing::CHOSEN_ID;

type Object = Map<String, Value>;

/// Reads a line that begins with a brace.
pub(super) fn parse(line: &str) -> Result<Request, RequestError> {
    let object: Object = serde_json::from_str(line).map_err(|error| match error.classify() {
        Category::Eof => RequestError::JsonEnds,
        Category::Io | Category::Syntax | Category::Data => RequestError::Json(error.to_string()),
    })?;
    let command = object.get("command").ok_or(RequestError::NoCommand)?;
    match command.as_str().ok_or(RequestError::CommandNotString)? {
        "status" => Ok(Request::Status { fields: requested_fields(&object)? }),
        "ping" => Ok(Request::Ping { target: target(&object, "ping")? }),
        "traceroute" => Ok(Request::Traceroute { target: target(&object, "traceroute")? }),
        "connect" => connect(&object),
        "reload" => Ok(Request::Reload),
        "node" => match text(&object, "subcommand")?.to_lowercase().as_str() {
            "forget" => Ok(Request::NodeForget { node: text(&object, "node")? }),
            _ => Err(RequestError::BadSubcommand),
        },
        "loglevel" => log_level(&object),
        "work" => work(object).map(Request::Work),
        _ => Err(RequestError::UnknownCommand),
    }
}

fn requested_fields(object: &Object) -> Result<Option<Vec<String>>, RequestError> {
    let Some(fields) = object.get("requested_fields") else { return Ok(None) };
    let fields = fields.as_array().ok_or(RequestError::FieldsNotArray)?;
    let texts = fields.iter().map(|field| field.as_str().map(str::to_owned));
    texts.collect::<Option<_>>().map(Some).ok_or(RequestError::FieldsNotStrings)
}

fn log_level(object: &Object) -> Result<Request, RequestError> {
    match object.get("level") {
        None => Ok(Request::LogLevel { level: None }),
        Some(Value::String(level)) => Ok(Request::LogLevel { level: given(level) }),
        Some(_) => Err(RequestError::LevelNotString),
    }
}

fn target(object: &Object, command: &'static str) -> Result<String, RequestError> {
    let value = object.get("target").ok_or(RequestError::NoTarget(command))?;
    value.as_str().map(str::to_owned).ok_or(RequestError::TargetNotString(command))
}

fn connect(object: &Object) -> Result<Request, RequestError> {
    let tls = match object.get("tls") {
        None => None,
        Some(Value::String(name)) => given(name),
        Some(_) => return Err(RequestError::TlsNotString),
    };
    Ok(Request::Connect {
        node: connect_name(object, "node")?,
        service: connect_name(object, "service")?,
        tls,
    })
}

fn connect_name(object: &Object, key: &'static str) -> Result<String, RequestError> {
    let value = object.get(key).ok_or(RequestError::NoConnect(key))?;
    value.as_str().map(str::to_owned).ok_or(RequestError::ConnectNotString(key))
}

fn work(object: Object) -> Result<WorkRequest, RequestError> {
    let signature = || object.get("signature").and_then(Value::as_str).and_then(given);
    let unit = || text(&object, "unitid");
    match text(&object, "subcommand")?.to_lowercase().as_str() {
        "submit" => submit(object).map(WorkRequest::Submit),
        "adopt" => Ok(WorkRequest::Adopt(AdoptRequest {
            node: text(&object, "node")?,
            unit: unit()?,
            tls_client: object.get("tlsclient").and_then(Value::as_str).and_then(given),
            sign_work: object.get("signwork").is_some_and(|text| text == "true"),
            signature: signature(),
        })),
        "list" => Ok(WorkRequest::List { unit: unit().ok() }),
        "status" => Ok(WorkRequest::Status { unit: unit()? }),
        "cancel" => Ok(WorkRequest::Cancel { unit: unit()?, signature: signature() }),
        "release" => Ok(WorkRequest::Release { unit: unit()?, force: false, signature: signature() }),
        "force-release" => Ok(WorkRequest::Release { unit: unit()?, force: true, signature: signature() }),
        "results" => Ok(WorkRequest::Results(follow(&object, signature())?)),
        "follow" => Ok(WorkRequest::Follow(follow(&object, signature())?)),
        _ => Err(RequestError::BadSubcommand),
    }
}

fn follow(object: &Object, signature: Option<String>) -> Result<Follow, RequestError> {
    Ok(Follow { unit: text(object, "unitid")?, start: start(object)?, signature })
}

fn submit(object: Object) -> Result<SubmitRequest, RequestError> {
    let mut texts = BTreeMap::new();
    for (key, value) in object {
        let Value::String(value) = value else { return Err(RequestError::SubmitNotString(key)) };
        texts.insert(key, value);
    }
    let mut take = |key: &'static str| texts.remove(key);
    let (_, _) = (take("command"), take("subcommand"));
    Ok(SubmitRequest {
        node: take("node").ok_or(RequestError::FieldMissing("node"))?,
        work_type: take("worktype").ok_or(RequestError::FieldMissing("worktype"))?,
        tls_client: take("tlsclient").and_then(given),
        ttl: take("ttl").and_then(given),
        // The Go node takes every other text for false as well.
        sign_work: take("signwork").is_some_and(|text| text == "true"),
        signature: take("signature").and_then(given),
        payload_length: take("payloadlength").and_then(given).map(payload_length).transpose()?,
        unit_id: take(CHOSEN_ID).and_then(given),
        params: texts,
    })
}

fn payload_length(digits: String) -> Result<u64, RequestError> {
    let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| is_decimal).ok_or(RequestError::PayloadLength(digits))
}

fn text(object: &Object, key: &'static str) -> Result<String, RequestError> {
    let value = object.get(key).ok_or(RequestError::FieldMissing(key))?;
    value.as_str().map(str::to_owned).ok_or(RequestError::FieldNotString(key))
}

/// `startpos` must be a number; a number in quotes is refused, as by the Go node, so that clients notice.
fn start(object: &Object) -> Result<u64, RequestError> {
    const KEY: &str = "startpos";
    let value = object.get(KEY).ok_or(RequestError::FieldMissing(KEY))?;
    let refused = |shown: String| Err(RequestError::FieldNotInteger(KEY, shown));
    match value {
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => Ok(whole),
            // The cast drops the fraction and stops at the ends of the range.
            (None, Some(float)) => position(float as i64),
            (None, None) => refused(number.to_string()),
        },
        Value::String(digits) => {
            integer(digits)?;
            refused(digits.clone())
        }
        Value::Bool(flag) => refused(format!("%!s(bool={flag})")),
        Value::Null => refused("%!s(<nil>)".to_owned()),
        Value::Array(_) | Value::Object(_) => refused(value.to_string()),
    }
}
