//! How requests for certificates travel: from a host that is no node yet to the authority, through nodes that need not
//! be trusted, because `join` proves both the request and the answer.
//!
//! - `newcomer`: dials the addresses of a token, from the new host.
//! - `door`: lets newcomers in at the listeners of links, and asks the desk of this node or of another one for them.
//! - `renewal`: a node asks for a new certificate in time.
//! - `lists`: revocation lists, which travel as well.
//! - `messages`: a request or an answer as packets of a session.
//! - `refusals`: slows down who is refused again and again.
//!
//! It refuses to know who may have a certificate.

mod door;
pub(crate) mod lists;
mod messages;
mod newcomer;
mod refusals;
pub(crate) mod renewal;
mod trust;

pub(crate) use door::{Decide, EnrolDoor};
pub(crate) use newcomer::ask;

#[cfg(test)]
mod tests;
