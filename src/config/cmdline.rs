//! Reads a command line into directives as written.
//!
//! Owns that notation: a dash begins a directive, what follows are its parameters, files and directories of
//! configuration may stand anywhere between. It refuses to know which directives exist, and opens no file:
//! it only says where each belongs in the order.

use std::path::PathBuf;

use super::error::Location;
use super::raw::{RawItem, RawParam, Report};
use super::value::{Located, Value};

/// What a command line asks for.
#[derive(Debug)]
pub(super) enum Request {
    /// Print the help text.
    Help,
    /// Print the version.
    Version,
    /// Run with these parts, in this order.
    Run(Vec<Part>),
}

/// A part of a configuration.
#[derive(Debug)]
pub(super) enum Part {
    /// A directive written out.
    Item(RawItem),
    /// All directives of a file.
    File(Location, PathBuf),
    /// The same of a file that must be in version 2.
    Version2(Location, PathBuf),
    /// All directives of the files in a directory.
    Directory(Location, PathBuf),
}

/// What an argument without a dash belongs to.
enum Expecting {
    Nothing,
    Parameter(RawItem),
    Path { at: Location, option: String, make: fn(Location, PathBuf) -> Part },
}

/// Reads the arguments after the program's name. An empty command line asks for help.
pub(super) fn read(args: &[String], report: &mut Report) -> Request {
    if args.is_empty() {
        return Request::Help;
    }
    let mut parser = Parser { parts: Vec::new(), expecting: Expecting::Nothing, report };
    for (index, arg) in args.iter().enumerate() {
        let at = Location::Argument(index + 1);
        match arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) {
            Some(name) => match name.to_ascii_lowercase().as_str() {
                "help" | "h" => return Request::Help,
                "version" => return Request::Version,
                lower => parser.option(at, arg, name, lower),
            },
            None => parser.operand(at, arg),
        }
    }
    parser.finish();
    Request::Run(parser.parts)
}

struct Parser<'a> {
    parts: Vec<Part>,
    expecting: Expecting,
    report: &'a mut Report,
}

impl Parser<'_> {
    /// An argument with a dash: a new directive or source.
    fn option(&mut self, at: Location, arg: &str, name: &str, lower: &str) {
        self.finish();
        let (key, inline) = match lower.find('=') {
            Some(split) => (&lower[..split], Some(&name[split + 1..])),
            None => (lower, None),
        };
        let make: fn(Location, PathBuf) -> Part = match key {
            "config" | "c" => Part::File,
            "config-dir" => Part::Directory,
            "config-v2" => Part::Version2,
            _ => {
                self.expecting =
                    Expecting::Parameter(RawItem { at, name: name.to_owned(), params: Vec::new() });
                return;
            }
        };
        match inline {
            Some(path) => self.parts.push(make(at, PathBuf::from(path))),
            None => self.expecting = Expecting::Path { at, option: arg.to_owned(), make },
        }
    }

    /// An argument without a dash: a parameter or a path.
    fn operand(&mut self, at: Location, arg: &str) {
        match &mut self.expecting {
            Expecting::Parameter(item) => item.params.push(parameter(at, arg)),
            Expecting::Path { make, .. } => {
                self.parts.push(make(at, PathBuf::from(arg)));
                self.expecting = Expecting::Nothing;
            }
            Expecting::Nothing => {
                let problem = format!("{arg:?} belongs to no directive: write `--directive {arg}`");
                self.report.general(&at, problem);
            }
        }
    }

    /// Ends the directive that is being read.
    fn finish(&mut self) {
        match std::mem::replace(&mut self.expecting, Expecting::Nothing) {
            Expecting::Nothing => {}
            Expecting::Parameter(item) => self.parts.push(Part::Item(item)),
            Expecting::Path { at, option, .. } => {
                let problem = format!("{option} needs a path after it");
                self.report.general(&at, problem);
            }
        }
    }
}

fn parameter(at: Location, arg: &str) -> RawParam {
    let (name, text) = match arg.split_once('=') {
        Some((name, text)) => (Some(name.to_owned()), text),
        None => (None, arg),
    };
    RawParam { name, value: Located { at: at.clone(), value: Value::Text(text.to_owned()) }, at }
}
