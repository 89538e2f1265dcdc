//! Tests of who gets a certificate, and what is in it.

use super::*;
use crate::join::invite::{Invitation, Token};
use crate::join::record::NodeRole;
use crate::join::request::NotGranted;
use crate::join::rotation::{Rotation, RotationStep};
use crate::tls;
use crate::tls::inspect::{self, VerifyingParty};
use crate::tls::make::{CertSubject, KeyKind};
use crate::tls::proof::pem_blocks;

const HOUR: Duration = Duration::from_secs(3600);

/// An authority in a directory of its own, with a token for `e1` that can be used twice.
struct Office {
    dir: tempfile::TempDir,
    desk: Desk,
    token: Token,
    pin: [u8; 32],
}

impl Office {
    fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("work.pub");
        std::fs::write(&key, "PUBLIC").unwrap();
        let (authority, lifetime) = (dir.path().join("ca"), HOUR * 24);
        let desk =
            Desk { authority, asks: true, is_offline: false, shared: None, lifetime, work_key: Some(key) };
        let authority = Authority::create(&desk.authority, "control", Timestamp::now()).unwrap();
        let record = Record::new("e1", NodeRole::Execution).unwrap();
        let (invite, secret) = Invitation::new(record, HOUR, 2, Timestamp::now()).unwrap();
        authority.write_invite(&invite).unwrap();
        let pin = proof::key_of_certificate(authority.certificate()).unwrap();
        let token = Token { node: "e1".into(), secret, authority: pin, addresses: Vec::new() };
        Self { dir, desk, token, pin }
    }

    /// A request by a key for these names, with the secret of the token.
    fn request(&self, node: &str, names: &CertSubject, key: &str) -> CertificateRequest {
        let asked = WantedCertificate {
            node: node.to_owned(),
            request: make::request(names, key).unwrap(),
            dials: None,
        };
        CertificateRequest::by_token(&asked, &self.token.secret).unwrap()
    }

    fn ask(&self, request: &CertificateRequest, at: Timestamp) -> Result<Granted, NotGranted> {
        let decision = self.desk.decide(&request.to_bytes(), "192.0.2.1", at);
        request.open(&decision.answer.to_bytes(), &self.pin)
    }
}

fn names() -> CertSubject {
    CertSubject { common_name: "e1".into(), node_ids: vec!["e1".into()], ..CertSubject::default() }
}

fn new_key() -> String {
    make::private_key(KeyKind::EcdsaP256).unwrap()
}

fn refusal(answer: Result<Granted, NotGranted>) -> String {
    let Err(NotGranted::Refused(why)) = answer else { panic!("{answer:?}") };
    why
}

#[test]
fn what_is_granted_is_the_name_of_the_token_and_nothing_else() {
    let office = Office::open();
    let (key, now) = (new_key(), Timestamp::now());
    let granted = office.ask(&office.request("e1", &names(), &key), now).unwrap();
    let facts = make::facts(&granted.certificate).unwrap();
    assert_eq!((facts.names.node_ids, facts.names.dns), (vec!["e1".to_owned()], vec!["e1".to_owned()]));
    assert!(!facts.is_ca);
    assert_eq!(granted.verification_key.as_deref(), Some("PUBLIC"));
    for more in [
        CertSubject { node_ids: vec!["e1".into(), "control".into()], ..names() },
        CertSubject { node_ids: vec!["control".into()], ..names() },
        CertSubject { dns: vec!["control.example.org".into()], ..names() },
        CertSubject { addresses: vec!["192.0.2.9".parse().unwrap()], ..names() },
    ] {
        let why = refusal(office.ask(&office.request("e1", &more, &new_key()), now));
        assert!(why.contains("must name the node e1 and nothing else"), "{why}");
    }
    // For another name there is no such token, whatever the request says.
    let why = refusal(office.ask(&office.request("control", &names(), &new_key()), now));
    assert!(why.contains("not a token"), "{why}");
    let why = refusal(office.ask(&office.request("../nodes/e1", &names(), &new_key()), now));
    assert!(why.contains("not a token"), "{why}");
}

