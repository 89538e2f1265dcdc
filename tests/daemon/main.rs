//! The daemon from outside: its real binary, its configuration files and its control socket, also together
//! with Go nodes.

mod check;
mod duplicates;
mod examples;
mod firewall;
mod harness;
#[path = "../support/port.rs"]
mod port;
#[path = "../support/process.rs"]
mod process;
mod proxies;
#[path = "../support/receptor.rs"]
mod receptor;
mod reload;
mod router;
mod secured;
mod silence;
mod stopping;
mod streams;
mod systemd;
mod units;
#[path = "../support/until.rs"]
mod until;
