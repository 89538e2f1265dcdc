//! Passwords of vaults, each with its label: from files, from programs that print one, or typed. They become files of
//! the job that only its owner may read. Programs run here, never on the node.

use std::path::PathBuf;

use clap::Args;

use crate::cli::existing_path;

/// The label of a vault that has none.
const UNLABELLED: &str = "default";

/// Flags about vaults.
#[derive(Debug, Args)]
pub(in crate::cli) struct VaultFlags {
    /// Password of a vault: LABEL@FILE, LABEL@prompt, or without a label; a program prints it
    #[arg(long, value_name = "LABEL@SOURCE")]
    pub vault_id: Vec<String>,
    /// File with the password of the vault, or a program that prints it
    #[arg(long, alias = "vault-pass-file", value_name = "FILE", value_parser = existing_path())]
    pub vault_password_file: Vec<PathBuf>,
    /// Ask for the password of the vault
    #[arg(long, short = 'J', alias = "ask-vault-password")]
    pub ask_vault_pass: bool,
}

/// Where the password of a vault comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PasswordSource {
    Typed,
    File(PathBuf),
}

impl VaultFlags {
    /// The labels and sources, in the order in which ansible tries them.
    pub(super) fn sources(&self) -> Vec<(String, PasswordSource)> {
        let mut sources: Vec<_> = self.vault_id.iter().map(|text| labelled(text)).collect();
        let files = self.vault_password_file.iter().cloned().map(PasswordSource::File);
        let rest = files.chain(self.ask_vault_pass.then_some(PasswordSource::Typed));
        sources.extend(rest.map(|source| (UNLABELLED.to_owned(), source)));
        sources
    }
}

fn labelled(text: &str) -> (String, PasswordSource) {
    let (label, source) = text.split_once('@').unwrap_or((UNLABELLED, text));
    let label = if label.is_empty() { UNLABELLED } else { label };
    let is_typed = ["prompt", "prompt_ask_vault_pass"].contains(&source);
    (label.to_owned(), if is_typed { PasswordSource::Typed } else { PasswordSource::File(source.into()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vault_has_a_label_and_a_source() {
        let file = |path: &str| PasswordSource::File(path.into());
        for (text, label, source) in [
            ("dev@secret", "dev", file("secret")),
            ("secret", "default", file("secret")),
            ("@a@b", "default", file("a@b")),
            ("dev@prompt", "dev", PasswordSource::Typed),
            ("prompt", "default", PasswordSource::Typed),
        ] {
            assert_eq!(labelled(text), (label.to_owned(), source), "{text}");
        }
    }
}