#[test]
fn the_same_key_gets_its_answer_again_and_the_next_one_takes_the_name_over() {
    let office = Office::open();
    let (one, other, now) = (new_key(), new_key(), Timestamp::now());
    let ask = |key: &str| office.ask(&office.request("e1", &names(), key), now);
    let serial = |granted: &Granted| make::facts(&granted.certificate).unwrap().serial;
    let (first, again) = (ask(&one).unwrap(), ask(&one).unwrap());
    let next = ask(&other).unwrap();
    let record = || Authority::open(&office.desk.authority).unwrap().unwrap().record("e1").unwrap().unwrap();
    let revoked: Vec<bool> = record().certificates.iter().map(|one| one.revoked.is_some()).collect();
    assert_eq!(revoked, [true, false]);
    assert_eq!(record().certificates[1].serial, serial(&next));
    assert_eq!(serial(&first), serial(&again));
    for key in [&one, &new_key()] {
        assert!(refusal(ask(key)).contains("used up"));
    }
}

#[test]
fn a_token_ends_and_a_name_that_somebody_has_otherwise_is_his() {
    let office = Office::open();
    let request = office.request("e1", &names(), &new_key());
    let authority = Authority::open(&office.desk.authority).unwrap().unwrap();
    authority.certify(&mut Record::new("e1", NodeRole::Hop).unwrap(), Timestamp::now(), |_| Ok(())).unwrap();
    drop(authority);
    let why = refusal(office.ask(&request, Timestamp::now()));
    assert!(why.contains("e1 is in use, with a certificate until"), "{why}");
    assert!(refusal(office.ask(&request, Timestamp::now() + HOUR)).contains("expired"));
}

#[test]
fn who_relays_can_read_all_and_change_nothing() {
    let office = Office::open();
    let (request, now) = (office.request("e1", &names(), &new_key()), Timestamp::now());
    let text = String::from_utf8(request.to_bytes()).unwrap();
    // The name, the key or the proof of another request.
    let other = office.request("e1", &names(), &new_key());
    let forged = CertificateRequest { asked: other.asked.clone(), proof: request.proof.clone() };
    assert!(refusal(office.ask(&forged, now)).contains("not a token"));
    for (from, to) in [("e1", "e2"), ("BEGIN", "END"), ("token", "certificate"), ("\"asked\"", "\"x\"")] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        let decision = office.desk.decide(changed.as_bytes(), "h1", now);
        assert!(matches!(decision.answer, CertificateAnswer::Refused(_)), "{from}: {:?}", decision.answer);
    }
    // An answer to another request, one that was changed, and one of another authority.
    let answer = office.desk.decide(&request.to_bytes(), "h1", now).answer.to_bytes();
    assert!(request.open(&answer, &office.pin).is_ok());
    assert!(
        matches!(other.open(&answer, &office.pin), Err(NotGranted::Broken(why)) if why.contains("changed"))
    );
    let changed = String::from_utf8(answer.clone()).unwrap().replacen("ansible-runner", "ansible-hacker", 1);
    assert!(matches!(request.open(changed.as_bytes(), &office.pin), Err(NotGranted::Broken(_))));
    assert!(
        matches!(request.open(&answer, &[7; 32]), Err(NotGranted::Broken(why)) if why.contains("another"))
    );
    for lie in [&b""[..], b"{}", b"{\"granted\":{\"granted\":\"{}\",\"signature\":\"\"}}", &answer[..200]] {
        assert!(matches!(request.open(lie, &office.pin), Err(NotGranted::Broken(_))));
    }
    // Whoever repeats a request gets a certificate for a key that he does not have.
    let again = office.ask(&request, now).unwrap();
    assert_eq!(
        proof::key_of_certificate(&again.certificate).unwrap(),
        proof::key_of_request(&request.asked().unwrap().request).unwrap()
    );
}

