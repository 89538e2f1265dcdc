//! What a client of the page and its API may do, and the file of tokens that says so. Each token has a line of `NAME
//! LEVEL SHA256`. Owns the file's format and bounds, and that no error shows what is in the file. Knows no requests.

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::Serialize;

use crate::os::directories::parent_of;
use crate::os::hex;
use crate::os::private_file::{self, PrivateFileError};
use crate::os::replace;

/// The file of tokens of a node whose directive `web` names none.
pub const USUAL_TOKENS: &str = "/etc/meshd/web.tokens";
/// The longest file, in bytes, and the most tokens in it.
const LONGEST_FILE: u64 = 64 << 10;
const MOST_TOKENS: usize = 256;
/// The longest name of a token, in bytes.
const LONGEST_NAME: usize = 64;

/// What a client may do; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AccessLevel {
    /// Nothing that needs a level.
    None,
    /// Look at everything.
    Read,
    /// Submit, cancel and repeat jobs.
    Operate,
    /// Change how instances are used, and run what only administrators may.
    Admin,
}

impl AccessLevel {
    const ALL: [Self; 4] = [Self::None, Self::Read, Self::Operate, Self::Admin];

    /// Its name in files and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for AccessLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AccessLevel {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        found.ok_or("a level must be none, read, operate or admin")
    }
}

/// A line of the file. It holds a token's hash, not the token.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are those of the line")]
pub struct AccessToken {
    pub name: String,
    pub level: AccessLevel,
    /// The SHA-256 in hexadecimal digits, in lower case.
    hash: String,
}

/// A file of tokens. Each method reads the file, so that a change counts at once. All methods block.
#[derive(Debug, Clone)]
pub struct AccessTokens {
    path: PathBuf,
    /// Whether a missing file means that there are no tokens.
    may_be_missing: bool,
}

/// What is wrong with the file, or with a change of it.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is")]
#[expect(private_interfaces, reason = "what the system says of a file is for people")]
pub enum AccessError {
    #[error("tokens {path}: {error}", path = .path.display())]
    Unusable { path: PathBuf, error: PrivateFileError },
    #[error("tokens {path}: line {line} {why}", path = .path.display())]
    Line { path: PathBuf, line: usize, why: &'static str },
    #[error("{0:?} cannot be the name of a token: {NAME}")]
    Name(String),
    #[error("there is a token {0} already: remove it first")]
    Taken(String),
    #[error("there are {MOST_TOKENS} tokens already: remove some")]
    Full,
}

const NAME: &str = "it has 1 to 64 letters, digits and the signs . _ - @";

impl AccessToken {
    fn parse(line: &str) -> Result<Self, &'static str> {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(level), Some(hash), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err("is not NAME LEVEL SHA256");
        };
        if !is_name(name) {
            return Err("does not begin with the name of a token");
        }
        let level = level.parse().ok().filter(|level| *level != AccessLevel::None);
        let level = level.ok_or("has no level: read, operate or admin")?;
        if hash.len() != 2 * SHA256_OUTPUT_LEN || !hash.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err("has no SHA-256 in hexadecimal digits");
        }
        let hash = hash.to_ascii_lowercase();
        if hash == hash_of(b"") {
            return Err("has the hash of an empty token");
        }
        Ok(Self { name: name.to_owned(), level, hash })
    }
}

impl fmt::Display for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.level, self.hash)
    }
}

