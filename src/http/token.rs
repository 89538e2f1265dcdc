//! The file with the token that clients have to show. The file is read for each request that shows a token, so that a
//! new token counts at once. Neither the process nor its log keeps the token.

use std::path::PathBuf;

use aws_lc_rs::constant_time::verify_slices_are_equal;

use crate::os::private_file::{self, PrivateFileError};

/// Longest file, in bytes.
const LONGEST_FILE: u64 = 4096;

/// A file with one token, which may have white space around it.
#[derive(Debug, Clone)]
pub(crate) struct TokenFile(PathBuf);

/// Why a file has no token. The text never shows what is in the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("tokenfile {path}: {error}", path = .path.display())]
    Unusable { path: PathBuf, error: PrivateFileError },
    #[error("tokenfile {path} holds no token: it must hold one word", path = .0.display())]
    NoToken(PathBuf),
}

impl TokenFile {
    /// The file at `path`, which must have a token now. Blocks.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn open(path: PathBuf) -> Result<Self, TokenError> {
        let file = Self(path);
        file.read().map(|_token| file)
    }

    /// Whether this is the token. How long this takes does not depend on how much of the token is right. Blocks.
    pub(super) fn is(&self, shown: &[u8]) -> Result<bool, TokenError> {
        Ok(verify_slices_are_equal(&self.read()?, shown).is_ok())
    }

    /// The token. Blocks.
    pub(super) fn read(&self) -> Result<Vec<u8>, TokenError> {
        let unusable = |error| TokenError::Unusable { path: self.0.clone(), error };
        let text = private_file::read(&self.0, LONGEST_FILE).map_err(unusable)?;
        let token = text.trim_ascii();
        let is_word = !token.is_empty() && token.iter().all(u8::is_ascii_graphic);
        if is_word { Ok(token.to_vec()) } else { Err(TokenError::NoToken(self.0.clone())) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_one_word_in_a_file_of_its_owner_alone() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("token");
        let write = |text: &[u8], mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        };
        let opened = || TokenFile::open(path.clone());
        assert!(matches!(opened(), Err(TokenError::Unusable { .. })));
        for text in ["", " \n", "two words", "new\nline"] {
            write(text.as_bytes(), 0o600);
            assert!(matches!(opened(), Err(TokenError::NoToken(_))), "{text:?}");
        }
        write(&[b'x'; 5000], 0o600);
        assert!(matches!(opened(), Err(TokenError::Unusable { error: PrivateFileError::TooLong(4096), .. })));
        write(b"secret", 0o640);
        let error = opened().unwrap_err().to_string();
        assert!(error.contains("640") && !error.contains("secret"), "{error}");

        write(b"secret\n", 0o600);
        let file = opened().unwrap();
        assert!(file.is(b"secret").unwrap());
        assert!(!file.is(b"secre").unwrap() && !file.is(b"secret ").unwrap() && !file.is(b"").unwrap());
        write(b"another", 0o600);
        assert!(file.is(b"another").unwrap() && !file.is(b"secret").unwrap());
    }
}
