//! The runtime parameters of a submission: which are allowed, and the `ExtraData` that they make. Names and
//! errors are receptor's. The caller supplies the content of configured files.

use std::collections::BTreeMap;
use std::time::Duration;

use super::extra::KubeExtra;
use super::options::{AuthMethod, KubernetesType};
use super::place::KEEP_POD;
use crate::duration::{self, InvalidDuration};

/// Why a submission is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// The directive does not allow the parameter.
    #[error("{0} provided but not allowed")]
    NotAllowed(&'static str),
    /// Each submission must supply credentials, and this one does not.
    #[error("param secret_kube_config must be provided if AuthMethod=runtime")]
    NoKubeConfig,
    /// A pod definition replaces these parameters.
    #[error("params kube_command, kube_image, kube_params not compatible with secret_kube_pod")]
    PodExcludesParams,
    /// A pod that already runs has its own image, command and definition.
    #[error(
        "param pod_name names a pod that runs already: it excludes secret_kube_pod, kube_image, kube_command and kube_params"
    )]
    PodNameExcludesPod,
    /// `pod_pending_timeout` is not a valid duration.
    #[error(transparent)]
    BadTimeout(#[from] InvalidDuration),
}

/// Content of the directive's files, read at each submission.
#[derive(Debug, Clone, Default)]
pub struct Configured {
    /// Content of the kubeconfig.
    pub kubeconfig: String,
    /// Content of the pod definition.
    pub pod: String,
}

/// The result of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedSubmission {
    /// The record for the status file.
    pub extra: KubeExtra,
    /// The pod must run within this time; `None` for no limit.
    pub pending_timeout: Option<Duration>,
    /// The kubeconfig came with the submission, so it may name neither files nor programs.
    pub kubeconfig_is_submitted: bool,
}

/// Checks the parameters of a submission. Unknown parameters are ignored, and an empty value counts as
/// absent.
///
/// # Errors
/// [`ParameterError`] names the parameter and the problem.
pub fn check(
    kind: &KubernetesType,
    configured: Configured,
    params: &BTreeMap<String, String>,
) -> Result<CheckedSubmission, ParameterError> {
    let given = |name: &'static str, allowed: bool| match params.get(name).filter(|value| !value.is_empty()) {
        Some(_) if !allowed => Err(ParameterError::NotAllowed(name)),
        value => Ok(value.cloned()),
    };
    let command = given("kube_command", kind.allow_runtime_command)?;
    let image = given("kube_image", kind.allow_runtime_command)?;
    let arguments = given("kube_params", kind.allow_runtime_params)?;
    let namespace = given("kube_namespace", kind.allow_runtime_auth)?;
    let kubeconfig = given("secret_kube_config", kind.allow_runtime_auth)?;
    let pod = given("secret_kube_pod", kind.allow_runtime_pod)?;
    let timeout = given("pod_pending_timeout", kind.allow_runtime_params)?;
    let keep_pod = given(KEEP_POD, kind.allow_runtime_params)?.is_some_and(|value| value == "true");
    let pod_name = given("pod_name", kind.allow_runtime_pod || kind.allow_runtime_auth)?;

    let kubeconfig_is_submitted = kubeconfig.is_some();
    let kube_config = kubeconfig.unwrap_or(configured.kubeconfig);
    if kind.auth_method == AuthMethod::Runtime && kube_config.is_empty() {
        return Err(ParameterError::NoKubeConfig);
    }
    let chosen = arguments.is_some() || command.is_some() || image.is_some();
    if pod.is_some() && chosen {
        return Err(ParameterError::PodExcludesParams);
    }
    if pod_name.is_some() && (pod.is_some() || chosen) {
        return Err(ParameterError::PodNameExcludesPod);
    }
    let pending_timeout =
        timeout.map(|text| duration::parse(&text)).transpose()?.filter(|timeout| !timeout.is_zero());
    let extra = KubeExtra {
        kube_namespace: namespace.unwrap_or_else(|| kind.namespace.clone()),
        kube_config,
        adopted: pod_name.is_some(),
        keep_pod,
        pod_name: pod_name.unwrap_or_default(),
        ..KubeExtra::default()
    };
    let extra = match pod {
        _ if extra.adopted => extra,
        Some(pod) => KubeExtra { kube_pod: pod, ..extra },
        None => KubeExtra {
            kube_pod: configured.pod,
            image: image.unwrap_or_else(|| kind.image.clone()),
            command: command.unwrap_or_else(|| kind.command.clone()),
            params: join(&kind.params, arguments.as_deref().unwrap_or_default()),
            ..extra
        },
    };
    Ok(CheckedSubmission { extra, pending_timeout, kubeconfig_is_submitted })
}

