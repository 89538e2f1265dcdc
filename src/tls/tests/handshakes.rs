//! Which handshakes succeed, and what the two sides say of those that fail.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::pki::{self, Pki, days, node_names};
use crate::tls::make::{CertSubject, Dates, KeyKind};
use crate::tls::*;
use crate::wire::{NameHash, NodeId};

type Side = Result<Secured<DuplexStream>, HandshakeError>;

/// Both sides of a handshake with the host that certificates of [`node_names`] name.
async fn meet(server: &ServerProfile, client: &ClientProfile) -> (Side, Side) {
    meet_at(server, client, "127.0.0.1").await
}

async fn meet_at(server: &ServerProfile, client: &ClientProfile, host: &str) -> (Side, Side) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let accept = async {
        let mut side = server.accept(near).await;
        // TLS 1.3 clients are done before the server has judged them.
        if let Ok(stream) = &mut side {
            stream.write_all(b"hi").await.unwrap();
            stream.flush().await.unwrap();
        }
        side
    };
    let dial = async {
        let mut side = client.connect(far, host).await;
        if let Ok(stream) = &mut side {
            let mut greeting = [0; 2];
            if let Err(error) = stream.read_exact(&mut greeting).await {
                let (profile, reason) = (String::new(), error.to_string());
                return Err(HandshakeError::Failed { profile, reason });
            }
        }
        side
    };
    tokio::join!(accept, dial)
}

fn refusal(side: Side) -> String {
    side.expect_err("this certificate must not be accepted").to_string()
}

#[tokio::test]
async fn two_nodes_of_one_authority_meet_and_know_each_other() {
    let pki = Pki::of(&["a", "b"]);
    for min_tls13 in [false, true] {
        let options = ServerOptions { min_tls13, ..pki.server_options("a") };
        let server = ServerProfile::open(options, Some(&NodeId::new("a").unwrap())).unwrap();
        let (accepted, dialled) = meet(&server, &pki.client("b")).await;
        assert_eq!(accepted.unwrap().certified_nodes(), Some(&["b".to_owned()][..]));
        assert_eq!(dialled.unwrap().certified_nodes(), Some(&["a".to_owned()][..]));
    }
}

#[tokio::test]
async fn host_names_and_addresses_are_checked() {
    let pki = Pki::new();
    pki.node("a");
    for host in ["localhost", "127.0.0.1", "[127.0.0.1]"] {
        let (_, dialled) = meet_at(&pki.server("a"), &pki.client("a"), host).await;
        assert!(dialled.is_ok(), "{host}: {:?}", dialled.err());
    }
    let (accepted, dialled) = meet_at(&pki.server("a"), &pki.client("a"), "hop.example").await;
    let text = refusal(dialled);
    assert_eq!(
        text,
        "TLS profile cli: the certificate is for somebody else: expected host hop.example, found node a, host \
         localhost, address 127.0.0.1"
    );
    assert!(refusal(accepted).contains("does not accept our certificate"));
    let (_, dialled) = meet_at(&pki.server("a"), &pki.client("a"), "no host").await;
    assert!(refusal(dialled).contains("\"no host\" is not a host name"));
}

#[tokio::test]
async fn a_missing_client_certificate_is_named_on_both_sides() {
    let pki = Pki::new();
    pki.node("a");
    let mut options = pki.client_options("a");
    options.files.identity = None;
    let client = ClientProfile::open(options, None).unwrap();
    let (accepted, dialled) = meet(&pki.server("a"), &client).await;
    assert!(refusal(accepted).contains("the client sent no certificate: set cert and key"));
    let told = refusal(dialled);
    assert!(told.contains("the peer demands a certificate: set cert and key in the tls-client"), "{told}");
    let lenient = ServerOptions { require_client_cert: false, ..pki.server_options("a") };
    let (accepted, _) = meet(&ServerProfile::open(lenient, None).unwrap(), &client).await;
    assert_eq!(accepted.unwrap().certified_nodes(), None);
}

#[tokio::test]
async fn bad_certificates_are_refused_for_their_reason() {
    let pki = Pki::new();
    pki.authority("stranger");
    pki.authority("twin");
    // An authority with the name of ours, but another key.
    let key = pki.text("twin.key");
    let twin = make::authority("the ca", &key, Dates::default(), pki::now()).unwrap();
    pki.write("twin.crt", twin);
    pki.node("a");
    let names = node_names("b");
    pki.issue("expired", &names, "ca", days(-30, -1));
    pki.issue("early", &names, "ca", days(1, 30));
    pki.issue("foreign", &names, "stranger", Dates::default());
    pki.issue("forged", &names, "twin", Dates::default());
    pki.signing("signer", &names);
    for (name, expected) in [
        ("expired", "the certificate of b has expired on "),
        ("early", "the certificate of b is valid from "),
        ("foreign", "the certificate of b is signed by the stranger, which is not among the authorities in "),
        (
            "forged",
            "the certificate of b names the ca as its signer, but an authority of that name with another key",
        ),
        (
            "signer",
            "the certificate of b is an authority's (CA:TRUE): it is accepted only if this very certificate is",
        ),
    ] {
        let (accepted, _) = meet(&pki.server("a"), &pki.client(name)).await;
        let text = refusal(accepted);
        assert!(text.contains(expected), "{name}: {text}");
        let (_, dialled) = meet(&pki.server(name), &pki.client("a")).await;
        let text = refusal(dialled);
        assert!(text.contains(expected), "{name}: {text}");
    }
}

