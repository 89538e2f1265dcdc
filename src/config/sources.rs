//! Reads the files that a command line names, in order, as one list of directives.
//!
//! Owns the access to configuration files: which files of a directory count, and how large one may be. It
//! refuses to know their content.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cmdline::Part;
use super::error::Location;
use super::raw::{RawItem, Report};
use super::yaml;

/// No configuration is larger, in bytes; a device or a log given by mistake would be.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// The files that a configuration was read from.
#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    /// All of them, in their order.
    pub(super) read: Vec<PathBuf>,
    /// Those in the second notation, whose changes count at once.
    pub(super) watched: Vec<PathBuf>,
}

/// All directives in order; the files that were read are noted.
pub(super) fn items(parts: Vec<Part>, files: &mut Files, report: &mut Report) -> Vec<RawItem> {
    let mut items = Vec::new();
    for part in parts {
        match part {
            Part::Item(item) => items.push(item),
            Part::File(at, path) => items.extend(file(&at, &path, files, report)),
            Part::Version2(at, path) => {
                let (watched, errors) = (files.watched.len(), report.errors.len());
                items.extend(file(&at, &path, files, report));
                if files.watched.len() == watched && report.errors.len() == errors {
                    let problem = "--config-v2 takes a file in version 2, a map with `version: 2`";
                    report.general(&at, problem);
                }
            }
            Part::Directory(at, path) => match listing(&path) {
                Ok(paths) => {
                    for path in paths {
                        items.extend(file(&at, &path, files, report));
                    }
                }
                Err(fault) => report.general(&at, fault),
            },
        }
    }
    items
}

fn file(at: &Location, path: &Path, files: &mut Files, report: &mut Report) -> Vec<RawItem> {
    files.read.push(path.to_owned());
    match read(path) {
        Ok(text) => {
            let document = yaml::read(&Arc::from(path), &text, report);
            if document.version2 {
                files.watched.push(path.to_owned());
            }
            document.items
        }
        Err(fault) => {
            report.general(at, fault);
            Vec::new()
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let unreadable = |error| unreadable(path, &error);
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    let size = file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if size as u64 > MAX_FILE {
        return Err(format!(
            "{} is larger than {MAX_FILE} bytes, which is no configuration file",
            path.display()
        ));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// The `*.yml` and `*.yaml` files of a directory, hidden ones excepted, sorted by name.
fn listing(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|error| unreadable(directory, &error))?;
    let mut paths: Vec<_> =
        entries.into_iter().map(|entry| entry.path()).filter(|path| counts(path)).collect();
    if paths.is_empty() {
        return Err(format!("{} holds no *.yml or *.yaml file", directory.display()));
    }
    paths.sort();
    Ok(paths)
}

fn counts(path: &Path) -> bool {
    let named = path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    named && !hidden && !path.is_dir()
}
