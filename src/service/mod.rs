//! Proxies between services of the mesh and sockets outside it.
//!
//! Each only carries bytes: both directions end on their own, and nothing is lost at the close. `tcp` and `unix` carry
//! streams, with `accept` (connections) and `copy` (bytes); `udp` carries datagrams, with `flows`; `command` gives each
//! stream a terminal; `ip_router` carries the IP packets of a tun device; `link_test` discards bytes to measure how
//! fast they arrive. This room knows nodes and streams, and nothing of work.

mod accept;
mod command;
mod copy;
mod flows;
mod ip_router;
mod link_test;
mod pulse;
mod tcp;
mod udp;
mod unix;

pub(crate) use command::CommandService;
pub(crate) use flows::FlowLimits;
pub(crate) use ip_router::{IpRouter, IpRouterOptions};
pub(crate) use link_test::{Carried, LinkTestError, LinkTests, TestSize};
pub(crate) use tcp::{TcpClient, TcpServer};
pub(crate) use udp::{UdpClient, UdpServer};
pub(crate) use unix::{UnixSocketClient, UnixSocketServer};

#[cfg(test)]
mod tests;
