//! Configurations of receptor: all that receptor knows is known here, in both versions of the notation.

use std::collections::BTreeMap;

use super::*;

/// The names of directives in version 1, with their keys in version 2.
fn directives() -> impl Iterator<Item = (&'static str, &'static str)> {
    let table =
        include_str!("../../../tests/data/receptor.txt").lines().filter(|line| !line.starts_with('#'));
    table.map(|line| line.split_once(" | ").unwrap())
}

fn version_1<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    items.into_iter().map(|item| format!("- {item}\n")).collect()
}

fn version_2<'a>(directives: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut keys = BTreeMap::<&str, String>::new();
    for (key, item) in directives {
        let given = item.split_once(": ").unwrap().1;
        match key.strip_suffix('+') {
            Some(key) => keys.entry(key).or_default().push_str(&format!("\n- {given}")),
            None => drop(keys.insert(key, format!(" {given}"))),
        }
    }
    keys.iter().fold("version: 2\n".to_owned(), |text, (key, given)| format!("{text}{key}:{given}\n"))
}

#[test]
fn every_parameter_of_receptor_is_known_in_both_versions() {
    let is_command = |directive: &(&str, &str)| directive.1.starts_with("cert-");
    let (commands, node): (Vec<_>, Vec<_>) = directives().partition(is_command);
    assert!(commands.len() > 3 && node.len() > 20);
    let each = commands.iter().map(|command| vec![*command]).chain([node]);
    for some in each {
        let one = parse_text(&version_1(some.iter().map(|(_, item)| *item)));
        let two = parse_text(&version_2(some));
        assert_eq!(one, two);
    }
}

#[test]
fn what_local_only_says_has_no_effect_in_a_list_and_is_a_switch_in_version_2() {
    for local in [true, false] {
        let (config, warnings) = load_text(&format!("- local-only: {{local: {local}}}\n")).unwrap();
        assert!(config.local_only, "as on both programs of receptor");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].to_string().starts_with("x.yml:1: local-only: `local` has no effect"),
            "{warnings:?}"
        );
        let (config, warnings) = load_text(&format!("version: 2\nlocal-only: {{local: {local}}}\n")).unwrap();
        assert_eq!((config.local_only, warnings.len()), (local, 0));
    }
}

#[test]
fn a_bare_word_is_noted_where_awx_reads_the_file_and_warned_of_nowhere() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("a.yml");
    let notes = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let loaded = load_args(&format!("--config {}", file.display())).unwrap();
        assert_eq!(loaded.warnings, []);
        loaded.notes.iter().map(|note| (note.at.position, note.text.clone())).collect::<Vec<_>>()
    };
    let of_awx = "- work-command: {worktype: local, command: cat}\n";
    let [(1, text), (2, _)] = &notes(&format!("- local-only\n- trace\n{of_awx}"))[..] else { panic!() };
    assert!(text.contains("write `local-only:`"), "{text}");
    assert_eq!(notes(&format!("- local-only:\n- trace: {{}}\n{of_awx}")), []);
    assert_eq!(notes("- local-only\n- work-command: {worktype: own, command: cat}\n"), []);
}
