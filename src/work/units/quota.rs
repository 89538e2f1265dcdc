//! How many units and bytes of payload each calling node has here, and how many it may have. A node that proved its ID
//! has an account of its own. All others share one, because they could pass for new callers at will. Owns the counting;
//! operators are not counted.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::wire::NameHash;
use crate::work::Submitter;

/// What one calling node may have here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Units that are not released.
    pub units: u64,
    /// Bytes of their payloads.
    pub payload: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { units: 10_000, payload: 64 << 30 }
    }
}

/// Which bound was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// This many units.
    Units(u64),
    /// This many bytes.
    Payload(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Account {
    Node(NameHash),
    Uncertified,
}

impl Account {
    pub(super) fn of(submitter: Submitter) -> Option<Self> {
        match submitter {
            Submitter::Operator => None,
            Submitter::Node { node, certified: true } => Some(Self::Node(node)),
            Submitter::Node { certified: false, .. } | Submitter::Stranger => Some(Self::Uncertified),
        }
    }
}

#[derive(Debug, Default)]
struct Usage {
    units: u64,
    payload: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// A plain lock, held for counting alone. A caller that has nothing is not in it.
    state: Mutex<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    quota: Quota,
    usage: HashMap<Account, Usage>,
}

/// One unit on an account, for as long as this is held.
#[derive(Debug)]
pub(crate) struct Charge {
    accounts: Arc<Accounts>,
    account: Account,
    payload: u64,
}

impl Accounts {
    /// Sets other bounds. A caller that has more than that keeps it.
    pub(crate) fn set_quota(&self, quota: Quota) {
        self.state().quota = quota;
    }

    /// Counts one more unit, if the caller may have it. Returns `None` for a caller that is not counted.
    pub(crate) fn admit(self: &Arc<Self>, submitter: Submitter) -> Result<Option<Charge>, Exceeded> {
        let Some(account) = Account::of(submitter) else { return Ok(None) };
        let mut state = self.state();
        let most = state.quota.units;
        if state.usage.get(&account).is_some_and(|usage| usage.units >= most) || most == 0 {
            return Err(Exceeded::Units(most));
        }
        state.usage.entry(account).or_default().units += 1;
        drop(state);
        Ok(Some(Charge { accounts: self.clone(), account, payload: 0 }))
    }

    /// Counts a unit that was here before, with so much payload, whatever the bounds are.
    pub(crate) fn readmit(
        self: &Arc<Self>,
        submitter: Submitter,
        payload: impl FnOnce() -> u64,
    ) -> Option<Charge> {
        let account = Account::of(submitter)?;
        let payload = payload();
        let mut state = self.state();
        let usage = state.usage.entry(account).or_default();
        usage.units += 1;
        usage.payload += payload;
        drop(state);
        Some(Charge { accounts: self.clone(), account, payload })
    }

    fn state(&self) -> MutexGuard<'_, QuotaState> {
        self.state.lock()
    }
}

impl Charge {
    /// Counts more payload of the unit.
    pub(crate) fn add_payload(&mut self, bytes: u64) -> Result<(), Exceeded> {
        let mut state = self.accounts.state();
        let most = state.quota.payload;
        let usage = state.usage.entry(self.account).or_default();
        if usage.payload.saturating_add(bytes) > most {
            return Err(Exceeded::Payload(most));
        }
        usage.payload += bytes;
        self.payload += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Entry::Occupied(mut usage) = self.accounts.state().usage.entry(self.account) {
            usage.get_mut().units -= 1;
            usage.get_mut().payload -= self.payload;
            if usage.get().units == 0 {
                usage.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certified_node_has_its_own_bound_and_all_others_share_one() {
        let accounts = Arc::<Accounts>::default();
        accounts.set_quota(Quota { units: 2, payload: 10 });
        let node = |hash, certified| Submitter::Node { node: NameHash(hash), certified };
        let mut one = accounts.admit(node(1, true)).unwrap().unwrap();
        let two = accounts.admit(node(1, true)).unwrap();
        assert_eq!(accounts.admit(node(1, true)).unwrap_err(), Exceeded::Units(2));
        let other = accounts.admit(node(2, true)).unwrap();
        let strangers =
            [accounts.admit(node(1, false)).unwrap(), accounts.admit(Submitter::Stranger).unwrap()];
        assert_eq!(accounts.admit(node(3, false)).unwrap_err(), Exceeded::Units(2));
        assert!(accounts.admit(Submitter::Operator).unwrap().is_none(), "operators are not counted");
        one.add_payload(10).unwrap();
        assert_eq!(one.add_payload(1), Err(Exceeded::Payload(10)));
        drop((two, one));
        accounts.admit(node(1, true)).unwrap().unwrap().add_payload(10).unwrap();
        drop((other, strangers));
        assert!(accounts.state().usage.is_empty(), "who has nothing is forgotten");
    }
}
