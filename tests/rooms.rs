//! The rooms of `src`: which may import which, and that one type name does not stand for many things. Reads the source
//! text; knows nothing of what the code does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Every room with the rooms that it may import. `program` and the binaries stand above all.
const ARROWS: [(&str, &[&str]); 25] = [
    ("wire", &[]),
    ("counters", &[]),
    ("duration", &[]),
    ("yaml", &[]),
    ("os", &[]),
    ("mesh", &["counters", "wire"]),
    ("tls", &["os", "wire"]),
    ("congestion", &[]),
    ("backend", &["congestion", "os", "tls", "wire"]),
    ("node", &["backend", "congestion", "counters", "mesh", "os", "wire"]),
    ("stream", &["congestion", "mesh", "node", "os", "tls", "wire"]),
    ("service", &["mesh", "node", "os", "stream", "tls", "wire"]),
    ("rpc", &["counters", "duration", "os", "tls", "wire"]),
    ("pods", &["duration", "os", "rpc"]),
    ("work", &["counters", "duration", "os", "pods", "rpc", "stream", "wire"]),
    (
        "control",
        &["counters", "duration", "mesh", "node", "os", "rpc", "service", "stream", "tls", "wire", "work"],
    ),
    ("http", &["control", "counters", "mesh", "node", "os", "rpc", "tls", "wire", "work"]),
    ("confine", &["backend", "os"]),
    ("controller", &["confine", "counters", "duration", "mesh", "os", "pods", "rpc", "wire", "work", "yaml"]),
    ("telemetry", &["os"]),
    (
        "config",
        &[
            "congestion",
            "controller",
            "duration",
            "mesh",
            "pods",
            "service",
            "telemetry",
            "tls",
            "wire",
            "work",
            "yaml",
        ],
    ),
    (
        "daemon",
        &[
            "backend",
            "config",
            "confine",
            "control",
            "controller",
            "counters",
            "enrol",
            "http",
            "join",
            "mesh",
            "node",
            "os",
            "pods",
            "rpc",
            "service",
            "stream",
            "telemetry",
            "tls",
            "wire",
            "work",
        ],
    ),
    ("join", &["config", "controller", "os", "tls", "yaml"]),
    ("enrol", &["backend", "join", "mesh", "node", "os", "stream", "tls", "wire"]),
    (
        "cli",
        &[
            "config",
            "control",
            "controller",
            "duration",
            "enrol",
            "join",
            "os",
            "rpc",
            "tls",
            "wire",
            "work",
            "yaml",
        ],
    ),
];

/// The names that `config` may use of the rooms: their options and the values in them.
const OPTIONS: [&str; 31] = [
    "congestion::Congestion",
    "controller::options",
    "duration",
    "mesh::LinkPolicy",
    "mesh::firewall::Action",
    "mesh::firewall::PacketNames",
    "mesh::firewall::Pattern",
    "mesh::firewall::Rule",
    "mesh::firewall::decide",
    "pods::options",
    "service::IpRouterOptions",
    "telemetry::LogFormat",
    "telemetry::LogLevel",
    "tls::AccessLevel",
    "tls::ClientOptions",
    "tls::Files",
    "tls::Fingerprint",
    "tls::ServerOptions",
    "tls::commands::RequestKey",
    "tls::make::KeyKind",
    "tls::make::CertSubject",
    "wire",
    "work::CommandType",
    "work::PythonPlugin",
    "work::Quota",
    "work::Reach",
    "work::limits::Inherited",
    "work::limits::Limits",
    "work::limits::MaxStdout",
    "work::limits::WhenFull",
    "yaml",
];

/// Names that any number of rooms may give a type.
const COMMON: [&str; 2] = ["Error", "Options"];

/// A file of the product, without its tests and comments.
struct Source {
    room: String,
    name: String,
    lines: Vec<String>,
}

/// All files of the product, without those that replace the outside world in tests.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut left = vec![root.clone()];
    while let Some(path) = left.pop() {
        let below = path.strip_prefix(&root).unwrap().to_owned();
        let name = below.to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(below.file_name().and_then(|name| name.to_str()), Some("tests" | "contract")) {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            continue;
        }
        let stem = |path: &Path| path.with_extension("").to_string_lossy().into_owned();
        let words: Vec<String> = below.iter().map(|word| stem(Path::new(word))).collect();
        let support = ["tests", "contract", "memory", "model", "on_disk"];
        if name.ends_with(".rs") && !words.iter().any(|word| support.contains(&word.as_str())) {
            let lines = product(&fs::read_to_string(&path).unwrap());
            found.push(Source { room: words[0].clone(), name, lines });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(found.len() > 100, "only {} files were found", found.len());
    found
}

/// The lines of a file, without comments and without items marked `#[cfg(test)]`.
fn product(text: &str) -> Vec<String> {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code.starts_with("#[cfg(test)]") {
            let end = format!("{}}}", &line[..line.len() - code.len()]);
            let _last = lines.find(|line| line.ends_with(';') || line.starts_with(&end));
        } else if !code.starts_with("//") {
            kept.push(line.to_owned());
        }
    }
    kept
}

