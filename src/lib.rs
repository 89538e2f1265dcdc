//! A mesh node that speaks receptor's protocol, and the command line that talks to it.
//!
//! # The rooms
//!
//! Dependencies point one way: `wire` <- `mesh` <- `node` <- `stream` <- `service`, `work` <- `control` <-
//! `http` <- `daemon` <- `program`. `backend` is below `node`, `tls` below the rooms that open connections, `rpc`
//! below `work` and `control`, `pods` below `work`, and `controller` above `work` and `confine`. `config` is above the
//! rooms but names only their options, and `daemon` reads it. tests/rooms.rs lists and checks every arrow.
//!
//! - [`wire`] owns every byte layout that travels between nodes.
//! - [`mesh`] owns the protocol, pure: sessions, routes, floods, datagrams; time is an argument. With `wire` and
//!   `counters` it is a crate of its own, `meshd-core`, which `netsim` simulates.
//! - [`backend`] owns links to neighbours: dial, listen, redial, sessions of whole packets.
//! - [`node`] owns the running node: the task around `mesh`, its links, queues and datagram sockets.
//! - [`congestion`] owns how much may be in flight on a QUIC connection, on links and on streams.
//! - [`stream`] owns byte streams between services: QUIC over the mesh's datagrams.
//! - [`service`] owns proxies between services of the mesh and sockets outside it, and the IP router.
//! - [`tls`] owns trust: profiles, which certificates are accepted, and making certificates.
//! - [`work`] owns units of work: their states, directories, processes and results.
//! - [`pods`] owns the pods in which units run: their states, and all requests to API servers.
//! - [`control`] owns the control service, which answers the line protocol that clients speak.
//! - `http` owns what a node serves over HTTP: metrics, health, and the page with its API, from the reports of
//!   `control`.
//! - [`rpc`] owns the line protocol: its requests, answers and errors, and its client.
//! - `confine` owns limits on what a command that handles foreign content may do on this machine.
//! - [`controller`] owns placement: which node runs a job, when, and what happens if that node is lost. Each
//!   attempt of a job is a unit of work on the node that runs it.
//! - [`config`] owns the grammar of configuration: it turns files and command lines into checked types.
//! - `join` owns how hosts become nodes: the authority, bundles, and the files that bundles install.
//! - `daemon` wires all rooms into a node; `telemetry` is its log; `cli` is meshctl; `program` chooses daemon or `cli`.
//! - `os` owns access to the operating system: limits, Unix sockets, inotify.
//! - [`counters`] owns what a node counts: plain numbers, as rooms count them and clients read them.
//! - `yaml` owns the notation of all files that people write for a node: values with their lines.
//! - `duration` owns Go's notation of durations, which users type and clients read.
//!
//! # The path of a packet, and of a job
//!
//! A link's reader takes whole packets off a session. By an immutable forwarding table, it puts datagrams
//! directly into the next link's queue or a service's inbox. Everything else goes to the one task that owns
//! [`mesh::Mesh`], which answers with messages to send and events to act on.
//!
//! A client's line becomes a request. A submission becomes a unit, which is durable before the node answers with its
//! ID. The payload goes to disk, a small detached runner starts the command, and readers of results follow the files on
//! disk, woken by the file system. A unit for another node is sent over a stream to that node's control service.

pub mod backend;
pub(crate) mod cli;
pub mod config;
pub(crate) mod confine;
pub mod congestion;
pub(crate) mod control;
pub mod controller;
pub mod daemon;
pub(crate) mod duration;
pub(crate) mod enrol;
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
pub(crate) mod yaml;

pub use cli::command_line;
pub use meshd_core::{counters, mesh, wire};
pub use program::main;
