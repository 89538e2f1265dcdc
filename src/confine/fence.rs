//! The kernel's fence (Landlock): which rights hold below which paths, and the only port that may be connected to. A
//! right that the kernel cannot govern yet stays unrestricted, but without the rights of [`OLDEST`] there is no fence.
//! Refuses to know which paths a command needs.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};

/// The oldest version that is of use: before it, files outside could be truncated.
const OLDEST: ABI = ABI::V3;
/// The newest version that is used: signals and abstract sockets do not pass the fence.
const NEWEST: ABI = ABI::V6;
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
        .handle_access(AccessFs::from_all(OLDEST))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()
}

/// Encloses this process and the processes that it starts, if the kernel can. They may connect only to the port of the
/// proxy.
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

/// The rights in a directory that the command may change: all but running programs from it and making sockets and
/// device nodes.
fn changes() -> BitFlags<AccessFs> {
    let special = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::IoctlDev;
    AccessFs::from_all(NEWEST) & !(special | AccessFs::Execute)
}
