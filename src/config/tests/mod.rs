//! The grammar as a whole: configurations that are refused, with the exact messages, and configurations that load.

mod accepted;
mod controller;
mod documents;
mod exposed;
mod reading;
mod receptor;
mod reloading;
mod scalars;

use std::path::Path;

use super::*;

/// A fixed machine, so that nothing of the real one is read.
fn environment() -> Environment {
    Environment {
        program: "meshd".to_owned(),
        host_name: Some("host.example".to_owned()),
        is_root: true,
        state_directory: None,
        xdg_state_home: None,
        home: None,
    }
}

/// Reads a file's text, and gives the warnings too.
fn load_text(text: &str) -> Result<(Config, Vec<Warning>), ConfigErrors> {
    let mut report = Report::default();
    let items = yaml::read(Path::new("x.yml"), text, &mut report).items;
    let config = assemble(items, &environment(), &mut report);
    report.finish().map(|warnings| (config, warnings))
}

/// Reads a file's text that has no errors.
fn parse_text(text: &str) -> Config {
    load_text(text).unwrap_or_else(|errors| panic!("{errors}")).0
}

fn load_args(line: &str) -> Result<Loaded, ConfigErrors> {
    match load(shlex::split(line).unwrap(), &environment())? {
        Invocation::Run(loaded) => Ok(*loaded),
        other => panic!("{line}: {other:?}"),
    }
}

/// The messages for a configuration of `refused.txt`: a file's text, or a command line after `$ `.
fn messages(input: &str) -> String {
    let errors = match input.strip_prefix("$ ") {
        Some(line) => load_args(line.trim_end()).map(|_| ()),
        None => load_text(input).map(|_| ()),
    };
    errors.err().map_or_else(|| "nothing is wrong".to_owned(), |errors| errors.to_string())
}

/// `refused.txt` holds blocks: `### title`, the configuration, then each expected message after `=> `.
#[test]
fn refused_configurations_say_what_is_wrong() {
    let table = include_str!("refused.txt");
    let mut failures = String::new();
    let mut blocks = 0;
    for block in table.split("### ").skip(1) {
        let (title, rest) = block.split_once('\n').unwrap();
        let (expected, input): (Vec<&str>, Vec<&str>) =
            rest.lines().partition(|line| line.starts_with("=> "));
        let expected: Vec<&str> = expected.iter().map(|line| &line[3..]).collect();
        let found = messages(&(input.join("\n") + "\n"));
        if found != expected.join("\n") {
            failures +=
                &format!("### {title}\n{}\n", found.lines().map(|l| format!("=> {l}\n")).collect::<String>());
        }
        blocks += 1;
    }
    assert!(blocks >= 40, "only {blocks} blocks");
    assert!(failures.is_empty(), "found instead:\n{failures}");
}
