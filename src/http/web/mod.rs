//! The directive `web`: the page, and the API that it reads. Owns the order in which a request is judged: by whom the server is
//! called, what there is, who asks and may, and, of a change, whether a foreign page made it. What is answered is read from
//! the node's reports, or is the controller's answer.
//!
//! - `routes` is the table; `gate` and `sessions` decide who; `refusal` says why not.
//! - `page` has the files; `mesh` nodes and links; `jobs` what is asked of the controller; `public` what is shown
//!   without a level; `watch` the events; `openapi` describes all of it.

mod gate;
mod jobs;
mod mesh;
mod openapi;
mod page;
mod public;
mod query;
mod refusal;
mod routes;
mod sessions;
mod watch;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue, ORIGIN, SET_COOKIE};
use http::uri::Authority;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::timeout;

use self::gate::{Gate, Visitor};
use self::mesh::FarLinks;
use self::refusal::{ApiRefusal, Code};
use self::routes::Needs;
use self::watch::EventWatch;
use super::answer::{self, HttpAnswer};
use super::hosts::{ServerNames, is_own_page, only};
use super::server::{HttpClient, RequestBody, Responding, Site};
use crate::control::Context;
use crate::os::answers::{AnswerDoor, is_small};
use crate::os::places::{Places, Share};
use crate::rpc::report::finding::Finding;
use crate::rpc::report::node::Section;
use crate::tls::AccessLevel;
use crate::tls::access::AccessTokens;

/// Connections of one host: a proxy's are those of all its clients.
const CONNECTIONS: usize = 128;
/// Answers and bodies of one client that go on for as long as it likes; all clients together have twice as many.
const STREAMS: usize = 32;
/// The longest body that is not a job's, and how long it may take.
const BODY: usize = 16 << 10;
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// Where a browser says that the page comes from which asks.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Headers of every answer: a page of this server uses nothing of others, and others use no page of it.
const HARDENED: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// Settings of the directive.
#[derive(Debug)]
pub(crate) struct WebOptions {
    pub(crate) client_level: AccessLevel,
    /// Common names of their certificates.
    pub(crate) client_names: Vec<String>,
    pub(crate) tokens: AccessTokens,
    pub(crate) allow: AccessLevel,
    pub(crate) hosts: Vec<String>,
    /// The host in the address that it listens on.
    pub(crate) own_host: String,
}

/// What requests reach.
pub(crate) struct Web {
    context: Context,
    gate: Gate,
    hosts: ServerNames,
    streams: Places<String>,
    answers: AnswerDoor<String>,
    description: OnceLock<Value>,
    watch: EventWatch,
    far_links: FarLinks,
}

/// Held by an answer or a body that goes on.
type StreamPlace = Share<String>;

/// A request that may be answered.
struct ApiRequest {
    visitor: Visitor,
    client: Arc<HttpClient>,
    called: Authority,
    /// What its path says, and what stands behind the `?`.
    arguments: Map<String, Value>,
    headers: HeaderMap,
    body: RequestBody,
}

/// A token, for a session.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: String,
}

/// Who asks, and which node answers.
#[derive(Debug, Serialize, JsonSchema)]
struct SessionReport<'a> {
    node: String,
    version: &'a str,
    who: Option<&'a str>,
    level: AccessLevel,
    controller: bool,
    /// What changes need of who signed in.
    form_token: Option<String>,
    /// The most that anybody may do.
    allow: AccessLevel,
    /// There is a token, so that somebody can sign in.
    has_tokens: bool,
}

/// What is wrong with the node.
#[derive(Debug, Serialize, JsonSchema)]
struct Findings {
    findings: Vec<Finding>,
}

impl Site for Web {
    fn connections(&self) -> usize {
        CONNECTIONS
    }

