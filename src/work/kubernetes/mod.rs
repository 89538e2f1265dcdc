//! Pods as work: the life of a `work-kubernetes` unit, which is created, attached to, followed and deleted.
//! All of it is pure: answers of the API server go in, requests come out; time and randomness are arguments.
//! Sockets, files, the clock and tasks belong to the driver.
//!
//! - [`options`]: the directive. [`environment`]: settings for all types. [`parameters`]: the parameters of a
//!   submission. [`extra`]: the record in the status file.
//! - [`pod`], [`name`], [`kubeconfig`]: the pod to create, and the credential for it.
//! - [`pod_status`], [`waiting`], [`api_error`], [`server_version`]: the API server's answers.
//! - [`log`]: stdout from log streams that break off, repeat themselves and rotate.
//! - [`machine`]: the one owner of a unit, which decides. `errands`: what is done beside units, at a [`place`].

#[cfg(feature = "kubernetes")]
pub mod api;
#[cfg(feature = "kubernetes")]
pub mod api_error;
#[cfg(feature = "kubernetes")]
pub mod back_off;
#[cfg(feature = "kubernetes")]
pub mod check;
#[cfg(feature = "kubernetes")]
pub mod cluster;
#[cfg(feature = "kubernetes")]
pub mod driver;
#[cfg(feature = "kubernetes")]
pub mod environment;
#[cfg(feature = "kubernetes")]
pub mod errands;
#[cfg(feature = "kubernetes")]
pub mod executor;
pub mod extra;
#[cfg(feature = "kubernetes")]
pub mod kubeconfig;
#[cfg(feature = "kubernetes")]
pub mod log;
#[cfg(feature = "kubernetes")]
pub mod machine;
#[cfg(feature = "kubernetes")]
pub mod name;
pub mod options;
#[cfg(feature = "kubernetes")]
pub mod parameters;
pub mod place;
#[cfg(feature = "kubernetes")]
pub mod pod;
#[cfg(feature = "kubernetes")]
pub mod pod_status;
#[cfg(feature = "kubernetes")]
pub mod server_version;
#[cfg(feature = "kubernetes")]
pub mod waiting;
#[cfg(feature = "kubernetes")]
pub mod watch;

/// What a program that was built without Kubernetes says.
#[cfg(not(feature = "kubernetes"))]
pub const NOT_BUILT_IN: &str = "this meshd was built without Kubernetes";
