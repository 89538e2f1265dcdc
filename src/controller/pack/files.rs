//! The files of a job: those of its directory, and its inventories. Refuses directories that hold more than a project,
//! because everything in a directory is sent.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use super::tree::Tree;
use super::{ENV, InventorySource, JobParts, PackError};

/// Names of directories in a runner's directory.
pub(super) const PROJECT: &str = "project";
pub(super) const INVENTORY: &str = "inventory";
/// The mode of a directory in which all users may write, and remove only what is theirs.
const SHARED: u32 = 0o1002;

/// Packs the files of the job's directory, and its inventories.
pub(super) fn pack(parts: &JobParts) -> Result<Tree, PackError> {
    let mut tree = Tree::bounded(parts.most.map(|(files, _)| files));
    match parts.top().filter(|_| parts.directory.is_some() || !parts.is_synced) {
        Some(top) => {
            check_directory(top, parts)?;
            add_directory(&mut tree, top, parts.is_synced, parts.is_project)?;
            let bytes = tree.bulk().1;
            if let Some((_, most)) = parts.most.filter(|(_, most)| bytes > *most) {
                return Err(PackError::TooMuch { path: top.to_owned(), most, what: "bytes" });
            }
        }
        // A module looks for files beside its project, and fails if there is none.
        None if !parts.is_synced => tree.make_directory(PROJECT),
        None => {}
    }
    if let Some(playbook) = parts.playbook.as_ref().filter(|_| !parts.is_synced)
        && !has(&tree, playbook)
    {
        return Err(PackError::NoPlaybook(playbook.clone()));
    }
    add_inventories(&mut tree, parts)?;
    Ok(tree)
}

/// Refuses a directory that holds a guarded one, such as the user's home, or that users share, such as /tmp.
fn check_directory(top: &Path, parts: &JobParts) -> Result<(), PackError> {
    let Ok(dir) = top.canonicalize() else { return Ok(()) };
    let mut guarded = parts.guarded.iter().filter_map(|path| path.canonicalize().ok());
    let is_shared = dir.metadata().is_ok_and(|facts| facts.mode() & SHARED == SHARED);
    if is_shared || guarded.any(|path| path.starts_with(&dir)) {
        return Err(PackError::NoProject(dir));
    }
    Ok(())
}

/// Whether the project has a file or directory of this path.
fn has(tree: &Tree, path: &str) -> bool {
    let is_inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    is_inside && tree.has(&format!("{PROJECT}/{path}"))
}

/// Adds a runner's directory as it is, any other as a project.
fn add_directory(tree: &mut Tree, dir: &Path, synced: bool, is_project: bool) -> Result<(), PackError> {
    let mut is_runners = [PROJECT, INVENTORY, ENV].map(|name| dir.join(name).is_dir());
    is_runners[0] &= !is_project;
    match (is_runners, synced) {
        ([true, ..], false) => tree.add_directory(dir, "", &[]),
        ([true, ..], true) => Err(PackError::TwoProjects(dir.to_owned())),
        ([false, inventory, env], true) if inventory || env => tree.add_directory(dir, "", &[".git"]),
        ([false, ..], true) => Err(PackError::Nothing(dir.to_owned())),
        ([false, ..], false) => {
            tree.add(dir, PROJECT).and_then(|kind| match kind {
                Some(kind) if kind.is_file() => Err(PackError::NoDirectory(dir.to_owned())),
                _ => Ok(()),
            })?;
            // A link to a directory is followed, as the shell would.
            tree.remove(PROJECT);
            tree.make_directory(PROJECT);
            tree.add_directory(dir, PROJECT, &[".git"])
        }
    }
}

/// Adds the job's inventories, which replace the directory's own.
fn add_inventories(tree: &mut Tree, parts: &JobParts) -> Result<(), PackError> {
    if parts.inventory.is_empty() {
        return Ok(());
    }
    tree.remove(INVENTORY);
    let mut listed = String::new();
    for source in &parts.inventory {
        match source {
            InventorySource::Hosts(hosts) => listed.extend(hosts.iter().map(|host| format!("{host}\n"))),
            InventorySource::Path(path) => {
                tree.make_directory(INVENTORY);
                let facts = std::fs::metadata(path).map_err(PackError::unreadable(path))?;
                if facts.is_dir() {
                    tree.add_directory(path, INVENTORY, &[".git"])?;
                } else {
                    add_inventory_file(tree, path)?;
                }
            }
            InventorySource::Text(text) => tree.make_file(INVENTORY, "hosts", text.clone().into_bytes()),
            InventorySource::OfProject(path) if parts.is_synced || has(tree, path) => {}
            InventorySource::OfProject(path) => return Err(PackError::NoInventory(path.clone())),
        }
    }
    if !listed.is_empty() {
        tree.make_file(INVENTORY, "hosts-of-command-line", listed.into_bytes());
    }
    Ok(())
}

/// Adds an inventory file, with the variables beside it, which belong to it.
fn add_inventory_file(tree: &mut Tree, path: &Path) -> Result<(), PackError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| PackError::Name(path.to_owned()))?;
    let real = path.canonicalize().map_err(PackError::unreadable(path))?;
    tree.add(&real, &format!("{INVENTORY}/{name}"))?;
    for beside in ["group_vars", "host_vars"] {
        let path = path.with_file_name(beside);
        let name = format!("{INVENTORY}/{beside}");
        if path.is_dir() && !tree.has(&name) {
            tree.make_directory(&name);
            tree.add_directory(&path, &name, &[])?;
        }
    }
    Ok(())
}
