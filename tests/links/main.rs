//! Links of every kind between running nodes, and jobs that go over them there and back.
//!
//! `own` joins our own nodes; `go` puts one of ours among nodes of the Go implementation, in every role and
//! whoever dials. LINKS_MB sets the megabytes of each job.

mod go;
mod mesh;
mod own;
#[path = "../support/receptor.rs"]
mod receptor;