#[tokio::test]
async fn a_certificate_that_is_trusted_by_itself_needs_nobody_to_vouch_for_it() {
    let pki = Pki::new();
    pki.node("a");
    pki.self_signed("s", &node_names("s"), days(-1, 30));
    pki.self_signed("old", &node_names("old"), days(-30, -1));
    for name in ["s", "old"] {
        let mut trusting = (pki.server_options("a"), pki.client_options("a"));
        (trusting.0.files.authorities, trusting.1.files.authorities) =
            (Some(pki.path(&format!("{name}.crt"))), Some(pki.path(&format!("{name}.crt"))));
        let server = ServerProfile::open(trusting.0, None).unwrap();
        let client = ClientProfile::open(trusting.1, None).unwrap();
        let shown = ServerProfile::open(
            ServerOptions { require_client_cert: false, ..pki.server_options(name) },
            None,
        )
        .unwrap();
        let sides = [meet(&server, &pki.client(name)).await.0, meet(&shown, &client).await.1];
        for side in sides {
            match name {
                "s" => assert_eq!(side.unwrap().certified_nodes(), Some(&["s".to_owned()][..])),
                _ => assert!(refusal(side).contains("the certificate of old has expired on ")),
            }
        }
        let (_, dialled) = meet_at(&shown, &client, "hop.example").await;
        assert!(dialled.is_err(), "its names count");
    }
    let flaw = pki.server("s").own_flaw().map(|flaw| flaw.to_string()).unwrap_or_default();
    assert!(flaw.contains("is an authority's (CA:TRUE)"), "{flaw}");
    assert_eq!(pki.server("a").own_flaw(), None);
}

#[tokio::test]
async fn pins_come_on_top_of_the_chain() {
    let pki = Pki::new();
    for node in ["a", "b", "c"] {
        pki.node(node);
    }
    let der = |name: &str| make::pem_section(&pki.text(name), "CERTIFICATE").unwrap();
    let pinned = vec![Fingerprint::sha256(&der("b.crt"))];
    let server =
        ServerProfile::open(ServerOptions { pinned: pinned.clone(), ..pki.server_options("a") }, None)
            .unwrap();
    assert!(meet(&server, &pki.client("b")).await.0.is_ok());
    let text = refusal(meet(&server, &pki.client("c")).await.0);
    assert!(text.contains("the certificate of c is not pinned: its SHA-256 is "), "{text}");
    pki.authority("stranger");
    pki.issue("x", &node_names("x"), "stranger", Dates::default());
    let pinned = vec![Fingerprint::sha256(&der("x.crt"))];
    let client = ClientProfile::open(ClientOptions { pinned, ..pki.client_options("a") }, None).unwrap();
    let text = refusal(meet(&pki.server("x"), &client).await.1);
    assert!(text.contains("is signed by the stranger"), "a pin does not replace the chain: {text}");
}

#[tokio::test]
async fn insecure_clients_accept_anybody_but_the_blocked_and_the_unpinned() {
    let pki = Pki::new();
    pki.authority("stranger");
    pki.node("a");
    pki.issue("x", &node_names("x"), "stranger", Dates::default());
    let insecure = || ClientOptions { insecure_skip_verify: true, ..pki.client_options("a") };
    let server =
        ServerProfile::open(ServerOptions { require_client_cert: false, ..pki.server_options("x") }, None)
            .unwrap();
    let (_, dialled) = meet_at(&server, &ClientProfile::open(insecure(), None).unwrap(), "other").await;
    assert_eq!(dialled.unwrap().certified_nodes(), None, "its word counts for nothing");
    let der = make::pem_section(&pki.text("x.crt"), "CERTIFICATE").unwrap();
    pki.write("blocklist", format!("# left in May\n{} # x\n", Fingerprint::sha256(&der)));
    let mut blocking = insecure();
    blocking.files.blocklist = Some(pki.path("blocklist"));
    let text = refusal(meet(&server, &ClientProfile::open(blocking, None).unwrap()).await.1);
    assert!(text.contains("the certificate of x is blocked: ") && text.contains("/blocklist"), "{text}");
}

