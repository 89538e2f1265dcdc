//! Refuses sockets that the fence does not govern: those to other processes of this machine (the control socket, an
//! agent's, podman's), and those that reach the network without the proxy. TCP streams, netlink sockets for routes, and
//! socket pairs, which Python's workers use, stay allowed. Refuses to know the other system calls.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// System calls, each with rules for its arguments. A call without rules matches always.
pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The address families of the network.
const NETWORK: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
/// The bits of a socket's type, without its flags.
const KIND: u64 = 0xf;
/// All types but streams.
const OTHER_KINDS: [i32; 5] =
    [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET, libc::SOCK_DCCP];

/// Refuses these sockets to this process and to the processes that it starts.
pub(super) fn refuse() -> Result<(), seccompiler::Error> {
    let mut refused = Rules::from([(libc::SYS_socket, sockets()?), (libc::SYS_socketpair, pairs()?)]);
    // A send with MSG_FASTOPEN opens a connection, which the fence does not see.
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        let early = u64::from(libc::MSG_FASTOPEN.unsigned_abs());
        refused.insert(call, vec![SeccompRule::new(vec![has(flags, early, early)?])?]);
    }
    apply(refused, SeccompAction::Allow, SeccompAction::Errno(libc::EACCES.unsigned_abs()))
}

pub(super) fn apply(
    rules: Rules,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<(), seccompiler::Error> {
    let filter = SeccompFilter::new(rules, others, these, std::env::consts::ARCH.try_into()?)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)
}

/// The arguments with which `socket` is refused.
fn sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let [v4, v6] = NETWORK;
    let netlink = has(0, u64::from(u32::MAX), u64::from(libc::AF_NETLINK.unsigned_abs()))?;
    let mut rules = vec![
        SeccompRule::new(vec![is_not(0, v4)?, is_not(0, v6)?, is_not(0, libc::AF_NETLINK)?])?,
        SeccompRule::new(vec![netlink, is_not(2, libc::NETLINK_ROUTE)?])?,
    ];
    for family in NETWORK {
        let is_family = || has(0, u64::from(u32::MAX), u64::from(family.unsigned_abs()));
        for kind in OTHER_KINDS {
            rules.push(SeccompRule::new(vec![is_family()?, has(1, KIND, u64::from(kind.unsigned_abs()))?])?);
        }
        rules.push(SeccompRule::new(vec![is_family()?, is_not(2, 0)?, is_not(2, libc::IPPROTO_TCP)?])?);
    }
    Ok(rules)
}

/// The arguments with which `socketpair` is refused. Pairs of datagram sockets are, because they can send to any Unix
/// socket.
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

pub(super) fn has(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}
