//! What the API asks of the controller: lists, jobs, their output and events, changes, and new jobs, whose payload goes to the
//! work engine as it comes. Owns how arguments and bodies become operations, and what of the answers is not for everybody.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::header::HeaderValue;
use http::{HeaderName, StatusCode};
use http_body_util::BodyExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, interval_at, timeout};

use super::gate::Visitor;
use super::query::ParameterKind;
use super::refusal::{ApiRefusal, Code};
use super::{ApiRequest, StreamPlace, Web, public, small};
use crate::control::OperationStream;
use crate::http::answer::{self, HttpAnswer};
use crate::http::server::RequestBody;
use crate::rpc::operation::{self, Operation};
use crate::rpc::report::{JobKind, JobState};
use crate::rpc::request::SubmitRequest;
use crate::tls::AccessLevel;
use crate::work::WorkError;
use crate::work::jobs::{CONTROLLER, HEADER, LONGEST_HEADER, is_header};

/// How long a payload may stop coming.
const SILENT: Duration = Duration::from_secs(60);
/// Bytes of a payload that have to come in a minute, and over how long that is measured.
const LEAST: u64 = 64 << 10;
const MEASURED: Duration = Duration::from_secs(180);
/// What is still read of a payload that was refused, so that the client gets to reading why.
const DRAINED: usize = 16 << 20;
const DRAINED_WITHIN: Duration = Duration::from_secs(2);
/// How often it is looked whether a client whose answer goes on is still admitted.
const LOOK: Duration = Duration::from_secs(15);

/// Why a part of the output is not there.
const MISSING: HeaderName = HeaderName::from_static("x-output-missing");

/// The operation of which nobody without a level reads more than he is shown.
pub(super) const LIST: &str = "job.list";

pub(super) const NDJSON: &str = "application/x-ndjson";

pub(super) const OF_JOBS: &[(&str, ParameterKind)] = &[
    ("state", ParameterKind::many::<JobState>()),
    ("kind", ParameterKind::many::<JobKind>()),
    ("name", ParameterKind::Text),
    ("group", ParameterKind::Text),
    ("node", ParameterKind::Text),
    ("since", ParameterKind::Time),
    ("until", ParameterKind::Time),
    ("before", ParameterKind::ID),
    ("limit", ParameterKind::Number(1, 1000)),
];
pub(super) const OF_OUTPUT: &[(&str, ParameterKind)] = &[
    ("from", ParameterKind::PLACE),
    ("attempt", ParameterKind::Number(1, u32::MAX as i64)),
    ("follow", ParameterKind::Flag),
];
pub(super) const OF_EVENTS: &[(&str, ParameterKind)] = &[
    ("from", ParameterKind::PLACE),
    ("host", ParameterKind::Text),
    ("failed", ParameterKind::Flag),
    ("follow", ParameterKind::Flag),
];

/// A job that was taken in. Its number is missing while the store is away.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NewJob {
    id: Option<i64>,
    unit: String,
}

/// What is said of a job that shall run again.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Again {
    /// On the hosts alone that failed or were not reached.
    failed_hosts: bool,
}

impl Web {
    /// What the controller answers, of which somebody without a level sees less. A body says nothing here.
    pub(super) async fn operate(&self, asked: ApiRequest, op: &str) -> Result<HttpAnswer, ApiRefusal> {
        let ApiRequest { visitor, mut arguments, body, .. } = asked;
        let (_ignored, sees_all) = (small(body).await?, visitor.level >= AccessLevel::Read);
        if !sees_all && op == LIST {
            arguments.insert("brief".to_owned(), Value::from(true));
        }
        let (mut answer, _) = self.ask(&visitor, op, arguments).await?;
        if !sees_all {
            public::reduce(&mut answer);
        }
        self.told(&visitor, answer).await
    }

    pub(super) async fn rerun(&self, asked: ApiRequest) -> Result<HttpAnswer, ApiRefusal> {
        let ApiRequest { visitor, mut arguments, body, .. } = asked;
        let body = small(body).await?;
        // An object, not the list that would do as well.
        let given = if body.is_empty() { Ok(Map::new()) } else { serde_json::from_slice(&body) };
        let again = given.and_then(|given| serde_json::from_value(Value::Object(given)));
        let Again { failed_hosts } =
            again.map_err(|_| ApiRefusal::bad("the body is {\"failed_hosts\": true}"))?;
        arguments.insert("failed_hosts".to_owned(), Value::from(failed_hosts));
        let (answer, _) = self.ask(&visitor, "job.rerun", arguments).await?;
        self.told(&visitor, answer).await
    }