    fn respond(self: Arc<Self>, client: Arc<HttpClient>, request: Request<RequestBody>) -> Responding {
        Box::pin(async move {
            let mut answer = self.answer(client, request).await.unwrap_or_else(HttpAnswer::from);
            for (name, value) in HARDENED {
                let name = HeaderName::from_static(name);
                answer.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            answer
        })
    }
}

impl Web {
    pub(crate) fn new(context: Context, options: WebOptions) -> Self {
        let WebOptions { client_level, client_names, tokens, allow, hosts, own_host } = options;
        // No visitor's name is so.
        let (answers, watch) = (AnswerDoor::new(), "the watch".to_owned());
        Self {
            gate: Gate::new(tokens, (client_level, client_names), allow),
            hosts: ServerNames::new(hosts, &own_host, false),
            streams: Places::new(STREAMS),
            description: OnceLock::new(),
            watch: EventWatch::new(&context, answers.room(watch)),
            answers,
            far_links: FarLinks::new(&context),
            context,
        }
    }

    async fn answer(
        self: Arc<Self>,
        client: Arc<HttpClient>,
        request: Request<RequestBody>,
    ) -> Result<HttpAnswer, ApiRefusal> {
        let (head, body) = request.into_parts();
        let misdirected = || {
            let message = "no server of this name is here: the directive web names its hosts";
            ApiRefusal::new(Code::Misdirected, message)
        };
        let called = self.hosts.called(&client, &head).ok_or_else(misdirected)?;
        let (route, mut arguments) = routes::find(&head.method, head.uri.path())?;
        // Links lead to the page from anywhere, but nothing of another site asks its API.
        if route.needs != Needs::Nothing && only(&head.headers, &FETCH_SITE) == Some("cross-site") {
            return Err(ApiRefusal::new(Code::Forbidden, "Sec-Fetch-Site: a page of another site asks"));
        }
        let visitor = match route.needs {
            Needs::Nothing => Visitor::nobody(),
            Needs::Anybody | Needs::Presence | Needs::Level(_) => {
                self.gate.identify(&client, &head, &called).await?
            }
        };
        admit(&visitor, route.needs, self.gate.allow)?;
        if route.is_change() {
            self.gate.check_form(&visitor, &head.headers, &called, &client)?;
        }
        if route.needs != Needs::Nothing {
            arguments.extend(query::arguments(head.uri.query().unwrap_or_default(), route.query)?);
        }
        let asked = ApiRequest { visitor, client, called, arguments, headers: head.headers, body };
        (route.answer)(self, asked).await
    }

    async fn session(&self, asked: &ApiRequest) -> HttpAnswer {
        let (visitor, level) = (&asked.visitor, asked.visitor.level);
        let form_token = self.gate.form_token(visitor).filter(|_| level > AccessLevel::None);
        let told = SessionReport {
            node: self.context.node.id().to_string(),
            version: self.context.observer.version,
            who: visitor.name(),
            level,
            controller: self.context.controller.is_some(),
            form_token,
            allow: self.gate.allow,
            has_tokens: self.gate.has_tokens().await,
        };
        answer::json(StatusCode::OK, &told)
    }

    /// A token for a session. A foreign page may not sign a browser in.
    async fn sign_in(&self, asked: ApiRequest) -> Result<HttpAnswer, ApiRefusal> {
        let ApiRequest { client, called, headers, body, .. } = asked;
        if headers.contains_key(ORIGIN) && !is_own_page(&headers, &called, client.is_secured) {
            return Err(ApiRefusal::new(Code::Forbidden, "Origin: a page of this server signs in"));
        }
        // The parser's own words could show the token.
        let SignIn { token } = serde_json::from_slice(&small(body).await?)
            .map_err(|_| ApiRefusal::bad("the body is {\"token\": \"...\"}"))?;
        // Behind a proxy the page knows whether there is TLS.
        let by_tls =
            client.is_secured || only(&headers, &ORIGIN).is_some_and(|page| page.starts_with("https:"));
        let cookie = self.gate.sign_in(&client, &token, &called, by_tls).await?;
        Ok(with_cookies([cookie]))
    }

