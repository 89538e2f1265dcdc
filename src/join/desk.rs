//! The desk of an authority: decides who gets a certificate, and makes it.
//!
//! Owns that decision. It reads and writes the authority's files, one request at a time, and believes only what is
//! proved. It refuses to know how requests arrive, and what else becomes of a new node.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;

use super::JoinError;
use super::asker::{self, AskOutcome, Decided};
use super::authority::{self, Authority, CERTIFICATE, LIST, TRUSTED};
use super::configuration;
use super::invite::InviteAnswer;
use super::offline;
use super::record::{Issued, Record, check_name};
use super::request::{CertificateAnswer, CertificateRequest, Granted, RequestProof, WantedCertificate};
use super::shared::SharedStore;
use super::trusted::{TrustedAuthorities, list_signers};
use crate::os::hex;
use crate::os::regular_file::read_text;
use crate::tls::Facts;
use crate::tls::crl::RevocationList;
use crate::tls::make;
use crate::tls::proof;

/// How long a request waits while somebody else changes the authority.
const LOCKED: Duration = Duration::from_secs(5);
/// How often a decision is made that another control node has overtaken.
const ATTEMPTS: u32 = 5;
/// The certificates of one node that are valid at a time. A node that renews has two of them for some months.
const MOST_VALID: usize = 20;

/// Where the authority is, and what its nodes verify jobs by.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    /// The directory of the authority.
    pub(crate) authority: PathBuf,
    /// Where its documents are, if several control nodes have the authority.
    pub(crate) shared: Option<SharedStore>,
    /// Whether hosts may ask without a token.
    pub(crate) asks: bool,
    /// Whether the key is on another host: renewals wait, and nothing else is given.
    pub(crate) is_offline: bool,
    /// How long certificates are valid.
    pub(crate) lifetime: Duration,
    /// The public key that verifies jobs, or else the private key that signs them.
    pub(crate) work_key: Option<PathBuf>,
}

/// What the desk has done.
#[derive(Debug)]
pub(crate) struct DeskDecision {
    /// The answer to whoever asks.
    pub(crate) answer: CertificateAnswer,
    /// The node that has joined, or come back with a new key.
    pub(crate) joined: Option<Record>,
    /// What is new, and of which node. A host that asks again for the same has caused nothing new.
    pub(crate) news: Option<(DeskNews, String)>,
}

/// What a request can cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeskNews {
    /// A host without a token waits.
    Asked,
    /// A host was given the first certificate for its key.
    Joined,
    /// A node was given another certificate.
    Renewed,
}

impl Desk {
    /// Whether it can give certificates. Waits for nobody who changes the authority, because a start does not wait.
    ///
    /// # Errors
    /// The authority cannot be used, or others can read its key.
    pub(crate) fn check(&self) -> Result<(), JoinError> {
        authority::check_private(&self.authority, self.is_offline)?;
        self.list().map(drop)
    }

    /// The list of revoked certificates, and its number.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn list(&self) -> Result<(String, u64), JoinError> {
        let path = |name: &str| self.authority.join(name);
        let text = |path: PathBuf| read_text(&path).map_err(JoinError::of(&path));
        let (list, certificate) = (text(path(LIST))?, text(path(CERTIFICATE))?);
        let signers = list_signers(&read_text(&path(TRUSTED)).unwrap_or_default(), &certificate);
        let read = RevocationList::read(&list, &signers);
        Ok((list, read.map_err(|why| JoinError::Unready(why.to_owned()))?.number))
    }

    /// The signed text that names the authorities, and its number; `None` before the first rotation.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn trusted(&self) -> Result<Option<(String, u64)>, JoinError> {
        let path = |name: &str| self.authority.join(name);
        let text = |path: PathBuf| read_text(&path).map_err(JoinError::of(&path));
        if !path(TRUSTED).exists() {
            return Ok(None);
        }
        let (trusted, certificates) = (text(path(TRUSTED))?, text(path(CERTIFICATE))?);
        let read = TrustedAuthorities::read(&trusted, &certificates);
        let read = read.map_err(|why| JoinError::Unready(why.to_owned()))?;
        // Otherwise a step was begun, and has not come.
        Ok((read.certificates == certificates).then_some((trusted, read.number)))
    }

    /// Notes which authorities a node trusts.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn note_trust(&self, node: &str, number: u64) -> Result<(), JoinError> {
        repeated(|| self.open()?.note_trust(node, number))
    }

    /// Takes in a later list of this authority's, which another node has kept.
    ///
    /// # Errors
    /// It is not one, or cannot be written.
    pub(crate) fn adopt(&self, list: &str, now: Timestamp) -> Result<(), JoinError> {
        repeated(|| self.open()?.adopt(list, now))
    }

    /// Decides about a request that came from the address `from`. Waits for files and for others who change the
    /// authority.
    pub(crate) fn decide(&self, bytes: &[u8], from: &str, now: Timestamp) -> DeskDecision {
        let read = CertificateRequest::parse(bytes).and_then(|request| Ok((request.asked()?, request)));
        let decided = read.map_or_else(
            |why| Ok(Err(why)),
            |(asked, request)| {
                repeated(|| {
                    let (authority, asked, request) = (self.open()?, asked.clone(), request.clone());
                    match (Case { desk: self, authority, asked, request, from, now }).decide() {
                        Ok(decision) => Ok(Ok(decision)),
                        Err(Denial::Refused(why)) => Ok(Err(why)),
                        Err(Denial::Failed(error)) => Err(error),
                    }
                })
            },
        );
        let answer = match decided {
            Ok(Ok(decision)) => return decision,
            Ok(Err(why)) => {
                tracing::info!(from, why, "no certificate was given");
                CertificateAnswer::Refused(why)
            }
            Err(error) => {
                tracing::error!(%error, "cannot give a certificate");
                let why = "the authority cannot give certificates for the moment; its log says why";
                CertificateAnswer::Busy(why.to_owned())
            }
        };
        DeskDecision { answer, joined: None, news: None }
    }

    /// The authority. Waits for others who change it, but not for long.
    pub(super) fn open(&self) -> Result<Authority, JoinError> {
        let authority = Authority::open_in(&self.authority, self.shared.as_ref(), Some(LOCKED))?;
        authority.ok_or_else(|| JoinError::NoAuthority(self.authority.clone()))
    }

    pub(super) fn verification_key(&self) -> Result<String, JoinError> {
        let path = self.work_key.as_ref().ok_or_else(|| {
            JoinError::Unready("enrolment has no workkey, by which nodes verify jobs".to_owned())
        })?;
        let text = read_text(path).map_err(JoinError::of(path))?;
        match text.contains("PRIVATE KEY") {
            true => Ok(make::public_key(&text)?),
            false => Ok(text),
        }
    }
}

