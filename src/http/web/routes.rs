//! The table of the page and its API: methods, paths, what each needs, takes and gives, and who answers.

use std::pin::Pin;
use std::sync::Arc;

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::jobs::{Again, LIST, NDJSON, NewJob, OF_EVENTS, OF_JOBS, OF_OUTPUT};
use super::mesh::{MeshLinks, MeshNodes, OF_LINKS, OF_NODES};
use super::openapi::{ApiContent, json_of};
use super::query::ParameterKind;
use super::refusal::{ApiRefusal, Code};
use super::watch::EVENT_STREAM;
use super::{ApiRequest, Findings, SessionReport, SignIn, Web, page};
use crate::http::answer::HttpAnswer;
use crate::rpc::report::controller::{Explained, Groups, InstanceReport, Instances, JobDetail, Jobs};
use crate::rpc::report::node::NodeReport;
use crate::tls::AccessLevel;

/// The media type of a job's header and stream.
const BYTES: &str = "application/octet-stream";

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Anybody, and it is not even looked who.
    Nothing,
    /// Anybody.
    Anybody,
    /// The level `read`, or somebody on this machine.
    Presence,
    /// That level.
    Level(AccessLevel),
}

type Answering = Pin<Box<dyn Future<Output = Result<HttpAnswer, ApiRefusal>> + Send>>;

/// A path, with a word of [`WORDS`] in braces for what is different in each request.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) needs: Needs,
    /// What it answers, for people.
    pub(super) about: &'static str,
    /// What may stand behind the `?`.
    pub(super) query: &'static [(&'static str, ParameterKind)],
    pub(super) takes: ApiContent,
    pub(super) gives: ApiContent,
    pub(super) answer: fn(Arc<Web>, ApiRequest) -> Answering,
}

impl Route {
    /// Whether it changes something; then it needs a form token from who signed in.
    pub(super) fn is_change(&self) -> bool {
        self.method == Method::POST && self.needs != Needs::Anybody
    }
}

/// What may stand for a word of a path.
const WORDS: [(&str, ParameterKind); 2] = [("id", ParameterKind::ID), ("name", ParameterKind::Text)];

const READ: Needs = Needs::Level(AccessLevel::Read);
const OPERATE: Needs = Needs::Level(AccessLevel::Operate);
const ADMIN: Needs = Needs::Level(AccessLevel::Admin);
const NOTHING: ApiContent = ApiContent::Nothing;

macro_rules! routes {
    ($($method:ident $path:literal $needs:expr, $about:literal, $query:expr, $takes:expr => $gives:expr,
        |$web:ident, $asked:ident| $answer:expr;)*) => {
        static ROUTES: [Route; [$($path),*].len()] = [$(Route {
            method: Method::$method,
            path: $path,
            needs: $needs,
            about: $about,
            query: $query,
            takes: $takes,
            gives: $gives,
            answer: |$web, $asked| Box::pin(async move { $answer }),
        }),*];
    };
}

