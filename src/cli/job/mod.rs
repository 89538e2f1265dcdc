//! `meshctl job`: jobs for which the controller chooses the node.
//!
//! Commands: `verbs` lists them, and `chosen` selects the jobs that they act on. `run` makes a job of a directory,
//! prints its output, and exits with its result.
//!
//! What a job is made of: `flags` has the arguments, `ansible` and `vault` those that ansible-playbook has as well;
//! `secrets` asks for passwords; `pack` makes of all that what [`crate::controller::pack`] packs; `header` makes the job's
//! header; `submit` hands stream and header over. Secrets and variables are files of the stream, never arguments of a
//! process.
//!
//! What comes back: `follow` reads a job's output, `playbook` turns it into what ansible-playbook prints, `artifacts`
//! keeps the files, `report` lays a job out for people, `errors` prints its failures, `explain` says why it waits, and
//! `tell` prints that during `run`. `export` prints all jobs that have ended, for other programs.

mod ansible;
mod artifacts;
mod chosen;
mod errors;
mod explain;
mod export;
mod flags;
mod follow;
mod header;
mod pack;
mod playbook;
mod report;
mod run;
mod secrets;
mod submit;
mod tell;
mod vault;
mod verbs;

pub(super) use self::pack::extra_vars;
pub(super) use self::run::attend_job;
pub(super) use self::secrets::ask as ask_secret;
pub(super) use self::submit::number_of;
pub(super) use self::verbs::JobVerb;

#[cfg(test)]
mod tests;
