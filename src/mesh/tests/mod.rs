//! Tests of the protocol as a neighbour sees it: messages in, messages out, in virtual time.
//!
//! [`solo`] drives one node by hand-made messages, [`net`] joins several over perfect links. Hundreds of
//! nodes over bad links are the simulator's business, not ours.

mod adverts;
mod catchup;
mod datagrams;
mod duplicates;
mod fast_path;
mod flooding;
mod floods;
mod forgetting;
mod handshake;
mod hostile;
mod liveness;
mod net;
mod recorded;
mod rivals;
mod solo;
mod status;
