//! A mesh node that speaks receptor's protocol, and the command line that talks to it.
//!
//! # The rooms
//!
//! Dependencies point one way: `wire` <- `mesh` <- `node` <- `stream` <- `service`, `work` <- `control` <-
//! `http` <- `daemon` <- `program`. `backend` stands beside `node`, `tls` below the rooms that open connections, `rpc`
//! below `work` and `control`, `pods` below `work`, `controller` above `work`, `confine` beside it. `config` stands
//! above the rooms, of which it names only the options, and `daemon` reads it. tests/rooms.rs lists and checks every
//! arrow.
//!
//! - [`wire`] owns every byte layout that travels between nodes.
//! - [`mesh`] owns the protocol, pure: sessions, routes, floods, datagrams; time is an argument. With `wire` and `counters` it
//!   is a crate of its own, `meshd-core`, which `netsim` simulates.
//! - [`backend`] owns links to neighbours: dial, listen, redial, sessions of whole packets.
//! - [`node`] owns the running node: the task around `mesh`, its links, queues and datagram sockets.
//! - [`congestion`] owns how much may be in flight on a QUIC connection: of links, and of streams.
//! - [`stream`] owns byte streams between services, QUIC above the mesh's datagrams.
//! - [`service`] owns proxies between services of the mesh and sockets outside it, and the IP router.
//! - [`tls`] owns trust: profiles, whose certificate is accepted, and making certificates.
//! - [`work`] owns units of work: their life, their directories, their processes, their results.
//! - [`pods`] owns the pods in which units run: their life, and all that is asked of API servers.
//! - [`control`] owns the control service, which answers the line protocol that clients speak.
//! - `http` owns what a node serves over HTTP: metrics and health, and the page with its API, from the reports of `control`.
//! - [`rpc`] owns that protocol: its requests, answers and errors, and the client of it; below `work` and `control`.
//! - `confine` owns what a command that handles foreign content may do on this machine.
//! - [`controller`] owns placement: which node runs a job, when, and what follows its loss. Its units are
//!   jobs, and each attempt of a job is a unit of the node that runs it.
//! - [`config`] owns the grammar of configuration: files and command line in, checked types out.
//! - `join` owns how hosts become nodes: the authority, bundles, and what they put in place.
//! - `daemon` wires all of them into a node; `telemetry` is its log; `cli` is meshctl; `program` chooses between the two.
//! - `os` owns what the operating system gives: limits, Unix sockets, inotify.
//! - [`counters`] owns what a node counts of its mesh: plain numbers, as the core counts and as clients read them.
//! - `duration` owns Go's notation of durations, which users type and clients read.
//!
//! # The way of a packet, and of a job
//!
//! A link's reader takes whole packets off a session. Datagrams go on by an immutable forwarding table,
//! from the reader straight into the next link's queue or a service's inbox; everything else goes to the
//! one task that owns [`mesh::Mesh`], which answers with messages to send and events to act on.
//!
//! A client's line becomes a request; a submission becomes a unit, durable before the node answers with its ID. The
//! payload goes to disk, a small detached runner starts the command, and readers of results follow the files on disk,
//! woken by the file system. A unit for another node travels over a stream to that node's control service.

pub mod backend;
pub(crate) mod cli;
pub mod config;
pub(crate) mod confine;
pub mod congestion;
pub(crate) mod control;
pub mod controller;
pub mod daemon;
pub(crate) mod duration;
pub(crate) mod http;
pub(crate) mod join;
pub mod node;
pub(crate) mod os;
pub mod pods;
mod program;
pub mod rpc;
pub(crate) mod service;
pub mod stream;
pub mod telemetry;
pub mod tls;
pub mod work;

pub use cli::command_line;
pub use meshd_core::{counters, mesh, wire};
pub use program::main;
