//! Writes the manual into a directory: section 1 from the grammar of meshctl's command line and the help text of meshd,
//! section 5, in Markdown, from the declarations of the directives. `packaging/build` runs it.
//!
//!     cargo run --example manual -- DIRECTORY

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap_mangen::roff::{Roff, roman};

fn main() -> io::Result<()> {
    let directory = env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.ok_or_else(|| io::Error::other("usage: manual DIRECTORY"))?;
    fs::create_dir_all(&directory)?;
    clap_mangen::generate_to(meshd::command_line(), &directory)?;
    daemon(&directory)?;
    fs::write(directory.join("meshd.yml.5.md"), configuration())
}

/// The head of the help text, as it is laid out; the directives that follow it have a page of their own.
fn daemon(directory: &Path) -> io::Result<()> {
    let help = meshd::config::help();
    let head = help.find("\n\n  --").and_then(|directives| help[..directives].rfind("\n\n"));
    let (synopsis, description) = help[..head.unwrap_or(help.len())].split_once("\n\n").unwrap_or_default();
    let verbatim = |page: &mut Roff, title: &str, text: &str| {
        page.control("SH", [title]).control("nf", []);
        page.text([roman(text)]).control("fi", []);
    };
    let mut page = Roff::new();
    page.control("TH", ["meshd", "1", "", concat!("meshd ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]).text([roman("meshd - a node of a receptor mesh")]);
    let synopsis: Vec<&str> =
        synopsis.lines().map(|line| line.trim_start_matches("Usage:").trim_start()).collect();
    verbatim(&mut page, "SYNOPSIS", &synopsis.join("\n"));
    verbatim(&mut page, "DESCRIPTION", description);
    page.control("SH", ["SEE ALSO"]).text([roman("meshctl(1), meshd.yml(5)")]);
    fs::write(directory.join("meshd.1"), page.render())
}

/// The reference page under the head that go-md2man wants.
fn configuration() -> String {
    // A test keeps it what the declarations say.
    let reference = include_str!("../docs/configuration.md");
    // Its title, and what it says of itself in the tree of sources.
    let body = reference.splitn(3, "\n\n").nth(2).unwrap_or_default();
    let head = concat!("% meshd.yml 5 \"\" \"meshd ", env!("CARGO_PKG_VERSION"), "\"");
    format!("{head}\n\n# NAME\n\nmeshd.yml - configuration of a mesh node\n\n# DESCRIPTION\n\n{body}")
}