fn join(configured: &str, given: &str) -> String {
    match (configured, given) {
        (only, "") | ("", only) => only.to_owned(),
        (first, second) => format!("{first} {second}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> KubernetesType {
        KubernetesType {
            allow_runtime_auth: true,
            allow_runtime_command: true,
            allow_runtime_params: true,
            allow_runtime_pod: true,
            image: "configured-image".into(),
            command: "configured-command".into(),
            params: "-a".into(),
            namespace: "configured-namespace".into(),
            ..KubernetesType::new("kube")
        }
    }

    fn ask(kind: &KubernetesType, params: &[(&str, &str)]) -> Result<CheckedSubmission, ParameterError> {
        let params = params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        check(kind, Configured::default(), &params)
    }

    #[test]
    fn each_parameter_needs_its_permission() {
        let names = [
            "kube_image",
            "kube_command",
            "kube_params",
            "kube_namespace",
            "secret_kube_config",
            "secret_kube_pod",
            "pod_pending_timeout",
            "keep_pod",
            "pod_name",
        ];
        for name in names {
            let refused = ask(&KubernetesType::new("kube"), &[(name, "1s")]).unwrap_err();
            assert_eq!(refused.to_string(), format!("{name} provided but not allowed"));
            assert!(ask(&open(), &[(name, "1s")]).is_ok(), "{name}");
            assert!(ask(&KubernetesType::new("kube"), &[(name, "")]).is_ok(), "{name} is as good as absent");
        }
        assert!(ask(&KubernetesType::new("kube"), &[("something_else", "1")]).is_ok());
        let auth = KubernetesType { allow_runtime_auth: true, ..KubernetesType::new("kube") };
        assert!(ask(&auth, &[("pod_name", "p")]).unwrap().extra.adopted, "either permission is enough");
    }

    #[test]
    fn what_is_given_wins_over_what_is_configured_and_params_are_added() {
        let asked =
            ask(&open(), &[("kube_image", "i"), ("kube_params", "-b"), ("kube_namespace", "n")]).unwrap();
        let extra = asked.extra;
        assert_eq!((extra.image.as_str(), extra.command.as_str()), ("i", "configured-command"));
        assert_eq!((extra.params.as_str(), extra.kube_namespace.as_str()), ("-a -b", "n"));
    }

    #[test]
    fn a_pod_clears_what_it_replaces_and_excludes_the_rest() {
        let asked = ask(&open(), &[("secret_kube_pod", "kind: Pod")]).unwrap().extra;
        assert_eq!(asked.kube_pod, "kind: Pod");
        assert_eq!(format!("{}{}{}", asked.image, asked.command, asked.params), "");
        for other in ["kube_command", "kube_image", "kube_params"] {
            let refused = ask(&open(), &[("secret_kube_pod", "kind: Pod"), (other, "x")]).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "params kube_command, kube_image, kube_params not compatible with secret_kube_pod"
            );
        }
    }

    #[test]
    fn runtime_credentials_have_to_come() {
        let runtime = KubernetesType { auth_method: AuthMethod::Runtime, ..open() };
        let refused = ask(&runtime, &[]).unwrap_err().to_string();
        assert_eq!(refused, "param secret_kube_config must be provided if AuthMethod=runtime");
        let asked = ask(&runtime, &[("secret_kube_config", "kind: Config")]).unwrap();
        assert!(asked.kubeconfig_is_submitted && asked.extra.kube_config == "kind: Config");
    }

    #[test]
    fn the_pending_timeout_is_gos_duration_and_none_means_no_limit() {
        let timeout =
            |text| ask(&open(), &[("pod_pending_timeout", text)]).map(|asked| asked.pending_timeout);
        assert_eq!(timeout("30m10s"), Ok(Some(Duration::from_secs(1810))));
        assert_eq!((timeout("0"), timeout("")), (Ok(None), Ok(None)));
        assert_eq!(
            timeout("soon").unwrap_err().to_string(),
            r#""soon" is not a duration: write for example 1.5h, 30m or 30m10s"#
        );
    }

    #[test]
    fn a_pod_that_runs_already_is_only_followed() {
        let asked = ask(&open(), &[("pod_name", "p"), ("kube_namespace", "n")]).unwrap().extra;
        assert!(asked.adopted && asked.image.is_empty() && asked.kube_pod.is_empty());
        assert_eq!((asked.pod_name.as_str(), asked.kube_namespace.as_str()), ("p", "n"));
        let refused = ask(&open(), &[("pod_name", "p"), ("secret_kube_pod", "x")]).unwrap_err();
        assert_eq!(refused, ParameterError::PodNameExcludesPod);
    }
}
