//! Certificates that are older or weaker than those of our commands: which are used with a warning, and which stay
//! refused. They lie in tests/vectors/tls, were made by openssl, and are valid for a hundred years.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::SupportedProtocolVersion;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::TlsAcceptor;

use crate::tls::error::FileProblem;
use crate::tls::inspect::{self, VerifyingParty};
use crate::tls::*;

fn vector(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/tls").join(name)
}

/// What a node that trusts these authorities says of a chain from node a.
fn verdict(authorities: &[&str], chain: &[&str]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let joined = |name: &str, parts: &[&str]| {
        let texts = parts.iter().map(|part| std::fs::read_to_string(vector(&format!("{part}.crt"))).unwrap());
        std::fs::write(dir.path().join(name), texts.collect::<String>()).unwrap();
        dir.path().join(name)
    };
    let trusted = joined("ca.crt", authorities);
    let verifier =
        VerifyingParty::by_authorities(&trusted, None, Role::Server).map_err(|error| error.to_string())?;
    let chain = joined("chain.crt", chain);
    inspect::verify(&verifier, &chain, Some("a"), None).map_err(|error| error.to_string())
}

#[test]
fn an_authority_that_is_named_is_used_and_nothing_else_gets_looser() {
    for (authorities, chain, refused) in [
        (&["old_authority"][..], &["by_old_authority"][..], None),
        (&["short_authority"], &["by_short_authority"], None),
        (&["short_authority", "good_authority", "old_authority"], &["by_short_authority"], None),
        (&["old_authority"], &["by_short_authority"], Some("is not among the authorities")),
        (&["good_authority"], &["by_old_authority"], Some("is not among the authorities")),
        // Certificates below the authority must not be weak, whatever other authorities are named.
        (&["good_authority"], &["by_short_between", "short_between"], Some("refused")),
        (&["good_authority", "short_authority"], &["by_short_between", "short_between"], Some("refused")),
        (&["good_authority", "old_authority"], &["by_old_between", "old_between"], Some("refused")),
        (
            &["good_authority", "short_authority"],
            &["short_leaf"],
            Some("an RSA key of 1024 bits, but only 2048 to 8192"),
        ),
        (&["old_authority"], &["old_leaf"], Some("the certificate of a is of X.509 version 1")),
        // Somebody else signed this one, so most likely the operator has named the wrong file.
        (&["old_between"], &["by_old_between"], Some("it has no CA flag, and is not self-signed")),
        (&["by_old_authority"], &["by_old_authority"], Some("it has no CA flag, and is not self-signed")),
    ] {
        match (verdict(authorities, chain), refused) {
            (Ok(()), None) => {}
            (Err(text), Some(part)) => assert!(text.contains(part), "{chain:?}: {text}"),
            (other, _) => panic!("{chain:?} by {authorities:?}: {other:?}"),
        }
    }
}

#[test]
fn one_that_says_that_it_is_no_authority_is_none_even_if_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.crt");
    let key = rcgen::KeyPair::generate().unwrap();
    for (is_ca, refused) in [(rcgen::IsCa::NoCa, false), (rcgen::IsCa::ExplicitNoCa, true)] {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = is_ca;
        std::fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
        let problem =
            VerifyingParty::by_authorities(&path, None, Role::Server).err().map(|error| error.problem);
        let is_refused = matches!(problem, Some(FileProblem::NotAnAuthority(_)));
        assert_eq!((is_refused, problem.is_some()), (refused, refused), "{problem:?}");
    }
}

#[test]
fn such_an_authority_is_warned_of() {
    for (authority, warning) in [
        ("old_authority", Some("the certificate of old authority has no CA flag (X.509 version 1)")),
        ("short_authority", Some("the authority short authority has an RSA key of 1024 bits")),
        ("good_authority", None),
    ] {
        let authorities = Some(vector(&format!("{authority}.crt")));
        let files = Files { authorities, ..Files::default() };
        let options = ClientOptions { name: "c".to_owned(), files, ..ClientOptions::default() };
        let warnings = ClientProfile::open(options, None).unwrap().authority_warnings();
        let expected =
            |text: &String| warning.is_some_and(|part| text.contains(part) && text.starts_with("rootcas "));
        assert_eq!(warnings.len(), usize::from(warning.is_some()), "{warnings:?}");
        assert!(warnings.iter().all(expected), "{warnings:?}");
    }
}

#[test]
fn an_own_certificate_of_version_1_is_refused_for_what_it_is() {
    let identity = Some((vector("old_leaf.crt"), vector("leaf.key")));
    let files = Files { identity, ..Files::default() };
    let options = ServerOptions { name: "s".to_owned(), files, ..ServerOptions::default() };
    let error = ServerProfile::open(options, None).expect_err("it is of version 1").to_string();
    for part in [
        "cert ",
        "old_leaf.crt: the certificate of a is of X.509 version 1",
        "meshctl cert makereq",
        "-extfile",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

/// A server that shows the certificate of version 1, and signs with that key.
fn server(version: &'static SupportedProtocolVersion, key: &PrivateKeyDer<'static>) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_file(vector("old_leaf.crt")).unwrap()];
    let provider = Arc::new(aws_lc_rs::default_provider());
    let key = provider.key_provider.load_private_key(key.clone_key()).unwrap();
    let shown = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    TlsAcceptor::from(Arc::new(config))
}

/// What a client says of that server.
async fn dial(server: &TlsAcceptor, options: ClientOptions) -> Result<(), String> {
    let client = ClientProfile::open(ClientOptions { name: "c".to_owned(), ..options }, None).unwrap();
    let (near, far) = tokio::io::duplex(1 << 16);
    let (_accepted, dialled) = tokio::join!(server.accept(near), client.connect(far, "localhost"));
    dialled.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn who_accepts_any_certificate_accepts_one_of_version_1_that_is_its_owners() {
    let own = PrivateKeyDer::from_pem_file(vector("leaf.key")).unwrap();
    let stranger = rcgen::KeyPair::generate().unwrap().serialize_der();
    let stranger = PrivateKeyDer::try_from(stranger).unwrap();
    let any = || ClientOptions { insecure_skip_verify: true, ..ClientOptions::default() };
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let honest = server(version, &own);
        assert_eq!(dial(&honest, any()).await, Ok(()), "{version:?}");
        let refused = dial(&server(version, &stranger), any()).await.expect_err("another's key");
        assert!(refused.contains("BadSignature"), "{version:?}: {refused}");
        let pinned = ClientOptions { pinned: vec!["00".repeat(32).parse().unwrap()], ..any() };
        assert!(dial(&honest, pinned).await.expect_err("another one is pinned").contains("not pinned"));
        let files = Files { authorities: Some(vector("old_authority.crt")), ..Files::default() };
        let careful = ClientOptions { files, ..ClientOptions::default() };
        let refused = dial(&honest, careful).await.expect_err("it is of version 1");
        assert!(refused.contains("of X.509 version 1"), "{version:?}: {refused}");
    }
}
