//! The notation as one JSON object with the keys `command` and, for work, `subcommand`.
//!
//! Keys that a command does not know are ignored, except by submit, where they are the work type's parameters.
//! Nesting is bounded by the JSON reader.

use std::collections::BTreeMap;

use serde_json::error::Category;
use serde_json::{Map, Value};

use super::{
    AdoptRequest, CHOSEN_ID, DoctorRequest, Follow, LinkTest, MOST_MB, MOST_SECONDS, Request, RequestError,
    SubmitRequest, WorkRequest, given, integer, position,
};

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
            "cache" => {
                Ok(Request::NodeCache { clear: object.get("clear").is_some_and(|flag| *flag == true) })
            }
            _ => Err(RequestError::BadSubcommand),
        },
        "link" => match text(&object, "subcommand")?.to_lowercase().as_str() {
            "test" => link_test(&object).map(Request::LinkTest),
            _ => Err(RequestError::BadSubcommand),
        },
        "loglevel" => log_level(&object),
        "doctor" => {
            let given = |key| object.get(key).and_then(Value::as_str).and_then(given);
            let (node, tls_client, signature) = (given("node"), given("tlsclient"), given("signature"));
            Ok(Request::Doctor(DoctorRequest { node, tls_client, signature }))
        }
        "controller" => {
            let mut operation = object;
            operation.remove("command");
            Ok(Request::Controller { operation })
        }
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

fn link_test(object: &Object) -> Result<LinkTest, RequestError> {
    let number = |key: &'static str, otherwise: u64, most: u64| match object.get(key) {
        None => Ok(otherwise),
        Some(value) => value
            .as_u64()
            .filter(|number| (1..=most).contains(number))
            .ok_or(RequestError::OutOfRange(key, most)),
    };
    Ok(LinkTest {
        node: text(object, "node")?,
        seconds: number("seconds", LinkTest::SECONDS, MOST_SECONDS)?,
        mb: number("mb", LinkTest::MB, MOST_MB)?,
    })
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
        "start" => start(object).map(WorkRequest::Submit).map_err(|e| RequestError::BadStart(Box::new(e))),
        "adopt" => Ok(WorkRequest::Adopt(AdoptRequest {
            node: text(&object, "node")?,
            unit: unit()?,
            tls_client: object.get("tlsclient").and_then(Value::as_str).and_then(given),
            sign_work: object.get("signwork").is_some_and(|text| text == "true"),
            signature: signature(),
        })),
        "list" => Ok(WorkRequest::List { unit: unit().ok() }),
        "status" => Ok(WorkRequest::Status { unit: unit()?, signature: signature() }),
        "cancel" => Ok(WorkRequest::Cancel { unit: unit()?, signature: signature() }),
        name @ ("release" | "force-release") => Ok(WorkRequest::Release {
            unit: unit()?,
            force: name == "force-release",
            sweep: object.get("sweep").is_some_and(|text| text == "true"),
            signature: signature(),
        }),
        "disclaim" => Ok(WorkRequest::Disclaim {
            unit: unit()?,
            work_type: text(&object, "worktype")?,
            signature: signature(),
        }),
        "results" => Ok(WorkRequest::Results(follow(&object, signature())?)),
        "follow" => Ok(WorkRequest::Follow(follow(&object, signature())?)),
        "stderr" => Ok(WorkRequest::Stderr(follow(&object, signature())?)),
        _ => Err(RequestError::BadSubcommand),
    }
}

/// The key for [`Follow::ends_with_unit`], from clients that learn of the unit's end by its status. Other nodes ignore
/// it.
const ENDS_WITH_UNIT: &str = "endswithunit";

fn follow(object: &Object, signature: Option<String>) -> Result<Follow, RequestError> {
    let ends_with_unit = object.get(ENDS_WITH_UNIT).is_some_and(|flag| *flag == true);
    Ok(Follow { unit: text(object, "unitid")?, start: start_position(object)?, signature, ends_with_unit })
}

/// The key for [`SubmitRequest::in_pieces`]. It is no text, so that a node that does not know it refuses the line.
const IN_PIECES: &str = "payloadpieces";

