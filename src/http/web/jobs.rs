//! What the API asks of the controller: lists, jobs, their output and events, changes, and new jobs, whose payload goes to the
//! work engine as it comes. Owns how arguments and bodies become operations, and how answers are sent as streams.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{BoxStream, unfold};
use http::header::HeaderValue;
use http::{HeaderName, StatusCode};
use http_body_util::BodyExt as _;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, interval_at, timeout};

use super::gate::Visitor;
use super::query::ParameterKind;
use super::refusal::{ApiRefusal, Code};
use super::{StreamPlace, Web, WebRequest, public, small};
use crate::http::answer::{self, HttpAnswer};
use crate::http::server::RequestBody;
use crate::rpc::operation::{self, HostRole, Operation};
use crate::rpc::report::{JobKind, JobState};
use crate::rpc::request::SubmitRequest;
use crate::tls::AccessLevel;
use crate::work::WorkError;
use crate::work::jobs::{CONTROLLER, HEADER, LONGEST_HEADER, Operations, is_header};

/// How long a payload may stop coming.
const SILENT: Duration = Duration::from_secs(60);
/// The fewest bytes of a payload that have to come per minute, and over how long this is measured.
const LEAST: u64 = 64 << 10;
const MEASURED: Duration = Duration::from_secs(180);
/// How much of a refused payload is still read, and for how long, so that the client gets to reading the refusal.
const DRAINED: usize = 16 << 20;
const DRAINED_WITHIN: Duration = Duration::from_secs(2);
/// How often the gate is asked whether a client is still admitted while its answer or payload goes on.
const ADMISSION_EVERY: Duration = Duration::from_secs(15);

/// The header that says why a part of the output is missing.
const MISSING: HeaderName = HeaderName::from_static("x-output-missing");

/// The operations that a visitor without a level gets only in brief.
pub(super) const LIST: &str = "job.list";
pub(super) const COUNT: &str = "job.count";

pub(super) const NDJSON: &str = "application/x-ndjson";

pub(super) const OF_JOBS: &[(&str, ParameterKind)] = &[
    ("state", ParameterKind::many::<JobState>()),
    ("kind", ParameterKind::many::<JobKind>()),
    ("name", ParameterKind::Text),
    ("group", ParameterKind::Text),
    ("node", ParameterKind::Text),
    ("saved", ParameterKind::Text),
    ("search", ParameterKind::Word),
    ("since", ParameterKind::Time),
    ("until", ParameterKind::Time),
    ("before", ParameterKind::ID),
    ("limit", ParameterKind::Number(1, 1000)),
];
pub(super) const OF_SAVED: &[(&str, ParameterKind)] =
    &[("after", ParameterKind::Text), ("limit", ParameterKind::Number(1, 1000))];
pub(super) const OF_EXPORT: &[(&str, ParameterKind)] =
    &[("since", ParameterKind::PLACE), ("limit", ParameterKind::Number(1, 100))];
/// All of them but the last two, which choose a page.
pub(super) const OF_COUNTS: &[(&str, ParameterKind)] = OF_JOBS.split_at(OF_JOBS.len() - 2).0;
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
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Again {
    /// On the hosts alone that failed or were not reached.
    failed_hosts: bool,
}

/// What is said of a saved job that shall start.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StartOfSaved {
    /// Values of its variables.
    vars: Map<String, Value>,
}

/// What is said of a host that becomes a node.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApprovedHost {
    /// As the host shows it.
    fingerprint: String,
    /// `execution` if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<HostRole>,
}

/// What is said of a host that does not.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RejectedHost {
    fingerprint: String,
}

impl Web {
    /// The controller's answer, of which somebody without a level sees less. The request's body is ignored.
    pub(super) async fn operate(&self, asked: WebRequest, op: &str) -> Result<HttpAnswer, ApiRefusal> {
        let WebRequest { visitor, mut arguments, body, .. } = asked;
        let (_ignored, sees_all) = (small(body).await?, visitor.level >= AccessLevel::Read);
        if !sees_all && [LIST, COUNT].contains(&op) {
            // It is a label, and who sees no labels cannot ask by one.
            if arguments.contains_key("saved") {
                return Err(ApiRefusal::new(Code::Unauthorized, "saved: a token is needed"));
            }
            arguments.insert("brief".to_owned(), Value::from(true));
        }
        let (mut answer, _) = self.ask(&visitor, op, arguments).await?;
        if !sees_all {
            public::reduce(&mut answer);
        }
        self.told(&visitor, answer).await
    }

    /// A change whose arguments come in the path and in a body like `T`. No body is an empty one.
    pub(super) async fn change<T: Serialize + DeserializeOwned>(
        &self,
        asked: WebRequest,
        op: &str,
    ) -> Result<HttpAnswer, ApiRefusal> {
        let WebRequest { visitor, mut arguments, body, .. } = asked;
        let body = small(body).await?;
        // Read as a map first, because serde would accept a list for the struct too.
        let given = if body.is_empty() { Ok(Map::new()) } else { serde_json::from_slice(&body) };
        let read = given.and_then(|given| serde_json::from_value::<T>(Value::Object(given)));
        let written = read.and_then(|read| serde_json::to_value(read));
        let written = written.map_err(|error| ApiRefusal::bad(format!("the body: {error}")))?;
        if let Value::Object(more) = written {
            arguments.extend(more);
        }
        let (answer, _) = self.ask(&visitor, op, arguments).await?;
        self.told(&visitor, answer).await
    }

