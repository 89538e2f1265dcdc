//! Reads a command line, and the files that it names, into directives in order.
//!
//! Owns the notation of the command line: a dash begins a directive, its parameters follow, and files and
//! directories of configuration may stand anywhere between directives. Also owns the access to configuration files:
//! which files of a directory count, and how large a file may be. It refuses to know what is in them.

use std::fs::{File, metadata};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::directives;
use super::error::{Location, Report, Source};
use super::item::Item;
use super::value::Located;
use super::yaml;

/// The most bytes of a configuration file: more is a device or a log given by mistake.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// The directives of a command line, and the files that they were read from.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) items: Vec<Item>,
    /// All files, in order.
    pub(super) files: Vec<PathBuf>,
    /// The files in version 2, whose changes take effect at once.
    pub(super) watched: Vec<PathBuf>,
}

/// The part of an option after its dashes.
pub(super) fn option(arg: &str) -> Option<&str> {
    arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))
}

/// Reads the arguments after the program's name.
pub(super) fn read(args: &[String], report: &mut Report) -> Reading {
    let mut parser = Parser { reading: Reading::default(), expecting: Expecting::Nothing, report };
    for (index, arg) in args.iter().enumerate() {
        let position = index as u64 + 1;
        match option(arg) {
            Some(option) => parser.option(position, arg, option),
            None => parser.operand(position, arg),
        }
    }
    parser.finish();
    parser.reading
}

/// Reads a file, or a directory of files.
pub(super) fn read_path(path: &Path, report: &mut Report) -> Reading {
    let option = if path.is_dir() { "--config-dir" } else { "--config" };
    read(&[option.to_owned(), path.display().to_string()], report)
}

/// The option that the next argument without a dash belongs to.
enum Expecting {
    Nothing,
    /// A parameter of this directive; `None` if the directive's name is unknown.
    Parameter(Option<Item>),
    Path(u64, String, PathOption),
}

/// The kind of a path.
#[derive(Clone, Copy)]
enum PathOption {
    File,
    Version2,
    Directory,
}

struct Parser<'a> {
    reading: Reading,
    expecting: Expecting,
    report: &'a mut Report,
}

impl Parser<'_> {
    /// An argument with a dash: a new directive or path.
    fn option(&mut self, position: u64, arg: &str, option: &str) {
        self.finish();
        let (name, value) = option.split_once('=').map_or((option, None), |(name, path)| (name, Some(path)));
        let origin = match name.to_ascii_lowercase().as_str() {
            "config" | "c" => PathOption::File,
            "config-dir" => PathOption::Directory,
            "config-v2" => PathOption::Version2,
            _ => {
                let item = directives::begin(option, Source::CommandLine.at(position), self.report);
                self.expecting = Expecting::Parameter(item);
                return;
            }
        };
        match value {
            Some(path) => self.path(position, Path::new(path), origin),
            None => self.expecting = Expecting::Path(position, arg.to_owned(), origin),
        }
    }

    /// An argument without a dash: a parameter or a path.
    fn operand(&mut self, position: u64, arg: &str) {
        match &mut self.expecting {
            Expecting::Parameter(item) => {
                let (name, text) = arg.split_once('=').map_or((None, arg), |(name, text)| (Some(name), text));
                if let Some(item) = item {
                    item.put(name, Located::text(position, text), self.report);
                }
            }
            Expecting::Path(_, _, origin) => {
                let origin = *origin;
                self.expecting = Expecting::Nothing;
                self.path(position, Path::new(arg), origin);
            }
            Expecting::Nothing => {
                let fault = format!("{arg:?} comes before any directive: write `--directive {arg}`");
                self.report.error(Source::CommandLine.at(position), fault);
            }
        }
    }

    /// Ends the directive that is being read.
    fn finish(&mut self) {
        match std::mem::replace(&mut self.expecting, Expecting::Nothing) {
            Expecting::Nothing | Expecting::Parameter(None) => {}
            Expecting::Parameter(Some(item)) => self.reading.items.push(item.complete(self.report)),
            Expecting::Path(position, option, _) => {
                self.report
                    .error(Source::CommandLine.at(position), format!("{option} needs a path after it"));
            }
        }
    }

    fn path(&mut self, position: u64, path: &Path, origin: PathOption) {
        let at = Source::CommandLine.at(position);
        match origin {
            PathOption::File => self.file(&at, path),
            PathOption::Version2 => {
                let (watched, errors) = (self.reading.watched.len(), self.report.errors.len());
                self.file(&at, path);
                if self.reading.watched.len() == watched && self.report.errors.len() == errors {
                    let fault = "--config-v2 takes a file in version 2, a map with `version: 2`";
                    self.report.error(at, fault);
                }
            }
            PathOption::Directory => match listing(path) {
                Ok(paths) => paths.iter().for_each(|path| self.file(&at, path)),
                Err(fault) => self.report.error(at, fault),
            },
        }
    }

    fn file(&mut self, at: &Location, path: &Path) {
        self.reading.files.push(path.to_owned());
        match contents(path) {
            Ok(text) => {
                let document = yaml::read(path, &text, self.report);
                self.reading.watched.extend(document.version2.then(|| path.to_owned()));
                self.reading.items.extend(document.items);
            }
            Err(fault) => self.report.error(at.clone(), fault),
        }
    }
}

fn contents(path: &Path) -> Result<String, String> {
    let unreadable = |error| unreadable(path, &error);
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    let size = file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
    if size as u64 > MAX_FILE {
        let path = path.display();
        return Err(format!("{path} is larger than {MAX_FILE} bytes, so it is not a configuration file"));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// The `*.yml` and `*.yaml` files of a directory, without hidden ones, sorted by name.
fn listing(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|error| unreadable(directory, &error))?;
    let mut paths: Vec<_> =
        entries.into_iter().map(|entry| entry.path()).filter(|path| is_configuration(path)).collect();
    if paths.is_empty() {
        return Err(format!("{} holds no *.yml or *.yaml file", directory.display()));
    }
    paths.sort();
    Ok(paths)
}

/// Whether this file of a directory is part of the configuration.
pub fn is_configuration(path: &Path) -> bool {
    let named = path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    // Opening a pipe would wait for its other end.
    let is_pipe = metadata(path).is_ok_and(|meta| meta.file_type().is_fifo());
    named && !hidden && !path.is_dir() && !is_pipe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_the_place_of_a_configuration_is_not_waited_for() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a.yml");
        std::fs::write(&path, "").unwrap();
        assert!(is_configuration(&path));
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(!is_configuration(&path));
    }
}
