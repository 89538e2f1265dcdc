//! A node trusts the authorities that the latest text names, if an authority that it trusts already has signed that text.
//! Then it tells the desk, which waits for that before the next step of a rotation.
//!
//! Owns the file of the authorities and the text beside it. It refuses to know when a step comes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tracing::info;

use super::lists::ListKeeper;
use crate::join::trusted::TrustedAuthorities;
use crate::os::regular_file::read_text;
use crate::tls::make;
use crate::tls::proof::pem_blocks;
use crate::wire::NodeId;

/// The tag of a desk's service with the number of the authorities.
pub(super) const TRUSTED: &str = "authorities";
/// What the file is called, beside that of the authorities, that says by whose word they are trusted.
pub(super) const SIGNED: &str = "signed";

/// What each desk was told of the authorities that are trusted here.
#[derive(Debug, Default)]
pub(super) struct ToldDesks {
    desks: BTreeMap<Option<NodeId>, u64>,
    /// Whether one of them waits to be told, for instance until this node's certificate is the new authority's.
    pub(super) is_awaited: bool,
}

/// What is trusted here.
struct TrustedHere {
    /// The text of the file, and its path.
    own: String,
    path: PathBuf,
    /// What was said last, if anything was.
    known: Option<TrustedAuthorities>,
    /// Whether all profiles trust that, and the node's certificate is of the authority that signs now.
    is_ready: bool,
}

impl TrustedHere {
    fn number(&self) -> u64 {
        self.known.as_ref().map_or(0, |known| known.number)
    }
}

impl ListKeeper {
    /// Trusts the authorities that the latest text names, and tells the desks.
    pub(super) async fn trust(
        &self,
        path: &Path,
        certificate: Option<&Path>,
        told: &mut ToldDesks,
    ) -> io::Result<()> {
        let desks = self.door.numbers(TRUSTED).await;
        told.desks.retain(|desk, _| desks.iter().any(|(_, node)| node == desk));
        let mut here = self.read(path, certificate).await?;
        let mut result = Ok(());
        for (number, node) in &desks {
            if *number > here.number() {
                let fetched = self.fetch_trusted(node.as_ref(), &here).await;
                result = self.noted(node.as_ref(), fetched, result);
                here = self.read(path, certificate).await?;
            }
        }
        told.is_awaited = false;
        let known = here.number();
        for (_, node) in desks.into_iter().filter(|(number, _)| *number == known) {
            if told.desks.get(&node) == Some(&known) {
                continue;
            }
            if !here.is_ready {
                told.is_awaited = true;
                continue;
            }
            let said = self.door.trusted_of(node.as_ref(), known).await.map(drop);
            if said.is_ok() {
                told.desks.insert(node.clone(), known);
            }
            result = self.noted(node.as_ref(), said, result);
        }
        result
    }

    async fn read(&self, path: &Path, certificate: Option<&Path>) -> io::Result<TrustedHere> {
        let (others, path) = (self.profiles.authorities(), path.to_owned());
        let certificate = certificate.map(Path::to_owned);
        let read = move || {
            let own = read_text(&path)?;
            let signed = read_text(&path.with_extension(SIGNED)).unwrap_or_default();
            let known = TrustedAuthorities::read(&signed, &own).ok();
            let is_ready = known.as_ref().is_some_and(|known| {
                let named = pem_blocks(&known.certificates, "CERTIFICATE");
                let trusts = |text: &String| {
                    let all = pem_blocks(text, "CERTIFICATE");
                    named.iter().all(|one| all.contains(one))
                };
                let is_of = |signer: &str, certificate: &str| {
                    let (signer, own) = (make::facts(signer), make::facts(certificate));
                    own.is_ok_and(|own| signer.is_ok_and(|signer| own.issuer == signer.names.subject))
                };
                let certificate = certificate.and_then(|path| read_text(&path).ok()).unwrap_or_default();
                others.iter().all(|path| read_text(path).is_ok_and(|text| trusts(&text)))
                    && named.first().is_some_and(|signer| is_of(signer, &certificate))
            });
            Ok(TrustedHere { own, path, known, is_ready })
        };
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other)?
    }

    async fn fetch_trusted(&self, node: Option<&NodeId>, here: &TrustedHere) -> io::Result<()> {
        let text = self.door.trusted_of(node, 0).await?;
        let trusted = TrustedAuthorities::read(&text, &here.own).map_err(io::Error::other)?;
        if trusted.number <= here.number() {
            return Err(io::Error::other("it says what it said before"));
        }
        // What somebody trusts besides stays.
        let former = here.known.as_ref().map(|known| known.certificates.as_str());
        let own = pem_blocks(&here.own, "CERTIFICATE");
        let (new, former) = (
            pem_blocks(&trusted.certificates, "CERTIFICATE"),
            former
                .map_or_else(|| own[..own.len().min(1)].to_vec(), |former| pem_blocks(former, "CERTIFICATE")),
        );
        let besides = own.iter().filter(|one| !new.contains(one) && !former.contains(one));
        let all: String = new.iter().chain(besides).map(|one| format!("{one}\n")).collect();
        let number = trusted.number;
        self.write(vec![(here.path.clone(), all), (here.path.with_extension(SIGNED), text)]).await?;
        info!(number, "the authorities of the mesh have changed");
        Ok(())
    }
}
