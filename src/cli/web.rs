//! `meshctl web`: who may use the page and its API. Owns the arguments and what is printed. `tls` owns the file of
//! tokens, which a running node reads with each request.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;

use super::exit::{Exit, Failure};
use super::output::Output;
use super::table::{Column, Layout, always};
use crate::join::configuration::CONF_D;
use crate::join::host;
use crate::join::own::OwnNode;
use crate::tls::AccessLevel;
use crate::tls::access::{AccessError, AccessToken, AccessTokens, USUAL_TOKENS};

const COLUMNS: &[Column<AccessToken>] =
    &[always("NAME", |one, _| one.name.clone()), always("LEVEL", |one, _| one.level.to_string())];

#[derive(Debug, Subcommand)]
pub(super) enum WebVerb {
    /// Manage the tokens with which browsers and programs sign in
    Token {
        #[command(subcommand)]
        verb: TokenVerb,
        /// File of tokens [default: that of this host's node, or /etc/meshd/web.tokens]
        #[arg(long, value_name = "FILE", global = true)]
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum TokenVerb {
    /// Make a token; it is shown only this once
    Add {
        /// Name of the token, under which the audit records what is done with it
        name: String,
        /// What the token allows, as far as the directive web allows it: read, operate or admin
        #[arg(long, default_value = "read", value_parser = level)]
        level: AccessLevel,
    },
    /// List tokens, without the secrets
    List {
        #[command(flatten)]
        layout: Layout,
    },
    /// Remove a token, and end the sessions that were begun with it
    Remove {
        /// Name of the token
        name: String,
    },
}

fn level(text: &str) -> Result<AccessLevel, String> {
    let level = text.parse().ok().filter(|level| *level != AccessLevel::None);
    level.ok_or_else(|| "it must be read, operate or admin".to_owned())
}

impl WebVerb {
    pub(super) fn run(self, output: Output) -> Result<Exit, Failure> {
        let Self::Token { verb, file } = self;
        let own = OwnNode::read(Path::new(CONF_D)).ok();
        let named = own.as_ref().and_then(|own| own.config().web.as_ref()?.tokens.clone());
        let named = named.unwrap_or_else(|| USUAL_TOKENS.into());
        let file = file.unwrap_or_else(|| named.clone());
        if let (TokenVerb::Add { level, .. }, Some(own)) = (&verb, &own) {
            match &own.config().web {
                None => {
                    output.note("No page uses it yet: the configuration of this node has no directive web")
                }
                Some(_) if named != file => {
                    output.note(&format!(
                        "The page of this node does not use this file, but {}",
                        named.display()
                    ));
                }
                Some(web) if web.allow < *level => output.note(&format!(
                    "With it the page allows only {}: for more, set `allow: {level}` in the directive web",
                    web.allow
                )),
                Some(_) => {}
            }
        }
        verb.run(file, output).map(|()| Exit::Success)
    }
}

impl TokenVerb {
    fn run(self, file: PathBuf, output: Output) -> Result<(), Failure> {
        let failed = |error: AccessError| Failure::new(Exit::Failed, error.to_string());
        let tokens = AccessTokens::new(file.clone());
        match self {
            Self::Add { name, level } => {
                let is_new = !file.exists();
                let token = tokens.add(&name, level).map_err(failed)?;
                // The file becomes the daemon's, because nobody else reads it. This fails unless root runs it.
                if let (true, Ok(Some(daemon))) = (is_new, host::account(Path::new("/"))) {
                    let _kept = std::os::unix::fs::chown(&file, Some(daemon.user), Some(daemon.group));
                }
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
