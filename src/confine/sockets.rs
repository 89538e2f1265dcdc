//! Sockets that no fence governs: those to other processes of this machine (the control socket, an agent's, podman's), and
//! whatever reaches the network without the proxy. What is left are streams of TCP that are opened from here, the kernel's
//! answers about routes, and pairs of sockets: Python's workers talk through them.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// System calls, each with what is meant of it; without a rule, all of it.
pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The families of the network.
const NETWORK: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
/// Bits of a socket's type, and every type but a stream.
const KIND: u64 = 0xf;
const OTHER_KINDS: [i32; 5] =
    [libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET, libc::SOCK_DCCP];

/// Refuses other sockets to this process and all that it starts.
pub(super) fn refuse() -> Result<(), seccompiler::Error> {
    let mut refused = Rules::from([(libc::SYS_socket, sockets()?), (libc::SYS_socketpair, pairs()?)]);
    // Data in front of a connection is a connection that no fence sees.
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

/// Which sockets are not made.
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

pub(super) fn has(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}
