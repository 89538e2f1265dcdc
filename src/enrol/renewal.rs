//! A node renews its certificate: when two thirds of its life are over it asks the authority over the mesh, with that
//! certificate as proof, and for a new key each time.
//!
//! Owns when it asks and how the files change. The TLS profile reads them by itself, so nothing restarts and links stay. It
//! refuses to know who grants it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rand::RngExt as _;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use super::EnrolDoor;
use super::trust::SIGNED;
use crate::join::request::{CertificateRequest, Granted, NotGranted, WantedCertificate};
use crate::join::trusted::TrustedAuthorities;
use crate::os::regular_file::read_text;
use crate::os::replace::replace;
use crate::tls::make::{self, KeyKind};
use crate::tls::{Facts, Files, Profiles, proof};
use crate::wire::NodeId;

/// At most this long passes between two looks at the certificate, which may have been replaced by other means.
const LOOK: Duration = Duration::from_secs(3600);
/// What follows the key in the file of a request that was not answered yet.
const REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST-----";
/// How long a new authority has for each node that gets a certificate of it.
const SPREAD: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failure is this part of what is left of the life, at most [`LOOK`].
const PART_OF_REST: u32 = 50;

/// The files of a node's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    certificate: PathBuf,
    key: PathBuf,
    authority: PathBuf,
}

/// What keeps a node from renewing.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Make(#[from] make::MakeError),
    #[error(transparent)]
    Request(#[from] crate::join::JoinError),
    #[error("{0}")]
    NotGranted(#[from] NotGranted),
    #[error("the certificate that was granted is not for the key of this node")]
    OtherKey,
    #[error("the certificate that was granted is not valid now")]
    NotValid,
}

impl NodeIdentity {
    /// The files of a profile that has all of them.
    pub(crate) fn of(files: &Files) -> Option<Self> {
        let (certificate, key) = files.identity.clone()?;
        Some(Self { certificate, key, authority: files.authorities.clone()? })
    }

    /// Certificate and key together, while they take the places of the former ones.
    fn next(&self) -> PathBuf {
        self.certificate.with_extension("next")
    }

    /// The key of a certificate that is asked for, and the request.
    fn asking(&self) -> PathBuf {
        self.certificate.with_extension("asking")
    }

    /// Puts a new certificate and its key in place. If this process ends in between, [`Self::finish`] goes on.
    fn put(&self, certificate: &str, key: &str) -> Result<(), RenewalError> {
        let next = self.next();
        let write = |path: &Path, text: &str, mode| replace(path, text.as_bytes(), mode).map_err(of(path));
        write(&next, &format!("{certificate}{key}"), 0o600)?;
        write(&self.key, key, 0o600)?;
        write(&self.certificate, certificate, 0o644)?;
        std::fs::remove_file(&next).map_err(of(&next))?;
        let asking = self.asking();
        if asking.exists() { std::fs::remove_file(&asking).map_err(of(&asking)) } else { Ok(()) }
    }

    /// Ends a change that was begun before this process.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let next = self.next();
        let text = match read_text(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            text => text?,
        };
        let begun = |text: &str| make::facts(text).map(|facts| facts.not_before).unwrap_or(Timestamp::MIN);
        // Not over a certificate that somebody has brought since.
        let (certificate, key) = (read_text(&self.certificate), read_text(&self.key));
        let (certificate, key) = (certificate.unwrap_or_default(), key.unwrap_or_default());
        let is_newer = begun(&text) >= begun(&certificate) || !proof::is_key_of(&key, &certificate);
        if let Some(at) = text.find("-----BEGIN PRIVATE KEY").filter(|_| is_newer) {
            let (certificate, key) = text.split_at(at);
            replace(&self.key, key.as_bytes(), 0o600)?;
            replace(&self.certificate, certificate.as_bytes(), 0o644)?;
        }
        std::fs::remove_file(&next)
    }
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> RenewalError {
    |error| RenewalError::File { path: path.to_owned(), error }
}

/// When a certificate is to be renewed: after two thirds of its life, and up to a tenth of it later, so that nodes that
/// were made on one day do not ask on one day. The number of the certificate decides, so a restart changes nothing.
pub(crate) fn due(facts: &Facts) -> Timestamp {
    let life = facts.not_after.as_second().saturating_sub(facts.not_before.as_second());
    let after = life as f64 * (2.0 / 3.0 + share(facts) / 10.0);
    Timestamp::from_second(facts.not_before.as_second().saturating_add(after as i64))
        .unwrap_or(Timestamp::MAX)
}

/// Where in a span of time a certificate has its turn, from 0 to 1.
fn share(facts: &Facts) -> f64 {
    let hash = proof::hash(facts.serial.as_bytes());
    f64::from(u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])) / f64::from(u32::MAX)
}

