//! Tests of the protocol as a neighbour sees it: messages in, messages out, in virtual time.
//!
//! [`solo`] drives one node by hand-made messages, [`net`] joins several over perfect links. The simulator tests
//! hundreds of nodes over bad links.

mod aging;
mod datagrams;
mod duplicate_node;
mod duplicate_session;
mod exchange;
mod fast_path;
mod first_hand;
mod flooding;
mod floods;
mod handshake;
mod hostile;
mod net;
mod probe;
mod recorded;
mod services;
mod solo;
mod status;
