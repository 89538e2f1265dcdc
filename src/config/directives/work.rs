//! Work types, and the keys that sign and verify submissions.
//!
//! Owns their declarations; work types are read into the types of [`crate::work`]. It refuses to open key
//! files and pods' definitions, and to run anything.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::super::declare::{DirectiveReader, Single, directive, settings};
use super::super::parameters::{self, Bytes, Processors, Variables, choice, grammar, number, parsed};
use super::super::schema::ValueRole;
use super::super::value::Located;
use crate::pods::options::{AuthMethod, KubernetesType, StreamMethod};
use crate::work::limits::{Inherited, Limits, MaxStdout, WhenFull};
use crate::work::{CommandType, PythonPlugin};

directive! {
    /// Runs work by a local command
    "work-command" in Work;
    WorkCommand => CommandType {
        /// name of the work type
        name "worktype": WorkType [required],
        /// program to run
        command: String [required],
        /// its arguments
        params: Option<String>,
        /// let submissions add arguments
        allow_runtime_params "allowruntimeparams": bool,
        /// accept only signed submissions
        verify_signature "verifysignature": SignedOnly,
        /// user whose rights it has; needs a node that runs as root
        user: Option<String>,
        /// most bytes of output kept
        max_stdout "maxstdout": Option<Bytes>,
        /// for more: fail, stop or truncate-head
        when_full "maxstdoutaction": WhenFull = "fail",
        /// merged into its output, or separate
        stderr_apart "stderr": StderrPlace = "merged",
        /// what bounds its units
        limits: CommonLimits,
    }
    make CommandType {
        params: params.unwrap_or_default(),
        allow_runtime_params,
        verify_signature,
        limits: Limits {
            user,
            max_stdout: max_stdout.map(|bytes| MaxStdout { bytes, when_full }),
            stderr_apart,
            ..limits
        },
        ..CommandType::new(name, command)
    }
}

/// The limits of all types that run processes on this node.
#[derive(Debug, Clone, Copy)]
pub enum CommonLimits {}

settings! {
    CommonLimits => Limits {
        /// working directory; the node's own if not given
        cwd: Option<PathBuf>,
        /// most units running at once; others wait in order
        max_units "maxunits": Option<UnitCount>,
        /// how long finished units are kept, as in 72h
        release_after "releaseafter": Option<Limit>,
        /// what bounds each unit
        each: UnitLimits,
    }
    make Limits { cwd, max_units, release_after, ..each }
}

/// The limits on the processes of one unit.
#[derive(Debug, Clone, Copy)]
pub enum UnitLimits {}

settings! {
    UnitLimits => Limits {
        /// variables for its environment
        env: Variables,
        /// what it has of the daemon's environment: whole or clean
        /// That is all of it, or PATH, HOME, USER, LOGNAME, LANG, LANGUAGE, LC_*, TZ, XDG_RUNTIME_DIR, and the variables that
        /// name certificates. Unless given it is clean for a type with another `user`, and whole for others.
        environment: Option<Inherited>,
        /// longest run, as in 3h30m
        timeout: Option<Limit>,
        /// time between SIGINT and harder signals; 10s if not given
        cancel_grace "cancelgrace": Option<Duration>,
        /// processors that a unit may use, as in 1.5
        cpu_millis "cpu": Option<Processors>,
        /// bytes of memory that a unit may use
        memory: Option<Memory>,
        /// processes and threads that a unit may have
        pids: Option<Processes>,
    }
    make Limits { env, environment, timeout, cancel_grace, cpu_millis, memory, pids, ..Limits::default() }
}

directive! {
    /// Runs work in Kubernetes pods
    "work-kubernetes" in Work;
    WorkKubernetes => KubernetesType {
        /// name of the work type
        name "worktype": WorkType [required],
        /// namespace of the pods
        namespace: Option<String>,
        /// container image
        image: Option<String>,
        /// command in the container, instead of its own
        command: Option<String>,
        /// arguments of the command
        params: Option<String>,
        /// kubeconfig, incluster or runtime
        auth_method "authmethod": AuthMethod = "incluster",
        /// kubeconfig file, for authmethod kubeconfig
        kubeconfig: Option<PathBuf>,
        /// pod definition file, JSON or YAML
        pod: Option<PathBuf>,
        /// let submissions bring credentials
        allow_runtime_auth "allowruntimeauth": bool,
        /// let submissions choose image and command
        allow_runtime_command "allowruntimecommand": bool,
        /// let submissions add arguments
        allow_runtime_params "allowruntimeparams": bool,
        /// let submissions bring a pod
        allow_runtime_pod "allowruntimepod": bool,
        /// delete a pending pod at restart
        delete_pod_on_restart "deletepodonrestart": bool = "true",
        /// how to talk to pods: logger or tcp
        stream_method "streammethod": StreamMethod = "logger",
        /// address that pods connect to with streammethod tcp
        tcp_address "tcpaddress": Option<IpAddr>,
        /// how long a unit waits for its API server
        api_outage "apioutage": Duration = "30m",
        /// try again while a quota is exceeded
        quota_retry "quotaretry": bool,
        /// accept only signed submissions
        verify_signature "verifysignature": SignedOnly,
        /// let other nodes submit to it, unsigned
        /// Without it and `verifysignature`, a type with `allowruntimepod` or `authmethod: incluster` is taken through the
        /// Unix socket alone, and is not advertised.
        mesh: bool,
    }
    check namespace_missing(namespace, auth_method, allow_runtime_auth);
    check kubeconfig_unused(kubeconfig, auth_method);
    check pod_and_container(pod, image, command, params);
    check nothing_to_run(pod, image, allow_runtime_command, allow_runtime_pod);
    make KubernetesType {
        namespace: namespace.unwrap_or_default(),
        image: image.unwrap_or_default(),
        command: command.unwrap_or_default(),
        params: params.unwrap_or_default(),
        auth_method,
        kubeconfig,
        pod,
        allow_runtime_auth,
        allow_runtime_command,
        allow_runtime_params,
        allow_runtime_pod,
        delete_pod_on_restart,
        stream_method,
        tcp_address,
        api_outage,
        quota_retry,
        verify_signature,
        mesh,
        ..KubernetesType::new(name)
    }
}

