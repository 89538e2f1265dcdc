//! The notation in words, split at single spaces: two spaces enclose an empty word, as in the Go node.
//!
//! Knows nothing of JSON. Words carry no signature, no time limit and no TLS profile for work.

use std::collections::BTreeMap;

use super::{Follow, LinkTest, Request, RequestError, SubmitRequest, WorkRequest, given, integer, position};

/// Reads a line of words. The command's case does not matter.
pub(super) fn parse(line: &str) -> Result<Request, RequestError> {
    let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
    match command.to_lowercase().as_str() {
        "status" if rest.is_empty() => Ok(Request::Status { fields: None }),
        "status" => Err(RequestError::StatusParameters),
        "ping" => Ok(Request::Ping { target: given(rest).ok_or(RequestError::NoTarget("ping"))? }),
        "traceroute" => {
            Ok(Request::Traceroute { target: given(rest).ok_or(RequestError::NoTarget("traceroute"))? })
        }
        "connect" => connect(rest),
        "reload" => Ok(Request::Reload),
        "node" => match rest.split_once(' ') {
            Some((forget, node)) if forget.eq_ignore_ascii_case("forget") => {
                Ok(Request::NodeForget { node: node.to_owned() })
            }
            Some((cache, clear))
                if cache.eq_ignore_ascii_case("cache") && clear.eq_ignore_ascii_case("clear") =>
            {
                Ok(Request::NodeCache { clear: true })
            }
            None if rest.eq_ignore_ascii_case("cache") => Ok(Request::NodeCache { clear: false }),
            Some(_) | None => Err(RequestError::BadSubcommand),
        },
        "link" => match rest.split_once(' ') {
            Some((test, node)) if test.eq_ignore_ascii_case("test") => {
                let (seconds, mb) = (LinkTest::SECONDS, LinkTest::MB);
                Ok(Request::LinkTest(LinkTest { node: node.to_owned(), seconds, mb }))
            }
            Some(_) | None => Err(RequestError::BadSubcommand),
        },
        "loglevel" if rest.contains(' ') => Err(RequestError::TooManyParameters),
        "loglevel" => Ok(Request::LogLevel { level: given(rest) }),
        "work" => work(rest).map(Request::Work),
        _ if is_other_protocol(command, rest) => Err(RequestError::OtherProtocol),
        _ => Err(RequestError::UnknownCommand),
    }
}

/// Whether the line begins an HTTP request, as in `POST / HTTP/1.1`, or begins with a control character, as TLS does.
fn is_other_protocol(command: &str, rest: &str) -> bool {
    let is_http = rest.rsplit(' ').next().is_some_and(|version| version.starts_with("HTTP/"));
    is_http || command.starts_with(char::is_control)
}

fn connect(rest: &str) -> Result<Request, RequestError> {
    let words: Vec<&str> = rest.split(' ').collect();
    let (node, service, tls) = match words[..] {
        [node, service] => (node, service, ""),
        [node, service, tls] => (node, service, tls),
        [] | [_] => return Err(RequestError::NoTarget("connect")),
        _ => return Err(RequestError::TooManyParameters),
    };
    Ok(Request::Connect { node: node.to_owned(), service: service.to_owned(), tls: given(tls) })
}

fn work(rest: &str) -> Result<WorkRequest, RequestError> {
    let (subcommand, rest) = match rest.split_once(' ') {
        Some((subcommand, rest)) => (subcommand, Some(rest)),
        None => (rest, None),
    };
    match subcommand.to_lowercase().as_str() {
        "submit" => submit(rest.unwrap_or_default()).map(WorkRequest::Submit),
        "list" => {
            let unit = rest.map(|rest| rest.split(' ').next().unwrap_or_default().to_owned());
            Ok(WorkRequest::List { unit })
        }
        "status" => Ok(WorkRequest::Status { unit: only_unit("status", rest)?, signature: None }),
        "cancel" => Ok(WorkRequest::Cancel { unit: only_unit("cancel", rest)?, signature: None }),
        "release" => release("release", rest),
        "force-release" => release("force-release", rest),
        "results" => results(rest),
        _ => Err(RequestError::BadSubcommand),
    }
}

/// `NODE TYPE [PARAMS…]`; all that follows the type is one parameter, with its spaces.
fn submit(rest: &str) -> Result<SubmitRequest, RequestError> {
    let (node, rest) = rest.split_once(' ').ok_or(RequestError::SubmitIncomplete)?;
    let (work_type, params) = match rest.split_once(' ') {
        Some((work_type, params)) => (work_type, Some(params)),
        None => (rest, None),
    };
    Ok(SubmitRequest {
        node: node.to_owned(),
        work_type: work_type.to_owned(),
        params: params
            .map(|params| ("params".to_owned(), params.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        tls_client: None,
        ttl: None,
        sign_work: false,
        signature: None,
        payload_length: None,
        unit_id: None,
        at_once: false,
        in_pieces: false,
    })
}

fn release(name: &'static str, rest: Option<&str>) -> Result<WorkRequest, RequestError> {
    Ok(WorkRequest::Release {
        unit: only_unit(name, rest)?,
        force: name == "force-release",
        sweep: false,
        signature: None,
    })
}

fn only_unit(name: &'static str, rest: Option<&str>) -> Result<String, RequestError> {
    let unit = rest.ok_or(RequestError::NoUnit(name))?;
    if unit.contains(' ') { Err(RequestError::AfterUnit(name)) } else { Ok(unit.to_owned()) }
}

fn results(rest: Option<&str>) -> Result<WorkRequest, RequestError> {
    let rest = rest.ok_or(RequestError::NoUnit("results"))?;
    let (unit, start) = rest.split_once(' ').unwrap_or((rest, "0"));
    if start.contains(' ') {
        return Err(RequestError::AfterStart);
    }
    let start = position(integer(start).map_err(RequestError::Start)?)?;
    Ok(WorkRequest::Results(Follow { unit: unit.to_owned(), start, signature: None, ends_with_unit: false }))
}
