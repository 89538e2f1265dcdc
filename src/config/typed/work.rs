//! Work types, and the keys that sign and verify submissions.
//!
//! Owns their settings and the rules that hold within one directive. It refuses to open key files and pods'
//! definitions, and to run anything.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::super::fields::{Fields, Optional};

/// The directive `work-command`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkCommand {
    /// Name of the work type.
    pub work_type: String,
    /// The program.
    pub command: String,
    /// Its arguments, as one line to be split like a shell does.
    pub params: String,
    /// True if submissions may add arguments.
    pub allow_runtime_params: bool,
    /// True if submissions must be signed.
    pub verify_signature: bool,
    /// Bounds and surroundings of its units.
    pub limits: WorkLimits,
}

/// What bounds the units of a work type, and what their commands find around them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkLimits {
    /// Variables added to the environment.
    pub env: BTreeMap<String, String>,
    /// The working directory.
    pub cwd: Option<PathBuf>,
    /// The user whose rights the command has.
    pub user: Option<String>,
    /// Most units running at once.
    pub max_units: Option<u32>,
    /// Longest run.
    pub timeout: Option<Duration>,
    /// Time between SIGINT and harder signals.
    pub cancel_grace: Option<Duration>,
    /// Most bytes of output kept.
    pub max_stdout: Option<u64>,
    /// What happens to more output.
    pub max_stdout_action: MaxStdoutAction,
    /// How long finished units are kept.
    pub release_after: Option<Duration>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
}

/// What happens when a unit's output is longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaxStdoutAction {
    /// The unit fails.
    #[default]
    Fail,
    /// What comes then is discarded.
    Stop,
    /// What came first is discarded.
    TruncateHead,
}

/// Where the credentials for Kubernetes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMethod {
    /// A kubeconfig file.
    KubeConfig,
    /// The pod that this node runs in.
    InCluster,
    /// Each submission.
    Runtime,
}

/// How a work pod is talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMethod {
    /// Attach for input, the log for output.
    Logger,
    /// A TCP connection from the pod.
    Tcp,
}

/// The directive `work-kubernetes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkKubernetes {
    /// Name of the work type.
    pub work_type: String,
    /// Namespace of the pods.
    pub namespace: Option<String>,
    /// Container image.
    pub image: Option<String>,
    /// Command in the container.
    pub command: Option<String>,
    /// Its arguments, as one line.
    pub params: String,
    /// Where the credentials come from.
    pub auth_method: AuthMethod,
    /// The kubeconfig file, if it is not in its usual place.
    pub kube_config: Option<PathBuf>,
    /// A pod definition.
    pub pod: Option<PathBuf>,
    /// True if submissions may bring credentials.
    pub allow_runtime_auth: bool,
    /// True if submissions may choose image and command.
    pub allow_runtime_command: bool,
    /// True if submissions may add arguments.
    pub allow_runtime_params: bool,
    /// True if submissions may bring a pod.
    pub allow_runtime_pod: bool,
    /// True if a pod that is pending when this node restarts is deleted.
    pub delete_pod_on_restart: bool,
    /// How the pod is talked to.
    pub stream_method: StreamMethod,
    /// True if submissions must be signed.
    pub verify_signature: bool,
}

/// The directive `work-python`.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkPython {
    /// Name of the work type.
    pub work_type: String,
    /// Python module.
    pub plugin: String,
    /// Its function.
    pub function: String,
    /// Settings of the plugin.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// Bounds and surroundings of its units, without user and output: the program that calls plugins writes the
    /// unit's files itself, with the rights of the node.
    pub limits: WorkLimits,
}

/// The directive `work-signing`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkSigning {
    /// Private key file.
    pub private_key: PathBuf,
    /// How long a signature is valid, if it is limited here.
    pub token_expiration: Option<Duration>,
}

/// The directive `work-verification`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkVerification {
    /// Public key file.
    pub public_key: PathBuf,
}