fn start(mut object: Object) -> Result<SubmitRequest, RequestError> {
    let in_pieces = object.get(IN_PIECES).is_some_and(|flag| *flag == true);
    if in_pieces {
        object.remove(IN_PIECES);
    }
    let submit = submit(object)?;
    submit.unit_id.as_ref().ok_or(RequestError::FieldMissing(CHOSEN_ID))?;
    Ok(SubmitRequest { at_once: true, in_pieces, ..submit })
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
        at_once: false,
        in_pieces: false,
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
fn start_position(object: &Object) -> Result<u64, RequestError> {
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

/// The request as an object that [`parse`] reads back.
pub(super) fn print(request: &Request) -> Value {
    let mut line = Line::default();
    let name = match request {
        Request::Work(WorkRequest::Release { force: true, .. }) => "work force-release",
        other => other.name(),
    };
    let mut words = name.splitn(2, ' ');
    line.add_given("command", words.next());
    line.add_given("subcommand", words.next());
    match request {
        Request::Status { fields } => line
            .0
            .extend(fields.as_ref().map(|fields| ("requested_fields".to_owned(), fields.clone().into()))),
        Request::Ping { target } | Request::Traceroute { target } => line.add([("target", target)]),
        Request::Connect { node, service, tls } => {
            line.add([("node", node), ("service", service)]);
            line.add_given("tls", tls.as_deref());
        }
        Request::Reload => {}
        Request::NodeForget { node } => line.add([("node", node)]),
        Request::NodeCache { clear } => line.0.extend(clear.then(|| ("clear".to_owned(), true.into()))),
        Request::LinkTest(LinkTest { node, seconds, mb }) => {
            line.add([("node", node)]);
            line.0.extend(
                [("seconds", seconds), ("mb", mb)].map(|(key, &value)| (key.to_owned(), value.into())),
            );
        }
        Request::LogLevel { level } => line.add_given("level", level.as_deref()),
        Request::Doctor(DoctorRequest { node, tls_client, signature }) => {
            line.add_given("node", node.as_deref());
            line.add_given("tlsclient", tls_client.as_deref());
            line.add_given("signature", signature.as_deref());
        }
        // No key of an operation may replace the command.
        Request::Controller { operation } => {
            let operation = operation.iter().filter(|(key, _)| *key != "command");
            line.0.extend(operation.map(|(key, value)| (key.clone(), value.clone())));
        }
        Request::Work(request) => print_work(request, &mut line),
    }
    Value::Object(line.0)
}

fn print_work(request: &WorkRequest, line: &mut Line) {
    match request {
        WorkRequest::Submit(submit) => print_submit(submit, line),
        WorkRequest::Adopt(AdoptRequest { node, unit, tls_client, sign_work, signature }) => {
            line.add([("node", node), ("unitid", unit)]);
            line.add_given("tlsclient", tls_client.as_deref());
            line.add_given("signwork", sign_work.then_some("true"));
            line.add_given("signature", signature.as_deref());
        }
        WorkRequest::List { unit } => line.add_given("unitid", unit.as_deref()),
        WorkRequest::Status { unit, signature } | WorkRequest::Cancel { unit, signature } => {
            line.add([("unitid", unit)]);
            line.add_given("signature", signature.as_deref());
        }
        WorkRequest::Release { unit, force: _, sweep, signature } => {
            line.add([("unitid", unit)]);
            line.add_given("sweep", sweep.then_some("true"));
            line.add_given("signature", signature.as_deref());
        }
        WorkRequest::Disclaim { unit, work_type, signature } => {
            line.add([("unitid", unit), ("worktype", work_type)]);
            line.add_given("signature", signature.as_deref());
        }
        WorkRequest::Results(Follow { unit, start, signature, ends_with_unit })
        | WorkRequest::Stderr(Follow { unit, start, signature, ends_with_unit })
        | WorkRequest::Follow(Follow { unit, start, signature, ends_with_unit }) => {
            line.add([("unitid", unit)]);
            line.0.insert("startpos".to_owned(), (*start).into());
            line.0.extend(ends_with_unit.then(|| (ENDS_WITH_UNIT.to_owned(), true.into())));
            line.add_given("signature", signature.as_deref());
        }
    }
}

/// All values are strings, as nodes demand. The request's own fields come first, so that no parameter replaces one.
fn print_submit(submit: &SubmitRequest, line: &mut Line) {
    line.add([("node", &submit.node), ("worktype", &submit.work_type)]);
    line.add_given("tlsclient", submit.tls_client.as_deref());
    line.add_given("ttl", submit.ttl.as_deref());
    line.add_given("signwork", submit.sign_work.then_some("true"));
    line.add_given("signature", submit.signature.as_deref());
    line.add_given("payloadlength", submit.payload_length.map(|length| length.to_string()).as_deref());
    if submit.in_pieces {
        line.0.insert(IN_PIECES.to_owned(), true.into());
    }
    line.add_given(CHOSEN_ID, submit.unit_id.as_deref());
    for (name, value) in &submit.params {
        line.0.entry(name).or_insert_with(|| value.as_str().into());
    }
}

/// A line under construction.
#[derive(Default)]
struct Line(Object);

impl Line {
    fn add<const N: usize>(&mut self, members: [(&str, &str); N]) {
        self.0.extend(members.map(|(key, value)| (key.to_owned(), value.into())));
    }

    fn add_given(&mut self, key: &str, value: Option<&str>) {
        self.0.extend(value.map(|value| (key.to_owned(), value.into())));
    }
}
