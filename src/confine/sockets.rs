//! Sockets that no fence governs: those to other processes of this machine (the control socket, an agent's, podman's), and
//! whatever reaches the network without the proxy. A filter of system calls (seccomp) leaves streams of TCP, and the
//! kernel's answers about routes. Pairs of sockets stay: Python's workers talk through them.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The families of the network.
const NETWORK: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
/// Bits of a socket's type, and every type but a stream.
const KIND: u64 = 0xf;
const OTHER_KINDS: [i32; 5] =
    [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET, libc::SOCK_DCCP];
/// The same calls under other numbers, where a kernel has them.
const X32: i64 = 0x4000_0000;

/// Refuses other sockets to this process and all that it starts.
pub(super) fn refuse() -> Result<(), seccompiler::Error> {
    let mut refused = BTreeMap::new();
    for numbers in [0, X32] {
        refused.insert(libc::SYS_socket | numbers, sockets()?);
        refused.insert(libc::SYS_socketpair | numbers, pairs()?);
        // Without an address of its own it would take one that everybody reaches.
        refused.insert(libc::SYS_listen | numbers, Vec::new());
        // Data in front of a connection is a connection that no fence sees.
        for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
            let early = u64::from(libc::MSG_FASTOPEN.unsigned_abs());
            refused.insert(call | numbers, vec![SeccompRule::new(vec![has(flags, early, early)?])?]);
        }
        // It makes sockets too, past every filter. And what root keeps in the kernel's keyrings is not for strangers.
        for call in [libc::SYS_io_uring_setup, libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key] {
            refused.insert(call | numbers, Vec::new());
        }
    }
    let error = SeccompAction::Errno(libc::EACCES.unsigned_abs());
    let filter =
        SeccompFilter::new(refused, SeccompAction::Allow, error, std::env::consts::ARCH.try_into()?)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

/// Which sockets are not made.
fn sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let [v4, v6] = NETWORK;
    let mut rules =
        vec![SeccompRule::new(vec![is_not(0, v4)?, is_not(0, v6)?, is_not(0, libc::AF_NETLINK)?])?];
    for family in NETWORK {
        let is_family = || has(0, u64::from(u32::MAX), u64::from(family.unsigned_abs()));
        for kind in OTHER_KINDS {
            rules.push(SeccompRule::new(vec![is_family()?, has(1, KIND, u64::from(kind.unsigned_abs()))?])?);
        }
        rules.push(SeccompRule::new(vec![is_family()?, is_not(2, 0)?, is_not(2, libc::IPPROTO_TCP)?])?);
    }
    Ok(rules)
}

/// Which pairs are not made: one of datagrams can send to any socket of this machine.
fn pairs() -> Result<Vec<SeccompRule>, BackendError> {
    let mut rules = vec![SeccompRule::new(vec![is_not(0, libc::AF_UNIX)?])?];
    for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_RDM] {
        rules.push(SeccompRule::new(vec![has(1, KIND, u64::from(kind.unsigned_abs()))?])?);
    }
    Ok(rules)
}

fn is_not(argument: u8, value: i32) -> Result<SeccompCondition, BackendError> {
    let value = u64::from(value.unsigned_abs());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)
}

fn has(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}