pub(super) fn command(fields: &mut Fields<'_>) -> Option<WorkCommand> {
    let work_type = work_type(fields);
    let command = fields.must("command");
    let limits = limits(fields);
    Some(WorkCommand {
        work_type: work_type?,
        command: command?,
        params: fields.or_empty("params"),
        allow_runtime_params: fields.flag("allowruntimeparams"),
        verify_signature: fields.flag("verifysignature"),
        limits: limits?,
    })
}

/// The limits of a command, which writes to a file that is handed to it.
fn limits(fields: &mut Fields<'_>) -> Option<WorkLimits> {
    let max_stdout = fields.number("maxstdout", 0, i64::MAX, "a number of bytes is 0 or more");
    let max_stdout_action = fields.must_parse("maxstdoutaction", max_stdout_action);
    let common = common_limits(fields);
    Some(WorkLimits {
        user: fields.string("user"),
        max_stdout: max_stdout?,
        max_stdout_action: max_stdout_action?,
        ..common?
    })
}

/// The limits of all types that run processes here.
fn common_limits(fields: &mut Fields<'_>) -> Option<WorkLimits> {
    let env = environment(fields);
    let max_units =
        fields.number("maxunits", 1, i64::from(u32::MAX), "at least one unit must be able to run");
    let timeout = some_time(fields, "timeout");
    let cancel_grace = fields.duration("cancelgrace");
    let release_after = some_time(fields, "releaseafter");
    let cpu_millis = cpu(fields);
    let memory = fields.number("memory", 1 << 20, i64::MAX, "a unit needs at least 1048576 bytes of memory");
    let pids = fields.number("pids", 1, i64::from(u32::MAX), "a unit is at least one process");
    Some(WorkLimits {
        env: env?,
        cwd: fields.path("cwd"),
        max_units: max_units?,
        timeout: timeout?,
        cancel_grace: cancel_grace?,
        release_after: release_after?,
        cpu_millis: cpu_millis?,
        memory: memory?,
        pids: pids?,
        ..WorkLimits::default()
    })
}

/// A number of processors, in thousandths.
fn cpu(fields: &mut Fields<'_>) -> Optional<u32> {
    let Some(given) = fields.float("cpu") else { return Some(None) };
    let millis = (given * 1000.0).round();
    if (10.0..=1_000_000.0).contains(&millis) {
        return Some(Some(millis as u32));
    }
    fields.refuse("cpu", given.to_string(), "a number of processors is 0.01 to 1000");
    None
}

/// A duration that is longer than none.
fn some_time(fields: &mut Fields<'_>, name: &'static str) -> Optional<Duration> {
    let given = fields.duration(name)?;
    if given == Some(Duration::ZERO) {
        fields.refuse(name, "0".to_owned(), "leave it out for no limit");
        return None;
    }
    Some(given)
}

/// Variables whose values are texts, numbers or booleans.
fn environment(fields: &mut Fields<'_>) -> Option<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    let mut good = true;
    for (name, value) in fields.free("env") {
        let value = match value {
            serde_json::Value::String(text) => Some(text),
            serde_json::Value::Number(_) | serde_json::Value::Bool(_) => Some(value.to_string()),
            serde_json::Value::Null => Some(String::new()),
            serde_json::Value::Array(_) | serde_json::Value::Object(_) => None,
        };
        let fits = !name.is_empty() && !name.contains(['=', '\0']);
        match value.filter(|value| fits && !value.contains('\0')) {
            Some(value) => drop(variables.insert(name, value)),
            None => {
                fields.refuse("env", name, "a variable has a name without `=` and a single value");
                good = false;
            }
        }
    }
    good.then_some(variables)
}

fn max_stdout_action(text: &str) -> Result<MaxStdoutAction, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "fail" => Ok(MaxStdoutAction::Fail),
        "stop" => Ok(MaxStdoutAction::Stop),
        "truncate-head" => Ok(MaxStdoutAction::TruncateHead),
        _ => Err("use fail, stop or truncate-head"),
    }
}

