//! The part of our grammar that receptor knows: with anything else in its configuration, receptor does not start.
//! The names in receptor.txt are from the help of receptor 1.4.9.

use std::path::Path;

use super::cmdline;
use super::error::{ConfigErrors, Report, Source, Warning};
use super::item::Item;

/// One line for each directive: its name, then its parameters.
const KNOWN: &str = include_str!("receptor.txt");

/// A warning for each directive and parameter that receptor does not know, in a configuration file or directory.
///
/// # Errors
/// What is wrong with the files.
pub fn unknown_to_receptor(path: &Path) -> Result<Vec<Warning>, ConfigErrors> {
    let mut report = Report::default();
    let reading = cmdline::read_path(path, &mut report);
    report.finish()?;
    let version_2 = reading.watched.into_iter().map(|file| Warning {
        at: Source::File(file.into()).at(1),
        text: "receptor reads a list of directives here, and version 2 with --config-v2 at best".to_owned(),
    });
    Ok(version_2.chain(reading.items.iter().flat_map(unknown)).collect())
}

fn unknown(item: &Item) -> Vec<Warning> {
    let name = item.directive.name;
    let Some(known) = parameters_of(name) else {
        return vec![Warning { at: item.at.clone(), text: format!("{name}: delete this directive") }];
    };
    let unknown = item.given.iter().filter(|given| !known.contains(given));
    let told =
        |given: &&str| Warning { at: item.location_of(given), text: format!("{name}: delete {given}") };
    unknown.map(told).collect()
}

fn parameters_of(directive: &str) -> Option<Vec<&'static str>> {
    let mut lines = KNOWN.lines().map(|line| line.split(' '));
    lines.find_map(|mut names| (names.next() == Some(directive)).then(|| names.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::directives;

    #[test]
    fn all_that_receptor_knows_is_known_here() {
        for line in KNOWN.lines() {
            let mut names = line.split(' ');
            let name = names.next().unwrap();
            let directive = directives::find(name).unwrap_or_else(|| panic!("{name}"));
            // `local` stands for the directive itself.
            for parameter in names.filter(|parameter| *parameter != "local") {
                assert!(directive.parameter(parameter).is_some(), "{name} {parameter}");
            }
        }
    }

    #[test]
    fn what_receptor_does_not_know_is_named_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("receptor.conf");
        let text = "- node: {id: a, forgetafter: 10m}\n- local-only:\n- metrics: {address: '127.0.0.1:1'}\n- work-command:\n    \
                    worktype: w\n    command: cat\n    pids: 3\n";
        std::fs::write(&path, text).unwrap();
        let found = unknown_to_receptor(&path).unwrap();
        let found: Vec<_> = found.iter().map(|one| format!("{}: {}", one.at, one.text)).collect();
        let at = path.display();
        let expected = [
            format!("{at}:1: node: delete forgetafter"),
            format!("{at}:3: metrics: delete this directive"),
            format!("{at}:7: work-command: delete pids"),
        ];
        assert_eq!(found, expected);
        std::fs::write(&path, "version: 2\nnode: {id: a}\n").unwrap();
        let found = unknown_to_receptor(&path).unwrap();
        assert!(found.len() == 1 && found[0].text.contains("version 2"), "{found:?}");
        std::fs::write(&path, "- node: {id: a}\n- nonsense:\n").unwrap();
        assert!(unknown_to_receptor(&path).unwrap_err().to_string().contains("nonsense"));
    }
}