impl AccessTokens {
    /// The file at that path, which need not be there yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, may_be_missing: true }
    }

    /// The file that a directive names, or the usual one, which is made with the first token.
    pub fn of_directive(path: Option<PathBuf>) -> Self {
        let may_be_missing = path.is_none();
        Self { path: path.unwrap_or_else(|| USUAL_TOKENS.into()), may_be_missing }
    }

    /// All tokens, in the order of the file.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn list(&self) -> Result<Vec<AccessToken>, AccessError> {
        let unusable = |error| AccessError::Unusable { path: self.path.clone(), error };
        let text = match private_file::read(&self.path, LONGEST_FILE) {
            Err(PrivateFileError::Unreadable(error))
                if self.may_be_missing && error.kind() == ErrorKind::NotFound =>
            {
                return Ok(Vec::new());
            }
            read => read.map_err(unusable)?,
        };
        let text = String::from_utf8(text).map_err(|_| self.line(1, "is not text"))?;
        let mut tokens: Vec<AccessToken> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let token = AccessToken::parse(line).map_err(|why| self.line(at + 1, why))?;
            if tokens.iter().any(|one| one.name == token.name) {
                return Err(self.line(at + 1, "repeats a name of an earlier line"));
            }
            if tokens.len() == MOST_TOKENS {
                return Err(self.line(at + 1, "is one too many: there may be at most 256 tokens"));
            }
            tokens.push(token);
        }
        Ok(tokens)
    }

    /// The line of a token that somebody shows. How long this takes does not depend on how much of the token is right.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn find(&self, shown: &[u8]) -> Result<Option<AccessToken>, AccessError> {
        let shown = hash_of(shown);
        let is_shown =
            |token: &AccessToken| verify_slices_are_equal(token.hash.as_bytes(), shown.as_bytes()).is_ok();
        let found = self.list()?.into_iter().fold(None, |found, token| match is_shown(&token) {
            true => Some(token),
            false => found,
        });
        Ok(found)
    }

    /// Whether the file has this very line.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn has(&self, token: &AccessToken) -> Result<bool, AccessError> {
        Ok(self.list()?.contains(token))
    }

    /// Makes a token and adds its line to the file, which is made if it is missing. Only this call returns the token.
    ///
    /// # Errors
    /// The name is invalid or taken, there are too many tokens, or the file cannot be used.
    pub fn add(&self, name: &str, level: AccessLevel) -> Result<String, AccessError> {
        if !is_name(name) {
            return Err(AccessError::Name(name.to_owned()));
        }
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        if tokens.iter().any(|token| token.name == name) {
            return Err(AccessError::Taken(name.to_owned()));
        }
        if tokens.len() == MOST_TOKENS {
            return Err(AccessError::Full);
        }
        let token = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        tokens.push(AccessToken { name: name.to_owned(), level, hash: hash_of(token.as_bytes()) });
        self.write(&tokens)?;
        Ok(token)
    }

    /// Removes the line of that name; false if there is none.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn remove(&self, name: &str) -> Result<bool, AccessError> {
        let _lock = self.lock()?;
        let mut tokens = self.list()?;
        let before = tokens.len();
        tokens.retain(|token| token.name != name);
        if tokens.len() < before {
            self.write(&tokens)?;
        }
        Ok(tokens.len() < before)
    }

    /// Makes others that change the file wait. The lock is on the directory, because the file itself is replaced.
    fn lock(&self) -> Result<File, AccessError> {
        let locked = File::open(parent_of(&self.path)).and_then(|directory| {
            directory.lock()?;
            Ok(directory)
        });
        locked.map_err(|error| AccessError::Unusable { path: self.path.clone(), error: error.into() })
    }

    /// Replaces the file, without its remarks. The owner stays the same.
    fn write(&self, tokens: &[AccessToken]) -> Result<(), AccessError> {
        use std::os::unix::fs::MetadataExt as _;
        let lines: String = tokens.iter().map(|token| format!("{token}\n")).collect();
        let owner = std::fs::metadata(&self.path).ok().map(|file| (file.uid(), file.gid()));
        replace::replace_owned(&self.path, lines.as_bytes(), 0o600, owner)
            .map_err(|error| AccessError::Unusable { path: self.path.clone(), error: error.into() })
    }

    fn line(&self, line: usize, why: &'static str) -> AccessError {
        AccessError::Line { path: self.path.clone(), line, why }
    }
}

fn is_name(name: &str) -> bool {
    let is_sign = |letter: u8| letter.is_ascii_alphanumeric() || b"._-@".contains(&letter);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_sign)
}

