//! The table of the page and its API: methods, paths, what each needs, takes and gives, and who answers.

use std::pin::Pin;
use std::sync::Arc;

use http::Method;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::jobs::{
    Again, ApprovedHost, COUNT, LIST, NDJSON, NewJob, OF_COUNTS, OF_EVENTS, OF_EXPORT, OF_JOBS, OF_OUTPUT,
    OF_SAVED, RejectedHost, StartOfSaved,
};
use super::mesh::{MeshLinks, MeshNodes, MeshOutages, OF_LINKS, OF_NODES};
use super::openapi::{ApiContent, json_of};
use super::overview::WebOverview;
use super::query::ParameterKind;
use super::refusal::{ApiRefusal, Code};
use super::watch::EVENT_STREAM;
use super::{Findings, SessionReport, SignIn, Web, WebRequest, page};
use crate::http::answer::HttpAnswer;
use crate::rpc::report::controller::{
    EndedJobs, Explained, Groups, InstanceReport, Instances, JobCounts, JobDetail, Jobs,
};
use crate::rpc::report::enrolment::{EnrolmentReport, NodeActed};
use crate::rpc::report::node::NodeReport;
use crate::rpc::report::saved::{
    HookAnswer, SavedPage, SavedReport, SchedulePage, ScheduleReport, StartedJob,
};
use crate::tls::AccessLevel;

/// The media type of a job's header and stream.
const BYTES: &str = "application/octet-stream";

/// Who may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Anybody. The gate does not look who asks.
    Nothing,
    /// Anybody, but the gate looks who asks.
    Anybody,
    /// The level `read`, or somebody on this machine.
    Presence,
    /// At least that level.
    Level(AccessLevel),
}

type Answering = Pin<Box<dyn Future<Output = Result<HttpAnswer, ApiRefusal>> + Send>>;

/// A route. Its path may hold a word of [`WORDS`] in braces, which stands for an argument.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) needs: Needs,
    /// What it answers, for people.
    pub(super) about: &'static str,
    /// The parameters that the query may have.
    pub(super) query: &'static [(&'static str, ParameterKind)],
    pub(super) takes: ApiContent,
    pub(super) gives: ApiContent,
    pub(super) answer: fn(Arc<Web>, WebRequest) -> Answering,
}

impl Route {
    /// Whether the route changes something, and so needs a form token from a browser that has signed in.
    pub(super) fn is_change(&self) -> bool {
        self.method == Method::POST && self.needs != Needs::Anybody
    }
}

/// What may stand in a request for a word in braces.
const WORDS: [(&str, ParameterKind); 3] =
    [("id", ParameterKind::ID), ("name", ParameterKind::Name), ("node", ParameterKind::Name)];

