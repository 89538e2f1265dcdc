//! Files that change while a node runs. The tests do not wait: a look is a call.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::pki::{Pki, days, node_names};
use crate::tls::error::{FileError, FileProblem};
use crate::tls::make::{self, CertSubject, Dates};
use crate::tls::*;
use crate::wire::NodeId;

/// Looks at the files as often as it takes for a settled change to count.
fn look(profile: &ServerProfile) {
    profile.refresh();
    profile.refresh();
}

async fn meet(
    server: &ServerProfile,
    client: &ClientProfile,
) -> (Result<Secured<DuplexStream>, HandshakeError>, Result<Secured<DuplexStream>, HandshakeError>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::join!(server.accept(near), client.connect(far, "127.0.0.1"))
}

fn names_shown_to(dialled: &Secured<DuplexStream>) -> Vec<String> {
    dialled.certified_nodes().unwrap_or_default().to_vec()
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart() {
    let pki = Pki::new();
    pki.node("a");
    let (server, client) = (pki.server("a"), pki.client("a"));
    let names = CertSubject { node_ids: vec!["a".to_owned(), "a2".to_owned()], ..node_names("a") };
    pki.issue("a", &names, "ca", Dates::default());
    server.refresh();
    let (_, dialled) = meet(&server, &client).await;
    assert_eq!(names_shown_to(&dialled.unwrap()), ["a"], "one look may see half of a change");
    server.refresh();
    let (_, dialled) = meet(&server, &client).await;
    assert_eq!(names_shown_to(&dialled.unwrap()), ["a", "a2"]);
}

#[tokio::test]
async fn a_bad_file_never_replaces_a_good_one() {
    let pki = Pki::of(&["a", "b"]);
    pki.revoke("crl.pem", &[]);
    pki.write("blocklist", "");
    let mut options = pki.server_options("a");
    (options.files.crl, options.files.blocklist) = (Some(pki.path("crl.pem")), Some(pki.path("blocklist")));
    let server = ServerProfile::open(options, Some(&NodeId::new("a").unwrap())).unwrap();
    for (name, bad) in [
        ("a.crt", pki.text("a.crt").split_at(300).0.to_owned()),
        ("a.crt", String::new()),
        ("a.crt", pki.text("b.crt")),
        ("a.key", pki.text("b.key")),
        ("ca.crt", pki.text("b.crt")),
        ("crl.pem", "-----BEGIN X509 CRL-----\nMIIB".to_owned()),
        ("blocklist", "not a fingerprint".to_owned()),
    ] {
        let good = pki.text(name);
        pki.write(name, &bad);
        look(&server);
        let (accepted, dialled) = meet(&server, &pki_client(&pki)).await;
        assert!(accepted.is_ok(), "{name}: {:?}", accepted.err());
        assert_eq!(names_shown_to(&dialled.unwrap()), ["a"], "{name}");
        pki.write(name, good);
        look(&server);
    }
    std::fs::remove_file(pki.path("ca.crt")).unwrap();
    look(&server);
    let material = server.check(&Expected::Anyone, &chain(&pki, "b"));
    assert_eq!(material, Ok(()), "a removed file changes nothing");
}

/// A client that trusts the authority whatever its file holds now.
fn pki_client(pki: &Pki) -> ClientProfile {
    let mut options = pki.client_options("b");
    options.insecure_skip_verify = false;
    if pki.text("ca.crt") == pki.text("b.crt") {
        let key = pki.text("ca.key");
        pki.write("same.crt", make::authority("the ca", &key, Dates::default(), super::pki::now()).unwrap());
        options.files.authorities = Some(pki.path("same.crt"));
    }
    ClientProfile::open(options, None).unwrap()
}

fn chain(pki: &Pki, name: &str) -> Vec<rustls::pki_types::CertificateDer<'static>> {
    vec![make::pem_section(&pki.text(&format!("{name}.crt")), "CERTIFICATE").unwrap().into()]
}

