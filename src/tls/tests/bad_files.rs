//! Files that cannot be used, each with its message. `DIR` stands for the files' directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::pki::{Pki, days, node_names};
use crate::tls::make::{self, CertSubject, Dates, KeyKind};
use crate::tls::{ClientOptions, ClientProfile, Files, ServerOptions, ServerProfile};
use crate::wire::NodeId;

/// Every bad file that an operator has come up with, as a profile and the message about it.
fn table(pki: &Pki) -> Vec<(&'static str, Files, &'static str)> {
    let good = || pki.files("a");
    let cert = |name: &str| Files { identity: Some((pki.path(name), pki.path("a.key"))), ..good() };
    let key = |name: &str| Files { identity: Some((pki.path("a.crt"), pki.path(name))), ..good() };
    let cas = |name: &str| Files { authorities: Some(pki.path(name)), ..good() };
    let crl = |name: &str| Files { crl: Some(pki.path(name)), ..good() };
    let blocklist = |name: &str| Files { blocklist: Some(pki.path(name)), ..good() };
    vec![
        ("missing certificate", cert("none"), "cert DIR/none: cannot be read: No such file or directory"),
        ("missing key", key("none"), "key DIR/none: cannot be read: No such file or directory"),
        ("a directory", cert("dir"), "cert DIR/dir: cannot be read: Is a directory"),
        (
            "empty certificate",
            cert("empty"),
            "cert DIR/empty: holds no certificate: it has no PEM section at all",
        ),
        ("empty key", key("empty"), "key DIR/empty: holds no private key: it has no PEM section at all"),
        ("key for certificate", cert("a.key"), "cert DIR/a.key: holds no certificate: it has PRIVATE KEY"),
        ("certificate for key", key("a.crt"), "key DIR/a.crt: holds no private key: it has CERTIFICATE"),
        (
            "request for certificate",
            cert("a.req"),
            "cert DIR/a.req: holds no certificate: it has CERTIFICATE REQUEST",
        ),
        ("cut certificate", cert("cut.crt"), "cert DIR/cut.crt: is damaged PEM: a section has no END line"),
        (
            "damaged base64",
            cert("base64.crt"),
            "cert DIR/base64.crt: is damaged PEM: a section is not base64",
        ),
        (
            "no X.509",
            cert("der.crt"),
            "cert DIR/der.crt: certificate 1 in it cannot be used: it is not an X.509 certificate",
        ),
        (
            "bad second of a chain",
            cert("chain.crt"),
            "cert DIR/chain.crt: certificate 2 in it cannot be used",
        ),
        ("encrypted key", key("encrypted.key"), "key DIR/encrypted.key: is encrypted, and a node has nobody"),
        ("old encrypted key", key("old.key"), "key DIR/old.key: is encrypted"),
        ("two keys", key("two.key"), "key DIR/two.key: holds 2 private keys where one is needed"),
        (
            "no key in the section",
            key("hollow.key"),
            "key DIR/hollow.key: holds a private key that cannot be used",
        ),
        (
            "another's key",
            key("b.key"),
            "key DIR/b.key: its private key does not belong to the certificate in DIR/a.crt",
        ),
        (
            "another's certificate",
            pki.files("b"),
            "cert DIR/b.crt: the certificate does not name this node: expected node a, found node b, host localhost, address 127.0.0.1; make one with",
        ),
        (
            "a certificate without nodes",
            pki.files("web"),
            "cert DIR/web.crt: the certificate does not name this node: expected node a, found host web; make one",
        ),
        (
            "node for authority",
            cas("b.crt"),
            "clientcas DIR/b.crt: the certificate of b in it is not one of an authority",
        ),
        (
            "a bundle with a node in it",
            cas("mixed.crt"),
            "clientcas DIR/mixed.crt: the certificate of b in it is not one of an authority",
        ),
        ("empty authorities", cas("empty"), "clientcas DIR/empty: holds no certificate"),
        (
            "certificate for revocation list",
            crl("a.crt"),
            "crl DIR/a.crt: holds no revocation list: it has CERTIFICATE",
        ),
        (
            "no revocation list",
            crl("hollow.crl"),
            "crl DIR/hollow.crl: revocation list 1 in it cannot be used",
        ),
        (
            "no fingerprint",
            blocklist("bad.list"),
            "blocklist DIR/bad.list: line 2: a fingerprint must be 56 (SHA-224)",
        ),
        (
            "a file without end",
            cert("large"),
            "cert DIR/large: is larger than 16 MiB: is this the right file?",
        ),
    ]
}

