//! The hook of a saved job: by what a delivery proves that its forge sent it, whether it is meant, and which of its fields
//! become variables. Nothing else of a body goes anywhere, and no message shows a value of it. Starts nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use http::HeaderMap;
use serde::de::Deserializer;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::file::SavedJob;
use super::rules as own;
use crate::os::{hex, private_file};
use crate::rpc::report::saved::HookKind;
use crate::work::jobs::HookDelivery;

/// The shortest secret. A shorter one is guessed.
const SHORTEST_SECRET: usize = 16;
/// The longest ID of a delivery that is kept as it is.
const LONGEST_ID: usize = 128;
/// How many jobs one hook starts at once, and in what time it may start one more.
const BURST: u32 = 30;
const EACH: Duration = Duration::from_secs(2);
/// How texts begin that Ansible evaluates wherever a variable has them.
const EVALUATED: [&str; 3] = ["{{", "{%", "{#"];
/// How keys begin that make something else than a map of a map.
const MARK: &str = "__ansible";

/// A hook as the file says it.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a map, such as {kind: github, secret_file: /etc/meshd/hooks/deploy}"
)]
pub(crate) struct SavedHook {
    /// Who sends.
    pub kind: HookKind,
    /// What the sender proves that it knows, on the disk of this node.
    #[serde(deserialize_with = "path")]
    secret_file: PathBuf,
    /// Variables, each with the place in the body where its value is (RFC 6901).
    #[serde(default)]
    vars: BTreeMap<String, String>,
    /// Places in the body, each with the value without which nothing is started.
    #[serde(default)]
    when: BTreeMap<String, Value>,
}

fn path<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
    own::absolute(d).map(Option::unwrap_or_default)
}

/// What becomes of a delivery.
#[derive(Debug, PartialEq)]
pub(crate) enum Judged {
    /// It does not prove that it comes from the forge.
    Stranger(String),
    /// The forge tells of something else.
    Unmeant(String),
    /// The job cannot start with this body.
    Unfit(String),
    /// The variables that it gives, and its ID.
    Meant(Map<String, Value>, Option<String>),
}

impl SavedHook {
    /// The key that contradicts the rest of the job, and why, if one does.
    pub(super) fn fault(&self, job: &SavedJob) -> Option<(String, String)> {
        let places = self.vars.iter().map(|(name, place)| (format!("vars.{name}"), place));
        let places = places.chain(self.when.keys().map(|place| (format!("when.{place}"), place)));
        let wrong = |(key, place): (String, &String)| {
            let why = "it is not a place in the body, such as /release/tag_name".to_owned();
            (!is_pointer(place)).then_some((key, why))
        };
        let strange = |name: &String| {
            let why = match job.vars.get(name) {
                None => "there is no such variable in `vars`",
                Some(var) if var.secret => "it is secret, and the forge keeps what it sends",
                Some(_) => return None,
            };
            Some((format!("vars.{name}"), why.to_owned()))
        };
        let needed = |name: &&String| !self.vars.contains_key(*name);
        let mut open = job.vars.iter().filter(|(_, var)| var.default.is_none()).map(|(name, _)| name);
        places.into_iter().find_map(wrong).or_else(|| self.vars.keys().find_map(strange)).or_else(|| {
            let name = open.find(needed)?;
            Some(("vars".to_owned(), format!("{name} is missing: it has no default")))
        })
    }