routes! {
    GET "/" Needs::Nothing, "The page", &[], NOTHING => ApiContent::Bytes("text/html"),
        |_web, asked| page::file(None, &asked.headers);
    GET "/page/{name}" Needs::Nothing, "A file of the page", &[], NOTHING => ApiContent::Bytes("*/*"),
        |_web, asked| page::file(asked.arguments.get("name").and_then(Value::as_str), &asked.headers);
    GET "/api/v1/openapi.json" Needs::Anybody, "This description", &[], NOTHING => json_of::<Map<String, Value>>(),
        |web, _asked| Ok(web.description());
    GET "/api/v1/session" Needs::Anybody, "Who asks", &[], NOTHING => json_of::<SessionReport<'_>>(),
        |web, asked| Ok(web.session(&asked).await);
    POST "/api/v1/session" Needs::Anybody, "A session, by cookie", &[], json_of::<SignIn>() => NOTHING,
        |web, asked| web.sign_in(asked).await;
    POST "/api/v1/session/end" READ, "The session is over", &[], NOTHING => NOTHING,
        |web, asked| Ok(web.sign_out(&asked));
    GET "/api/v1/status" Needs::Presence, "The node and its neighbours", &[], NOTHING => json_of::<NodeReport>(),
        |web, asked| web.status(&asked).await;
    GET "/api/v1/nodes" Needs::Presence, "The nodes of the mesh, by name", OF_NODES, NOTHING => json_of::<MeshNodes>(),
        |web, asked| web.nodes(asked).await;
    GET "/api/v1/links" Needs::Presence, "The links of the mesh, by name", OF_LINKS, NOTHING => json_of::<MeshLinks>(),
        |web, asked| web.links(asked).await;
    GET "/api/v1/instances" Needs::Presence, "Nodes that run jobs", &[], NOTHING => json_of::<Instances>(),
        |web, asked| web.operate(asked, "instance.list").await;
    GET "/api/v1/groups" Needs::Presence, "Groups of instances", &[], NOTHING => json_of::<Groups>(),
        |web, asked| web.operate(asked, "group.list").await;
    GET "/api/v1/jobs" Needs::Presence, "Jobs, the newest first", OF_JOBS, NOTHING => json_of::<Jobs>(),
        |web, asked| web.operate(asked, LIST).await;
    GET "/api/v1/jobs/{id}" READ, "A job", &[], NOTHING => json_of::<JobDetail>(),
        |web, asked| web.operate(asked, "job.get").await;
    GET "/api/v1/jobs/{id}/explain" READ, "Why a job does not run", &[], NOTHING => json_of::<Explained>(),
        |web, asked| web.operate(asked, "job.explain").await;
    GET "/api/v1/jobs/{id}/output" READ, "The output of a job", OF_OUTPUT, NOTHING => ApiContent::Bytes("text/plain"),
        |web, asked| web.output(asked).await;
    GET "/api/v1/jobs/{id}/events" READ, "The events of a job, one a line", OF_EVENTS, NOTHING => ApiContent::Bytes(NDJSON),
        |web, asked| web.job_events(asked).await;
    GET "/api/v1/doctor" READ, "What is wrong with the node", &[], NOTHING => json_of::<Findings>(),
        |web, _asked| Ok(web.doctor().await);
    GET "/api/v1/events" READ, "What changes, as it happens", &[], NOTHING => ApiContent::Bytes(EVENT_STREAM),
        |web, asked| web.events(asked).await;
    POST "/api/v1/jobs" OPERATE, "The new job", &[], ApiContent::Bytes(BYTES) => json_of::<NewJob>(),
        |web, asked| web.submit(asked).await;
    POST "/api/v1/jobs/{id}/cancel" OPERATE, "The job", &[], NOTHING => json_of::<JobDetail>(),
        |web, asked| web.operate(asked, "job.cancel").await;
    POST "/api/v1/jobs/{id}/rerun" OPERATE, "The new job", &[], json_of::<Again>() => json_of::<JobDetail>(),
        |web, asked| web.rerun(asked).await;
    POST "/api/v1/instances/{name}/enable" ADMIN, "The instance", &[], NOTHING => json_of::<InstanceReport>(),
        |web, asked| web.operate(asked, "instance.enable").await;
    POST "/api/v1/instances/{name}/disable" ADMIN, "The instance", &[], NOTHING => json_of::<InstanceReport>(),
        |web, asked| web.operate(asked, "instance.disable").await;
}

/// All of them.
pub(super) fn all() -> &'static [Route] {
    &ROUTES
}