#[test]
fn who_renews_shows_his_own_certificate() {
    let office = Office::open();
    let (key, new_key, now) = (new_key(), new_key(), Timestamp::now());
    let first = office.ask(&office.request("e1", &names(), &key), now).unwrap().certificate;
    let renew = |node: &str, certificate: &str, key: &str, new_key: &str| {
        let names = CertSubject { node_ids: vec![node.to_owned()], ..names() };
        let asked = WantedCertificate {
            node: node.to_owned(),
            request: make::request(&names, new_key).unwrap(),
            dials: None,
        };
        office.ask(&CertificateRequest::by_certificate(&asked, certificate.to_owned(), key).unwrap(), now)
    };
    let renewed = renew("e1", &first, &key, &new_key).unwrap();
    assert_eq!(make::facts(&renewed.certificate).unwrap().names.node_ids, ["e1"]);
    assert_eq!(renewed.configuration, None);
    // Another's name, without its key, and by a certificate of his own making with the same names.
    assert!(refusal(renew("control", &first, &key, &new_key)).contains("control"));
    assert!(refusal(renew("e1", &first, &new_key, &new_key)).contains("not signed by the certificate"));
    let own = make::authority("e1", &key, make::Dates::default(), now).unwrap();
    assert!(refusal(renew("e1", &own, &key, &new_key)).contains("e1"));
    // The same request again, by whomever, brings the same certificate.
    let again = renew("e1", &first, &key, &new_key).unwrap();
    assert_eq!(again.certificate, renewed.certificate);
    // The new one works as well, and so on, but not without end.
    let (mut last, mut last_key) = (renewed.certificate, new_key);
    for _ in 2..MOST_VALID {
        let next_key = self::new_key();
        last = renew("e1", &last, &last_key, &next_key).unwrap().certificate;
        last_key = next_key;
    }
    assert!(
        refusal(renew("e1", &last, &last_key, &self::new_key())).contains("20 certificates that are valid")
    );
    // A node that was removed does not come back by itself.
    let authority = Authority::open(&office.desk.authority).unwrap().unwrap();
    authority.revoke(&mut authority.record("e1").unwrap().unwrap(), now).unwrap();
    drop(authority);
    assert!(refusal(renew("e1", &last, &last_key, &last_key)).contains("revoked"));
}

#[test]
fn what_is_no_request_is_refused_with_words() {
    let office = Office::open();
    let large = vec![b'x'; super::super::request::MOST_ASKED + 1];
    for bytes in [&b""[..], b"[]", b"{\"asked\":\"{}\",\"proof\":{\"token\":\"\"}}", &large] {
        let answer = office.desk.decide(bytes, "\x1b[2J", Timestamp::now()).answer;
        assert!(matches!(answer, CertificateAnswer::Refused(_)), "{answer:?}");
    }
}

