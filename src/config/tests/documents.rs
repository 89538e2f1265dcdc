//! The reference page and the room's imports, compared with what the source says.

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

/// What `config` may name of the rooms: their options and the values in them.
const OPTIONS: [&str; 22] = [
    "duration",
    "mesh::LinkPolicy",
    "mesh::firewall::Action",
    "mesh::firewall::Pattern",
    "mesh::firewall::Rule",
    "service::IpRouterOptions",
    "telemetry::LogLevel",
    "tls::ClientOptions",
    "tls::Files",
    "tls::Fingerprint",
    "tls::ServerOptions",
    "tls::commands::RequestKey",
    "tls::make::KeyKind",
    "tls::make::Subject",
    "wire",
    "work::CommandType",
    "work::PythonPlugin",
    "work::Quota",
    "work::kubernetes::options",
    "work::limits::Limits",
    "work::limits::MaxStdout",
    "work::limits::WhenFull",
];

/// The `crate::` paths that a file names, without comments and the tests at its end.
fn imports(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap().replace("$crate::", "");
    let code: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    let mut paths = Vec::new();
    for named in code.join(" ").split("crate::").skip(1) {
        let named = &named[..named.find([';', '(', '<', ')']).unwrap_or(named.len())];
        match named.split_once('{') {
            Some((room, names)) => {
                let names =
                    names.trim_end_matches('}').split(',').map(str::trim).filter(|name| !name.is_empty());
                paths.extend(names.map(|name| format!("{room}{name}")));
            }
            None => paths.push(named.to_owned()),
        }
    }
    paths
}

/// The product's files of a directory, or the one file.
fn sources(path: PathBuf) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path];
    }
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let product = entries.filter(|path| !path.to_string_lossy().contains("tests"));
    product
        .flat_map(sources)
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

#[test]
fn configuration_names_options_of_the_rooms_and_nothing_else() {
    let mut count = 0;
    for path in sources(project("src/config")) {
        for import in imports(&path) {
            let named = |option: &str| import == option || import.starts_with(&format!("{option}::"));
            let known = import.starts_with("config::") || OPTIONS.iter().any(|option| named(option));
            assert!(known, "{}: crate::{import} is no option of a room", path.display());
            count += 1;
        }
    }
    assert!(count >= 10, "only {count} imports were found");
}

#[test]
fn no_room_below_the_daemon_knows_the_configuration() {
    let mut count = 0;
    for path in sources(project("src")) {
        let name = path.strip_prefix(project("src")).unwrap().to_string_lossy().into_owned();
        if ["config/", "daemon/"].iter().any(|above| name.starts_with(above)) {
            continue;
        }
        for import in imports(&path) {
            assert!(!import.starts_with("config::"), "{name}: crate::{import}");
            count += 1;
        }
    }
    assert!(count >= 100, "only {count} imports were found");
}
