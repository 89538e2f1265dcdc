//! What a node serves over HTTP: its metrics and its health, and the page with its API.
//!
//! - [`HttpServer`] listens, speaks TLS and HTTP/1.1, and bounds what clients use up. The site of a port makes the
//!   answers.
//! - [`Monitoring`] is the site of the directive `metrics`; `token` is the file that says who may ask. `metrics` turns reports
//!   into the families of a scrape, which `exposition` writes within a bound; `process` reads what the kernel knows of this
//!   process.
//! - [`Web`] is the site of the directive `web`.
//! - [`EventSink`] is the directive `events-sink`: it asks nobody who may see what, and is a client itself.
//! - `hosts` says which names clients may use for this server. `answer` makes answers, whole or as streams.
//!   `slow_reader` ends connections whose other end does not read.
//!
//! This room reads the reports of `control` and the counters of the others, and passes on what its clients may ask of the
//! controller. It decides nothing about the mesh or about jobs.

mod answer;
mod exposition;
mod hosts;
mod metrics;
mod monitoring;
mod process;
mod server;
mod sink;
mod slow_reader;
mod token;
mod web;

pub(crate) use monitoring::Monitoring;
pub(crate) use server::HttpServer;
pub(crate) use sink::{EventSink, SinkOptions};
pub(crate) use token::TokenFile;
pub(crate) use web::{Web, WebOptions};
