//! The contents of a bundle, checked as a whole before the first file on the host changes, and then put in place.
//!
//! Owns the names of the files in our bundles. Others decide whether the node can run, and how it is linked.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::bundle::Bundle;
use super::configuration::{
    ASKING, AUTHORITY, CERTIFICATE, CONF_D, ETC, KEY, MARK, NEXT, NODE_FILE, REVOKED, SIGNING_KEY,
    VERIFICATION_KEY,
};
use super::host;
use super::own::{checked, may_be_replaced, texts};
use super::place::{Access, FileTree};
use super::{JoinError, awx};
use crate::config::Config;
use crate::tls::inspect::{self, VerifyingParty};
use crate::tls::{Files, Role, ServerOptions, ServerProfile};

/// Names in a bundle.
pub(crate) mod names {
    pub(crate) const README: &str = "README";
    pub(crate) const CONFIGURATION: &str = "node.yml";
    pub(crate) const CERTIFICATE: &str = "node.crt";
    pub(crate) const KEY: &str = "node.key";
    pub(crate) const AUTHORITY: &str = "ca.crt";
    pub(crate) const REVOKED: &str = "ca.crl";
    pub(crate) const VERIFICATION_KEY: &str = "work.pub";
}

/// All files that make a node.
pub(crate) struct Kit {
    pub(crate) configuration: String,
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) authority: Vec<u8>,
    pub(crate) revoked: Option<Vec<u8>>,
    pub(crate) verification_key: Option<Vec<u8>>,
    /// Only for a control node.
    pub(crate) signing_key: Option<Vec<u8>>,
    /// Files of the bundle that nobody uses.
    pub(crate) unused: Vec<String>,
}

impl Kit {
    /// The contents of a bundle.
    ///
    /// # Errors
    /// It is not a bundle of a node.
    pub(crate) fn of(mut bundle: Bundle, path: &Path) -> Result<Self, JoinError> {
        if bundle.has(awx::VARIABLES) {
            return awx::kit(bundle);
        }
        let found: Vec<String> = bundle.names().map(str::to_owned).collect();
        let mut needed = |name: &str| {
            bundle.take(name).ok_or_else(|| {
                let reason =
                    format!("it is not a bundle of a node: there is no {name}, but {}", found.join(", "));
                JoinError::Bundle { path: path.to_owned(), reason }
            })
        };
        let configuration = needed(names::CONFIGURATION)?;
        let (certificate, key) = (needed(names::CERTIFICATE)?, needed(names::KEY)?);
        let authority = needed(names::AUTHORITY)?;
        let _for_people = bundle.take(names::README);
        let (revoked, verification_key) = (bundle.take(names::REVOKED), bundle.take(names::VERIFICATION_KEY));
        let no_text = |_| JoinError::Bundle {
            path: path.to_owned(),
            reason: format!("{} in it is not text", names::CONFIGURATION),
        };
        Ok(Self {
            configuration: String::from_utf8(configuration).map_err(no_text)?,
            certificate,
            key,
            authority,
            revoked,
            verification_key,
            signing_key: None,
            unused: bundle.names().map(str::to_owned).collect(),
        })
    }

    /// The configuration that the node in this tree would have, if all files fit together.
    ///
    /// # Errors
    /// Everything that is wrong with it, or with the files already there.
    pub(crate) fn check(&self, tree: &mut FileTree) -> Result<Config, JoinError> {
        let mut there = texts(&tree.path(CONF_D))?;
        there.insert(tree.path(NODE_FILE), self.configuration.clone());
        let config = checked(&there)?;
        check_host(tree, config.node.id.as_str())?;
        tree.directory(ETC)?;
        let staged = Staged::new(&tree.path(ETC))?;
        self.check_trust(&staged, &config)?;
        Ok(config)
    }

