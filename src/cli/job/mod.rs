//! `meshctl job run`: what a job is made of. The flags say it, `pack` collects its files from a directory and
//! the flags, `tree` holds them, `transmit` writes them as ansible-runner transmit would. No Ansible is needed
//! here. Secrets and variables are files of the stream, and arguments of no process.

mod flags;
mod header;
mod manage;
mod pack;
mod transmit;
mod tree;

pub(super) use self::manage::JobVerb;

#[cfg(test)]
mod tests;
