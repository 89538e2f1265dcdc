//! What a node tells over HTTP, beside the control service: its metrics and its health.
//!
//! - [`HttpServer`] listens, speaks TLS and HTTP/1.1, and bounds what clients use up.
//! - `answer` owns the table of what is answered, and who may ask; `token` the file that says so.
//! - `metrics` turns reports into the families of a scrape, which `exposition` writes within a bound; `process` reads what
//!   the kernel knows of this process.
//!
//! This room reads the reports of `control` and the counters of the others. It changes nothing, and keeps nothing.

mod answer;
mod exposition;
mod metrics;
mod process;
mod server;
mod slow_reader;
mod token;

pub(crate) use server::HttpServer;
pub(crate) use token::TokenFile;
