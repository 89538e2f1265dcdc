//! The directive `web`: the page, and the API that it reads. Owns the order in which a request is judged: the name that
//! it uses for this server, its route, who asks, whether he may, and, for a change, whether a foreign page made it. The
//! answers come from the node's reports or from the controller.
//!
//! - `routes` is the table; `gate` and `sessions` decide who may ask; `query` reads arguments; `refusal` says why not.
//! - `page` answers with the files, `mesh` with nodes and links, `layout` says where these stand, `overview` with numbers, `jobs` with what the controller says, `watch` with
//!   events; `hooks` takes what starts saved jobs; `public` removes what needs a level; `openapi` describes the API.

mod gate;
mod hooks;
mod jobs;
mod layout;
mod mesh;
mod openapi;
mod overview;
mod page;
mod public;
mod query;
mod refusal;
mod routes;
mod sessions;
mod watch;

use std::net::IpAddr;
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

use self::gate::{Visitor, WebGate};
use self::mesh::FarLinks;
use self::refusal::{ApiRefusal, Code};
use self::routes::Needs;
use self::watch::EventWatch;
pub(super) use self::watch::{LIST_WITHIN, SNAPSHOT_EVERY, look};
use super::answer::{self, HttpAnswer};
use super::hosts::{ServerNames, is_own_page, only};
use super::server::{HttpClient, RequestBody, Responding, Site};
use crate::control::{self, Context};
use crate::os::answers::{AnswerDoor, is_small};
use crate::os::places::{Places, Share};
use crate::rpc::report::doctor::NoAnswerCause;
use crate::rpc::report::finding::Finding;
use crate::rpc::report::node::Section;
use crate::tls::AccessLevel;
use crate::tls::access::AccessTokens;

/// The most connections of one host. There are many, because a proxy's are those of all its clients.
const CONNECTIONS: usize = 128;
/// The most streamed answers and job payloads of one client; all clients together may have twice as many.
const STREAMS: usize = 32;
/// The most bodies for hooks that come from one network, or wait for their turn.
const DELIVERIES: usize = 16;
/// The longest body that is not a job's, and how long it may take.
const BODY: usize = 16 << 10;
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// Where a browser says whether the asking page is of this site or of another.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Headers of every answer: the page loads nothing from other servers, and pages of others cannot embed it.
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
    /// Common names of the certificates with `client_level`; if empty, all but those of nodes have it.
    pub(crate) client_names: Vec<String>,
    pub(crate) tokens: AccessTokens,
    pub(crate) allow: AccessLevel,
    pub(crate) hosts: Vec<String>,
    /// The host in the address that the server listens on.
    pub(crate) own_host: String,
}

/// The site of the directive.
pub(crate) struct Web {
    context: Context,
    gate: WebGate,
    hosts: ServerNames,
    streams: Places<String>,
    /// Bodies for hooks, of which nothing is proven yet.
    deliveries: Places<IpAddr>,
    answers: AnswerDoor<String>,
    description: OnceLock<Value>,
    watch: EventWatch,
    far_links: FarLinks,
}

/// Held while a streamed answer or a job's payload goes on.
type StreamPlace = Share<String>;

/// A request that may be answered.
struct WebRequest {
    visitor: Visitor,
    client: Arc<HttpClient>,
    called: Authority,
    /// From the path and the query.
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

/// What is wrong with a node.
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
        // No visitor has this name.
        let (answers, watch) = (AnswerDoor::new(), "the watch".to_owned());
        Self {
            gate: WebGate::new(tokens, (client_level, client_names), allow),
            hosts: ServerNames::new(hosts, &own_host, false),
            streams: Places::new(STREAMS),
            deliveries: Places::new(DELIVERIES),
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
            let message = "this server does not answer to this name: the directive web names its hosts";
            ApiRefusal::new(Code::Misdirected, message)
        };
        let called = self.hosts.called(&client, &head).ok_or_else(misdirected)?;
        let (route, mut arguments) = routes::find(&head.method, head.uri.path())?;
        // Any site may link to the page, but no page of another site may ask the API.
        if route.needs != Needs::Nothing && only(&head.headers, &FETCH_SITE) == Some("cross-site") {
            return Err(ApiRefusal::new(
                Code::Forbidden,
                "Sec-Fetch-Site: the request comes from a page of another site",
            ));
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
        let asked = WebRequest { visitor, client, called, arguments, headers: head.headers, body };
        (route.answer)(self, asked).await
    }

