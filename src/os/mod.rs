//! The operating system, in the shape in which the rooms above use it.
//!
//! `rlimit` is the limit of open files, `unix_socket` binds sockets with their lock, `address` binds addresses, `tcp` sets
//! the options of TCP sockets, `peer_user` says whose the other end is, `replace` writes files atomically, `directories` flushes names, `regular_file`
//! reads files and waits for none, `private_file` those with secrets, `watch` notices changed files and `readiness` waits for descriptors; `container` says whether
//! there is one around this process, `boot` which boot this is, `machine_clock` how long ago something was; `ending` kills
//! processes; `coop` keeps tasks fair to each other, `places` keeps callers fair to each other, `answers` bounds what large
//! answers take, `house` lets the silent make room, `back_off` paces what is tried again, and `log_limiter` bounds what
//! others can make the node log. `first_process` is process 1 of a container that has no init, and `terminal` says which
//! characters terminals obey.
//!
//! It uses the standard library and crates, and no other room: it knows nothing of the mesh.

pub(crate) mod address;
pub(crate) mod answers;
pub(crate) mod back_off;
pub(crate) mod boot;
pub(crate) mod container;
pub(crate) mod coop;
pub(crate) mod directories;
pub(crate) mod ending;
pub(crate) mod first_process;
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