    /// Bytes as the runner wrote them.
    pub(super) async fn output(self: Arc<Self>, asked: ApiRequest) -> Result<HttpAnswer, ApiRefusal> {
        let place = self.place(&asked.visitor)?;
        let (answer, rest) = self.stream(&asked.visitor, "job.output", asked.arguments).await?;
        let missing = match answer {
            operation::Answer::ReadOutput(begins) => begins.missing,
            _ => None,
        };
        let mut answer = self.follow(asked.visitor, place, answer::TEXT, rest, Bytes::new());
        if let Some(why) = missing.and_then(|why| HeaderValue::try_from(why).ok()) {
            answer.headers_mut().insert(MISSING, why);
        }
        Ok(answer)
    }

    pub(super) async fn job_events(self: Arc<Self>, asked: ApiRequest) -> Result<HttpAnswer, ApiRefusal> {
        let place = self.place(&asked.visitor)?;
        let (_, rest) = self.stream(&asked.visitor, "job.events", asked.arguments).await?;
        Ok(self.follow(asked.visitor, place, NDJSON, rest, Bytes::new()))
    }

    async fn stream(
        &self,
        visitor: &Visitor,
        op: &str,
        arguments: Map<String, Value>,
    ) -> Result<(operation::Answer, Box<dyn OperationStream>), ApiRefusal> {
        let (answer, rest) = self.ask(visitor, op, arguments).await?;
        Ok((answer, rest.ok_or_else(|| ApiRefusal::new(Code::Refused, "nothing follows"))?))
    }

    /// An answer that goes on for as long as there is something, the client reads, and is still admitted. What is sent
    /// while there is nothing, if that is anything, shows that it goes on.
    pub(super) fn follow(
        self: Arc<Self>,
        visitor: Visitor,
        place: StreamPlace,
        content_type: &'static str,
        rest: Box<dyn OperationStream>,
        idle: Bytes,
    ) -> HttpAnswer {
        let looks = interval_at(Instant::now() + LOOK, LOOK);
        let begin = Some((self, visitor, rest, looks, place));
        let pieces = unfold(begin, move |following| {
            let idle = idle.clone();
            async move {
                let (web, visitor, mut rest, mut looks, place) = following?;
                loop {
                    tokio::select! {
                        piece = rest.next() => {
                            return piece.map(|piece| (Ok(piece), Some((web, visitor, rest, looks, place))));
                        }
                        _ = looks.tick() => {
                            if !web.gate.still_admits(&visitor).await {
                                return Some((Err(io::ErrorKind::PermissionDenied.into()), None));
                            }
                            if !idle.is_empty() {
                                return Some((Ok(idle), Some((web, visitor, rest, looks, place))));
                            }
                        }
                    }
                }
            }
        });
        answer::stream(content_type, pieces)
    }

    /// A place for something that goes on: nobody has more of them than he leaves to others.
    pub(super) fn place(&self, visitor: &Visitor) -> Result<StreamPlace, ApiRefusal> {
        let place = self.streams.take(&visitor.caller().credentials.to_string());
        place.ok_or_else(|| ApiRefusal::new(Code::TooMany, "too much goes on here for the same client"))
    }

    /// A new job: the body is what `work submit` to the type `controller` takes. It is whole, or nothing of it stays, also
    /// where the client goes away.
    pub(super) async fn submit(self: Arc<Self>, asked: ApiRequest) -> Result<HttpAnswer, ApiRefusal> {
        self.controller()?;
        let place = self.place(&asked.visitor)?;
        asked.body.may_take_long();
        let submitted = tokio::spawn(async move {
            let ApiRequest { visitor, mut body, .. } = asked;
            let _place = place;
            let submitted = self.intake(&visitor, &mut body).await;
            if submitted.is_err() {
                drain(&mut body).await;
            }
            submitted
        });
        let gone = |error: tokio::task::JoinError| ApiRefusal::new(Code::Refused, error.to_string());
        let (unit, id) = submitted.await.map_err(gone)??;
        Ok(answer::json(StatusCode::CREATED, &NewJob { id, unit }))
    }

    /// The unit, and the job's number if the store has it already. A header in front of the stream becomes a parameter.
    async fn intake(
        &self,
        visitor: &Visitor,
        body: &mut RequestBody,
    ) -> Result<(String, Option<i64>), ApiRefusal> {
        let work = &self.context.work;
        let mut body =
            JobBody { web: self, visitor, body, looked: Instant::now(), rate: LeastRate::default() };
        let mut begin = Vec::new();
        while begin.len() <= LONGEST_HEADER
            && let Some(bytes) = body.next().await?
        {
            begin.extend_from_slice(&bytes);
            if bytes.contains(&b'\n') {
                break;
            }
        }
        let (header, begin) = split_header(&begin);
        let request = SubmitRequest {
            node: self.context.node.id().to_string(),
            work_type: CONTROLLER.to_owned(),
            params: header.into_iter().map(|header| (HEADER.to_owned(), header)).collect(),
            ..SubmitRequest::default()
        };
        let mut submission = work.submit(request, visitor.caller()).await?;
        let unit = submission.id().to_string();
        let written = async {
            submission.write(begin).await?;
            while let Some(bytes) = body.next().await? {
                submission.write(&bytes).await?;
            }
            Ok::<_, ApiRefusal>(())
        };
        if let Err(refused) = written.await {
            submission.discard(refused.message().to_owned()).await;
            return Err(refused);
        }
        submission.finish().await?;
        let job = work.job_unit(&unit).and_then(|unit| unit.extra().job_id);
        tracing::info!(unit, job, who = %visitor.caller().credentials, "submitted by the page's API");
        Ok((unit, job))
    }

