//! The daemon from outside: its real binary, its configuration files, its control socket, and Go nodes beside it.

mod check;
mod duplicates;
mod examples;
mod firewall;
mod harness;
mod proxies;
#[path = "../support/receptor.rs"]
mod receptor;
mod reload;
mod router;
mod secured;
mod silence;
mod stopping;
mod streams;
mod units;
