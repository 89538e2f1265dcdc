//! Pods as work: the life of a `work-kubernetes` unit, which is created, attached to, followed and deleted.
//! All of it is pure: answers of the API server go in, requests come out; time and randomness are arguments.
//! Sockets, files, the clock and tasks belong to the driver.
//!
//! - [`options`]: the directive. [`environment`]: settings for all types. [`parameters`]: the parameters of a
//!   submission. [`extra`]: the record in the status file.
//! - [`pod`], [`name`], [`kubeconfig`]: the pod to create, and the credential for it.
//! - [`pod_status`], [`waiting`], [`api_error`]: the API server's answers.
//! - [`log`]: stdout from log streams that break off, repeat themselves and rotate.
//! - [`machine`]: the one owner of a unit, which decides.

pub mod api;
pub mod api_error;
pub mod back_off;
pub mod cluster;
pub mod driver;
pub mod environment;
pub mod executor;
pub mod extra;
pub mod kubeconfig;
pub mod log;
pub mod machine;
pub mod name;
pub mod options;
pub mod parameters;
pub mod pod;
pub mod pod_status;
pub mod waiting;
pub mod watch;