    /// Checks that certificate, key and authority belong together, and name the node of the configuration.
    fn check_trust(&self, staged: &Staged, config: &Config) -> Result<(), JoinError> {
        let (cert, key) =
            (staged.file(names::CERTIFICATE, &self.certificate)?, staged.file(names::KEY, &self.key)?);
        let authorities = staged.file(names::AUTHORITY, &self.authority)?;
        let crl = self.revoked.as_ref().map(|list| staged.file(names::REVOKED, list)).transpose()?;
        let files = Files {
            identity: Some((cert.clone(), key)),
            authorities: Some(authorities.clone()),
            crl: crl.clone(),
            blocklist: None,
        };
        let options = ServerOptions {
            name: "of the bundle".to_owned(),
            files,
            require_client_cert: true,
            ..Default::default()
        };
        ServerProfile::open(options, Some(&config.node.id))?;
        for role in [Role::Client, Role::Server] {
            let unfit = |reason: String| {
                let node = &config.node.id;
                JoinError::Host(format!("the certificate for {node}: other nodes would refuse it: {reason}"))
            };
            let verifier = VerifyingParty::by_authorities(&authorities, crl.as_deref(), role)
                .map_err(|error| unfit(error.to_string()))?;
            let verified = inspect::verify(&verifier, &cert, Some(config.node.id.as_str()), None);
            verified.map_err(|error| unfit(error.to_string()))?;
        }
        Ok(())
    }

    /// Puts all files in place.
    pub(crate) fn place(&self, tree: &mut FileTree) -> Result<(), JoinError> {
        host::directories(tree)?;
        tree.remove(NEXT)?;
        tree.remove(ASKING)?;
        let files = [
            (AUTHORITY, Some(&self.authority), Access::Public),
            (REVOKED, self.revoked.as_ref(), Access::Public),
            (KEY, Some(&self.key), Access::Daemon),
            (CERTIFICATE, Some(&self.certificate), Access::Public),
            (SIGNING_KEY, self.signing_key.as_ref(), Access::Daemon),
            (VERIFICATION_KEY, self.verification_key.as_ref(), Access::Public),
        ];
        for (path, contents, access) in files {
            contents.map_or(Ok(()), |contents| tree.file(path, contents, access))?;
        }
        tree.file(NODE_FILE, self.configuration.as_bytes(), Access::Public)
    }
}

/// Checks that a host may become this node: it is no other one, and nobody wrote its configuration by hand.
pub(super) fn check_host(tree: &FileTree, node: &str) -> Result<(), JoinError> {
    let (there, file) = (texts(&tree.path(CONF_D))?, tree.path(NODE_FILE));
    let Some(text) = there.get(&file) else { return Ok(()) };
    if !may_be_replaced(&file, text) {
        let file = file.display();
        return Err(JoinError::Host(format!(
            "{file} was written by hand: move it away, and put what you want to keep into another file beside it"
        )));
    }
    let installed = checked(&there).ok().filter(|_| text.starts_with(MARK)).map(|config| config.node.id);
    match installed.filter(|own| own.as_str() != node) {
        Some(own) => {
            let files = [NODE_FILE, CERTIFICATE, KEY].map(|path| tree.path(path).display().to_string());
            Err(JoinError::Host(format!(
                "this host is {own}, and would become {node}: remove what makes it {own} first ({})",
                files.join(", ")
            )))
        }
        None => Ok(()),
    }
}

/// A private directory for staged files; dropping it removes it.
pub(super) struct Staged(PathBuf);

impl Staged {
    pub(super) fn new(beside: &Path) -> Result<Self, JoinError> {
        let path = beside.join(format!(".staged-{:016x}", rand::random::<u64>()));
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(JoinError::of(&path))?;
        Ok(Self(path))
    }

    pub(super) fn file(&self, name: &str, contents: &[u8]) -> Result<PathBuf, JoinError> {
        let path = self.0.join(name);
        fs::write(&path, contents).map_err(JoinError::of(&path))?;
        Ok(path)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Anything left is private, and of no use to anybody.
        let _stays = fs::remove_dir_all(&self.0);
    }
}
