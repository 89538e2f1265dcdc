//! How sessions end, and why accepting or dialing fails.
//!
//! Each type has a variant for each reaction of the caller, not for each error of the operating system. Texts name
//! the address; the caller decides who logs them and when.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::tls::HandshakeError;

/// Why a session is over. The end is final: nothing revives a session, a new one is dialed.
#[derive(Debug, thiserror::Error)]
pub enum SessionEnd {
    /// The peer closed its direction at a packet boundary.
    #[error("closed by the peer")]
    Closed,
    /// The peer closed its direction inside a packet.
    #[error("closed by the peer inside a packet, {received} bytes into the frame")]
    Truncated {
        /// Bytes of the unfinished frame, length prefix included.
        received: usize,
    },
    /// The connection failed.
    #[error("connection lost: {0}")]
    Broken(#[from] io::Error),
    /// The session ended before; an earlier call gave the cause.
    #[error("the session is already over")]
    AlreadyOver,
}

/// Why a listener did not give a session.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The failure concerns this one client or this moment. Accept again after the pause.
    #[error("cannot accept on {address} at the moment: {source}")]
    Transient {
        /// The listener's address.
        address: String,
        /// How long to wait before the next attempt; zero if the cause went away with the client.
        pause: Duration,
        /// The error of the operating system.
        source: io::Error,
    },
    /// One client and this node did not agree on TLS. Accept again at once.
    #[error("connection from {peer} to {address} refused: {source}")]
    Tls {
        /// The listener's address.
        address: String,
        /// The client's address.
        peer: String,
        /// Why.
        source: HandshakeError,
    },
    /// One client asked for a WebSocket and was refused. Accept again at once.
    #[error("connection from {peer} to {address} answered with {answer}")]
    Upgrade {
        /// The listener's address.
        address: String,
        /// The client's address.
        peer: String,
        /// Status and text.
        answer: String,
    },
    /// The listener is broken for good.
    #[error("cannot accept on {address} any more: {source}")]
    Fatal {
        /// The listener's address.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The pause after an error that other sessions have to resolve, such as too many open files.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(500);

impl AcceptError {
    /// How long to wait before the next attempt; `None` if there must not be another.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self {
            Self::Transient { pause, .. } => Some(*pause),
            Self::Tls { .. } | Self::Upgrade { .. } => Some(Duration::ZERO),
            Self::Fatal { .. } => None,
        }
    }

    /// Sorts an error of `accept(2)`. Unknown errors are transient, because a listener that gives up takes the node
    /// off the mesh, while an attempt twice a second costs only lines in the log.
    pub(super) fn sort(address: String, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::BADF | Errno::FAULT | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => {
                Self::Fatal { address, source }
            }
            Some(Errno::CONNABORTED | Errno::CONNRESET | Errno::INTR | Errno::PROTO) => {
                Self::Transient { address, pause: Duration::ZERO, source }
            }
            _ => Self::Transient { address, pause: EXHAUSTED_PAUSE, source },
        }
    }
}

/// Why a dial gave no session. Each of these causes may be gone at the next attempt.
#[derive(Debug, thiserror::Error)]
pub enum DialFailure {
    /// The address has no answer in the resolver, or is no `host:port`.
    #[error("cannot resolve {address}: {source}")]
    Resolve {
        /// The address as configured.
        address: String,
        /// The error of the resolver.
        source: io::Error,
    },
    /// No address of the host could be connected to; the error is that of the last one tried.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The address as configured.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The other side answered, but TLS could not be agreed on.
    #[error("cannot connect to {address}: {source}")]
    Tls {
        /// The address as configured.
        address: String,
        /// Why.
        source: HandshakeError,
    },
    /// Nobody answered in time.
    #[error("cannot connect to {address}: no answer within {} s", limit.as_secs())]
    TimedOut {
        /// The address as configured.
        address: String,
        /// The time waited.
        limit: Duration,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(errno: Errno) -> AcceptError {
        AcceptError::sort("tcp 127.0.0.1:1".into(), errno.into())
    }

    #[test]
    fn accept_errors_say_whether_to_go_on() {
        for errno in [Errno::CONNABORTED, Errno::INTR] {
            assert!(
                matches!(sorted(errno), AcceptError::Transient { pause: Duration::ZERO, .. }),
                "{errno:?}"
            );
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::PERM] {
            let error = sorted(errno);
            assert!(matches!(error, AcceptError::Transient { pause, .. } if !pause.is_zero()), "{errno:?}");
        }
        for errno in [Errno::BADF, Errno::INVAL] {
            assert!(matches!(sorted(errno), AcceptError::Fatal { .. }), "{errno:?}");
        }
    }
}