/// Decides anew when another control node was faster.
fn repeated<T>(decide: impl Fn() -> Result<T, JoinError>) -> Result<T, JoinError> {
    let again = (1..ATTEMPTS).map(|_| decide()).find(|decided| !matches!(decided, Err(JoinError::Raced)));
    again.unwrap_or_else(decide)
}

/// Why there is no certificate.
enum Denial {
    /// Whoever asks may not have it.
    Refused(String),
    /// Something is wrong here.
    Failed(JoinError),
}

impl From<String> for Denial {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl From<JoinError> for Denial {
    fn from(error: JoinError) -> Self {
        Self::Failed(error)
    }
}

/// One request, while nobody else changes the authority.
struct Case<'a> {
    desk: &'a Desk,
    authority: Authority,
    asked: WantedCertificate,
    request: CertificateRequest,
    from: &'a str,
    now: Timestamp,
}

impl Case<'_> {
    fn decide(self) -> Result<DeskDecision, Denial> {
        match self.request.proof {
            RequestProof::Token(_) | RequestProof::None if self.desk.is_offline => {
                let why = "the authority's key is on another host: `meshctl node add` makes a bundle there";
                Err(why.to_owned().into())
            }
            RequestProof::Token(_) => self.admit(),
            RequestProof::Certificate { .. } => self.renew(),
            RequestProof::None => self.consider(),
        }
    }

    /// Admits a host with a token.
    fn admit(&self) -> Result<DeskDecision, Denial> {
        // The same words whether there is no such token or another one, so that nobody learns names by asking.
        let unknown = || format!("this is not a token for {:?} that is valid here", self.asked.node);
        let invite = match self.authority.invite(&self.asked.node) {
            Err(JoinError::Name(_)) => None,
            invite => invite?,
        };
        let mut invite = invite.ok_or_else(unknown)?;
        if !self.request.is_by_token(&URL_SAFE_NO_PAD.decode(&invite.key).unwrap_or_default()) {
            return Err(unknown().into());
        }
        let use_up = invite.use_up(&self.own_key()?, self.from, self.now);
        if let InviteAnswer::Refused(why) = use_up {
            return Err(why.into());
        }
        let mut record = self.known(invite.record.clone())?;
        let is_former = invite.used.len() > 1 || use_up == InviteAnswer::Again;
        if !record.is_free(self.now) && !is_former {
            let end =
                record.ends().map_or_else(String::new, |end| format!(", with a certificate until {end}"));
            let node = &record.node;
            return Err(format!("{node} is in use{end}: `meshctl node remove {node}` removes it").into());
        }
        // Written first: if this process ends in between, the same host may ask again, and no other.
        self.authority.write_invite(&invite)?;
        if use_up == InviteAnswer::First && !record.is_removed() {
            self.authority.revoke(&mut record, self.now)?;
        }
        self.join(record)
    }

    /// Admits a host without a token once a person has approved it; until then it waits.
    fn consider(&self) -> Result<DeskDecision, Denial> {
        let node = &self.asked.node;
        if !self.desk.asks {
            let why = "hosts without a token are not admitted here: `meshctl node invite NAME` on the control node makes one";
            return Err(why.to_owned().into());
        }
        check_name(node).map_err(|error| error.to_string())?;
        match asker::ask(&self.authority, &self.asked, &self.own_key()?, self.from, self.now)?? {
            asked @ (AskOutcome::Begins | AskOutcome::Waits) => {
                let answer = CertificateAnswer::Waiting(self.authority.certificate().to_owned());
                let news = (asked == AskOutcome::Begins).then(|| (DeskNews::Asked, node.clone()));
                Ok(DeskDecision { answer, joined: None, news })
            }
            AskOutcome::Decided(Decided::Rejected) => Err(format!("{node} was rejected").into()),
            AskOutcome::Decided(Decided::Approved(record)) => {
                let record = self.known(*record)?;
                let key = self.own_key()?;
                let is_its = |issued: &Issued| issued.key.as_ref() == Some(&key) && issued.revoked.is_none();
                if !record.is_free(self.now) && !record.certificates.iter().any(is_its) {
                    return Err(format!("{node} is in use: `meshctl node remove {node}` removes it").into());
                }
                self.join(record)
            }
        }
    }

    /// Gives a node a new certificate in the place of the one that it has.
    fn renew(&self) -> Result<DeskDecision, Denial> {
        let node = &self.asked.node;
        let certificate = self
            .request
            .certificate()
            .ok_or_else(|| "the request is not signed by the certificate that is to be renewed".to_owned())?;
        self.authority.check(certificate, node)??;
        self.own_key()?;
        if self.desk.is_offline {
            let answer = offline::answer(&self.authority, node, &self.request, self.from, self.now)?;
            return Ok(DeskDecision { answer, joined: None, news: None });
        }
        let known = self.authority.record(node)?.filter(|record| !record.is_removed());
        let mut record = known.ok_or_else(|| {
            format!("the authority knows no node {node}: `meshctl node invite {node}` invites it again")
        })?;
        // It may not be in the record of an authority that was restored from a copy, and a removal has to revoke it.
        let Facts { serial, not_after, .. } = authority::facts(certificate)?;
        if !record.certificates.iter().any(|issued| issued.serial == serial) {
            record.certificates.push(Issued {
                serial,
                not_after,
                revoked: None,
                key: None,
                certificate: None,
                by: None,
            });
        }
        let valid = record.certificates.iter().filter(|issued| issued.not_after > self.now).count();
        if valid >= MOST_VALID {
            let why = "certificates that are valid: it can have another one when one of them has expired";
            return Err(format!("{node} has {valid} {why}").into());
        }
        let (answer, is_new) = self.certify(&mut record, None)?;
        tracing::info!(node, from = self.from, "a certificate was renewed");
        let news = is_new.then(|| (DeskNews::Renewed, node.clone()));
        Ok(DeskDecision { answer, joined: None, news })
    }

    fn join(&self, mut record: Record) -> Result<DeskDecision, Denial> {
        let configuration = Some(configuration::of(&record));
        let (answer, is_new) = self.certify(&mut record, configuration)?;
        if !is_new {
            return Ok(DeskDecision { answer, joined: None, news: None });
        }
        tracing::info!(node = record.node, from = self.from, "a node has joined");
        let news = Some((DeskNews::Joined, record.node.clone()));
        Ok(DeskDecision { answer, joined: Some(record), news })
    }

    /// The record, with the certificates that the node has had.
    fn known(&self, record: Record) -> Result<Record, JoinError> {
        let known = self.authority.record(&record.node)?;
        Ok(Record { certificates: known.map_or_else(Vec::new, |known| known.certificates), ..record })
    }

    /// Makes the certificate, and everything that goes with it; whether the key did not have one yet.
    fn certify(
        &self,
        record: &mut Record,
        configuration: Option<String>,
    ) -> Result<(CertificateAnswer, bool), JoinError> {
        let (authority, desk) = (&self.authority, self.desk);
        // First what may fail.
        // A node that renews has it.
        let wants_key = configuration.is_some() && record.role.runs_jobs();
        let verification_key = wants_key.then(|| desk.verification_key()).transpose()?;
        let (revoked, authority_certificate) = (authority.list()?, authority.certificate().to_owned());
        let former = record.certificates.last().cloned();
        let certificate = authority.certify_request(record, &self.asked.request, desk.lifetime, self.now)?;
        let granted = Granted {
            certificate,
            authority: authority_certificate,
            revoked,
            verification_key,
            configuration,
            at: self.now,
        };
        Ok((authority.grant(&self.request, &granted)?, record.certificates.last() != former.as_ref()))
    }

    /// The hash of the key that the request is for, in hexadecimal. The request must name its node and nothing else.
    fn own_key(&self) -> Result<String, String> {
        let WantedCertificate { node, request, .. } = &self.asked;
        let names = make::requested_names(request).map_err(|error| error.to_string())?;
        let is_own = names.node_ids == [node.clone()] && names.dns.is_empty() && names.addresses.is_empty();
        if !is_own {
            return Err(format!(
                "the request must name the node {node} and nothing else, and it names {names}"
            ));
        }
        let key = proof::key_of_request(request).map_err(|error| error.to_string())?;
        Ok(hex::print(&key))
    }
}

#[cfg(test)]
mod tests;
