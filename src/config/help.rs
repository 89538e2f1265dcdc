//! The help text: how to call the program, and the whole grammar, printed from the table.
//!
//! Owns its layout. It refuses to know a directive by name: it prints the whole table.

use std::fmt::Write;

use super::directives::DIRECTIVES;
use super::schema::{Directive, HelpSection, Parameter};

const HEAD: &str = "\
Usage: meshd --config FILE
       meshd --config-dir DIRECTORY
       meshd --DIRECTIVE [VALUE] [PARAMETER=VALUE]... [--DIRECTIVE ...]...
       meshd check [--running] FILE-OR-DIRECTORY | OPTION...

Runs one node of a mesh. Everything is a directive: in a YAML file an item of a list,
on the command line an option. These are the same:

  - node: {id: foo}                       --node id=foo
  - log-level: debug                      --log-level debug
  - tcp-listener: {port: 2222}            --tcp-listener port=2222
  - tcp-peer: {address: 'bar:2222'}       --tcp-peer bar:2222

Names are taken in any case. Lists and maps are JSON on the command line, and a list's
parameter may be repeated. In version 2 a file is a map with `version: 2`; what may occur
many times stands in lists under plural names, as in `tcp-peers`.

`check` says what is wrong with a configuration and what it needs, and starts nothing; with
--running, what the configuration's own running node holds counts as free.

  -c, --config FILE        read directives from a YAML file; may be repeated
      --config-v2 FILE     the same of a file in version 2, a map; it is watched for changes
      --config-dir DIR     read all *.yml and *.yaml files of a directory, in name order
  -h, --help               print this text
      --version            print the version

Data is kept in $STATE_DIRECTORY, which systemd sets, without it in /var/lib/meshd for root and in
$XDG_STATE_HOME/meshd or ~/.local/state/meshd for others, and in /tmp/receptor if the program is
called `receptor`.
";

/// The help text, at most 100 columns wide.
pub fn help() -> String {
    let mut text = HEAD.to_owned();
    for group in HelpSection::ALL {
        text += "\n";
        text += group.title();
        text += "\n";
        for directive in DIRECTIVES.iter().filter(|directive| directive.group == group) {
            write_directive(&mut text, directive);
        }
    }
    text
}

const MISSING: &str = " [no effect]";

/// Writes one directive. Results are dropped, because writing to a text cannot fail.
fn write_directive(text: &mut String, directive: &Directive) {
    let note = if directive.without_effect.is_some() { MISSING } else { "" };
    let _ = writeln!(text, "\n  --{}: {}{note}", directive.name, directive.help());
    for parameter in directive.current() {
        let name = format!("{}={}", parameter.name, parameter.kind.placeholder());
        let _ = writeln!(text, "      {name:<32} {}{}", parameter.help(), notes(parameter));
    }
}

fn notes(parameter: &Parameter) -> String {
    let mut notes = Vec::new();
    if parameter.required {
        notes.push("required".to_owned());
    }
    if parameter.bare {
        notes.push("name optional".to_owned());
    }
    notes.extend(parameter.default.map(|default| format!("default {default}")));
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
}
