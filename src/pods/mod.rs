//! Pods as work: creates a pod for a unit, attaches to it, follows it and deletes it. Owns all decisions about pods and
//! all requests to API servers. It knows no configuration syntax, and not the registry of units, which `work` keeps.
//!
//! - [`machine`]: the life of one unit's pod, pure: answers of the API server go in, requests come out. The modules
//!   that it decides by are pure too: [`pod_status`], [`waiting`], [`api_error`], [`server_version`], and [`log`],
//!   which makes stdout of log streams that break off, repeat themselves and rotate.
//! - [`driver`]: the task that carries a machine's requests out. [`api`], [`cluster`], `watch`: the API servers.
//! - [`executor`]: the units of this node by ID. [`errands`]: work besides units, at a [`place`]. [`check`]: what keeps
//!   a work type from running.
//! - [`options`]: the directive. [`environment`]: settings for all types. [`parameters`]: the parameters of a submission.
//!   [`extra`]: the record in the status file. [`pod`], [`name`], [`kubeconfig`]: the pod to create, and the credential.

pub mod api;
pub mod api_error;
pub mod check;
pub mod cluster;
pub mod driver;
pub mod environment;
pub mod errands;
pub mod executor;
pub mod extra;
pub mod kubeconfig;
pub mod log;
pub mod machine;
pub mod name;
pub mod options;
pub mod parameters;
pub mod place;
pub mod pod;
pub mod pod_status;
pub mod server_version;
pub mod waiting;
pub mod watch;