#[test]
fn others_must_not_read_the_key() {
    use std::os::unix::fs::PermissionsExt as _;
    let office = Office::open();
    office.desk.check().unwrap();
    let key = office.dir.path().join("ca/ca.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let why = office.desk.check().unwrap_err().to_string();
    assert!(why.contains("others can read the authority's key (mode 640)"), "{why}");
    let none = Desk { authority: office.dir.path().join("none"), ..office.desk.clone() };
    assert!(none.check().unwrap_err().to_string().contains("there is no authority"));
}

#[test]
fn a_document_is_about_what_its_file_is_called() {
    let office = Office::open();
    let (nodes, invites) = (office.desk.authority.join("nodes"), office.desk.authority.join("invites"));
    std::fs::create_dir_all(&nodes).unwrap();
    let invite = std::fs::read_to_string(invites.join("e1.json")).unwrap();
    std::fs::write(invites.join("e2.json"), invite).unwrap();
    let record = serde_json::to_string(&Record::new("e1", NodeRole::Hop).unwrap()).unwrap();
    std::fs::write(nodes.join("e7.json"), record.replace("\"e1\"", "\"../../e1\"")).unwrap();
    let authority = Authority::open(&office.desk.authority).unwrap().unwrap();
    for error in [authority.record("e7").unwrap_err(), authority.invite("e2").unwrap_err()] {
        assert!(error.to_string().contains("something else than its name says"), "{error}");
    }
}

#[test]
fn two_copies_of_an_authority_agree_and_forget_nothing() {
    let (office, now) = (Office::open(), Timestamp::now());
    let other = Desk { authority: office.dir.path().join("copy"), ..office.desk.clone() };
    std::fs::create_dir(&other.authority).unwrap();
    for name in ["ca.crt", "ca.key", "ca.crl"] {
        std::fs::copy(office.desk.authority.join(name), other.authority.join(name)).unwrap();
    }
    let revoke = |desk: &Desk, node: &str, after| {
        let now = now + jiff::SignedDuration::from_secs(after);
        let authority = Authority::open(&desk.authority).unwrap().unwrap();
        let mut record = Record::new(node, NodeRole::Hop).unwrap();
        authority.certify(&mut record, now, |_| Ok(())).unwrap();
        authority.revoke(&mut record, now).unwrap();
    };
    let revoked = |desk: &Desk| {
        let (list, number) = desk.list().unwrap();
        let authority = read_text(&desk.authority.join(CERTIFICATE)).unwrap();
        (RevocationList::read(&list, &authority).unwrap().revoked.len(), number)
    };
    revoke(&other, "h1", 0);
    let (list, number) = other.list().unwrap();
    office.desk.adopt(&list, now).unwrap();
    // It is the same list, or the other one would have to take in a later one again.
    assert_eq!(office.desk.list().unwrap(), (list.clone(), number));
    assert!(office.desk.adopt(&list, now).unwrap_err().to_string().contains("not a later one"));
    // Each knows of a node that the other does not.
    revoke(&office.desk, "h2", 1);
    revoke(&other, "h3", 2);
    office.desk.adopt(&other.list().unwrap().0, now).unwrap();
    assert_eq!(revoked(&office.desk).0, 3);
    other.adopt(&office.desk.list().unwrap().0, now).unwrap();
    assert_eq!(revoked(&other), revoked(&office.desk));
}

#[test]
fn renewals_wait_for_a_key_that_is_elsewhere() {
    let (office, now) = (Office::open(), Timestamp::now());
    let (key, next) = (new_key(), new_key());
    let certificate = office.ask(&office.request("e1", &names(), &key), now).unwrap().certificate;
    let here = Desk { authority: office.dir.path().join("here"), is_offline: true, ..office.desk.clone() };
    std::fs::create_dir(&here.authority).unwrap();
    for name in ["ca.crt", "ca.key", "ca.crl"] {
        std::fs::copy(office.desk.authority.join(name), here.authority.join(name)).unwrap();
    }
    assert!(here.check().unwrap_err().to_string().contains("must not be on this host"));
    std::fs::remove_file(here.authority.join("ca.key")).unwrap();
    here.check().unwrap();

    let asked = WantedCertificate::new("e1", &next, None).unwrap();
    let by = |key: &str| CertificateRequest::by_certificate(&asked, certificate.clone(), key).unwrap();
    let ask = |request: &CertificateRequest| {
        request.open(&here.decide(&request.to_bytes(), "h1", now).answer.to_bytes(), &office.pin)
    };
    // Nobody's request, and another's, do not wait at all.
    assert!(refusal(ask(&office.request("e2", &names(), &next))).contains("on another host"));
    assert!(refusal(ask(&by(&next))).contains("not signed by the certificate"));
    let waiting = || Authority::open(&here.authority).unwrap().unwrap().renewals().unwrap();
    assert_eq!(waiting(), []);
    assert!(matches!(ask(&by(&key)), Err(NotGranted::Waiting(_))));
    assert!(matches!(ask(&by(&key)), Err(NotGranted::Waiting(_))));
    assert_eq!(waiting().len(), 1);

    // The key's host has revoked something meanwhile, and signs what it is brought.
    let authority = Authority::open(&office.desk.authority).unwrap().unwrap();
    let mut gone = Record::new("gone", NodeRole::Hop).unwrap();
    authority.certify(&mut gone, now, |_| Ok(())).unwrap();
    authority.revoke(&mut gone, now).unwrap();
    drop(authority);
    let mut strange = waiting();
    strange.push(offline::WaitingRenewal {
        request: office.request("e2", &names(), &next),
        ..strange[0].clone()
    });
    let signed = offline::sign(&office.desk.authority, strange, HOUR * 24, now).unwrap();
    let offline::SigningFile::Answers { mut renewals, list } = signed else { panic!("{signed:?}") };
    assert!(
        matches!(&renewals[1].answer, Some(CertificateAnswer::Refused(why)) if why.contains("not a request for a renewal"))
    );
    renewals.truncate(1);
    let take = |renewals: &[offline::WaitingRenewal]| {
        let authority = Authority::open(&here.authority).unwrap().unwrap();
        offline::take(&authority, renewals.to_vec(), &list, now).unwrap().remove(0).result
    };
    let mut changed = renewals.clone();
    if let Some(CertificateAnswer::Granted { granted, .. }) = &mut changed[0].answer {
        granted.push(' ');
    }
    assert!(take(&changed).unwrap_err().contains("changed on its way"));
    assert!(matches!(ask(&by(&key)), Err(NotGranted::Waiting(_))));
    take(&renewals).unwrap();
    let granted = ask(&by(&key)).unwrap();
    let hash = proof::hash(&make::public_key_der(&next).unwrap());
    assert_eq!(proof::key_of_certificate(&granted.certificate).unwrap(), hash);
    assert_eq!(here.list().unwrap().0, list);
    // Another key is another request, and the answer to the former one is not for it.
    let asked = WantedCertificate::new("e1", &new_key(), None).unwrap();
    let other = CertificateRequest::by_certificate(&asked, certificate.clone(), &key).unwrap();
    assert!(matches!(ask(&other), Err(NotGranted::Waiting(_))));
    assert!(take(&renewals).unwrap_err().contains("another key"));
}

#[test]
fn control_nodes_with_one_store_use_a_token_up_once() {
    let (office, now) = (Office::open(), Timestamp::now());
    let shared = SharedStore::in_file(&office.dir.path().join("store.db"));
    let desk = |name: &str| {
        let authority = office.dir.path().join(name);
        std::fs::create_dir_all(&authority).unwrap();
        for file in ["ca.crt", "ca.key", "ca.crl"] {
            std::fs::copy(office.desk.authority.join(file), authority.join(file)).unwrap();
        }
        Desk { authority, shared: Some(shared.clone()), ..office.desk.clone() }
    };
    // The first one brings what it had in files: a token for two hosts, which both have a node's record of.
    let (c1, c2) = (desk("c1"), desk("c2"));
    std::fs::rename(office.desk.authority.join("invites"), c1.authority.join("invites")).unwrap();
    let before = |desk: &Desk, certificates: &[(&str, Option<Timestamp>)]| {
        let own = Authority::open(&desk.authority).unwrap().unwrap();
        let mut record = Record::new("h1", NodeRole::Hop).unwrap();
        let issued = |(serial, revoked): &(&str, Option<Timestamp>)| Issued {
            serial: (*serial).to_owned(),
            not_after: now + jiff::SignedDuration::from_hours(1),
            revoked: *revoked,
            key: None,
            certificate: None,
            by: None,
        };
        record.certificates = certificates.iter().map(issued).collect();
        own.write_record(&record).unwrap();
    };
    before(&c1, &[("01", None), ("02", None)]);
    before(&c2, &[("02", Some(now)), ("03", None)]);
    let ask = &|desk: &Desk, key: &str| {
        let request = office.request("e1", &names(), key);
        let decision = desk.decide(&request.to_bytes(), "192.0.2.1", now);
        request.open(&decision.answer.to_bytes(), &office.pin)
    };
    c1.open().map(drop).unwrap();
    let granted = ask(&c1, &new_key()).unwrap();
    let open = |desk: &Desk| Authority::open_in(&desk.authority, Some(&shared), None).unwrap().unwrap();
    let issued = open(&c2).record("h1").unwrap().unwrap().certificates;
    let serials: Vec<_> = issued.iter().map(|one| (one.serial.as_str(), one.revoked.is_some())).collect();
    assert_eq!(serials, [("01", false), ("02", true), ("03", false)]);
    assert!(c1.authority.join("nodes.in-store/h1.json").exists() && !c1.authority.join("invites").exists());

    // The second use, at both at once, by many hosts.
    let keys: Vec<String> = (0..6).map(|_| new_key()).collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(at, key)| {
                let desk = if at % 2 == 0 { &c1 } else { &c2 };
                scope.spawn(move || ask(desk, key))
            })
            .collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    // What one of them has revoked thereby, the other one knows.
    let first = make::facts(&granted.certificate).unwrap().serial;
    let certificates = open(&c2).record("e1").unwrap().unwrap().certificates;
    assert!(certificates.iter().any(|one| one.serial == first && one.revoked.is_some()));
}