/// The paths that a file names below `crate::`, one for each name in braces.
fn imports(source: &Source) -> Vec<String> {
    let code: String = source.lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let code = code.replace("$crate::", "");
    let mut paths = Vec::new();
    for named in code.split("crate::").skip(1) {
        let end = named.find([';', '(', '<', ')']).unwrap_or(named.len());
        expand("", &named[..end], &mut paths);
    }
    paths
}

/// Spells out `a::{b, c::{d, e}}`.
fn expand(before: &str, named: &str, paths: &mut Vec<String>) {
    let Some((path, inner)) = named.split_once('{') else {
        let path = named.split([' ', ',', '}']).next().unwrap_or_default();
        paths.push(format!("{before}{path}"));
        return;
    };
    let before = format!("{before}{}", path.trim());
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in inner.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                let one = inner[start..at].trim();
                if !one.is_empty() {
                    expand(&before, one, paths);
                }
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
}

#[test]
fn rooms_import_only_what_stands_below_them() {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.into();
    let mut count = 0;
    for source in
        sources().iter().filter(|source| !["bin", "core", "lib", "program"].contains(&source.room.as_str()))
    {
        let allowed = arrows.get(source.room.as_str());
        let allowed = allowed.unwrap_or_else(|| panic!("the room {} has no place here", source.room));
        for import in imports(source) {
            let room = import.split("::").next().unwrap();
            assert!(
                room == source.room || allowed.contains(&room),
                "src/{} imports crate::{import}: {} may import {allowed:?}",
                source.name,
                source.room
            );
            count += 1;
        }
    }
    assert!(count >= 300, "only {count} imports were found");
}

#[test]
fn no_two_rooms_import_each_other() {
    for (room, below) in ARROWS {
        for other in below {
            let back = ARROWS.iter().find(|(name, _)| name == other).map(|(_, below)| *below);
            assert!(back.is_some_and(|back| !back.contains(&room)), "{room} and {other}");
        }
    }
}

#[test]
fn units_that_run_elsewhere_do_not_know_the_registry() {
    let all = sources();
    let remote: Vec<_> = all.iter().filter(|source| source.name.starts_with("work/remote")).collect();
    assert!(remote.len() > 3, "only {} files were found", remote.len());
    for source in remote {
        let up: Vec<_> =
            imports(source).into_iter().filter(|path| path.starts_with("work::registry")).collect();
        assert!(up.is_empty(), "src/{}: {up:?}", source.name);
    }
}

#[test]
fn configuration_names_options_of_the_rooms_and_nothing_else() {
    let mut count = 0;
    for source in sources().iter().filter(|source| source.room == "config") {
        for import in imports(source) {
            let named = |option: &str| import == option || import.starts_with(&format!("{option}::"));
            let known = import.starts_with("config::") || OPTIONS.iter().any(|option| named(option));
            assert!(known, "src/{}: crate::{import} is no option of a room", source.name);
            count += 1;
        }
    }
    assert!(count >= 10, "only {count} imports were found");
}

/// The name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => code.strip_prefix("pub ").unwrap_or(code),
    };
    let (keyword, rest) = code.split_once(' ')?;
    // An indented alias belongs to a trait or its implementation.
    let declares = match keyword {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    declares.then_some(&rest[..end]).filter(|name| !name.is_empty())
}

#[test]
fn a_type_name_stands_in_one_room() {
    let mut names: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for source in sources() {
        for name in source.lines.iter().filter_map(|line| declared(line)) {
            let files = names.entry(name.to_owned()).or_default().entry(source.room.clone()).or_default();
            files.insert(format!("src/{}", source.name));
        }
    }
    assert!(names.len() > 500, "only {} types were found", names.len());
    let common = |name: &str| COMMON.contains(&name);
    let many: Vec<String> = names
        .iter()
        .filter(|(name, rooms)| rooms.len() > 1 && !common(name))
        .map(|(name, rooms)| format!("{name}: {:?}", rooms.values().flatten().collect::<Vec<_>>()))
        .collect();
    assert!(many.is_empty(), "in more than one room:\n{}", many.join("\n"));
}

#[test]
fn the_reading_of_source_is_right() {
    let text = "use crate::{a::{B, c::D}, e};\n// use crate::no;\n#[cfg(test)]\nuse crate::x::Y;\n\
                #[cfg(test)]\nmod t {\n    struct Hidden;\n}\npub(super) struct Shown<T>(T);\n    type Inner = u8;\n";
    let source = Source { room: String::new(), name: String::new(), lines: product(text) };
    assert_eq!(imports(&source), ["a::B", "a::c::D", "e"]);
    assert_eq!(source.lines.iter().filter_map(|line| declared(line)).collect::<Vec<_>>(), ["Shown"]);
}