/// The route of a request, and the argument in its path. Paths are taken as they are written; only the word in the place of the
/// braces is decoded, once.
///
/// # Errors
/// There is none, or not by this method.
pub(super) fn find(method: &Method, path: &str) -> Result<(&'static Route, Map<String, Value>), ApiRefusal> {
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let here: Vec<(&Route, &str)> =
        ROUTES.iter().filter_map(|route| Some((route, word(route.path, path)?))).collect();
    if here.is_empty() {
        return Err(ApiRefusal::new(Code::NotFound, "there is nothing here"));
    }
    let Some((route, word)) = here.iter().find(|(route, _)| route.method == *method) else {
        let has = |method| here.iter().any(|(route, _)| route.method == method);
        let allowed = match (has(Method::GET), has(Method::POST)) {
            (true, true) => "GET, HEAD, POST",
            (true, false) => "GET, HEAD",
            (false, _) => "POST",
        };
        return Err(ApiRefusal::new(Code::MethodNotAllowed(allowed), format!("only {allowed}")));
    };
    let mut arguments = Map::new();
    if let Some((name, kind)) = parameter(route.path) {
        let word =
            percent_decode_str(word).decode_utf8().map_err(|_| ApiRefusal::bad("the path is no UTF-8"))?;
        let wrong = |wanted| ApiRefusal::new(Code::NotFound, format!("{name}: it is {wanted}"));
        arguments.insert(name.to_owned(), kind.read(&word).map_err(wrong)?);
    }
    Ok((route, arguments))
}

/// The parameter in a path, if it has one.
pub(super) fn parameter(pattern: &'static str) -> Option<(&'static str, ParameterKind)> {
    let (_, name, _) = parts(pattern)?;
    WORDS.into_iter().find(|(word, _)| *word == name)
}

/// What stands before the braces of a pattern, in them and behind them, if it has some.
fn parts(pattern: &'static str) -> Option<(&'static str, &'static str, &'static str)> {
    let (before, rest) = pattern.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// What a path has in the place of a pattern's braces: nothing, if there are none in it; `None`, if it is another path.
fn word<'a>(pattern: &'static str, path: &'a str) -> Option<&'a str> {
    let Some((before, _, after)) = parts(pattern) else {
        return (pattern == path).then_some("");
    };
    let word = path.strip_prefix(before)?.strip_suffix(after)?;
    (!word.is_empty() && !word.contains('/')).then_some(word)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_itself_or_nothing() {
        let found =
            |path: &str| find(&Method::GET, path).map(|(route, found)| (route.path, Value::from(found))).ok();
        assert_eq!(found("/"), Some(("/", json!({}))));
        assert_eq!(found("/page/app.js").unwrap().1, json!({"name": "app.js"}));
        assert_eq!(found("/api/v1/jobs/7/output"), Some(("/api/v1/jobs/{id}/output", json!({"id": 7}))));
        assert_eq!(find(&Method::POST, "/api/v1/instances/a%2Fb/enable").ok().unwrap().1["name"], "a/b");
        for path in [
            "",
            "//",
            "//api/v1/jobs",
            "/api//v1/jobs",
            "/api/v1/jobs/",
            "/api/v1/jobs//output",
            "/API/v1/jobs",
            "/api%2fv1/jobs",
            "/api/v1/%6aobs",
            "/api/v1/./jobs",
            "/page/",
            "/page/../page",
            "/page/a/b",
            "/api/v1/jobs/7/8/output",
            "/api/v1/jobs/x",
            "/api/v1/jobs/0",
            "/api/v1/jobs/+7",
            "/api/v1/jobs/9223372036854775808",
            "*",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
        assert!(find(&Method::POST, "/api/v1/instances/%ff/enable").is_err());
    }

    #[test]
    fn only_what_can_be_changed_takes_a_post() {
        for (method, path) in [
            ("POST", "/"),
            ("PUT", "/api/v1/jobs"),
            ("DELETE", "/api/v1/jobs/7"),
            ("GET", "/api/v1/jobs/7/cancel"),
            ("OPTIONS", "/api/v1/events"),
        ] {
            let refused = find(&method.parse().unwrap(), path).map(|_| ()).unwrap_err();
            assert!(format!("{refused:?}").contains("MethodNotAllowed"), "{method} {path}");
        }
        assert!(find(&Method::HEAD, "/").is_ok());
    }
}
