//! Finds what keeps a work type from running pods before any unit is submitted: its credential, its rights, its pod
//! file. Owns the list of rights that are needed. Changes nothing in the cluster.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use super::api::{Api, ApiAnswer, HttpApi, ProvenServers};
use super::executor::{own_credential, parse, read};
use super::extra::KubeExtra;
use super::name::Owner;
use super::options::{KubernetesType, StreamMethod};
use super::pod::Template;
use super::server_version::too_old;

/// How long the API server may take for one answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The rights on pods, and on their subresources, that a unit needs.
const RIGHTS: [(&str, &str); 7] = [
    ("create", ""),
    ("get", ""),
    ("list", ""),
    ("watch", ""),
    ("delete", ""),
    ("get", "log"),
    ("create", "attach"),
];

/// The problems of a work type.
pub async fn problems(kind: &KubernetesType) -> Vec<String> {
    let mut problems = Vec::new();
    if let Err(problem) = try_pod(kind).await {
        problems.push(problem);
    }
    match problems_of_server(kind).await {
        Ok(found) => problems.extend(found),
        Err(problem) => problems.push(problem),
    }
    problems
}

async fn try_pod(kind: &KubernetesType) -> Result<(), String> {
    let text = read("pod", kind.pod.as_deref()).await?;
    if text.is_empty() {
        return Ok(());
    }
    let namespace = if kind.namespace.is_empty() { "default".to_owned() } else { kind.namespace.clone() };
    let extra = KubeExtra { kube_namespace: namespace, ..KubeExtra::default() };
    let pod = parse("pod", &text)?;
    let made = Template::new(&kind.name, &extra, Some(pod), &Owner::new("node", "unit", "store"));
    made.map(drop).map_err(|error| format!("pod: {error}"))
}

async fn problems_of_server(kind: &KubernetesType) -> Result<Vec<String>, String> {
    let Some(credential) = own_credential(kind).await? else { return Ok(Vec::new()) };
    let made = HttpApi::new(&credential, None, &ProvenServers::default()).await;
    let (api, namespace) = made.map_err(|error| error.to_string())?;
    let namespace = if kind.namespace.is_empty() { namespace } else { kind.namespace.clone() };
    let mut problems = Vec::new();
    // A pod with TCP sends its output itself and needs no log. A server that cannot be asked is reported below.
    if kind.stream_method == StreamMethod::Logger
        && let Ok(version) = answer(api.version()).await
    {
        problems.extend(too_old(&version));
    }
    let missing = missing_rights(&api, &namespace, kind.stream_method == StreamMethod::Tcp).await?;
    let told = |right| format!("its credential may not {right} in namespace {namespace}");
    problems.extend(missing.into_iter().map(told));
    Ok(problems)
}

/// The rights that a credential lacks, such as `create pods`. A pod that sends its output itself needs fewer.
pub(super) async fn missing_rights(
    api: &dyn Api,
    namespace: &str,
    brings_output: bool,
) -> Result<Vec<String>, String> {
    let needed = RIGHTS.into_iter().filter(|(_, subresource)| subresource.is_empty() || !brings_output);
    let asked = needed.map(|(verb, subresource)| async move {
        let on = if subresource.is_empty() { "pods".to_owned() } else { format!("pods/{subresource}") };
        let may = answer(api.may(namespace, verb, subresource)).await?;
        Ok::<_, String>((!may).then(|| format!("{verb} {on}")))
    });
    Ok(try_join_all(asked).await?.into_iter().flatten().collect())
}

async fn answer<T>(answer: ApiAnswer<T>) -> Result<T, String> {
    match timeout(ANSWER_WITHIN, answer).await {
        Ok(answer) => answer.map_err(|error| format!("cannot ask the API server: {error}")),
        Err(_) => Err("cannot ask the API server: it does not answer".into()),
    }
}