#[test]
fn a_new_authority_takes_the_place_of_the_former_one_in_three_steps() {
    let (office, start) = (Office::open(), Timestamp::now());
    let at = |seconds| start + jiff::SignedDuration::from_secs(seconds);
    let open = || Authority::open(&office.desk.authority).unwrap().unwrap();
    let certificates = || read_text(&office.desk.authority.join(CERTIFICATE)).unwrap();
    let (former, key) = (certificates(), new_key());
    let granted = office.ask(&office.request("e1", &names(), &key), start).unwrap();
    let step = || open().rotation(at(1)).unwrap();
    let waiting = |step, nodes: &[&str]| {
        Some(Rotation { step, waits_for: nodes.iter().map(|node| (*node).to_owned()).collect() })
    };
    let told = |trusted: &str| TrustedAuthorities::read(&office.desk.trusted().unwrap().unwrap().0, trusted);
    let revoked = |authorities: &str| {
        RevocationList::read(&office.desk.list().unwrap().0, authorities).map(|list| list.revoked.len())
    };
    assert_eq!((step(), office.desk.trusted().unwrap()), (None, None));
    // A revocation that no record tells of any more goes along through all of it.
    let mut lost = Record::new("lost", NodeRole::Hop).unwrap();
    open().certify(&mut lost, start, |_| Ok(())).unwrap();
    open().revoke(&mut lost, start).unwrap();
    std::fs::remove_file(office.desk.authority.join("nodes/lost.json")).unwrap();

    open().rotate("control", at(1)).unwrap();
    let mut steps = vec![office.desk.trusted().unwrap().unwrap().0];
    let both = told(&former).unwrap();
    assert_eq!(step(), waiting(RotationStep::Trusting, &["e1"]));
    assert_eq!((both.certificates.clone(), revoked(&both.certificates)), (certificates(), Ok(1)));
    assert_eq!(proof::keys_of_certificates(&both.certificates)[0], office.pin);
    for (node, number) in [("e1", both.number - 1), ("e9", both.number)] {
        office.desk.note_trust(node, number).unwrap();
        assert_eq!(step(), waiting(RotationStep::Trusting, &["e1"]));
    }
    office.desk.note_trust("e1", both.number).unwrap();
    assert_eq!(step(), waiting(RotationStep::Trusting, &[]));

    open().rotate("control", at(2)).unwrap();
    office.desk.check().unwrap();
    steps.push(office.desk.trusted().unwrap().unwrap().0);
    let new = told(&former).unwrap();
    assert!(new.number > both.number);
    assert_eq!(step(), waiting(RotationStep::Renewing, &["e1"]));
    let renew = |certificate: &str, key: &str, new_key: &str, pins: &[[u8; 32]], after| {
        let asked = WantedCertificate::new("e1", new_key, None).unwrap();
        let request = CertificateRequest::by_certificate(&asked, certificate.to_owned(), key).unwrap();
        let decision = office.desk.decide(&request.to_bytes(), "h1", at(after));
        request.open_by(&decision.answer.to_bytes(), pins)
    };
    let next_key = new_key();
    let pins = proof::keys_of_certificates(&both.certificates);
    let renewed = renew(&granted.certificate, &key, &next_key, &pins, 3).unwrap();
    // It says so once it has it.
    assert_eq!(step(), waiting(RotationStep::Renewing, &["e1"]));
    office.desk.note_trust("e1", new.number).unwrap();
    assert_eq!(step(), waiting(RotationStep::Renewing, &[]));
    // A node that was away trusts the former one alone, and lets the other in.
    let away = office.dir.path().join("away.crt");
    std::fs::write(&away, &former).unwrap();
    let verifier = VerifyingParty::by_authorities(&away, None, tls::Role::Client).unwrap();
    inspect::verify_text(&verifier, &renewed.certificate, "e1").unwrap();
    // What is revoked now is revoked for both.
    let mut gone = Record::new("gone", NodeRole::Hop).unwrap();
    open().certify(&mut gone, at(3), |_| Ok(())).unwrap();
    open().revoke(&mut gone, at(3)).unwrap();
    assert_eq!((revoked(&former), revoked(&new.certificates)), (Ok(2), Ok(2)));

    open().rotate("control", at(4)).unwrap();
    assert_eq!((step(), told(&former).is_err()), (None, true));
    let last = told(&both.certificates).unwrap();
    // Who never trusted the former one is not told to by what was said before.
    for text in [&steps[0], &steps[1]] {
        assert!(TrustedAuthorities::read(text, &last.certificates).is_err());
    }
    assert_eq!((last.certificates.clone(), revoked(&last.certificates)), (certificates(), Ok(2)));
    assert!(last.number > new.number && pem_blocks(&last.certificates, "CERTIFICATE").len() == 1);
    let refused = renew(&granted.certificate, &key, &new_key(), &pins, 5).unwrap_err().to_string();
    assert!(refused.contains("not among the authorities"), "{refused}");
    let third = new_key();
    let third_time = renew(&renewed.certificate, &next_key, &third, &pins, 5).unwrap();
    let only =
        VerifyingParty::by_authorities(&office.desk.authority.join(CERTIFICATE), None, tls::Role::Client)
            .unwrap();
    inspect::verify_text(&only, &third_time.certificate, "e1").unwrap();

    // The last step ended before the keys were put in order, and the next rotation begins all the same.
    let path = |name: &str| office.desk.authority.join(name);
    std::fs::copy(path("ca.key"), path("other.key")).unwrap();
    std::fs::write(path("ca.key"), new_key()).unwrap();
    assert_eq!(step(), None);
    let fourth = renew(&third_time.certificate, &third, &new_key(), &pins, 6).unwrap();
    inspect::verify_text(&only, &fourth.certificate, "e1").unwrap();
    open().rotate("control", at(7)).unwrap();
    assert_eq!(step(), waiting(RotationStep::Trusting, &["e1"]));
}