    /// Whether the sender knows the secret.
    fn is_proven(&self, secret: &[u8], headers: &HeaderMap, body: &[u8]) -> Option<()> {
        let shown = match self.kind {
            HookKind::Github => {
                let signature = hex::parse(only(headers, "x-hub-signature-256")?.strip_prefix(b"sha256=")?)?;
                return hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), body, &signature).ok();
            }
            HookKind::Gitlab => only(headers, "x-gitlab-token")?,
            HookKind::Token => match only(headers, "authorization") {
                Some(value) => value.strip_prefix(b"Bearer ")?,
                None => only(headers, "x-meshd-token")?,
            },
        };
        verify_slices_are_equal(shown, secret).ok()
    }

    /// What the forge calls the delivery; it sends a repeated one under the same ID.
    fn id(&self, headers: &HeaderMap) -> Option<String> {
        let names: &[&str] = match self.kind {
            HookKind::Github => &["x-github-delivery"],
            // The second is that of a GitLab before 17.4.
            HookKind::Gitlab => &["idempotency-key", "x-gitlab-event-uuid"],
            HookKind::Token => &["idempotency-key"],
        };
        let id = names.iter().find_map(|name| only(headers, name))?;
        let is_plain = id.len() <= LONGEST_ID && id.iter().all(u8::is_ascii_graphic) && !id.is_empty();
        let hashed = || hex::print(digest(&SHA256, id).as_ref());
        Some(if is_plain { String::from_utf8_lossy(id).into_owned() } else { hashed() })
    }
}

impl SavedJob {
    /// What becomes of a delivery to this job. Blocks on the disk.
    pub(crate) fn judge(&self, HookDelivery { headers, body, .. }: &HookDelivery) -> Judged {
        let Some(hook) = &self.hook else { return Judged::Stranger("the job has no hook".to_owned()) };
        let useless = |why| Judged::Stranger(format!("{}: {why}", hook.secret_file.display()));
        let secret = match private_file::secret(&hook.secret_file) {
            Ok(secret) if secret.len() >= SHORTEST_SECRET => secret,
            Ok(_) => {
                return useless(format!("it has a secret of fewer than {SHORTEST_SECRET} characters"));
            }
            Err(error) => return useless(error.to_string()),
        };
        if hook.is_proven(&secret, headers, body).is_none() {
            return Judged::Stranger("its token or signature is missing or wrong".to_owned());
        }
        if only(headers, "x-github-event") == Some(b"ping") {
            return Judged::Unmeant("it is a ping".to_owned());
        }
        // The depth of what serde_json reads is bounded. Its own words may show a value.
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return Judged::Unfit("the body is not JSON, or too deep".to_owned());
        };
        if let Some((place, _)) = hook.when.iter().find(|(place, value)| body.pointer(place) != Some(value)) {
            return Judged::Unmeant(format!("{place} is not what `when` says"));
        }
        let found = hook.vars.iter().filter_map(|(name, place)| {
            let value = body.pointer(place).filter(|value| !value.is_null())?;
            Some((name.clone(), value.clone()))
        });
        let given: Map<String, Value> = found.collect();
        let settled = match self.variables(given.clone()) {
            Ok(settled) => settled,
            Err(why) => return Judged::Unfit(why),
        };
        // What stands among the choices comes from the file.
        let is_free = |name: &String| self.vars.get(name).is_none_or(|var| var.choices.is_empty());
        match given.keys().find(|name| is_free(name) && !settled.get(*name).is_none_or(is_inert)) {
            Some(name) => Judged::Unfit(format!(
                "{name}: it has control characters, or something that Ansible would evaluate"
            )),
            None => Judged::Meant(given, hook.id(headers)),
        }
    }
}