/// The pause after a failed attempt, or none once the certificate has expired, because nobody renews it then.
fn pause(facts: &Facts, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(facts.not_after.duration_since(now)).ok().filter(|left| !left.is_zero())?;
    let scattered = (left / PART_OF_REST).mul_f64(rand::rng().random_range(0.5..=1.0));
    Some(scattered.clamp(SHORTEST_PAUSE, LOOK))
}

/// Renews one identity of a node.
pub(crate) struct Renewer {
    pub(crate) node: NodeId,
    /// The `tls-client` that shows it.
    pub(crate) profile: String,
    pub(crate) door: EnrolDoor,
    pub(crate) profiles: Profiles,
}

impl Renewer {
    /// Renews until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(async {
            loop {
                // Looked up each time, because a reload may put another profile in its place.
                let Ok(profile) = self.profiles.client(&self.profile) else { return };
                let Some(identity) = NodeIdentity::of(profile.files()) else { return };
                let wait = self.look(&identity).await;
                tokio::select! {
                    () = sleep(wait) => {}
                    // Somebody has put another certificate there.
                    () = profile.reloaded() => {}
                }
            }
        })
        .await;
    }

    /// Renews the certificate if it is time. Returns when to look again.
    async fn look(&self, identity: &NodeIdentity) -> Duration {
        let facts = match facts(identity).await {
            Ok(facts) => facts,
            Err(error) => {
                debug!(%error, "cannot look whether the certificate is to be renewed");
                return LOOK;
            }
        };
        let now = Timestamp::now();
        let rest: SignedDuration = self.due(identity, &facts).await.duration_since(now);
        if let Ok(rest) = Duration::try_from(rest)
            && !rest.is_zero()
        {
            return rest.clamp(SHORTEST_PAUSE, LOOK);
        }
        let Some(pause) = pause(&facts, now) else {
            let node = &self.node;
            let why = format!(
                "it has expired: on the control node, `meshctl node invite {node}` makes a token by which it comes again"
            );
            self.profiles.note_renewal(Some(why));
            return LOOK;
        };
        match self.renew(identity).await {
            Ok(()) => {
                self.profiles.note_renewal(None);
                info!("the certificate was renewed over the mesh");
                // Not at once, if the clock is far ahead and the new one looks old as well.
                pause
            }
            // There is time: a control node that is being replaced is nobody's worry yet.
            Err(error) if !facts.ends_soon(now) => {
                debug!(%error, "cannot renew the certificate yet");
                pause
            }
            Err(error) => {
                if self.profiles.note_renewal(Some(error.to_string())) {
                    error!(%error, expires = %facts.not_after, "cannot renew the certificate yet");
                }
                pause
            }
        }
    }

    /// When it is to be renewed: in time, or soon, once another authority signs certificates.
    async fn due(&self, identity: &NodeIdentity, facts: &Facts) -> Timestamp {
        let authority = identity.authority.clone();
        let (own, signed) = (read(authority.clone()).await, read(authority.with_extension(SIGNED)).await);
        let (Ok(own), Ok(signed)) = (own, signed) else { return due(facts) };
        let (signer, trusted) = (make::facts(&own), TrustedAuthorities::read(&signed, &own));
        let (Ok(signer), Ok(trusted)) = (signer, trusted) else { return due(facts) };
        let changed = i64::try_from(trusted.number).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
        match changed.filter(|_| signer.names.subject != facts.issuer) {
            Some(changed) => {
                let spread = SPREAD.saturating_mul(self.door.known_nodes().await);
                due(facts).min(changed + spread.mul_f64(share(facts)))
            }
            None => due(facts),
        }
    }

    async fn renew(&self, identity: &NodeIdentity) -> Result<(), RenewalError> {
        let NodeIdentity { certificate, key, authority } = identity.clone();
        let (certificate, key) = (read(certificate).await?, read(key).await?);
        let pins = proof::keys_of_certificates(&read(authority).await?);
        let (asked, new_key) = self.asked(identity).await?;
        let request = CertificateRequest::by_certificate(&asked, certificate, &key)?;
        let answer = self.door.ask(request.to_bytes()).await;
        let Granted { certificate, .. } = request.open_by(&answer, &pins)?;
        if proof::key_of_certificate(&certificate)? != proof::key_of_request(&asked.request)? {
            return Err(RenewalError::OtherKey);
        }
        let (facts, now) = (make::facts(&certificate)?, Timestamp::now());
        if now < facts.not_before || facts.not_after <= now {
            return Err(RenewalError::NotValid);
        }
        let files = identity.clone();
        let put = tokio::task::spawn_blocking(move || files.put(&certificate, &new_key)).await;
        put.unwrap_or_else(|error| Err(of(&identity.key)(io::Error::other(error))))
    }

    /// What is asked for, and the key that it is for: the same until there is a certificate, so that an answer that was
    /// lost, or that takes days, is given again.
    async fn asked(&self, identity: &NodeIdentity) -> Result<(WantedCertificate, String), RenewalError> {
        let (path, node) = (identity.asking(), self.node.to_string());
        let text = read(path.clone()).await.unwrap_or_default();
        if let Some((key, request)) = text.find(REQUEST).map(|at| text.split_at(at))
            && let (Ok(public), Ok(asked)) = (make::public_key_der(key), proof::key_of_request(request))
            && proof::hash(&public) == asked
        {
            return Ok((
                WantedCertificate { node, request: request.to_owned(), dials: None },
                key.to_owned(),
            ));
        }
        let key = make::private_key(KeyKind::EcdsaP256)?;
        let asked = WantedCertificate::new(&node, &key, None)?;
        let (text, file) = (format!("{key}{}", asked.request), path.clone());
        let kept = tokio::task::spawn_blocking(move || replace(&file, text.as_bytes(), 0o600)).await;
        kept.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(of(&path))?;
        Ok((asked, key))
    }
}