/// A host that asks without a token, and dials this address then.
fn asker(node: &str, dials: Option<&str>, key: &str) -> CertificateRequest {
    CertificateRequest::by_approval(&WantedCertificate::new(node, key, dials.map(str::to_owned)).unwrap())
}

#[test]
fn only_what_is_new_is_news() {
    let office = Office::open();
    let (key, now) = (new_key(), Timestamp::now());
    let news = |request: &CertificateRequest| office.desk.decide(&request.to_bytes(), "192.0.2.1", now).news;
    let (token, name) = (office.request("e1", &names(), &key), || "e1".to_owned());
    assert_eq!(news(&token), Some((DeskNews::Joined, name())));
    assert_eq!(news(&token), None);
    let own = office.ask(&token, now).unwrap().certificate;
    let asked = WantedCertificate::new("e1", &new_key(), None).unwrap();
    let renewal = CertificateRequest::by_certificate(&asked, own, &key).unwrap();
    assert_eq!(news(&renewal), Some((DeskNews::Renewed, name())));
    assert_eq!(news(&renewal), None);
    let host = asker("e2", None, &new_key());
    assert_eq!(news(&host), Some((DeskNews::Asked, "e2".to_owned())));
    assert_eq!(news(&host), None);
    // Nor is a refusal.
    assert_eq!(news(&asker("../e2", None, &new_key())), None);
    assert_eq!(news(&office.request("e9", &names(), &new_key())), None);
}

