//! `meshctl web`: who may use the page and its API. Owns what is asked and printed. The file of tokens is `tls`'s; a
//! running node reads it with each request.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::exit::{Exit, Failure};
use super::output::Output;
use super::table::{Column, Layout, always};
use crate::tls::AccessLevel;
use crate::tls::access::{AccessError, AccessToken, AccessTokens};

const COLUMNS: &[Column<AccessToken>] =
    &[always("NAME", |one, _| one.name.clone()), always("LEVEL", |one, _| one.level.to_string())];

#[derive(Debug, Subcommand)]
pub(super) enum WebVerb {
    /// Tokens with which browsers and programs sign in
    Token {
        #[command(subcommand)]
        verb: TokenVerb,
        /// The file that the directive web names as its tokens
        #[arg(long, value_name = "FILE", default_value = "/etc/meshd/web.tokens", global = true)]
        file: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum TokenVerb {
    /// Make one, which is shown this once
    Add {
        /// Whose it is: what it does stands under this name in the audit
        name: String,
        /// What it allows, if the directive web allows as much: read, operate or admin
        #[arg(long, default_value = "read", value_parser = level)]
        level: AccessLevel,
    },
    /// List them, without what is secret
    List {
        #[command(flatten)]
        layout: Layout,
    },
    /// Remove one, and end the sessions that were begun with it
    Remove {
        /// Its name
        name: String,
    },
}

fn level(text: &str) -> Result<AccessLevel, String> {
    let level: AccessLevel = text.parse()?;
    if level == AccessLevel::None { Err("it is read, operate or admin".to_owned()) } else { Ok(level) }
}

impl WebVerb {
    pub(super) fn run(self, output: Output) -> Result<Exit, Failure> {
        let Self::Token { verb, file } = self;
        verb.run(file, output).map(|()| Exit::Success)
    }
}

impl TokenVerb {
    fn run(self, file: PathBuf, output: Output) -> Result<(), Failure> {
        let failed = |error: AccessError| Failure::new(Exit::Failed, error.to_string());
        let tokens = AccessTokens::new(file.clone());
        match self {
            Self::Add { name, level } => {
                let token = tokens.add(&name, level).map_err(failed)?;
                if output.json {
                    return output.value(&json!({"name": name, "level": level, "token": token}));
                }
                output.note(&format!("The token of {name} for the level {level}. It is not shown again:"));
                output.line(&token)
            }
            Self::List { layout } => {
                let tokens = tokens.list().map_err(failed)?;
                let shown: Vec<_> =
                    tokens.iter().map(|one| json!({"name": one.name, "level": one.level})).collect();
                if output.json {
                    return output.value(&json!({ "tokens": shown }));
                }
                output.list("tokens", &tokens, COLUMNS, layout)
            }
            Self::Remove { name } => {
                if !tokens.remove(&name).map_err(failed)? {
                    let message = format!("{} has no token {name}", file.display());
                    return Err(Failure::new(Exit::Failed, message));
                }
                if output.json {
                    return output.value(&json!({ "removed": name }));
                }
                output.done(&format!("{name} removed"))
            }
        }
    }
}