/// The node that is examined; this one unless given.
const OF_DOCTOR: &[(&str, ParameterKind)] = &[("node", ParameterKind::Text)];

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
    GET "/api/v1/outages" Needs::Presence, "What is out of reach, and the broken links", &[], NOTHING => json_of::<MeshOutages>(),
        |web, asked| web.outages(asked).await;
    GET "/api/v1/instances" Needs::Presence, "Nodes that run jobs", &[], NOTHING => json_of::<Instances>(),
        |web, asked| web.operate(asked, "instance.list").await;
    GET "/api/v1/groups" Needs::Presence, "Groups of instances", &[], NOTHING => json_of::<Groups>(),
        |web, asked| web.operate(asked, "group.list").await;
    GET "/api/v1/jobs" Needs::Presence, "Jobs, the newest first", OF_JOBS, NOTHING => json_of::<Jobs>(),
        |web, asked| web.operate(asked, LIST).await;
    GET "/api/v1/counts" Needs::Presence, "How many jobs of each state there are", OF_COUNTS, NOTHING => json_of::<JobCounts>(),
        |web, asked| web.operate(asked, COUNT).await;
    GET "/api/v1/overview" Needs::Presence, "What is wrong, as numbers", &[], NOTHING => json_of::<WebOverview>(),
        |web, asked| web.overview(asked).await;
    GET "/api/v1/saved" READ, "Jobs that this node has as files, by name", OF_SAVED, NOTHING => json_of::<SavedPage>(),
        |web, asked| web.operate(asked, "saved.list").await;
    GET "/api/v1/saved/{name}" READ, "One of them", &[], NOTHING => json_of::<SavedReport>(),
        |web, asked| web.operate(asked, "saved.get").await;
    POST "/api/v1/saved/{name}/start" OPERATE, "The new job", &[], json_of::<StartOfSaved>() => json_of::<StartedJob>(),
        |web, asked| web.change::<StartOfSaved>(asked, "saved.start").await;
    GET "/api/v1/schedules" READ, "When saved jobs start by themselves, by name", OF_SAVED, NOTHING => json_of::<SchedulePage>(),
        |web, asked| web.operate(asked, "schedule.list").await;
    POST "/api/v1/schedules/{name}/pause" ADMIN, "The schedule", &[], NOTHING => json_of::<ScheduleReport>(),
        |web, asked| web.operate(asked, "schedule.pause").await;
    POST "/api/v1/schedules/{name}/resume" ADMIN, "The schedule", &[], NOTHING => json_of::<ScheduleReport>(),
        |web, asked| web.operate(asked, "schedule.resume").await;
    GET "/api/v1/jobs/export" READ, "Jobs that have ended, each once", OF_EXPORT, NOTHING => json_of::<EndedJobs>(),
        |web, asked| web.operate(asked, "job.export").await;
    POST "/api/v1/hooks/{name}" Needs::Nothing, "What a forge has started, by its own proof", &[], json_of::<Map<String, Value>>() => json_of::<HookAnswer>(),
        |web, asked| web.hook(asked).await;
    GET "/api/v1/jobs/{id}" READ, "A job", &[], NOTHING => json_of::<JobDetail>(),
        |web, asked| web.operate(asked, "job.get").await;
    GET "/api/v1/jobs/{id}/explain" READ, "Why a job does not run", &[], NOTHING => json_of::<Explained>(),
        |web, asked| web.operate(asked, "job.explain").await;
    GET "/api/v1/jobs/{id}/output" READ, "The output of a job", OF_OUTPUT, NOTHING => ApiContent::Bytes("text/plain"),
        |web, asked| web.output(asked).await;
    GET "/api/v1/jobs/{id}/events" READ, "The events of a job, one a line", OF_EVENTS, NOTHING => ApiContent::Bytes(NDJSON),
        |web, asked| web.job_events(asked).await;
    GET "/api/v1/enrolment" ADMIN, "Hosts that ask, invitations and certificates", &[], NOTHING => json_of::<EnrolmentReport>(),
        |web, asked| web.operate(asked, "node.list").await;
    GET "/api/v1/doctor" READ, "What is wrong with a node", OF_DOCTOR, NOTHING => json_of::<Findings>(),
        |web, asked| web.doctor(asked).await;
    GET "/api/v1/events" READ, "What changes, as it happens", &[], NOTHING => ApiContent::Bytes(EVENT_STREAM),
        |web, asked| web.events(asked).await;
    POST "/api/v1/jobs" OPERATE, "The new job", &[], ApiContent::Bytes(BYTES) => json_of::<NewJob>(),
        |web, asked| web.submit(asked).await;
    POST "/api/v1/jobs/{id}/cancel" OPERATE, "The job", &[], NOTHING => json_of::<JobDetail>(),
        |web, asked| web.operate(asked, "job.cancel").await;
    POST "/api/v1/jobs/{id}/rerun" OPERATE, "The new job", &[], json_of::<Again>() => json_of::<JobDetail>(),
        |web, asked| web.change::<Again>(asked, "job.rerun").await;
    POST "/api/v1/instances/{name}/enable" ADMIN, "The instance", &[], NOTHING => json_of::<InstanceReport>(),
        |web, asked| web.operate(asked, "instance.enable").await;
    POST "/api/v1/instances/{name}/disable" ADMIN, "The instance", &[], NOTHING => json_of::<InstanceReport>(),
        |web, asked| web.operate(asked, "instance.disable").await;
    POST "/api/v1/enrolment/{node}/approve" ADMIN, "The node", &[], json_of::<ApprovedHost>() => json_of::<NodeActed>(),
        |web, asked| web.change::<ApprovedHost>(asked, "node.approve").await;
    POST "/api/v1/enrolment/{node}/reject" ADMIN, "The host", &[], json_of::<RejectedHost>() => json_of::<NodeActed>(),
        |web, asked| web.change::<RejectedHost>(asked, "node.reject").await;
}

/// All routes.
pub(super) fn all() -> &'static [Route] {
    &ROUTES
}

/// The route of a request, and the argument in its path. Paths are compared as they are written; only the word in the
/// place of the braces is decoded, once.
///
/// # Errors
/// No route has this path, or none has this method.
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
            percent_decode_str(word).decode_utf8().map_err(|_| ApiRefusal::bad("the path is not UTF-8"))?;
        let wrong = |wanted| ApiRefusal::new(Code::NotFound, format!("{name}: it must be {wanted}"));
        arguments.insert(name.to_owned(), kind.read(&word).map_err(wrong)?);
    }
    Ok((route, arguments))
}

/// The parameter in a path, if it has one.
pub(super) fn parameter(pattern: &'static str) -> Option<(&'static str, ParameterKind)> {
    let (_, name, _) = parts(pattern)?;
    WORDS.into_iter().find(|(word, _)| *word == name)
}

/// The text before, in and after the braces of a pattern; `None` if it has none.
fn parts(pattern: &'static str) -> Option<(&'static str, &'static str, &'static str)> {
    let (before, rest) = pattern.split_once('{')?;
    let (name, after) = rest.split_once('}')?;
    Some((before, name, after))
}

/// The word that a path has in the place of a pattern's braces. It is empty if the pattern has no braces; `None` if the
/// path does not fit.
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