#[test]
fn a_host_is_approved_where_nothing_but_the_authority_has_to_change() {
    let office = Office::open();
    let (key, now) = (new_key(), Timestamp::now());
    office.ask(&office.request("e1", &names(), &new_key()), now).unwrap();
    let decide = |request: &CertificateRequest| office.desk.decide(&request.to_bytes(), "192.0.2.1", now);
    let known = asker("e2", Some("e1:27199"), &key);
    let lost = asker("e3", Some("elsewhere.example.org:27199"), &new_key());
    let taken = asker("e1", Some("e1:27199"), &new_key());
    // `e1` is an execution node, and listens nowhere until its record says so.
    for request in [&known, &lost, &taken] {
        assert!(matches!(decide(request).answer, CertificateAnswer::Waiting(_)));
    }
    let hosts = office.desk.view(now).unwrap().hosts;
    let shown =
        |node: &str| hosts.iter().find(|host| host.asker.asked.node == node).unwrap().fingerprint.clone();
    let prepare = |node: &str, fingerprint: &str, role| {
        office.desk.prepare("control", node, fingerprint, role).map_err(|error| error.to_string())
    };
    let refused = |node: &str, fingerprint: &str| {
        prepare(node, fingerprint, Some(NodeRole::Execution)).map(drop).unwrap_err()
    };
    let away = refused("e2", &shown("e2"));
    assert!(away.contains("run `meshctl node approve e2` on the control node"), "{away}");
    let mut record = office.desk.open().unwrap().record("e1").unwrap().unwrap();
    record.listens = Some(27199);
    let path = office.desk.authority.join("nodes/e1.json");
    std::fs::write(path, serde_json::to_string(&record).unwrap()).unwrap();
    assert!(refused("e2", &shown("e3")).contains("has another fingerprint"));
    assert!(refused("e3", &shown("e3")).contains("run `meshctl node approve e3`"));
    assert!(refused("e1", &shown("e1")).contains("has already been added"));
    assert!(refused("e4", &shown("e2")).contains("no host that calls itself e4 waits"));
    let ready = prepare("e2", &shown("e2").to_lowercase(), Some(NodeRole::Hop)).unwrap();
    drop(ready);
    assert!(matches!(decide(&known).answer, CertificateAnswer::Waiting(_)), "it was only prepared");
    prepare("e2", &shown("e2"), Some(NodeRole::Hop)).unwrap().carry_out().unwrap();
    prepare("e3", &shown("e3"), None).unwrap().carry_out().unwrap();
    let joined = decide(&known).joined.unwrap();
    assert_eq!((joined.role, joined.dials.as_deref()), (NodeRole::Hop, Some("e1:27199")));
    assert!(matches!(decide(&lost).answer, CertificateAnswer::Refused(why) if why == "e3 was rejected"));
    assert!(refused("e2", &shown("e2")).contains("no host"), "it is decided");
}