#[tokio::test]
async fn a_revoked_peer_is_cut_and_others_stay() {
    let pki = Pki::new();
    for node in ["a", "b", "c"] {
        pki.node(node);
    }
    pki.revoke("crl.pem", &[]);
    pki.write("blocklist", "");
    let mut options = pki.server_options("a");
    (options.files.crl, options.files.blocklist) = (Some(pki.path("crl.pem")), Some(pki.path("blocklist")));
    let server = ServerProfile::open(options, None).unwrap();
    let blocked = format!("{}\n", Fingerprint::sha256(&chain(&pki, "c")[0]));
    for (revoked, kept) in [("b", "c"), ("c", "b")] {
        pki.revoke("crl.pem", &[]);
        look(&server);
        let (gone, _far) = meet(&server, &pki.client(revoked)).await;
        let (stays, other) = meet(&server, &pki.client(kept)).await;
        let (mut gone, mut stays, mut other) = (gone.unwrap(), stays.unwrap(), other.unwrap());
        if revoked == "b" {
            pki.revoke("crl.pem", &["b"]);
        } else {
            pki.write("blocklist", &blocked);
        }
        let reading = tokio::spawn(async move { gone.read_u8().await });
        tokio::task::yield_now().await;
        look(&server);
        let error = reading.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the peer's certificate is no longer accepted");
        tokio::io::AsyncWriteExt::write_all(&mut other, b"x").await.unwrap();
        tokio::io::AsyncWriteExt::flush(&mut other).await.unwrap();
        assert_eq!(stays.read_u8().await.unwrap(), b'x');
    }
}

#[tokio::test]
async fn connections_that_ended_are_forgotten() {
    let pki = Pki::new();
    pki.node("a");
    let server = pki.server("a");
    let pair = meet(&server, &pki.client("a")).await;
    assert_eq!(server.living(), 1);
    drop(pair);
    assert_eq!(server.living(), 0);
}

#[tokio::test]
async fn profiles_change_one_by_one_and_those_that_are_gone_still_cut() {
    let pki = Pki::of(&["a", "b"]);
    pki.write("blocklist", "");
    let named = |name: &str, min_tls13| {
        let mut options = ServerOptions { name: name.to_owned(), min_tls13, ..pki.server_options("a") };
        options.files.blocklist = Some(pki.path("blocklist"));
        options
    };
    let node = NodeId::new("a").unwrap();
    let profiles = Profiles::open([named("one", false), named("two", false)], [], &node).unwrap();
    let [one, two] = ["one", "two"].map(|name| profiles.server(name).unwrap());
    let (mut served, _far) = match meet(&one, &pki.client("b")).await {
        (Ok(served), Ok(far)) => (served, far),
        other => panic!("{other:?}"),
    };

    let new = profiles.prepare([named("one", true), named("two", false)], [], &node).unwrap();
    assert!(profiles.server("one").unwrap() == one, "nothing has changed yet");
    let former = profiles.swap(new.into());
    assert!(profiles.server("two").unwrap() == two, "what is configured as before is the same");
    assert!(profiles.server("one").unwrap() != one);
    assert!(profiles.prepare([named("none", false), pki.server_options("nobody")], [], &node).is_err());

    pki.write("blocklist", format!("{}\n", Fingerprint::sha256(&chain(&pki, "b")[0])));
    let reading = tokio::spawn(async move { served.read_u8().await });
    tokio::task::yield_now().await;
    profiles.refresh();
    profiles.refresh();
    let error = reading.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the peer's certificate is no longer accepted");

    profiles.swap(former);
    assert!(profiles.server("one").unwrap() == one, "a change can be taken back");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_profiles_is_not_woken_for_their_files() {
    let profiles = Profiles::default();
    let mut polls = 0;
    let mut watch = Box::pin(profiles.clone().watch(CancellationToken::new()));
    let counted = poll_fn(|cx| {
        polls += 1;
        watch.as_mut().poll(cx)
    });
    assert!(timeout(Duration::from_secs(3_600), counted).await.is_err());
    assert!(polls <= 3, "{polls} times in an hour");

    let pki = Pki::new();
    pki.node("a");
    let set = profiles.prepare([pki.server_options("a")], [], &NodeId::new("a").unwrap()).unwrap();
    profiles.swap(Arc::new(set));
    let renewed = CertSubject { node_ids: vec!["a".to_owned(), "a2".to_owned()], ..node_names("a") };
    pki.issue("a", &renewed, "ca", Dates::default());
    let (server, client) = (profiles.server("srv").unwrap(), pki.client("a"));
    let taken_up = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let (_, dialled) = meet(&server, &client).await;
            if names_shown_to(&dialled.unwrap()) == ["a", "a2"] {
                break;
            }
        }
    };
    tokio::select! {
        _ = &mut watch => panic!("it watches until it is stopped"),
        () = taken_up => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("its files are not looked at"),
    }
}

