//! Capabilities, of which a command that was started by root would have all: it could make a node of a disk in its own
//! directory and read that.

use rustix::io::Result;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Gives up all of them, for programs started later too.
pub(super) fn drop_all() -> Result<()> {
    if capabilities(None)?.permitted.is_empty() {
        return Ok(());
    }
    for capability in CapabilitySet::all().iter() {
        // One that this kernel does not know, or that may not be removed, as there is no right to: it is not there either.
        let _unless_unknown = remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}