    async fn session(&self, asked: &WebRequest) -> HttpAnswer {
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

    /// Begins a session by a token. A foreign page may not sign a browser in.
    async fn sign_in(&self, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let WebRequest { client, called, headers, body, .. } = asked;
        if headers.contains_key(ORIGIN) && !is_own_page(&headers, &called, client.is_secured) {
            return Err(ApiRefusal::new(Code::Forbidden, "Origin: only a page of this server may sign in"));
        }
        // The parser's own words could show the token.
        let SignIn { token } = serde_json::from_slice(&small(body).await?)
            .map_err(|_| ApiRefusal::bad("the body must be {\"token\": \"...\"}"))?;
        // Behind a proxy, only the page's own address says whether the browser uses TLS.
        let by_tls =
            client.is_secured || only(&headers, &ORIGIN).is_some_and(|page| page.starts_with("https:"));
        let cookie = self.gate.sign_in(&client, &token, &called, by_tls).await?;
        Ok(with_cookies([cookie]))
    }

    fn sign_out(&self, asked: &WebRequest) -> HttpAnswer {
        with_cookies(self.gate.sign_out(&asked.visitor, &asked.called))
    }

    /// What `meshctl status` tells, without the tables of the mesh: `nodes` and `links` answer with pages of those.
    async fn status(&self, asked: &WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let mut sections = Section::USUAL.to_vec();
        sections
            .retain(|section| ![Section::Routes, Section::Advertisements, Section::Costs].contains(section));
        sections.extend([Section::Peers, Section::Health, Section::Ending]);
        self.told(&asked.visitor, self.context.observer.look(&sections).await.report()).await
    }

    /// JSON of a value that exists already, small or large.
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

    /// JSON that may be large, or may take long to make.
    async fn large<T: Serialize>(
        &self,
        visitor: &Visitor,
        make: impl Fn() -> T + Send + Sync + 'static,
    ) -> Result<HttpAnswer, ApiRefusal> {
        let room = self.answers.room(visitor.caller().credentials.to_string());
        let answer = answer::large(answer::JSON, room, move || answer::line(&make())).await;
        let why = "this client has too many answers unread or under way: try again";
        answer.ok_or_else(|| ApiRefusal::new(Code::Busy, why))
    }

    /// What is wrong with this node, or with another one, which gets a request that this node signs.
    async fn doctor(&self, asked: WebRequest) -> Result<HttpAnswer, ApiRefusal> {
        let own = self.context.node.id().as_str();
        let node = asked.arguments.get("node").and_then(Value::as_str).unwrap_or(own);
        let _place = self.place(&asked.visitor)?;
        let no_name = || ApiRefusal::new(Code::NotFound, "node: no node can have this name");
        let report = control::examine(&self.context, node).await.ok_or_else(no_name)?;
        if let Some(refused) = report.refused {
            let Finding { what, remedy, .. } = refused.finding(node, self.context.work.signs());
            let why = format!("{node} was not examined: {what}; {}", remedy.unwrap_or_default());
            let is_away = refused.cause.known() == Some(NoAnswerCause::NoRoute);
            return Err(ApiRefusal::new(if is_away { Code::NotFound } else { Code::Refused }, why));
        }
        let said = |one: Finding| if node == own { one } else { one.said_by(node) };
        let findings = report.findings.into_iter().map(said).collect();
        self.told(&asked.visitor, Findings { findings }).await
    }

    /// The description of the API, for programs.
    fn description(&self) -> HttpAnswer {
        let make = || openapi::document(self.context.observer.version, routes::all());
        answer::json(StatusCode::OK, self.description.get_or_init(make))
    }
}

/// Refuses a visitor without the level that a route needs. `allow` is the highest level that this node gives.
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

/// An answer without a body that sets these cookies.
fn with_cookies(cookies: impl IntoIterator<Item = String>) -> HttpAnswer {
    let mut answer = answer::whole(StatusCode::NO_CONTENT, answer::TEXT, "");
    for cookie in cookies.into_iter().filter_map(|cookie| HeaderValue::try_from(cookie).ok()) {
        answer.headers_mut().append(SET_COOKIE, cookie);
    }
    answer
}

/// Reads a body that is not a job's payload.
async fn small(mut body: RequestBody) -> Result<Bytes, ApiRefusal> {
    whole(&mut body, BODY).await
}

/// Reads a body of at most so many bytes.
async fn whole(body: &mut RequestBody, longest: usize) -> Result<Bytes, ApiRefusal> {
    let late = |_| ApiRefusal::bad(format!("the body did not come within {} s", BODY_WITHIN.as_secs()));
    let read = timeout(BODY_WITHIN, Limited::new(body, longest).collect()).await.map_err(late)?;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| match error.is::<LengthLimitError>() {
        true => ApiRefusal::new(Code::TooLarge, format!("the body is longer than {longest} bytes")),
        false => ApiRefusal::bad("the body ends early"),
    })
}
