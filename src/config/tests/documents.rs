//! The reference page, compared with the text made from the declarations.

use std::fmt::Write;
use std::path::PathBuf;

use super::*;
use crate::config::schema::HelpSection;

/// The path of a file of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_reference_page_is_what_the_declarations_say() {
    let path = project("docs/configuration.md");
    let wanted = reference();
    if std::env::var_os("MESHD_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let differing =
        wanted.lines().zip(page.lines().chain(std::iter::repeat(""))).find(|(wanted, is)| wanted != is);
    assert!(
        page == wanted,
        "docs/configuration.md is not what the declarations say, first in {differing:?}: write it again with \
         `MESHD_WRITE_REFERENCE=1 cargo test --lib config`"
    );
    for directive in DIRECTIVES.iter() {
        assert!(page.contains(&format!("\n### {}\n", directive.name)), "{}", directive.name);
    }
}

const REFERENCE_HEAD: &str = "\
# Configuration

*For operators of a mesh, operators of a controller and AWX administrators.*
Every directive and parameter of `meshd`. This page is generated from the declarations in `src/config/directives`;
a test compares them, and `MESHD_WRITE_REFERENCE=1 cargo test --lib config` writes it again.

A file is a list of directives, each a map of one name to its parameters:

```yaml
- node: {id: foo}
- tcp-listener: {port: 2222}
- tcp-peer: {address: 'bar:2222'}
```

In version 2 it is a map with `version: 2`, where directives that may occur many times stand in lists under their
plural names. On the command line the same is `--node id=foo --tcp-listener port=2222 --tcp-peer bar:2222`; lists and
maps are JSON there, and a list's parameter may be repeated. Names are taken in any case. `meshd check` reports every
mistake with file and line.

Data is kept in `$STATE_DIRECTORY`, which systemd sets, without it in `/var/lib/meshd` for root and in
`$XDG_STATE_HOME/meshd` or `~/.local/state/meshd` for others, and in `/tmp/receptor` if the program is called `receptor`.

`*` marks the parameter whose name may be left out, as in `- tcp-listener: 2222`.
";

/// The reference page, in Markdown.
fn reference() -> String {
    let mut text = REFERENCE_HEAD.to_owned();
    for group in HelpSection::ALL {
        let _ = writeln!(text, "\n## {}", group.title());
        for directive in DIRECTIVES.iter().filter(|directive| directive.group == group) {
            write_section(&mut text, directive);
        }
    }
    text
}

fn write_section(text: &mut String, directive: &Directive) {
    let _ = writeln!(text, "\n### {}\n\n{}.", directive.name, paragraph(directive.docs));
    let remarks = [
        directive.singleton.then(|| "May be given once.".to_owned()),
        directive
            .exclusive
            .then(|| "A command of its own: no other directive may be given with it.".to_owned()),
        directive.without_effect.map(|instead| format!("Without effect: {instead}.")),
    ];
    for remark in remarks.into_iter().flatten() {
        let _ = writeln!(text, "{remark}");
    }
    if directive.current().next().is_none() {
        let _ = writeln!(text, "Takes no parameters.");
        return;
    }
    let _ = writeln!(text, "\n| Parameter | Value | Default | |\n|---|---|---|---|");
    for parameter in directive.current() {
        let name = format!("`{}`{}", parameter.name, if parameter.bare { "\\*" } else { "" });
        let default = match parameter.default {
            Some(default) => format!("`{default}`"),
            None if parameter.required => "required".to_owned(),
            None => String::new(),
        };
        let about = paragraph(parameter.docs).replace('|', "\\|");
        let _ = writeln!(text, "| {name} | {} | {default} | {about} |", parameter.kind.wanted());
    }
}

/// Joins the lines of a comment: the first becomes a sentence, and the others follow it.
fn paragraph(docs: &[&str]) -> String {
    let lines: Vec<&str> = docs.iter().map(|line| line.trim()).filter(|line| !line.is_empty()).collect();
    match lines.split_first() {
        Some((first, more)) if !more.is_empty() => format!("{first}. {}", more.join(" ")),
        _ => lines.concat(),
    }
}
