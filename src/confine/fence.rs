//! The kernel's fence (Landlock): which rights hold below which paths, and the one port that may be connected to. A
//! right that the kernel cannot govern yet is left alone, but those that any use would need.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};

/// Without these there is no fence: what was opened could be truncated.
const LEAST: ABI = ABI::V3;
/// The last one that is known here: signals and abstract sockets end at the fence.
const MOST: ABI = ABI::V6;
const TERMINALS: [&str; 3] = ["/dev/null", "/dev/ptmx", "/dev/pts"];
const SHARED_MEMORY: &str = "/dev/shm";
const SOURCES: [&str; 3] = ["/dev/urandom", "/dev/random", "/dev/zero"];

/// Whether the kernel can build a fence.
pub(super) fn is_supported() -> bool {
    ruleset().is_ok()
}

fn ruleset() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(MOST))?
        .handle_access(AccessNet::from_all(MOST))?
        .scope(Scope::from_all(MOST))?
        .create()
}

/// Encloses this process and all that it starts, if the kernel can. Its way out is the port of the proxy.
pub(super) fn enclose(read: &[PathBuf], write: &[PathBuf], proxy: u16) -> Result<(), RulesetError> {
    if !is_supported() {
        return Ok(());
    }
    let look = AccessFs::ReadFile | AccessFs::ReadDir;
    ruleset()?
        .set_compatibility(CompatLevel::BestEffort)
        .add_rules(path_beneath_rules(read, look | AccessFs::Execute))?
        .add_rules(path_beneath_rules(SOURCES, AccessFs::ReadFile))?
        .add_rules(path_beneath_rules(TERMINALS, look | AccessFs::WriteFile | AccessFs::IoctlDev))?
        .add_rules(path_beneath_rules([SHARED_MEMORY], changes()))?
        .add_rules(path_beneath_rules(write, changes()))?
        .add_rule(NetPort::new(proxy, AccessNet::ConnectTcp))?
        .restrict_self()?;
    Ok(())
}

/// What may be done in a directory of its own: anything but running programs from it, and making sockets and nodes of
/// devices.
fn changes() -> BitFlags<AccessFs> {
    let special = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::IoctlDev;
    AccessFs::from_all(MOST) & !(special | AccessFs::Execute)
}
