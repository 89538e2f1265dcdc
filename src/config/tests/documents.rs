//! The reference page, compared with what the declarations say.

use std::path::PathBuf;

use super::*;

/// A file of the project.
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
