//! `ExtraData` of a unit that runs as a pod, with receptor's keys and ours: its format in the status file,
//! and the part that clients may see. They never see the kubeconfig or the pod definition, which may hold
//! secrets.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// `ExtraData` in the status file.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubeExtra {
    /// Image of the simple pod.
    pub image: String,
    /// Its command, in shell quoting.
    pub command: String,
    /// Its arguments, in shell quoting.
    pub params: String,
    /// The pod's namespace; the effective one, once known.
    pub kube_namespace: String,
    /// Content of the kubeconfig.
    pub kube_config: String,
    /// Content of the pod definition.
    pub kube_pod: String,
    /// The pod's name, chosen before the pod is created.
    pub pod_name: String,
    /// The pod's UID, once known.
    #[serde(rename = "PodUID", skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// Somebody else created the pod; the unit only follows it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// A pod that has not started outlives the daemon, whatever the directive says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_pod: bool,
    /// The deadline by which the pod must run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_until: Option<Timestamp>,
    /// An attach for stdin was requested, so part of the payload may have reached the pod.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stdin_begun: bool,
    /// When the unit was released, if its pod is not deleted yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<Timestamp>,
    /// Exit code of container `worker`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why the container ended, in Kubernetes' words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub terminated_reason: String,
}

impl KubeExtra {
    /// Whether a unit's ExtraData is that of a pod: every version has written these keys.
    pub fn is_one(extra: &serde_json::Value) -> bool {
        ["KubeNamespace", "KubeConfig", "KubePod", "PodName"].iter().all(|key| extra.get(key).is_some())
    }

    /// A copy without secrets, for answers to clients.
    pub fn shown(&self) -> Self {
        Self { kube_config: String::new(), kube_pod: String::new(), ..self.clone() }
    }
}

impl std::fmt::Debug for KubeExtra {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kube_namespace, pod_name, pod_uid, .. } = self;
        write!(f, "KubeExtra({kube_namespace}/{pod_name} {pod_uid})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_nodes_extra_data_comes_back_and_keys_of_older_ones_are_ignored() {
        let go = r#"{"Image":"i","Command":"c","Params":"p","KubeNamespace":"n","KubeConfig":"k","KubePod":"","PodName":"w-abcde"}"#;
        let read: KubeExtra = serde_json::from_str(go).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), go);
        let older = go.replacen('{', r#"{"KubeVerifyTLS":true,"KubeTLSCAData":"x","#, 1);
        assert_eq!(serde_json::from_str::<KubeExtra>(&older).unwrap(), read);
    }

    #[test]
    fn secrets_stay_out_of_answers_and_logs() {
        let extra = KubeExtra {
            kube_config: "token: hunter2".into(),
            kube_pod: "env: hunter2".into(),
            ..KubeExtra::default()
        };
        let shown = serde_json::to_string(&extra.shown()).unwrap();
        assert!(shown.contains(r#""KubeConfig":"","KubePod":"""#), "{shown}");
        assert!(!format!("{shown}{extra:?}").contains("hunter2"));
        assert!(serde_json::to_string(&extra).unwrap().contains("hunter2"), "on disk it is needed");
    }
}