    async fn ask(
        &self,
        visitor: &Visitor,
        op: &str,
        mut arguments: Map<String, Value>,
    ) -> Result<(operation::Answer, Option<Box<dyn OperationStream>>), ApiRefusal> {
        let controller = self.controller()?;
        arguments.insert("op".to_owned(), Value::from(op));
        let operation = Operation::parse(arguments)?;
        Ok(controller.operate(operation, &visitor.caller()).await?)
    }

    fn controller(&self) -> Result<&dyn crate::control::Operations, ApiRefusal> {
        let controller = self.context.controller.as_deref();
        controller.ok_or_else(|| ApiRefusal::new(Code::NotFound, "this node is no control node"))
    }
}

/// A payload as it comes, piece by piece, each asked for once the one before is taken.
struct JobBody<'a> {
    web: &'a Web,
    visitor: &'a Visitor,
    body: &'a mut RequestBody,
    /// When it was last looked whether who sends it is admitted.
    looked: Instant,
    rate: LeastRate,
}

impl JobBody<'_> {
    /// The next piece; `None` at its end.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiRefusal> {
        loop {
            let late = |_| ApiRefusal::bad(format!("the body stopped for {} s", SILENT.as_secs()));
            let waits = Instant::now();
            let frame = timeout(SILENT, self.body.frame()).await.map_err(late)?;
            let waited = waits.elapsed();
            if frame.is_none() || self.looked.elapsed() > LOOK {
                if !self.web.gate.still_admits(self.visitor).await {
                    return Err(ApiRefusal::new(
                        Code::Unauthorized,
                        "what the client has shown holds no longer",
                    ));
                }
                self.looked = Instant::now();
            }
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|_| ApiRefusal::bad("the body ends early"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            if !self.rate.is_kept(bytes.len(), waited) {
                let message = format!("the body comes too slowly: {} KiB a minute is the least", LEAST >> 10);
                return Err(ApiRefusal::bad(message));
            }
            return Ok(Some(bytes));
        }
    }
}

/// The header in front of a stream, unless it is a long one, and what else has come of that.
fn split_header(begin: &[u8]) -> (Option<String>, &[u8]) {
    let end = begin.iter().position(|byte| *byte == b'\n').filter(|end| *end <= LONGEST_HEADER);
    match end.map(|end| (&begin[..end], &begin[end + 1..])) {
        Some((line, rest)) if is_header(line) => (Some(String::from_utf8_lossy(line).into_owned()), rest),
        Some(_) | None => (None, begin),
    }
}

/// What has come of a payload, and how long it was waited for: who sends next to nothing holds a place for nothing.
#[derive(Debug, Default)]
struct LeastRate {
    waited: Duration,
    bytes: u64,
}

impl LeastRate {
    /// Whether it comes fast enough, with so many bytes more after such a wait. What we take to write it does not count.
    fn is_kept(&mut self, bytes: usize, waited: Duration) -> bool {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < MEASURED {
            return true;
        }
        let Self { waited, bytes } = std::mem::take(self);
        bytes >= LEAST * waited.as_secs() / 60
    }
}

impl From<WorkError> for ApiRefusal {
    fn from(error: WorkError) -> Self {
        Self::new(Code::Refused, error.to_string())
    }
}

async fn drain(body: &mut RequestBody) {
    let mut left = DRAINED;
    let drain = async {
        while left > 0
            && let Some(Ok(frame)) = body.frame().await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    let _late = timeout(DRAINED_WITHIN, drain).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_trickles_ends_and_one_that_comes_in_bursts_does_not() {
        let minute = |rate: &mut LeastRate, bytes| rate.is_kept(bytes, Duration::from_secs(59));
        let mut trickle = LeastRate::default();
        assert_eq!((0..9).position(|_| !minute(&mut trickle, 1)), Some(3), "within four minutes");
        let (mut bursts, mut fast) = (LeastRate::default(), LeastRate::default());
        for _ in 0..50 {
            assert!((0..4).all(|at| minute(&mut bursts, if at == 2 { 4 * LEAST as usize } else { 1 })));
            assert!(
                (0..1000).all(|_| fast.is_kept(1, Duration::ZERO)),
                "what it has waited for us does not count"
            );
        }
        assert!((0..8).all(|_| minute(&mut bursts, LEAST as usize)));
        assert!((0..9).any(|_| !minute(&mut bursts, LEAST as usize / 2)), "it has to go on so");
    }
}