    /// The bytes of a job's output as the runner wrote them.
    pub(super) async fn output(self: Arc<Self>, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
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

    pub(super) async fn job_events(self: Arc<Self>, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let place = self.place(&asked.visitor)?;
        let (_, rest) = self.stream(&asked.visitor, "job.events", asked.arguments).await?;
        Ok(self.follow(asked.visitor, place, NDJSON, rest, Bytes::new()))
    }

    async fn stream(
        &self,
        visitor: &Visitor,
        op: &str,
        arguments: Map<String, Value>,
    ) -> Result<(operation::Answer, BoxStream<'static, Bytes>), ApiRefusal> {
        let (answer, rest) = self.ask(visitor, op, arguments).await?;
        Ok((answer, rest.ok_or_else(|| ApiRefusal::new(Code::Refused, "nothing follows"))?))
    }

    /// A streamed answer. It goes on as long as there is more to send, the client reads, and the client is still
    /// admitted. `idle` is sent while there is nothing else, as a keep-alive; if it is empty, nothing is sent then.
    pub(super) fn follow(
        self: Arc<Self>,
        visitor: Visitor,
        place: StreamPlace,
        content_type: &'static str,
        rest: BoxStream<'static, Bytes>,
        idle: Bytes,
    ) -> HttpAnswer {
        let looks = interval_at(Instant::now() + ADMISSION_EVERY, ADMISSION_EVERY);
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

    /// A place for a streamed answer or a payload. No client gets more places than it leaves to others.
    pub(super) fn place(&self, visitor: &Visitor) -> Result<StreamPlace, ApiRefusal> {
        let place = self.streams.take(&visitor.caller().credentials.to_string());
        place.ok_or_else(|| ApiRefusal::new(Code::TooMany, "this client has too many requests under way"))
    }

    /// A new job. The body is what `work submit` to the type `controller` takes. Unless it comes whole, nothing of the
    /// job stays: a task of its own discards it even if the client goes away.
    pub(super) async fn submit(self: Arc<Self>, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        self.controller()?;
        let place = self.place(&asked.visitor)?;
        asked.body.may_take_long();
        let submitted = tokio::spawn(async move {
            let WebRequest { visitor, mut body, .. } = asked;
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

    /// Submits the body. Returns the unit, and the job's number if the store has it already. A header in front of the
    /// stream becomes a parameter.
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
        tracing::info!(unit, job, who = %visitor.caller().credentials, "submitted through the page's API");
        Ok((unit, job))
    }

    async fn ask(
        &self,
        visitor: &Visitor,
        op: &str,
        mut arguments: Map<String, Value>,
    ) -> Result<(operation::Answer, Option<BoxStream<'static, Bytes>>), ApiRefusal> {
        let controller = self.controller()?;
        arguments.insert("op".to_owned(), Value::from(op));
        let operation = Operation::parse(arguments)?;
        Ok(controller.operate(operation, &visitor.caller()).await?)
    }

    pub(super) fn controller(&self) -> Result<&dyn Operations, ApiRefusal> {
        let controller = self.context.controller.as_deref();
        controller.ok_or_else(|| ApiRefusal::new(Code::NotFound, "this node is not a control node"))
    }
}

/// The payload of a new job, read piece by piece.
struct JobBody<'a> {
    web: &'a Web,
    visitor: &'a Visitor,
    body: &'a mut RequestBody,
    /// When the gate was last asked whether the sender is still admitted.
    looked: Instant,
    rate: LeastRate,
}

impl JobBody<'_> {
    /// The next piece; `None` at the end of the payload.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiRefusal> {
        loop {
            let late = |_| ApiRefusal::bad(format!("the body stopped for {} s", SILENT.as_secs()));
            let waits = Instant::now();
            let frame = timeout(SILENT, self.body.frame()).await.map_err(late)?;
            let waited = waits.elapsed();
            if frame.is_none() || self.looked.elapsed() > ADMISSION_EVERY {
                if !self.web.gate.still_admits(self.visitor).await {
                    return Err(ApiRefusal::new(
                        Code::Unauthorized,
                        "the client's token or session is no longer valid",
                    ));
                }
                self.looked = Instant::now();
            }
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|_| ApiRefusal::bad("the body ends early"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            if !self.rate.is_kept(bytes.len(), waited) {
                let message =
                    format!("the body arrives too slowly: send at least {} KiB a minute", LEAST >> 10);
                return Err(ApiRefusal::bad(message));
            }
            return Ok(Some(bytes));
        }
    }
}

/// The header in front of a stream, and what follows it. A first line that is too long, or no header, belongs to the
/// stream.
fn split_header(begin: &[u8]) -> (Option<String>, &[u8]) {
    let end = begin.iter().position(|byte| *byte == b'\n').filter(|end| *end <= LONGEST_HEADER);
    match end.map(|end| (&begin[..end], &begin[end + 1..])) {
        Some((line, rest)) if is_header(line) => (Some(String::from_utf8_lossy(line).into_owned()), rest),
        Some(_) | None => (None, begin),
    }
}

/// How fast a payload comes. It must not be too slow, because it holds a place that others need.
#[derive(Debug, Default)]
struct LeastRate {
    waited: Duration,
    bytes: u64,
}

impl LeastRate {
    /// Whether the payload comes fast enough, now that so many more bytes have come after such a wait. The time in
    /// which this node writes it does not count.
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

pub(super) async fn drain(body: &mut RequestBody) {
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