/// Whether Ansible takes a value as it is.
fn is_inert(value: &Value) -> bool {
    let is_control = |letter: char| letter.is_control() && !"\n\r\t".contains(letter);
    let is_text =
        |text: &str| !text.contains(is_control) && !EVALUATED.iter().any(|begin| text.contains(begin));
    match value {
        Value::String(text) => is_text(text),
        Value::Array(items) => items.iter().all(is_inert),
        Value::Object(keys) => {
            keys.iter().all(|(key, value)| is_text(key) && !key.starts_with(MARK) && is_inert(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Whether a text is a pointer of RFC 6901, but not to the whole.
fn is_pointer(text: &str) -> bool {
    let is_escape = |rest: &str| rest.starts_with(['0', '1']);
    text.starts_with('/') && text.split('~').skip(1).all(is_escape)
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value.as_bytes())
}

/// How often hooks start jobs: each has a burst, and then one start in a while. Has no more entries than there are hooks
/// whose secret somebody knows.
#[derive(Debug, Default)]
pub(crate) struct HookRates(BTreeMap<String, Instant>);

impl HookRates {
    /// Whether a hook may start one more job now.
    pub(crate) fn take(&mut self, name: &str, now: Instant) -> bool {
        self.0.retain(|_, rests| *rests > now);
        let rests = self.0.get(name).copied().unwrap_or(now);
        let is_free = rests + EACH <= now + EACH * BURST;
        if is_free {
            self.0.insert(name.to_owned(), rests + EACH);
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    /// Secret, body and signature of GitHub's page "Validating webhook deliveries".
    const SECRET: &str = "It's a Secret to Everybody";
    const SIGNED: &str = "Hello, World!";
    const SIGNATURE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    struct Rig {
        temp: tempfile::TempDir,
        kind: &'static str,
        vars: &'static str,
        hook: &'static str,
    }

    impl Rig {
        fn new(kind: &'static str) -> Self {
            let temp = tempfile::tempdir().unwrap();
            let this = Self {
                temp,
                kind,
                vars: "version: {}",
                hook: "vars: {version: /release/tag_name}, when: {/ref: main, /deleted: false}",
            };
            this.secret(SECRET, 0o600);
            this
        }

        fn secret(&self, text: &str, mode: u32) {
            let file = self.temp.path().join("secret");
            fs::write(&file, format!("{text}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }

        fn text(&self) -> String {
            let Self { temp, kind, vars, hook } = self;
            let file = temp.path().join("secret");
            format!(
                "module: ping\nvars: {{{vars}}}\nhook: {{kind: {kind}, secret_file: {}, {hook}}}\n",
                file.display()
            )
        }

        fn fault(&self) -> String {
            SavedJob::parse(&self.text()).map_or_else(|fault| fault.text, |job| format!("{job:?}"))
        }

        fn judge(&self, headers: &[(&'static str, &str)], body: impl Into<Vec<u8>>) -> Judged {
            let job = SavedJob::parse(&self.text()).unwrap_or_else(|fault| panic!("{fault:?}"));
            let pairs = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            let pairs: Vec<(http::HeaderName, http::HeaderValue)> = pairs.collect();
            let mut headers = HeaderMap::new();
            pairs.into_iter().for_each(|(name, value)| _ = headers.append(name, value));
            job.judge(&HookDelivery { name: "deploy".to_owned(), headers, body: body.into().into() })
        }

        /// What becomes of a body with the right token.
        fn token(&self, body: impl Into<Vec<u8>>) -> Judged {
            self.judge(&[("x-meshd-token", SECRET)], body)
        }
    }

    fn meant(vars: Value, id: Option<&str>) -> Judged {
        Judged::Meant(vars.as_object().unwrap().clone(), id.map(str::to_owned))
    }

    fn body(version: Value) -> String {
        json!({"ref": "main", "deleted": false, "release": {"tag_name": version}}).to_string()
    }

    #[track_caller]
    fn refused(judged: Judged, why: &str) {
        let (Judged::Stranger(text) | Judged::Unmeant(text) | Judged::Unfit(text)) = &judged else {
            panic!("{judged:?}")
        };
        assert!(text.contains(why), "{judged:?}");
    }

    #[test]
    fn github_signs_the_body() {
        let rig = Rig::new("github");
        let own = SavedJob::parse(&rig.text()).unwrap().hook.unwrap();
        let proven = |signature: &str, body: &str| {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-hub-signature-256"),
                signature.parse().unwrap(),
            )]);
            own.is_proven(SECRET.as_bytes(), &headers, body.as_bytes()).is_some()
        };
        assert!(proven(SIGNATURE, SIGNED), "the example of GitHub's documentation");
        let cut = &SIGNATURE[..SIGNATURE.len() - 2];
        for (signature, body) in [
            (SIGNATURE, "Hello, World?"),
            (cut, SIGNED),
            (&SIGNATURE[7..], SIGNED),
            ("sha256=", SIGNED),
            (&SIGNATURE.replace("sha256", "sha1"), SIGNED),
            (&SIGNATURE.replace('7', "g"), SIGNED),
        ] {
            assert!(!proven(signature, body), "{signature}");
        }
        let text = body(json!("v1"));
        let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
        let sum: String =
            hmac::sign(&key, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        let signature = format!("sha256={sum}");
        let signed = ("x-hub-signature-256", signature.as_str());
        let id = ("x-github-delivery", "72d3162e-cc78-11e3");
        assert_eq!(rig.judge(&[signed, id], text.clone()), meant(json!({"version": "v1"}), Some(id.1)));
        refused(rig.judge(&[signed, id], format!("{text} ")), "signature");
        refused(rig.judge(&[signed, signed], text.clone()), "signature");
        refused(
            rig.judge(&[("x-hub-signature-256", SECRET), ("authorization", SECRET)], text.clone()),
            "signature",
        );
        refused(rig.judge(&[signed, ("x-github-event", "ping")], text), "ping");
    }

    #[test]
    fn gitlab_and_others_show_a_token() {
        let (gitlab, token, text) = (Rig::new("gitlab"), Rig::new("token"), body(json!("v1")));
        let good = |id| meant(json!({"version": "v1"}), id);
        let shown = ("x-gitlab-token", SECRET);
        let event = ("x-gitlab-event-uuid", "event");
        assert_eq!(gitlab.judge(&[shown, event], text.clone()), good(Some("event")));
        assert_eq!(
            gitlab.judge(&[shown, event, ("idempotency-key", "try")], text.clone()),
            good(Some("try"))
        );
        assert_eq!(gitlab.judge(&[shown], text.clone()), good(None));
        let bearer = format!("Bearer {SECRET}");
        assert_eq!(token.judge(&[("authorization", &bearer)], text.clone()), good(None));
        let long = "x".repeat(129);
        let Judged::Meant(_, Some(id)) =
            token.judge(&[("x-meshd-token", SECRET), ("idempotency-key", &long)], text.clone())
        else {
            panic!("no ID")
        };
        assert_eq!((id.len(), id.contains('x')), (64, false), "a long one is hashed");
        for (rig, headers) in [
            (&gitlab, vec![("x-meshd-token", SECRET)]),
            (&gitlab, vec![("x-gitlab-token", &SECRET[1..])]),
            (&token, vec![]),
            (&token, vec![("x-meshd-token", "")]),
            (&token, vec![("x-meshd-token", SECRET), ("authorization", "Bearer no")]),
        ] {
            refused(rig.judge(&headers, text.clone()), "token or signature is missing or wrong");
        }
        token.secret("", 0o600);
        refused(token.judge(&[("x-meshd-token", "")], text.clone()), "it is empty");
        token.secret("fifteen-letters", 0o600);
        refused(token.judge(&[("x-meshd-token", "fifteen-letters")], text.clone()), "fewer than 16");
        token.secret(SECRET, 0o640);
        refused(token.token(text), "others can read it");
    }

    #[test]
    fn only_a_body_that_is_meant_starts_something() {
        let rig = Rig::new("token");
        for text in [
            json!({"ref": "other", "deleted": false}),
            json!({"ref": ["main"], "deleted": false}),
            json!({"ref": "main", "deleted": "false"}),
            json!({"deleted": false}),
            json!(["main"]),
        ] {
            refused(rig.token(text.to_string()), "is not what `when` says");
        }
        for value in [json!(null), json!(["v1"]), json!({"a": 1})] {
            refused(rig.token(body(value)), "version");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for text in ["", "ref=main", "{\"ref\": \"main\"", "\u{feff}{}", &deep] {
            refused(rig.token(text), "not JSON");
        }
        refused(rig.token(b"{\"ref\": \"\xff\"}".to_vec()), "not JSON");
    }

    #[test]
    fn what_ansible_would_evaluate_is_refused_and_all_else_is_a_text() {
        let mut rig = Rig::new("token");
        for text in [
            "$(id); `id` 'a\" \\ | & > /etc",
            "-e @/etc/shadow",
            "--become",
            "!vault |",
            "a\nb: c\t",
            "{ { é",
        ] {
            assert_eq!(rig.token(body(json!(text))), meant(json!({"version": text}), None));
        }
        for text in ["{{ lookup('pipe', 'id') }}", "a{%raw%}", "{#", "a\0b", "\u{1b}[2J", "{{{"] {
            refused(rig.token(body(json!(text))), "version: it has control characters, or something");
        }
        rig.vars = "version: {pattern: '.*'}";
        refused(rig.token(body(json!("{{ 1 }}"))), "Ansible would evaluate");
        rig.vars = "version: {choices: ['{{ stable }}', x]}";
        assert_eq!(rig.token(body(json!("{{ stable }}"))), meant(json!({"version": "{{ stable }}"}), None));
        refused(rig.token(body(json!("{{ other }}"))), "must be one of");
        rig.vars = "version: {pattern: 'v[0-9.]+'}";
        refused(rig.token(body(json!("v1\n"))), "does not match");
        rig.vars = "version: {type: int}";
        assert_eq!(rig.token(body(json!(7))), meant(json!({"version": 7}), None));
        rig.vars = "version: {type: json}";
        assert_eq!(rig.token(body(json!({"a": [1]}))), meant(json!({"version": {"a": [1]}}), None));
        for value in [
            json!({"a": [{"b": "{{ 1 }}"}]}),
            json!({"{{ 1 }}": 1}),
            json!({"a": {"__ansible_unsafe": "x"}}),
            json!(r#"{"a": "\u007b{ 1 }}"}"#),
        ] {
            refused(rig.token(body(value)), "Ansible would evaluate");
        }
    }

    #[test]
    fn faults_of_a_file_are_named() {
        let mut rig = Rig::new("github");
        let mut check = |vars, hook, why: &str| {
            (rig.vars, rig.hook) = (vars, hook);
            assert!(rig.fault().contains(why), "{}", rig.fault());
        };
        check("a: {}", "vars: {b: /b}", "hook.vars.b: there is no such variable");
        check("a: {secret: true}", "vars: {a: /a}", "hook.vars.a: it is secret");
        check("a: {}, b: {default: x}", "when: {/a: 1}", "hook.vars: a is missing: it has no default");
        check("a: {}", "vars: {a: release.tag}", "hook.vars.a: it is not a place in the body");
        check("a: {}", "vars: {a: /a~2b}", "hook.vars.a: it is not a place in the body");
        check("a: {}", "vars: {a: /a}, when: {b: 1}", "hook.when.b: it is not a place in the body");
        check("a: {}", "vars: {a: /a}, when: {/b: null}", "hook.when./b: it is empty");
        check("a: {}", "vars: {a: /a}, wehn: {/b: 1}", "did you mean");
        check("a: {}", "vars: {a: '/a~1b~0/0'}", "SavedHook");
        rig.kind = "bitbucket";
        assert!(
            rig.fault().contains("hook.kind: it must be one of token, github, gitlab"),
            "{}",
            rig.fault()
        );
    }

    #[test]
    fn a_hook_has_a_burst_and_then_its_rate() {
        let (mut rates, start) = (HookRates::default(), Instant::now());
        let mut taken = |name, seconds, tries| {
            (0..tries).filter(|_| rates.take(name, start + Duration::from_secs(seconds))).count()
        };
        assert_eq!(
            [taken("a", 0, 99), taken("a", 1, 9), taken("a", 2, 9), taken("b", 2, 99)],
            [30, 0, 1, 30]
        );
        assert_eq!([taken("a", 12, 99), taken("a", 1000, 99)], [5, 30]);
        assert_eq!(rates.0.len(), 1, "who rests is forgotten");
    }
}