fn hash_of(token: &[u8]) -> String {
    hex::print(digest(&SHA256, token).as_ref())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    /// The SHA-256 of an empty token, as `sha256sum` prints it.
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn changes_at_the_same_time_lose_nothing() {
        let temp = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for n in 0..16 {
                let tokens = file(temp.path());
                scope.spawn(move || {
                    tokens.add(&format!("n{n}"), AccessLevel::Read).unwrap();
                    if n % 2 == 0 {
                        assert!(tokens.remove(&format!("n{n}")).unwrap());
                    }
                });
            }
        });
        assert_eq!(file(temp.path()).list().unwrap().len(), 8);
    }

    fn file(directory: &Path) -> AccessTokens {
        AccessTokens::new(directory.join("tokens"))
    }

    #[test]
    fn a_token_is_shown_once_and_found_by_its_hash_until_its_line_is_gone() {
        let temp = tempfile::tempdir().unwrap();
        let tokens = file(temp.path());
        let (ci, eve) =
            (tokens.add("ci", AccessLevel::Operate).unwrap(), tokens.add("eve", AccessLevel::Read).unwrap());
        assert_eq!(fs::metadata(&tokens.path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&tokens.path).unwrap();
        assert!(text.starts_with("ci operate ") && !text.contains(&ci) && !text.contains(&eve), "{text}");
        let found = tokens.find(ci.as_bytes()).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.level), ("ci", AccessLevel::Operate));
        for wrong in ["", "ci", &ci[1..], &format!("{ci} "), &text[11..75]] {
            assert_eq!(tokens.find(wrong.as_bytes()).unwrap(), None, "{wrong}");
        }
        assert!(
            tokens.has(&found).unwrap()
                && !tokens.has(&AccessToken { level: AccessLevel::Read, ..found.clone() }).unwrap()
        );
        assert!(matches!(tokens.add("ci", AccessLevel::Read), Err(AccessError::Taken(_))));
        assert!(tokens.remove("ci").unwrap() && !tokens.remove("ci").unwrap());
        assert!(!tokens.has(&found).unwrap() && tokens.find(eve.as_bytes()).unwrap().is_some());
        for name in ["", "two words", "a:b", "ä", "new\nline", &"x".repeat(65)] {
            assert!(matches!(tokens.add(name, AccessLevel::Read), Err(AccessError::Name(_))), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_wrong_says_where_and_never_what() {
        let temp = tempfile::tempdir().unwrap();
        let tokens = file(temp.path());
        let hash = "ab".repeat(32);
        let said = |text: &str, mode| {
            fs::write(&tokens.path, text).unwrap();
            fs::set_permissions(&tokens.path, Permissions::from_mode(mode)).unwrap();
            tokens.list().map(|all| all.len()).map_err(|error| error.to_string())
        };
        assert_eq!(said(&format!("# remark\n\n a read {hash}\nb ADMIN {hash}\r\n"), 0o600), Ok(2));
        for (text, why) in [
            (format!("a read {hash}\nsecret"), "line 2 is not NAME LEVEL SHA256"),
            (format!("a root {hash}"), "line 1 has no level"),
            (format!("a none {hash}"), "line 1 has no level"),
            (format!("a read {hash}0"), "line 1 has no SHA-256"),
            ("a read secret".to_owned(), "line 1 has no SHA-256"),
            (format!("a read {}", EMPTY.to_uppercase()), "line 1 has the hash of an empty token"),
            (format!("a:secret read {hash}"), "line 1 does not begin with the name"),
            (format!("a read {hash}\na admin {hash}"), "line 2 repeats a name of an earlier line"),
            ((0..300).map(|n| format!("n{n} read {hash}\n")).collect(), "line 257 is one too many"),
            ("x".repeat(70_000), "longer than 65536 bytes"),
        ] {
            let error = said(&text, 0o600).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
        assert!(said("", 0o640).unwrap_err().contains("640"));
    }
}