#[test]
fn who_is_revoked_is_so_with_certificates_that_have_expired() {
    let mut office = Office::open();
    office.desk.lifetime = Duration::from_secs(60);
    let (key, next, now) = (new_key(), new_key(), Timestamp::now());
    let first = office.ask(&office.request("e1", &names(), &key), now).unwrap().certificate;
    let asked = WantedCertificate::new("e1", &next, None).unwrap();
    let request = CertificateRequest::by_certificate(&asked, first.clone(), &key).unwrap();
    office.ask(&request, now).unwrap();
    // A link that was made with the first one may still be up.
    let later = now + jiff::SignedDuration::from_secs(61);
    let authority = Authority::open(&office.desk.authority).unwrap().unwrap();
    let mut record = authority.record("e1").unwrap().unwrap();
    authority.revoke(&mut record, later).unwrap();
    let list = RevocationList::read(&authority.list().unwrap(), authority.certificate()).unwrap();
    assert!(list.revoked.iter().any(|(serial, _)| *serial == make::facts(&first).unwrap().serial));
    assert_eq!(list.revoked.len(), 2);
    // But not for ever, and of no number of them.
    record.certificates = vec![record.certificates[0].clone(); 150];
    record.forget(later, HOUR);
    assert_eq!((record.certificates.len(), record.certificates[0].certificate.clone()), (100, None));
    record.forget(later + jiff::SignedDuration::from_hours(2), HOUR);
    assert_eq!(record.certificates, []);
}

#[test]
fn what_was_revoked_stays_so_when_the_records_are_lost() {
    let (office, now) = (Office::open(), Timestamp::now());
    let revoke = |node: &str, after| {
        let authority = Authority::open(&office.desk.authority).unwrap().unwrap();
        let mut record = Record::new(node, NodeRole::Hop).unwrap();
        let at = now + jiff::SignedDuration::from_secs(after);
        authority.certify(&mut record, at, |_| Ok(())).unwrap();
        authority.revoke(&mut record, at).unwrap();
        RevocationList::read(&authority.list().unwrap(), authority.certificate()).unwrap().revoked.len()
    };
    assert_eq!(revoke("h1", 1), 1);
    std::fs::remove_file(office.desk.authority.join("nodes/h1.json")).unwrap();
    assert_eq!(revoke("h2", 2), 2);
    // Not for ever: a certificate may be expected to have expired some day.
    assert_eq!(revoke("h3", 11 * 366 * 86_400), 1);
    // And an authority whose records are in a store does nothing without that.
    let nodes = office.desk.authority.join("nodes");
    std::fs::rename(&nodes, office.desk.authority.join("nodes.in-store")).unwrap();
    let refused = Authority::open(&office.desk.authority).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("in the store that control nodes share"), "{refused}");
}

#[test]
fn a_step_of_a_rotation_that_was_cut_short_is_told_to_nobody() {
    let (office, start) = (Office::open(), Timestamp::now());
    let at = |seconds| start + jiff::SignedDuration::from_secs(seconds);
    let open = || Authority::open(&office.desk.authority).unwrap().unwrap();
    let path = office.desk.authority.join(CERTIFICATE);
    for (before, after) in [(0, 1), (2, 3)] {
        let former = read_text(&path).unwrap();
        let told = office.desk.trusted().unwrap();
        open().rotate("control", at(before)).unwrap();
        let reached = read_text(&path).unwrap();
        assert_ne!(office.desk.trusted().unwrap(), told);
        // Everything was written but the file that decides.
        std::fs::write(&path, &former).unwrap();
        assert_eq!(office.desk.trusted().unwrap(), None);
        office.desk.check().unwrap();
        open().rotate("control", at(after)).unwrap();
        assert_eq!(read_text(&path).unwrap() == reached, before == 2);
        assert!(office.desk.trusted().unwrap().is_some());
        office.desk.check().unwrap();
    }
}
