//! Drops capabilities. A command that was started by root would have all of them, and could, for example, make a device
//! node for a disk in its own directory and read the disk. Refuses to know what the command is.

use rustix::io::Result;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Gives up all capabilities, also for programs that this process starts later.
pub(super) fn drop_all() -> Result<()> {
    if capabilities(None)?.permitted.is_empty() {
        return Ok(());
    }
    for capability in CapabilitySet::all().iter() {
        // Fails if the kernel does not know the capability, or without CAP_SETPCAP. `no_new_privs` then keeps programs
        // from gaining it.
        let _unless_unknown = remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}