#[tokio::test]
async fn revoked_certificates_are_refused() {
    let pki = Pki::new();
    for node in ["a", "b", "c"] {
        pki.node(node);
    }
    pki.revoke("crl.pem", &["b"]);
    let mut options = pki.server_options("a");
    options.files.crl = Some(pki.path("crl.pem"));
    let server = ServerProfile::open(options, None).unwrap();
    assert!(meet(&server, &pki.client("c")).await.0.is_ok());
    let text = refusal(meet(&server, &pki.client("b")).await.0);
    assert!(text.contains("the certificate of b, or one above it, is revoked by the list in "), "{text}");
}

#[tokio::test]
async fn a_bundle_of_many_authorities_is_one_trust() {
    let pki = Pki::new();
    let mut bundle = String::new();
    for number in 0..40 {
        pki.authority(&format!("ca{number}"));
        bundle += &pki.text(&format!("ca{number}.crt"));
    }
    pki.node("a");
    pki.issue("b", &node_names("b"), "ca39", Dates::default());
    pki.write("bundle.crt", bundle);
    let mut options = pki.server_options("a");
    options.files.authorities = Some(pki.path("bundle.crt"));
    let (accepted, _) = meet(&ServerProfile::open(options, None).unwrap(), &pki.client("b")).await;
    assert!(accepted.is_ok(), "{:?}", accepted.err());
}

#[tokio::test]
async fn keys_of_every_kind_and_form_serve() {
    let pki = Pki::new();
    for kind in [KeyKind::Rsa(2048), KeyKind::EcdsaP256, KeyKind::Ed25519] {
        let key = make::private_key(kind).unwrap();
        pki.issue_for("k", &node_names("k"), "ca", Dates::default(), &key);
        let (accepted, dialled) = meet(&pki.server("k"), &pki.client("k")).await;
        assert!(accepted.is_ok() && dialled.is_ok(), "{kind:?}");
    }
}

#[tokio::test]
async fn who_does_not_speak_tls_is_told_apart() {
    let pki = Pki::new();
    pki.node("a");
    let (near, mut far) = tokio::io::duplex(1 << 10);
    far.write_all(b"\x24\x00\x01{\"NodeID\":\"x\"}").await.unwrap();
    let text = refusal(pki.server("a").accept(near).await);
    assert!(text.contains("does not speak TLS") && text.contains("set tls at both ends"), "{text}");
}

#[tokio::test]
async fn who_goes_away_inside_a_handshake_is_told_of_in_one_way() {
    let pki = Pki::new();
    pki.node("a");
    let said = "TLS profile cli: the peer broke off the handshake: ";
    let (near, far) = tokio::io::duplex(1 << 10);
    drop(far);
    let closed = refusal(pki.client("a").connect(near, "localhost").await);
    assert!(closed.starts_with(said), "{closed}");
    // A forwarder without a target closes the connection while bytes are unread.
    let forwarder = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = tokio::net::TcpStream::connect(forwarder.local_addr().unwrap()).await.unwrap();
    let (far, client) = (forwarder.accept().await.unwrap().0, pki.client("a"));
    let reset = async {
        far.readable().await.unwrap();
        drop(far);
    };
    let (refused, ()) = tokio::join!(client.connect(near, "localhost"), reset);
    assert_eq!(refused.err().unwrap().to_string(), closed);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_given_up() {
    let pki = Pki::new();
    pki.node("a");
    let (near, _far) = tokio::io::duplex(1 << 10);
    let text = refusal(pki.server("a").accept(near).await);
    assert_eq!(text, "TLS profile srv: the handshake took longer than 10 s");
}

#[test]
fn nodes_are_expected_by_name_or_by_hash() {
    let pki = Pki::new();
    pki.node("b");
    let der = make::pem_section(&pki.text("b.crt"), "CERTIFICATE").unwrap();
    let chain = [rustls::pki_types::CertificateDer::from(der)];
    let client = pki.client("b");
    let node = |name: &str| Expected::Node(NodeId::new(name).unwrap());
    assert_eq!(client.check(&node("b"), &chain), Ok(()));
    assert_eq!(client.check(&Expected::NodeHash(NameHash::of("b")), &chain), Ok(()));
    let text = client.check(&node("c"), &chain).unwrap_err().to_string();
    assert!(text.contains("expected node c, found node b, host localhost"), "{text}");
    assert!(client.check(&Expected::NodeHash(NameHash::of("c")), &chain).is_err());
}

#[test]
fn a_certificate_without_names_says_whose_it_is() {
    assert_eq!(
        Names { subject: "lonely".to_owned(), ..Names::default() }.to_string(),
        "none (subject lonely)"
    );
    let error = make::sign(
        &make::request(
            &CertSubject { common_name: "x".to_owned(), ..CertSubject::default() },
            &make::private_key(KeyKind::EcdsaP256).unwrap(),
        )
        .unwrap(),
        "",
        "",
        Dates::default(),
        pki::now(),
    );
    assert!(matches!(error, Err(make::MakeError::NoNames)), "{error:?}");
}