type Objection = Option<&'static str>;

fn namespace_missing(namespace: &Option<String>, method: &AuthMethod, from_submission: &bool) -> Objection {
    let needed = *method != AuthMethod::KubeConfig && !from_submission;
    (namespace.is_none() && needed)
        .then_some("`namespace` is needed unless `authmethod` is kubeconfig or `allowruntimeauth` is true")
}

fn kubeconfig_unused(file: &Option<PathBuf>, method: &AuthMethod) -> Objection {
    (file.is_some() && *method != AuthMethod::KubeConfig)
        .then_some("`kubeconfig` is only for `authmethod: kubeconfig`")
}

type Words = Option<String>;

fn pod_and_container(pod: &Option<PathBuf>, image: &Words, command: &Words, params: &Words) -> Objection {
    (pod.is_some() && [image, command, params].into_iter().any(Option::is_some))
        .then_some("`pod` excludes `image`, `command` and `params`: write them into the pod")
}

fn nothing_to_run(pod: &Option<PathBuf>, image: &Words, any_command: &bool, any_pod: &bool) -> Objection {
    (pod.is_none() && image.is_none() && !any_command && !any_pod)
        .then_some("`image` is needed unless there is `pod`, `allowruntimecommand` or `allowruntimepod`")
}

directive! {
    /// Runs work by a Python plugin
    "work-python" in Work;
    WorkPython => CommandType {
        /// name of the work type
        name "worktype": WorkType [required],
        /// Python module
        plugin: String [required],
        /// function to call
        function: String [required],
        /// settings of the plugin
        config: serde_json::Map<String, serde_json::Value>,
        /// what bounds its units, without user and output: the program that calls plugins writes the unit's files
        /// itself, with the rights of the node
        limits: CommonLimits,
    }
    make CommandType { limits, ..CommandType::python(name, PythonPlugin { plugin, function, config }) }
}

directive! {
    /// The key that signs submissions
    "work-signing" in Work [singleton];
    struct WorkSigning {
        /// private key file, PEM or OpenSSH
        private_key "privatekey": KeyFileName [bare],
        /// how long a signature is valid, as in 3h30m
        token_expiration "tokenexpiration": Option<Duration>,
    }
}

directive! {
    /// The key that verifies submissions
    "work-verification" in Work [singleton];
    struct WorkVerification {
        /// public key file, PEM or one line of OpenSSH
        public_key "publickey": KeyFileName [bare],
    }
}

grammar! {
    impl WhenFull => WhenFull = Text choice(
        &[("fail", WhenFull::Fail), ("stop", WhenFull::Stop), ("truncate-head", WhenFull::TruncateHead)],
        "use fail, stop or truncate-head",
    );
    impl Inherited => Inherited = Text choice(
        &[("whole", Inherited::Whole), ("clean", Inherited::Clean)], "an environment is whole or clean",
    );
    impl AuthMethod => AuthMethod = Text choice(
        &[
            ("kubeconfig", AuthMethod::KubeConfig),
            ("incluster", AuthMethod::InCluster),
            ("runtime", AuthMethod::Runtime),
        ],
        "a method is kubeconfig, incluster or runtime",
    );
    impl StreamMethod => StreamMethod = Text choice(
        &[("logger", StreamMethod::Logger), ("tcp", StreamMethod::Tcp)], "a method is logger or tcp",
    );
}

grammar! {
    /// A number of units that may run.
    struct UnitCount => u32 = Int number(1.., "at least one unit must be able to run");
    /// Bytes of memory that are enough for a process.
    struct Memory => u64 = Int number(1 << 20.., "a unit needs at least 1048576 bytes of memory");
    /// A number of processes.
    struct Processes => u64 = Int number(1..=u64::from(u32::MAX), "a unit is at least one process");
    /// Whether stderr is kept apart.
    struct StderrPlace => bool = Text choice(
        &[("merged", false), ("separate", true)], "stderr is merged or separate",
    );
    /// The name of a work type. One with a blank cannot be said in words of the line protocol, but in JSON.
    struct WorkType => String = Text parsed(work_type), role ValueRole::Defines("work type");
    /// A duration above zero.
    struct Limit => Duration = Text limit;
    /// The file of a key. The grammar does not require its name, but nothing works without it.
    struct KeyFileName => PathBuf = Text key_file, empty_is_absent true;
    /// Whether submissions must be signed, which needs a key to verify them.
    struct SignedOnly => bool = Flag <bool as Single>::read, role ValueRole::Needs("work-verification");
}

pub(super) fn work_type(text: &str) -> Result<String, &'static str> {
    let fits = !text.contains(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err("a work type holds no control characters") }
}

fn limit(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Duration> {
    let given = reader.parse(given?.name(), parameters::duration)?;
    if given.is_zero() {
        reader.refuse("0", "leave it out for no limit");
    }
    (!given.is_zero()).then_some(given)
}

fn key_file(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<PathBuf> {
    if given.is_none() {
        reader.lacks("the name of a file");
    }
    given.map(|given| PathBuf::from(given.name()))
}