fn write_bad_files(pki: &Pki) {
    for node in ["a", "b"] {
        pki.node(node);
    }
    let web =
        CertSubject { node_ids: vec![], dns: vec!["web".to_owned()], addresses: vec![], ..node_names("web") };
    pki.issue("web", &web, "ca", Dates::default());
    let section = |kind: &str, body: &str| format!("-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n");
    fs::create_dir(pki.path("dir")).unwrap();
    pki.write("empty", "");
    pki.write("a.req", make::request(&node_names("a"), &pki.text("a.key")).unwrap());
    pki.write("cut.crt", &pki.text("a.crt")[..200]);
    pki.write("base64.crt", section("CERTIFICATE", "!!!!"));
    pki.write("der.crt", section("CERTIFICATE", "aGVsbG8="));
    pki.write("chain.crt", pki.text("a.crt") + &section("CERTIFICATE", "aGVsbG8="));
    pki.write("encrypted.key", section("ENCRYPTED PRIVATE KEY", "aGVsbG8="));
    pki.write("old.key", section("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\n\naGVsbG8="));
    pki.write("two.key", pki.text("a.key") + &pki.text("b.key"));
    pki.write("hollow.key", section("PRIVATE KEY", "aGVsbG8="));
    pki.write("mixed.crt", pki.text("ca.crt") + &pki.text("b.crt"));
    pki.write("hollow.crl", section("X509 CRL", "aGVsbG8="));
    pki.write("bad.list", "# comment\nabc\n");
    fs::File::create(pki.path("large")).unwrap().set_len(17 << 20).unwrap();
}

#[test]
fn every_bad_file_is_named_with_what_is_wrong() {
    let pki = Pki::new();
    write_bad_files(&pki);
    let node = NodeId::new("a").unwrap();
    let dir = pki.path("").display().to_string();
    let rows = table(&pki);
    assert!(rows.len() >= 20);
    for (name, files, expected) in rows {
        let options = ServerOptions { name: "srv".to_owned(), files, ..ServerOptions::default() };
        let error = ServerProfile::open(options, Some(&node)).expect_err(name).to_string();
        let text = error.replace(dir.trim_end_matches('/'), "DIR");
        assert!(text.starts_with(&format!("tls-server srv: {expected}")), "{name}: {text}");
        assert!(!text.contains("-----"), "{name}: {text}");
    }
}

#[test]
fn the_node_check_can_be_turned_off() {
    let pki = Pki::new();
    pki.node("b");
    let node = NodeId::new("a").unwrap();
    let strict = ClientProfile::open(pki.client_options("b"), Some(&node));
    assert!(strict.is_err());
    let lax = ClientOptions { skip_names_check: true, ..pki.client_options("b") };
    assert!(ClientProfile::open(lax, Some(&node)).is_ok());
}

#[test]
fn expiry_is_warned_of_a_month_ahead() {
    let pki = Pki::new();
    for (end, expected) in [(29, Some("in 28 days")), (31, None), (-1, Some("has expired on"))] {
        pki.issue("x", &node_names("x"), "ca", days(-300, end));
        let warning = pki.server("x").expiry_warning();
        match expected {
            Some(expected) => assert!(warning.unwrap().contains(expected)),
            None => assert_eq!(warning, None),
        }
    }
    // Or a fifth of a short life: a node renews after two thirds of it.
    for (end, warns) in [(3, false), (1, true)] {
        pki.issue("x", &node_names("x"), "ca", days(-7, end));
        assert_eq!(pki.server("x").expiry_warning().is_some(), warns, "{end}");
    }
}

#[test]
fn keys_are_made_readable_by_their_owner_only_and_never_overwritten() {
    let pki = Pki::new();
    let (cert, key) = (pki.path("new.crt"), pki.path("new.key"));
    let init = || crate::tls::commands::init("x", KeyKind::EcdsaP256, Dates::default(), &cert, &key);
    init().unwrap();
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let before = pki.text("new.key");
    assert!(init().unwrap_err().to_string().contains("meshctl never overwrites a key"));
    assert_eq!(pki.text("new.key"), before);
}
