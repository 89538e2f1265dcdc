//! Pods as work: what a unit of a `work-kubernetes` type is while it is created, attached to, followed and deleted.
//! Everything here is pure: what the API server says goes in, what to ask it comes out; time and randomness are
//! arguments. Knows no sockets, files, clock or tasks; those are the driver's.
//!
//! - [`options`]: the directive. [`environment`]: what holds for all of them. [`parameters`]: what a submission adds. [`extra`]: what is written down of both.
//! - [`pod`], [`name`], [`kubeconfig`]: what is sent to the API server, and with which credential.
//! - [`pod_status`], [`waiting`], [`api_error`]: what it answers.
//! - [`log`]: stdout out of log streams that break off, repeat themselves and rotate.
//! - [`machine`]: the one owner of a unit, which decides.

pub mod api_error;
pub mod back_off;
pub mod environment;
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
