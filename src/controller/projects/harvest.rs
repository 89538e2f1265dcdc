//! Takes what a sync leaves in its directory: its answer, a packed tree, and keys of servers that it saw for the first
//! time. A hostile repository may control the sync, so each is read as a plain file of bounded length, and copied,
//! because its writer may still have it open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use serde::Deserialize;

use super::{ANSWER, KNOWN_HOSTS, ProjectPlace, TREES, is_commit, open_plain};
use crate::controller::core::readable;
use crate::controller::credentials::Url;

/// The longest answer that is read, and the longest list of keys.
const LONGEST_ANSWER: u64 = 64 << 10;
/// The longest reason that is shown.
const LONGEST_REASON: usize = 2_000;
/// The longest line before a packed tree.
const LONGEST_LINE: u64 = 100;
const TREE: &str = "tree";
const CHUNK: usize = 256 << 10;

/// The commit that a sync found, or why it found none.
pub type SyncAnswer = Result<String, String>;

impl ProjectPlace {
    /// The answer of a sync; `None` if it left none.
    pub fn answer(&self, job: i64) -> Option<SyncAnswer> {
        #[derive(Deserialize)]
        struct AnswerFile {
            commit: Option<String>,
            error: Option<String>,
        }
        let mut text = String::new();
        let file = open_plain(&self.sync_directory(job).join(ANSWER)).ok()?;
        file.take(LONGEST_ANSWER).read_to_string(&mut text).ok()?;
        let answer: AnswerFile = serde_json::from_str(&text).ok()?;
        match answer {
            AnswerFile { commit: Some(commit), error: None } if is_commit(&commit) => Some(Ok(commit)),
            AnswerFile { error: Some(error), .. } => Some(Err(readable(&error, LONGEST_REASON))),
            AnswerFile { .. } => None,
        }
    }

    /// Takes the tree of the commit from a sync, unless the tree was there, and the key of the project's server, if
    /// none was known.
    ///
    /// # Errors
    /// The packed tree is not valid, or the disk fails.
    pub fn harvest(&self, job: i64, url: &Url, commit: &str) -> io::Result<()> {
        let tree = self.directory.join(TREES).join(format!("{commit}{}", self.suffix));
        if !tree.exists() {
            let left = open_plain(&self.sync_directory(job).join(TREE))?;
            let unfinished = tree.with_extension("new");
            let mut options = OpenOptions::new();
            let mut copy = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            copy_tree(left, &mut copy)?;
            copy.sync_all()?;
            fs::rename(unfinished, tree)?;
        }
        self.learn_key(job, url)
    }

    fn learn_key(&self, job: i64, url: &Url) -> io::Result<()> {
        let Some(server) = url.ssh_server() else { return Ok(()) };
        let known = self.directory.join(KNOWN_HOSTS);
        let read = |file: File| -> io::Result<String> {
            let mut text = String::new();
            file.take(LONGEST_ANSWER).read_to_string(&mut text)?;
            Ok(text)
        };
        // An older ssh writes the address after the name, as `NAME,ADDRESS`.
        let key = |line: &str| {
            let (names, key) = line.split_once(' ')?;
            (names.split(',').next() == Some(server.as_str())).then(|| format!("{server} {key}\n"))
        };
        let before = match File::open(&known) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            file => read(file?)?,
        };
        let learned =
            open_plain(&self.sync_directory(job).join(KNOWN_HOSTS)).and_then(read).unwrap_or_default();
        let keys: String = learned.lines().filter_map(key).collect();
        if keys.is_empty() || before.lines().any(|line| key(line).is_some()) {
            return Ok(());
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(known)?;
        file.write_all(keys.as_bytes())
    }
}

/// Copies a part of a runner's stream: the line with the length of a zip, and that zip in base64. Anything else is
/// refused, because it would speak to the runner in the job's name.
fn copy_tree(from: File, to: &mut File) -> io::Result<()> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TreeLine {
        zipfile: u64,
    }
    let no_tree = || io::Error::new(io::ErrorKind::InvalidData, "the sync did not leave a packed tree");
    let mut from = BufReader::with_capacity(CHUNK, from);
    let mut line = Vec::new();
    (&mut from).take(LONGEST_LINE).read_until(b'\n', &mut line)?;
    let TreeLine { zipfile } = serde_json::from_slice(&line).map_err(|_| no_tree())?;
    if !line.ends_with(b"\n") {
        return Err(no_tree());
    }
    to.write_all(&line)?;
    let mut left = zipfile.div_ceil(3).checked_mul(4).ok_or_else(no_tree)?;
    loop {
        let letters = from.fill_buf()?;
        if letters.is_empty() {
            return if left == 0 { Ok(()) } else { Err(no_tree()) };
        }
        let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
        left = left.checked_sub(letters.len() as u64).ok_or_else(no_tree)?;
        if !letters.iter().all(is_letter) {
            return Err(no_tree());
        }
        to.write_all(letters)?;
        let count = letters.len();
        from.consume(count);
    }
}
