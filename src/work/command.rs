//! The command line of a command unit: which parameters it gets and how they split into words.
//! Knows the configured type and what the client gave; starts nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::limits::Limits;
use super::{Caller, Rights, WorkError};
use crate::pods::options::KubernetesType;

/// A configured work type that runs a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandType {
    /// Name of the work type.
    pub name: String,
    /// Program to run, looked up on PATH when it has no slash.
    pub command: String,
    /// Arguments that it always gets, in shell quoting.
    pub params: String,
    /// Whether clients may add arguments, in the parameter `params`.
    pub allow_runtime_params: bool,
    /// Whether requests that do not come over this node's own Unix socket need a signature.
    pub verify_signature: bool,
    /// Who may start units of this type.
    pub reach: Reach,
    /// The Python plugin that the program calls, for types of that kind.
    pub plugin: Option<PythonPlugin>,
    /// Bounds and surroundings of its units.
    pub limits: Limits,
    /// How its units run as pods, if they do.
    pub pods: Option<Box<KubernetesType>>,
}

/// Who may start units of a work type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Every node of the mesh, to which it is advertised, and every client.
    Mesh,
    /// Only callers with [`Rights::Admin`].
    Operators,
    /// Only this node's controller. For everybody else the type does not exist.
    Controller,
}

impl Reach {
    pub(super) fn admits(self, caller: &Caller) -> bool {
        match self {
            Self::Mesh => true,
            Self::Operators => caller.may(Rights::Admin),
            Self::Controller => false,
        }
    }
}

/// A function of a plugin that `receptor-python-worker` loads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonPlugin {
    /// Name of the entry point in group `receptor.worker`.
    pub plugin: String,
    /// The exported function.
    pub function: String,
    /// The function's configuration. The unit's parameters are added as `params`.
    pub config: serde_json::Map<String, serde_json::Value>,
}

/// The program that calls plugins, looked up on PATH.
pub const PYTHON_WORKER: &str = "receptor-python-worker";

/// The work type of the units that a controller runs on its own node.
pub const RUNNER: &str = "controller-runner";

/// The work type of the units that sync a controller's projects.
pub const SYNC: &str = "controller-sync";

impl CommandType {
    /// A type that runs a program, without arguments, bounds or signatures.
    pub fn new(name: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            params: String::new(),
            allow_runtime_params: false,
            verify_signature: false,
            reach: Reach::Mesh,
            plugin: None,
            limits: Limits::default(),
            pods: None,
        }
    }

    /// A type that calls a function of a Python plugin.
    pub fn python(name: impl Into<String>, plugin: PythonPlugin) -> Self {
        Self { plugin: Some(plugin), ..Self::new(name, PYTHON_WORKER) }
    }

    /// A type whose units run as pods.
    pub fn pods(kind: KubernetesType) -> Self {
        let reach = if kind.is_for_operators() { Reach::Operators } else { Reach::Mesh };
        let (name, verify_signature) = (kind.name.clone(), kind.verify_signature);
        Self { verify_signature, reach, pods: Some(Box::new(kind)), ..Self::new(name, "") }
    }

    /// The type that a controller runs on its own node. Nobody else can start it, and it is not advertised.
    pub fn runner(command: impl Into<String>, params: impl Into<String>, limits: Limits) -> Self {
        Self {
            params: params.into(),
            allow_runtime_params: true,
            reach: Reach::Controller,
            limits,
            ..Self::new(RUNNER, command)
        }
    }

    /// The arguments of one unit, still in shell quoting: the configured ones, then the client's.
    ///
    /// # Errors
    /// [`WorkError::ParamsNotAllowed`], or [`WorkError::BadQuoting`] if the result does not split into words.
    pub(crate) fn arguments(&self, given: &BTreeMap<String, String>) -> Result<String, WorkError> {
        let given = given.get("params").map_or("", String::as_str);
        if !given.is_empty() && !self.allow_runtime_params {
            return Err(WorkError::ParamsNotAllowed);
        }
        let joined = match (self.params.as_str(), given) {
            (only, "") | ("", only) => only.to_owned(),
            (first, second) => format!("{first} {second}"),
        };
        split(&joined)?;
        Ok(joined)
    }
}

/// Splits arguments as a shell would, without expanding anything.
///
/// # Errors
/// [`WorkError::BadQuoting`] for an unclosed quote or escape, and for a NUL, which no argument can contain.
pub(crate) fn split(arguments: &str) -> Result<Vec<String>, WorkError> {
    let bad = || WorkError::BadQuoting(arguments.to_owned());
    if arguments.contains('\0') {
        return Err(bad());
    }
    shlex::split(arguments).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(configured: &str, given: &str, allowed: bool) -> Result<String, WorkError> {
        let kind = CommandType {
            params: configured.into(),
            allow_runtime_params: allowed,
            ..CommandType::new("t", "c")
        };
        kind.arguments(&BTreeMap::from([("params".into(), given.into())]))
    }

    #[test]
    fn configured_arguments_come_first() {
        assert_eq!(arguments("worker", "--x 'a b'", true).unwrap(), "worker --x 'a b'");
        assert_eq!(arguments("", "x", true).unwrap(), "x");
        assert_eq!(arguments("worker", "", false).unwrap(), "worker");
        assert_eq!(
            arguments("worker", "x", false).unwrap_err().to_string(),
            "extra params provided but not allowed"
        );
        assert!(matches!(arguments("worker", "'x", true), Err(WorkError::BadQuoting(_))));
    }

    #[test]
    fn words_split_as_in_a_shell() {
        assert_eq!(
            split(r#"-c 'echo hi; sleep 2' a\ b "c d""#).unwrap(),
            ["-c", "echo hi; sleep 2", "a b", "c d"]
        );
        assert!(split("").unwrap().is_empty());
        assert!(split("a\0b").is_err());
    }
}
