//! The controller: jobs find the instance that runs them, and outlive the loss of any one node.
//!
//! A job service inside control nodes. A **job** is what a client submits; an **instance** is the record of
//! a node that may run jobs; an **attempt** is one try to run a job, as one unit of work on one instance; the
//! **owner** is the control node that drives a job. [`core`] decides, from plain state and a given time.
//! This room has never heard of routing.

pub mod core;
