//! The operating system, in the shape in which the rooms above use it.
//!
//! `rlimit` is the limit of open files, `unix_socket` binds sockets with their lock, `address` binds addresses,
//! `tcp` sets the options of TCP sockets, `accept` retries failed accepts, `peer_user` names the user at the other
//! end, `replace` writes files atomically, `directories` flushes names, `regular_file` reads files and never waits,
//! `private_file` reads those with secrets, `watch` notices changed files, and `readiness` waits for descriptors.
//! `container` says whether this process runs in one, `boot` tells boots apart, `machine_clock` measures time, and
//! `ending` kills processes. `coop` keeps tasks fair to each other, `places` keeps callers fair to each other,
//! `answers` bounds the cost of large answers, `house` makes silent connections leave, `back_off` spaces repeated
//! attempts, and `log_limiter` bounds the log lines that others can cause. `hex` prints and reads digits. `first_process` is process 1 of a
//! container that has no init, and `terminal` lists the characters that terminals obey.
//!
//! It uses the standard library and crates, but no other room: it knows nothing of the mesh.

pub(crate) mod accept;
pub(crate) mod acting;
pub(crate) mod address;
pub(crate) mod answers;
pub(crate) mod back_off;
pub(crate) mod boot;
pub(crate) mod container;
pub(crate) mod coop;
pub(crate) mod directories;
pub(crate) mod ending;
pub(crate) mod first_process;
pub(crate) mod hex;
pub(crate) mod house;
pub(crate) mod log_limiter;
pub(crate) mod machine_clock;
pub(crate) mod peer_user;
pub(crate) mod places;
pub(crate) mod private_file;
pub(crate) mod readiness;
pub(crate) mod regular_file;
pub(crate) mod replace;
pub(crate) mod rlimit;
pub(crate) mod tcp;
pub(crate) mod terminal;
pub(crate) mod unix_socket;
pub(crate) mod watch;