async fn facts(identity: &NodeIdentity) -> Result<Facts, RenewalError> {
    Ok(make::facts(&read(identity.certificate.clone()).await?)?)
}

async fn read(path: PathBuf) -> Result<String, RenewalError> {
    let file = path.clone();
    let read = tokio::task::spawn_blocking(move || read_text(&file)).await;
    read.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(of(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::make::Dates;

    fn certificate(life: i64, now: Timestamp) -> String {
        let key = make::private_key(KeyKind::EcdsaP256).unwrap();
        let not_after = Some(now + SignedDuration::from_secs(life));
        make::authority("a", &key, Dates { not_before: Some(now), not_after }, now).unwrap()
    }

    #[test]
    fn a_thousand_certificates_of_one_day_are_renewed_on_many() {
        const YEAR: i64 = 365 * 86_400;
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        let one = make::facts(&certificate(YEAR, begin)).unwrap();
        let hour = |number: u32| {
            let facts = Facts { serial: format!("{number:032x}"), ..one.clone() };
            due(&facts).duration_since(begin).as_hours()
        };
        let mut hours: Vec<i64> = (0..1000).map(hour).collect();
        hours.sort_unstable();
        assert!(hours[0] >= 243 * 24 && hours[999] <= 280 * 24, "{hours:?}");
        let most = hours.chunk_by(|one, other| one == other).map(<[i64]>::len).max();
        assert!(most.unwrap() <= 8, "{hours:?}");
    }

    /// A thousand nodes of one day through four years, in virtual time; the authority is away for a fortnight in the middle
    /// of the first renewals.
    #[test]
    fn a_thousand_nodes_never_ask_all_at_once_and_none_expires() {
        const YEAR: i64 = 365 * 86_400;
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        let model = make::facts(&certificate(YEAR, begin)).unwrap();
        let issued = |node: u32, at: Timestamp| Facts {
            serial: format!("{node:08x}{:024x}", at.as_second()),
            not_before: at,
            not_after: at + SignedDuration::from_secs(YEAR),
            ..model.clone()
        };
        let day = |number: i64| begin + SignedDuration::from_hours(24 * number);
        let is_away = |at: Timestamp| day(255) <= at && at < day(269);
        let mut asked = Vec::new();
        for node in 0..1000 {
            let mut own = issued(node, begin);
            let mut at = due(&own);
            while at < day(4 * 365) {
                let wait = pause(&own, at).expect("it has not expired");
                if is_away(at) {
                    // Nobody gets an answer, and only those that ask in vain ask within the hour.
                    at += SignedDuration::try_from(wait).unwrap();
                    continue;
                }
                asked.push(at.duration_since(begin).as_hours());
                own = issued(node, at);
                at = due(&own);
            }
        }
        asked.sort_unstable();
        let hours: Vec<(i64, usize)> =
            asked.chunk_by(|one, other| one == other).map(|hour| (hour[0], hour.len())).collect();
        let after = 269 * 24..270 * 24;
        let most = hours.iter().filter(|(hour, _)| !after.contains(hour)).map(|(_, count)| *count).max();
        assert!(most.unwrap() <= 10, "{hours:?}");
        // Those who had waited come within the hour after it, some in ten seconds.
        let waited: usize =
            hours.iter().filter(|(hour, _)| after.contains(hour)).map(|(_, count)| *count).sum();
        assert!((300..500).contains(&waited), "{waited}");
        assert!(asked.len() > 4000, "{}", asked.len());
    }

    #[test]
    fn pauses_become_shorter_towards_the_end_and_nobody_asks_after_it() {
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        let facts = make::facts(&certificate(30 * 86_400, begin)).unwrap();
        let after = |seconds| pause(&facts, begin + SignedDuration::from_secs(seconds));
        assert!(after(0).is_some_and(|pause| pause >= LOOK / 2));
        assert!(after(30 * 86_400 - 3600).is_some_and(|pause| pause <= Duration::from_secs(72)));
        assert_eq!(after(30 * 86_400 - 10), Some(SHORTEST_PAUSE));
        assert_eq!(after(30 * 86_400), None);
    }

    #[test]
    fn a_change_that_was_cut_short_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let identity =
            NodeIdentity { certificate: path("node.crt"), key: path("node.key"), authority: path("ca.crt") };
        identity.finish().unwrap();
        let (old, new) = (certificate(1, Timestamp::now()), certificate(1, Timestamp::now()));
        let key = make::private_key(KeyKind::EcdsaP256).unwrap();
        std::fs::write(path("node.crt"), &old).unwrap();
        std::fs::write(path("node.key"), "old").unwrap();
        // The process has ended after the first step, and after the second one.
        for step in 1..3 {
            std::fs::write(path("node.next"), format!("{new}{key}")).unwrap();
            std::fs::write(path("node.key"), if step == 1 { "old" } else { &key }).unwrap();
            identity.finish().unwrap();
            assert_eq!(std::fs::read_to_string(path("node.crt")).unwrap(), new);
            assert_eq!(std::fs::read_to_string(path("node.key")).unwrap(), key);
            assert!(!path("node.next").exists());
        }
        identity.put(&old, &key).unwrap();
        assert_eq!(std::fs::read_to_string(path("node.crt")).unwrap(), old);
    }
}