pub(super) fn kubernetes(fields: &mut Fields<'_>) -> Option<WorkKubernetes> {
    let work_type = work_type(fields);
    let auth_method = fields.must_parse("authmethod", auth_method);
    let stream_method = fields.must_parse("streammethod", stream_method);
    if let Some(auth_method) = auth_method {
        check_kubernetes(fields, auth_method);
    }
    Some(WorkKubernetes {
        work_type: work_type?,
        namespace: fields.string("namespace"),
        image: fields.string("image"),
        command: fields.string("command"),
        params: fields.or_empty("params"),
        auth_method: auth_method?,
        kube_config: fields.path("kubeconfig"),
        pod: fields.path("pod"),
        allow_runtime_auth: fields.flag("allowruntimeauth"),
        allow_runtime_command: fields.flag("allowruntimecommand"),
        allow_runtime_params: fields.flag("allowruntimeparams"),
        allow_runtime_pod: fields.flag("allowruntimepod"),
        delete_pod_on_restart: fields.flag("deletepodonrestart"),
        stream_method: stream_method?,
        verify_signature: fields.flag("verifysignature"),
    })
}

/// Which parameters need or exclude each other.
fn check_kubernetes(fields: &mut Fields<'_>, auth_method: AuthMethod) {
    let from_file = auth_method == AuthMethod::KubeConfig;
    let given = |name| fields.text(name).is_some();
    let container = ["image", "command", "params"].into_iter().any(given);
    let (namespace, kube_config, image, pod) =
        (given("namespace"), given("kubeconfig"), given("image"), given("pod"));
    let brought = fields.flag("allowruntimecommand") || fields.flag("allowruntimepod");
    if !namespace && !from_file && !fields.flag("allowruntimeauth") {
        fields.conflict(
            "`namespace` is needed unless `authmethod` is kubeconfig or `allowruntimeauth` is true",
        );
    }
    if kube_config && !from_file {
        fields.conflict("`kubeconfig` is only for `authmethod: kubeconfig`");
    }
    if pod && container {
        fields.conflict("`pod` excludes `image`, `command` and `params`: write them into the pod");
    }
    if !pod && !image && !brought {
        fields
            .conflict("`image` is needed unless there is `pod`, `allowruntimecommand` or `allowruntimepod`");
    }
}

pub(super) fn python(fields: &mut Fields<'_>) -> Option<WorkPython> {
    let work_type = work_type(fields);
    let plugin = fields.must("plugin");
    let function = fields.must("function");
    let limits = common_limits(fields);
    Some(WorkPython {
        work_type: work_type?,
        plugin: plugin?,
        function: function?,
        config: fields.free("config"),
        limits: limits?,
    })
}

pub(super) fn signing(fields: &mut Fields<'_>) -> Option<WorkSigning> {
    let private_key = key(fields, "privatekey");
    let token_expiration = fields.duration("tokenexpiration");
    Some(WorkSigning { private_key: private_key?, token_expiration: token_expiration? })
}

pub(super) fn verification(fields: &mut Fields<'_>) -> Option<WorkVerification> {
    Some(WorkVerification { public_key: key(fields, "publickey")? })
}

/// The grammar does not require the file's name, but nothing works without it.
fn key(fields: &mut Fields<'_>, name: &'static str) -> Option<PathBuf> {
    let path = fields.path(name);
    if path.is_none() {
        fields.conflict(format!("`{name}` is needed: the name of a file"));
    }
    path
}

fn work_type(fields: &mut Fields<'_>) -> Option<String> {
    fields.must_parse("worktype", |text| {
        // It travels in words of the line protocol.
        let fits = !text.contains(|c: char| c.is_whitespace() || c.is_control());
        if fits { Ok(text.to_owned()) } else { Err("a work type holds no blanks and no control characters") }
    })
}

fn auth_method(text: &str) -> Result<AuthMethod, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "kubeconfig" => Ok(AuthMethod::KubeConfig),
        "incluster" => Ok(AuthMethod::InCluster),
        "runtime" => Ok(AuthMethod::Runtime),
        _ => Err("a method is kubeconfig, incluster or runtime"),
    }
}

fn stream_method(text: &str) -> Result<StreamMethod, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "logger" => Ok(StreamMethod::Logger),
        "tcp" => Ok(StreamMethod::Tcp),
        _ => Err("a method is logger or tcp"),
    }
}
