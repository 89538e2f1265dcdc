//! Revocation lists travel over the mesh: a node with a desk says in its service which number its list has, and every other
//! node that has an older one fetches it. A node that has a newer one, because the desk's was restored from a copy, gives it back.
//!
//! Owns that, and the file of the list on this node. The TLS profiles read it, and cut what it revokes. It refuses to know
//! whom a list revokes: the authority's signature and a number that never goes back decide.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rand::RngExt as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::EnrolDoor;
use super::trust::{SIGNED, ToldDesks};
use crate::join::trusted::list_signers;
use crate::os::regular_file::read_text;
use crate::os::replace::replace;
use crate::tls::Profiles;
use crate::tls::crl::RevocationList;
use crate::wire::NodeId;

/// The tag of the desk's service with the number of its list.
pub(super) const NUMBER: &str = "list";
/// How often the own file is looked at, which somebody may bring.
const LOOK: Duration = Duration::from_secs(60);
/// The first pause after a node did not give the list that it said it has, for instance because it has just stopped.
const AGAIN: Duration = Duration::from_secs(2);
/// How often it is looked whether the desk can be told what it waits for.
const SOON: Duration = Duration::from_secs(10);
/// Many nodes notice at once that the desk has an old list; the first of them changes that.
const SCATTERED: Duration = Duration::from_secs(2);

/// Keeps the list of one profile.
pub(crate) struct ListKeeper {
    pub(crate) door: EnrolDoor,
    pub(crate) profiles: Profiles,
    /// The `tls-client` that uses the list.
    pub(crate) profile: String,
}

impl ListKeeper {
    /// Fetches and gives lists until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut changes = self.door.changes();
        let (mut pause, mut told) = (AGAIN, ToldDesks::default());
        stop.run_until_cancelled(async {
            loop {
                let wait = match self.keep_up(&mut told).await {
                    Ok(()) => {
                        pause = AGAIN;
                        if told.is_awaited { SOON } else { LOOK }
                    }
                    Err(error) => {
                        debug!(%error, "cannot keep the list of revoked certificates up to date");
                        sleep(AGAIN).await;
                        let next = LOOK.min(pause * 2);
                        std::mem::replace(&mut pause, next)
                    }
                };
                tokio::select! {
                    () = changes.next() => {}
                    () = self.door.list_changed() => {}
                    () = self.reloaded() => {}
                    () = sleep(wait) => {}
                }
            }
        })
        .await;
    }

    async fn keep_up(&self, told: &mut ToldDesks) -> io::Result<()> {
        let Ok(profile) = self.profiles.client(&self.profile) else { return Ok(()) };
        let files = profile.files();
        let (Some(path), Some(authorities)) = (files.crl.clone(), files.authorities.clone()) else {
            return Ok(());
        };
        let certificate = files.identity.as_ref().map(|(certificate, _)| certificate.as_path());
        let mut result = self.trust(&authorities, certificate, told).await;
        let read = move || {
            let own = read_text(&path).unwrap_or_default();
            let signed = read_text(&authorities.with_extension(SIGNED)).unwrap_or_default();
            Ok::<_, io::Error>((own, list_signers(&signed, &read_text(&authorities)?), path))
        };
        let (own, signers, path) = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        let number = RevocationList::read(&own, &signers).map_or(0, |list| list.number);
        for (_, node) in self.door.numbers(NUMBER).await.into_iter().filter(|(other, _)| *other > number) {
            match self.fetch(node.as_ref(), number, signers.clone()).await {
                Ok(read) => return self.put(path, read).await,
                Err(error) => result = self.noted(node.as_ref(), Err(error), result),
            }
        }
        let behind = async || self.door.numbers(NUMBER).await.into_iter().find(|(other, _)| *other < number);
        if behind().await.is_some() {
            let pause = SCATTERED.mul_f64(rand::rng().random_range(0.0..=1.0));
            sleep(pause).await;
            if let Some((_, node)) = behind().await {
                debug!(
                    "the list of revoked certificates here is newer than the authority's: it gets this one"
                );
                let given = self.door.give_list(node.as_ref(), own).await;
                result = self.noted(node.as_ref(), given, result);
            }
        }
        result
    }

    /// Returns when the files of the profile were read again: its certificate may be another one.
    async fn reloaded(&self) {
        match self.profiles.client(&self.profile) {
            Ok(profile) => profile.reloaded().await,
            Err(_) => std::future::pending().await,
        }
    }

    /// The list of the desk of a node, or of the one here, which must be later than that with this number.
    async fn fetch(&self, node: Option<&NodeId>, number: u64, signers: String) -> io::Result<RevocationList> {
        let list = self.door.list_of(node).await?;
        let read = move || RevocationList::read(&list, &signers).map_err(io::Error::other);
        let read = tokio::task::spawn_blocking(read).await.map_err(io::Error::other)??;
        match read.number > number {
            true => Ok(read),
            false => Err(io::Error::other("it has an older list than it says")),
        }
    }

    async fn put(&self, path: PathBuf, list: RevocationList) -> io::Result<()> {
        let (number, revoked) = (list.number, list.revoked.len());
        self.write(vec![(path, list.text)]).await?;
        info!(number, revoked, "a new list of revoked certificates is in force");
        Ok(())
    }

    /// Writes files, which are in force then.
    pub(super) async fn write(&self, files: Vec<(PathBuf, String)>) -> io::Result<()> {
        let profiles = self.profiles.clone();
        let write = move || {
            let mut files = files.iter();
            files.try_for_each(|(path, text)| replace(path, text.as_bytes(), 0o644))?;
            profiles.refresh_at_once();
            Ok(())
        };
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?
    }

    /// What is known after a desk was asked, and `before` it: a desk that has failed comes last for a while, and one that
    /// keeps failing is no reason to try again soon.
    pub(super) fn noted(
        &self,
        node: Option<&NodeId>,
        done: io::Result<()>,
        before: io::Result<()>,
    ) -> io::Result<()> {
        let Err(error) = done else { return before };
        let Some(node) = node else { return Err(error) };
        let is_doubtful = self.door.is_doubtful(node);
        self.door.doubt(node, &error.to_string());
        if is_doubtful { before } else { Err(error) }
    }
}
