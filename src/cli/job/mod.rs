//! `meshctl job`: jobs that find their node by themselves.
//!
//! `verbs` is the list of commands, and `chosen` says which jobs they mean; `run` is the one that makes a job of a
//! directory, watches it and ends as it does. What a job is made of: the `flags` say it, those of `ansible` and of its
//! `vault`s as ansible-playbook has them; `secrets` are asked for, `settings` of ansible.cfg and of the environment go
//! along, `asks` finds what nobody would answer; `pack` collects the files from a directory and the flags, `tree` holds
//! them, `transmit` writes them as ansible-runner transmit would, `submit` hands them over. No Ansible is needed here.
//! Secrets and variables are files of the stream, and arguments of no process. What comes back: `follow` reads a job's
//! output, `playbook` makes of it what ansible-playbook prints, `artifacts` keeps the files, `report` says what people
//! read of a job, `explain` why it does not get on, and `tell` has `run` say so.

mod ansible;
mod artifacts;
mod asks;
mod chosen;
mod explain;
mod flags;
mod follow;
mod header;
mod pack;
mod playbook;
mod report;
mod run;
mod secrets;
mod settings;
mod submit;
mod tell;
mod transmit;
mod tree;
mod vault;
mod verbs;

pub(super) use self::verbs::JobVerb;

#[cfg(test)]
mod tests;