#[tokio::test]
async fn who_is_revoked_before_the_connection_is_listed_is_cut_too() {
    let pki = Pki::of(&["a", "b"]);
    pki.write("blocklist", "");
    let mut options = pki.server_options("a");
    options.require_client_cert = false;
    options.files.blocklist = Some(pki.path("blocklist"));
    let server = ServerProfile::open(options, None).unwrap();
    // The certificate is checked in the middle of the handshake, and the list changes before its end.
    let early = server.admit(chain(&pki, "b"), Expected::Anyone);
    assert!(!early.cut().is_cancelled());
    pki.write("blocklist", format!("{}\n", Fingerprint::sha256(&chain(&pki, "b")[0])));
    look(&server);
    assert!(early.cut().is_cancelled());
    let late = server.admit(chain(&pki, "b"), Expected::Anyone);
    assert!(late.cut().is_cancelled(), "nobody would look at it again");
}

#[tokio::test]
async fn who_has_shown_nothing_is_not_cut_when_files_change() {
    let pki = Pki::new();
    pki.node("a");
    let server = ServerProfile::open(pki.server_options("a"), None).unwrap();
    let nobody = server.admit(Vec::new(), Expected::Anyone);
    pki.node("a");
    look(&server);
    assert!(!nobody.cut().is_cancelled());
}

#[tokio::test]
async fn a_certificate_that_has_expired_since_cuts_nobody_unless_it_is_revoked() {
    let pki = Pki::of(&["a", "b"]);
    pki.issue("b", &node_names("b"), "ca", days(-30, -10));
    pki.revoke("crl.pem", &[]);
    let mut options = pki.server_options("a");
    options.files.crl = Some(pki.path("crl.pem"));
    let server = ServerProfile::open(options, None).unwrap();
    let then = days(-20, 0).not_before.unwrap();
    let guard = server.admit_at(chain(&pki, "b"), Expected::Anyone, then);
    pki.node("a");
    look(&server);
    assert!(!guard.cut().is_cancelled(), "it was good when the connection was made");
    pki.revoke("crl.pem", &["b"]);
    look(&server);
    assert!(guard.cut().is_cancelled(), "revoked it is cut, expired or not");
}

#[tokio::test]
async fn files_that_could_not_be_read_for_a_moment_are_read_again() {
    let pki = Pki::of(&["a", "b"]);
    pki.write("blocklist", "");
    let mut options = pki.server_options("a");
    options.files.blocklist = Some(pki.path("blocklist"));
    let server = ServerProfile::open(options, None).unwrap();
    let guard = server.admit(chain(&pki, "b"), Expected::Anyone);
    pki.write("blocklist", format!("{}\n", Fingerprint::sha256(&chain(&pki, "b")[0])));
    server.refresh();
    let path = pki.path("blocklist");
    server.refresh_by(|| {
        let problem = FileProblem::Read(std::io::Error::other("too many open files"));
        let source = Box::new(FileError { path, problem });
        Err(ProfileError::File {
            directive: "tls-server",
            name: "a".to_owned(),
            parameter: "blocklist",
            source,
        })
    });
    assert!(!guard.cut().is_cancelled());
    server.refresh();
    assert!(guard.cut().is_cancelled(), "no further change is needed");
}