    fn sign_out(&self, asked: &ApiRequest) -> HttpAnswer {
        with_cookies(self.gate.sign_out(&asked.visitor, &asked.called))
    }

    /// What `meshctl status` tells, but for the tables of the mesh: nodes and links are pages of them.
    async fn status(&self, asked: &ApiRequest) -> Result<HttpAnswer, ApiRefusal> {
        let mut sections = Section::USUAL.to_vec();
        sections
            .retain(|section| ![Section::Routes, Section::Advertisements, Section::Costs].contains(section));
        sections.extend([Section::Peers, Section::Health, Section::Ending]);
        self.told(&asked.visitor, self.context.observer.look(&sections).await.report()).await
    }

    /// What is there already.
    async fn told(
        &self,
        visitor: &Visitor,
        told: impl Serialize + Send + Sync + 'static,
    ) -> Result<HttpAnswer, ApiRefusal> {
        if is_small(&told) {
            return Ok(answer::json(StatusCode::OK, &told));
        }
        let told = Arc::new(told);
        self.large(visitor, move || told.clone()).await
    }

    /// JSON that may be large, or comes of what is large.
    async fn large<T: Serialize>(
        &self,
        visitor: &Visitor,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> Result<HttpAnswer, ApiRefusal> {
        let room = self.answers.room(visitor.caller().credentials.to_string());
        let answer = answer::large(answer::JSON, room, move || answer::line(&make())).await;
        let why = "too many answers to the same client are unread, or are being made: try again";
        answer.ok_or_else(|| ApiRefusal::new(Code::Busy, why))
    }

    async fn doctor(&self) -> HttpAnswer {
        let findings = self.context.doctor.examine().await;
        answer::json(StatusCode::OK, &Findings { findings })
    }

    /// What all of this is, for programs.
    fn description(&self) -> HttpAnswer {
        let make = || openapi::document(self.context.observer.version, routes::all());
        answer::json(StatusCode::OK, self.description.get_or_init(make))
    }
}

/// `allow` is the most that anybody may do here.
fn admit(visitor: &Visitor, needs: Needs, allow: AccessLevel) -> Result<(), ApiRefusal> {
    let (is_enough, needed) = match needs {
        Needs::Nothing | Needs::Anybody => return Ok(()),
        Needs::Presence => (visitor.is_here || visitor.level >= AccessLevel::Read, AccessLevel::Read),
        Needs::Level(level) => (visitor.level >= level, level),
    };
    match visitor.name() {
        _ if is_enough => Ok(()),
        None => Err(ApiRefusal::new(Code::Unauthorized, "a token is needed")),
        Some(_) if needed > allow => {
            let why = format!("this needs the level {needed}, and `allow` of this node's web is {allow}");
            Err(ApiRefusal::new(Code::Forbidden, why))
        }
        Some(_) => Err(ApiRefusal::new(Code::Forbidden, format!("this needs the level {needed}"))),
    }
}

/// An answer that changes cookies and says nothing.
fn with_cookies(cookies: impl IntoIterator<Item = String>) -> HttpAnswer {
    let mut answer = answer::whole(StatusCode::NO_CONTENT, answer::TEXT, "");
    for cookie in cookies.into_iter().filter_map(|cookie| HeaderValue::try_from(cookie).ok()) {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
    answer
}

/// A body that is no job's.
async fn small(body: RequestBody) -> Result<Bytes, ApiRefusal> {
    let late = |_| ApiRefusal::bad(format!("the body did not come within {} s", BODY_WITHIN.as_secs()));
    let read = timeout(BODY_WITHIN, Limited::new(body, BODY).collect()).await.map_err(late)?;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| match error.is::<LengthLimitError>() {
        true => ApiRefusal::new(Code::TooLarge, format!("the body is longer than {BODY} bytes")),
        false => ApiRefusal::bad("the body ends early"),
    })
}
