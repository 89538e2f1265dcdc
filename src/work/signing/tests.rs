//! Good and bad tokens, and the error text of each bad one.

use std::fs;

use jsonwebtoken::EncodingKey;
use serde_json::{Value, json};

use super::*;
use crate::tls::make::{self, KeyKind};

struct Keys {
    dir: tempfile::TempDir,
}

impl Keys {
    fn new(kind: KeyKind) -> Self {
        let keys = Self { dir: tempfile::tempdir().unwrap() };
        keys.replace(kind);
        keys
    }

    fn replace(&self, kind: KeyKind) {
        let private = make::private_key(kind).unwrap();
        fs::write(self.path("public"), make::public_key(&private).unwrap()).unwrap();
        fs::write(self.path("private"), private).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn signer(&self) -> Signer {
        Signer::open(&self.path("private"), Duration::from_secs(300)).unwrap()
    }

    fn verifier(&self) -> Verifier {
        Verifier::open(&self.path("public"), node("here")).unwrap()
    }

    /// A token with these claims.
    fn token(&self, algorithm: Algorithm, claims: &Value) -> String {
        let pem = fs::read(self.path("private")).unwrap();
        let key = EncodingKey::from_rsa_pem(&pem).unwrap();
        jsonwebtoken::encode(&Header::new(algorithm), claims, &key).unwrap()
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

#[test]
fn tokens_of_both_kinds_of_keys_are_accepted_once() {
    for kind in [KeyKind::Rsa(2048), KeyKind::Ed25519] {
        let keys = Keys::new(kind);
        let params = BTreeMap::from([("params".to_owned(), "-x".to_owned())]);
        let subject = Subject {
            work_type: Some("sh"),
            params: Some(&params),
            payload: Some([7; 32]),
            ..Subject::default()
        };
        let (signer, verifier) = (keys.signer(), keys.verifier());
        let token = signer.sign(&node("here"), &subject).unwrap();
        let came_with = Subject { payload: None, ..subject.clone() };
        assert_eq!(verifier.verify(&token, &came_with), Ok(Some([7; 32])), "{kind:?}");
        assert_eq!(verifier.verify(&token, &came_with), Err(SignatureError::Replayed));
        assert!(verifier.verify(&signer.sign(&node("here"), &subject).unwrap(), &came_with).is_ok());
    }
}

#[test]
fn a_receptor_nodes_token_is_accepted() {
    let keys = Keys::new(KeyKind::Rsa(2048));
    let verifier = keys.verifier();
    for audience in [json!(["here"]), json!("here"), json!(["there", "here"])] {
        let token = keys.token(Algorithm::RS512, &json!({"exp": now() + 60, "aud": audience}));
        for _ in 0..2 {
            assert_eq!(verifier.verify(&token, &Subject::default()), Ok(None), "{audience}");
        }
    }
    let late = keys.token(Algorithm::RS512, &json!({"exp": now() - 50, "aud": ["here"]}));
    assert_eq!(verifier.verify(&late, &Subject::default()), Ok(None), "clocks may differ");
}

#[test]
fn ours_carries_what_a_receptor_node_needs() {
    let keys = Keys::new(KeyKind::Rsa(2048));
    let token = keys.signer().sign(&node("there"), &Subject::default()).unwrap();
    assert_eq!(jsonwebtoken::decode_header(&token).unwrap().alg, Algorithm::RS512);
    let claims = jsonwebtoken::dangerous::insecure_decode::<Value>(&token).unwrap().claims;
    assert_eq!(claims["aud"], json!(["there"]));
    assert!((now() + 290..now() + 310).contains(&claims["exp"].as_i64().unwrap()));
}

#[test]
fn bad_tokens_are_refused_for_their_reason() {
    let keys = Keys::new(KeyKind::Rsa(2048));
    let other = Keys::new(KeyKind::Rsa(2048));
    let good = json!({"exp": now() + 60, "aud": ["here"]});
    let public = fs::read(keys.path("public")).unwrap();
    let hs256 =
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), &good, &EncodingKey::from_secret(&public))
            .unwrap();
    // {"alg":"none","typ":"JWT"} and {"exp":9999999999,"aud":["here"]}, unsigned.
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJleHAiOjk5OTk5OTk5OTksImF1ZCI6WyJoZXJlIl19.".to_owned();
    let rs512 = |claims: Value| keys.token(Algorithm::RS512, &claims);
    let mut changed = rs512(good.clone());
    changed.replace_range(changed.len() - 6..changed.len() - 4, "AA");
    let table = [
        ("empty", String::new(), "signature is empty"),
        ("garbage", "x.y".to_owned(), "the token is malformed: "),
        ("expired", rs512(json!({"exp": now() - 149, "aud": ["here"]})), "token is expired by 1"),
        ("no expiry", rs512(json!({"aud": ["here"]})), "the token has no expiry"),
        (
            "audience",
            rs512(json!({"exp": now() + 60, "aud": ["there"]})),
            "token audience did not match node ID: it is for there, this is here",
        ),
        (
            "no audience",
            rs512(json!({"exp": now() + 60})),
            "token audience did not match node ID: it is for nobody",
        ),
        ("none", none, "the token is malformed: "),
        ("HS256 with the public key", hs256, "the token is not signed with RS512"),
        ("RS256", keys.token(Algorithm::RS256, &good), "the token is not signed with RS512"),
        ("another key", other.token(Algorithm::RS512, &good), "the token was not made with the key"),
        ("changed signature", changed, "the token was not made with the key"),
    ];
    let verifier = keys.verifier();
    for (name, token, expected) in table {
        let text = verifier.verify(&token, &Subject::default()).expect_err(name).to_string();
        assert!(text.starts_with(expected), "{name}: {text}");
    }
}

#[test]
fn a_token_is_good_for_its_work_only() {
    let keys = Keys::new(KeyKind::Ed25519);
    let (signer, verifier) = (keys.signer(), keys.verifier());
    let params = BTreeMap::from([("params".to_owned(), "-x".to_owned())]);
    let altered = BTreeMap::from([("params".to_owned(), "-y".to_owned())]);
    let with_signature = BTreeMap::from([
        ("params".to_owned(), "-x".to_owned()),
        ("signature".to_owned(), "no parameter".to_owned()),
    ]);
    let subject = Subject { work_type: Some("sh"), params: Some(&params), ..Subject::default() };
    let about = |unit| Subject { verb: Verb::Results, unit: Some(unit), ..Subject::default() };
    let chosen = |id| Subject { chosen_id: Some(id), ..subject.clone() };
    for (signed, came_with, expected) in [
        (subject.clone(), Subject { params: Some(&with_signature), ..subject.clone() }, None),
        (subject.clone(), Subject { params: Some(&altered), ..subject.clone() }, Some("set of parameters")),
        (subject.clone(), Subject { work_type: Some("other"), ..subject.clone() }, Some("work type")),
        (about("a"), about("b"), Some("unit")),
        (about("a"), subject.clone(), Some("command")),
        (about("a"), about("a"), None),
        (about("a"), Subject { verb: Verb::Release, ..about("a") }, Some("command")),
        (chosen("a"), chosen("a"), None),
        (chosen("a"), chosen("b"), Some("set of parameters")),
        (chosen("a"), subject.clone(), Some("set of parameters")),
    ] {
        let token = signer.sign(&node("here"), &signed).unwrap();
        let verified = verifier.verify(&token, &came_with).map(drop);
        assert_eq!(verified, expected.map_or(Ok(()), |what| Err(SignatureError::OtherWork(what))));
    }
}

#[test]
fn keys_are_read_again_and_a_bad_file_never_replaces_a_good_one() {
    let keys = Keys::new(KeyKind::Ed25519);
    let (signer, verifier) = (keys.signer(), keys.verifier());
    let verdict =
        || verifier.verify(&signer.sign(&node("here"), &Subject::default()).unwrap(), &Subject::default());
    assert_eq!(verdict(), Ok(None));
    fs::write(keys.path("private"), "-----BEGIN PRIVATE KEY-----\nMC4CAQ").unwrap();
    fs::write(keys.path("public"), "").unwrap();
    assert_eq!(verdict(), Ok(None), "half-written files change nothing");
    keys.replace(KeyKind::Rsa(2048));
    assert_eq!(verdict(), Ok(None), "both have reloaded the new pair, of another kind");
    keys.replace(KeyKind::Ed25519);
    fs::remove_file(keys.path("public")).unwrap();
    assert_eq!(
        verdict(),
        Err(SignatureError::Algorithm("RS512")),
        "the verifier keeps the last key it could read"
    );
}

#[test]
fn files_with_other_keys_are_named() {
    let keys = Keys::new(KeyKind::Ed25519);
    let signer = |name: &str| Signer::open(&keys.path(name), Duration::from_secs(1)).unwrap_err().to_string();
    let verifier = |name: &str| Verifier::open(&keys.path(name), node("here")).unwrap_err().to_string();
    fs::write(keys.path("ecdsa"), make::private_key(KeyKind::EcdsaP256).unwrap()).unwrap();
    fs::write(keys.path("empty"), "").unwrap();
    assert!(signer("public").ends_with("/public: holds a public key where the private one is needed"));
    assert!(verifier("private").contains("holds a private key where the public one is needed"));
    assert!(signer("ecdsa").contains("holds no key that can be used"));
    assert!(verifier("empty").contains("holds no key that can be used"));
    assert!(signer("missing").contains("cannot be read: No such file"));
}

#[test]
fn the_unit_that_a_submitter_chose_is_bound_as_its_parameters_are() {
    let params = BTreeMap::from([("params".to_owned(), "-x".to_owned())]);
    let with_id =
        BTreeMap::from([(CHOSEN_ID.to_owned(), "a".to_owned()), ("params".to_owned(), "-x".to_owned())]);
    let here = Subject { params: Some(&params), chosen_id: Some("a"), ..Subject::default() };
    let there = Subject { params: Some(&with_id), ..Subject::default() };
    assert_eq!(Bound::to(&here, Timestamp::now()).params, Bound::to(&there, Timestamp::now()).params);
}

#[test]
fn what_may_have_been_used_before_the_start_is_refused_for_now() {
    let keys = Keys::new(KeyKind::Rsa(2048));
    let subject = Subject { verb: Verb::Cancel, unit: Some("a"), ..Subject::default() };
    let (signer, after) = (keys.signer(), keys.verifier());
    let made = Timestamp::now().as_millisecond() - 5000;
    let work = json!({"unit": "a", "verb": "cancel", "iat": made});
    let claims = json!({"exp": now() + 60, "aud": ["here"], "jti": "1", "work": work});
    let refused = after.verify(&keys.token(Algorithm::RS512, &claims), &subject).unwrap_err();
    assert_eq!(refused, SignatureError::Earlier);
    assert_eq!(refused, SignatureError::Earlier);
    assert_eq!(after.verify(&signer.sign(&node("here"), &subject).unwrap(), &subject), Ok(None));
    // A token without an ID is a receptor node's, and is never remembered.
    let theirs =
        keys.token(Algorithm::RS512, &json!({"exp": now() + 60, "iat": now() - 60, "aud": ["here"]}));
    assert_eq!(after.verify(&theirs, &subject), Ok(None));
}

#[test]
fn a_receptor_node_finds_no_claims_that_it_judges_by_its_own_clock() {
    let keys = Keys::new(KeyKind::Rsa(2048));
    let token = keys.signer().sign(&node("there"), &Subject::default()).unwrap();
    let claims = jsonwebtoken::dangerous::insecure_decode::<Value>(&token).unwrap().claims;
    assert!(claims.get("iat").is_none() && claims.get("nbf").is_none(), "{claims}");
    assert_eq!(claims["work"]["verb"], "submit");
}
