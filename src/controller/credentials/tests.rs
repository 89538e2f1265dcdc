use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};

use super::*;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, file: &str, mode: u32, text: &str) {
        let path = self.0.path().join(file);
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&path).unwrap();
        io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn read(&self, name: &str) -> Result<Credential, CredentialError> {
        Credentials::new(Some(self.0.path().to_owned())).read(&CredentialName::new(name).unwrap())
    }

    fn read_text(&self, text: &str) -> Result<Credential, CredentialError> {
        self.write("c.yml", 0o600, text);
        self.read("c")
    }

    fn refusal(&self, text: &str) -> String {
        self.read_text(text).unwrap_err().to_string()
    }
}

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

#[test]
fn each_kind_is_read_with_its_secrets() {
    let folder = Folder::new();
    let quay = folder.read_text("kind: registry\nhost: quay.io\nusername: u\npassword: canary\n").unwrap();
    let CredentialKind::Registry(login) = &quay.kind else { panic!("{quay:?}") };
    assert_eq!((login.host.as_str(), login.username.as_str()), ("quay.io", "u"));
    assert!(login.verify_ssl && !quay.mesh);
    assert_eq!(login.password.expose(), "canary");
    assert!(quay.may_be_sent_to(&url("https://quay.io/org/ee")));
    assert!(!quay.may_be_sent_to(&url("https://quay.io.evil.org/org/ee")));

    let text = "kind: scm\nusername: git\nssh_key: |\n  -----BEGIN\n  canary\nurls: ['ssh://git.example/team']\n\
                mesh: true\n";
    let git = folder.read_text(text).unwrap();
    assert!(git.mesh);
    assert!(git.may_be_sent_to(&url("ssh://git@git.example/team/site.git")));
    assert!(!git.may_be_sent_to(&url("ssh://git@git.example/team-b/site.git")));
    assert!(!git.may_be_sent_to(&url("https://git.example/team/site.git")));

    let cluster = folder.read_text("kind: kubernetes\nkubeconfig: 'canary'\nnamespace: jobs\n").unwrap();
    assert!(!cluster.may_be_sent_to(&url("https://kube.example")));

    for credential in [quay, git, cluster] {
        assert!(!format!("{credential:?}").contains("canary"), "{credential:?}");
    }
}

#[test]
fn a_password_of_digits_is_a_password() {
    let folder = Folder::new();
    let text = "kind: scm\npassword: 12345\nurls: ['https://h']\n";
    let CredentialKind::Scm(login) = folder.read_text(text).unwrap().kind else { panic!() };
    assert_eq!(login.proof, ScmProof::Password(Secret("12345".to_owned())));
}

#[test]
fn a_file_that_others_could_read_or_write_is_refused() {
    let folder = Folder::new();
    let text = "kind: registry\nhost: quay.io\nusername: u\npassword: canary\n";
    for mode in [0o400, 0o600] {
        folder.write("c.yml", mode, text);
        folder.read("c").unwrap();
        fs::remove_file(folder.0.path().join("c.yml")).unwrap();
    }
    for mode in [0o640, 0o604, 0o660, 0o700, 0o644, 0o4600] {
        folder.write("c.yml", mode, text);
        let error = folder.read("c").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("credential c: its file has mode {mode:04o}: make it 0600 or 0400")
        );
    }
    folder.write("c.yml", 0o600, text);
    symlink(folder.0.path().join("c.yml"), folder.0.path().join("link.yml")).unwrap();
    assert!(matches!(folder.read("link"), Err(CredentialError::Unreadable(..))));
    fs::create_dir(folder.0.path().join("dir.yml")).unwrap();
    assert!(matches!(folder.read("dir"), Err(CredentialError::NoFile(_))));
    crate::os::regular_file::pipe(&folder.0.path().join("fifo.yml"));
    assert!(matches!(folder.read("fifo"), Err(CredentialError::NoFile(_))));
    assert!(matches!(folder.read("none"), Err(CredentialError::Missing(..))));
    folder.write("large.yml", 0o600, &"#".repeat(1 << 21));
    assert!(matches!(folder.read("large"), Err(CredentialError::NoFile(_))));
    let none = Credentials::default().read(&CredentialName::new("c").unwrap());
    assert!(matches!(none, Err(CredentialError::NoDirectory(_))));
}

#[test]
fn faults_name_the_key_and_show_no_value() {
    let folder = Folder::new();
    for (text, fault) in [
        ("- canary", "its file is not a map of keys and values"),
        ("canary", "its file is not a map of keys and values"),
        ("a: {canary", "its file is not valid YAML: see line 1"),
        ("kind: canary", "kind is needed: registry, scm or kubernetes"),
        ("host: quay.io", "kind is needed: registry, scm or kubernetes"),
        ("kind: registry\nusername: u\npassword: canary", "host is needed: the registry, as in quay.io"),
        (
            "kind: registry\nhost: 'quay.io/canary'\nusername: u\npassword: canary",
            "host is a host, or host:port",
        ),
        (
            "kind: registry\nhost: quay.io\nusername: u\npassword: [canary]",
            "password is a text that is not empty: put it in quotes",
        ),
        (
            "kind: registry\nhost: quay.io\nusername: u\npassword: x\nverify_ssl: canary",
            "verify_ssl is true or false",
        ),
        (
            "kind: scm\npassword: canary",
            "urls is needed: the prefixes of the addresses that it may be sent to",
        ),
        ("kind: scm\nurls: ['https://h']", "password or ssh_key is needed: what proves the user"),
        (
            "kind: scm\npassword: canary\nssh_key: canary\nurls: ['https://h']",
            "password and ssh_key exclude each other",
        ),
        (
            "kind: scm\npassword: canary\nurls: ['https://h', 'https://u:canary@h']",
            "urls, entry 2: it holds a password: put it into a credential",
        ),
        (
            "kind: scm\npassword: canary\nurls: ['https://h']\nusernam: x",
            "unknown key usernam: a credential of kind scm has kind, username, password, ssh_key, urls, mesh",
        ),
        (
            "kind: kubernetes\nkubeconfig: x\nCANARY canary: x",
            "unknown key (not shown): a credential of kind kubernetes has kind, kubeconfig, namespace, urls, mesh",
        ),
    ] {
        let refusal = folder.refusal(text);
        assert_eq!(refusal, format!("credential c: {fault}"));
        assert!(!refusal.to_lowercase().contains("canary"));
    }
}

#[test]
fn names_are_safe_in_file_names_and_in_kubernetes() {
    for name in ["a", "quay", "git-hub.2", "0"] {
        assert_eq!(CredentialName::new(name).unwrap().as_str(), name);
    }
    for name in
        ["", ".", "..", "a..b", "../a", "a/b", "A", "-a", "a-", ".a", "a_b", "a b", "ä", &"a".repeat(64)]
    {
        assert_eq!(CredentialName::new(name), Err(BadName), "{name}");
    }
}

#[test]
fn the_directory_lists_what_can_be_named() {
    let folder = Folder::new();
    for file in ["b.yml", "a.yml", "README", "Upper.yml", ".c.yml.swp"] {
        folder.write(file, 0o600, "");
    }
    let names = Credentials::new(Some(folder.0.path().to_owned())).names().unwrap();
    assert_eq!(names.iter().map(CredentialName::as_str).collect::<Vec<_>>(), ["a", "b"]);
    assert!(Credentials::default().names().unwrap().is_empty());
}

#[test]
fn a_credential_is_used_for_its_kind_its_addresses_and_its_callers() {
    let folder = Folder::new();
    let credentials = Credentials::new(Some(folder.0.path().to_owned()));
    let name = |text| CredentialName::new(text).unwrap();
    let secret = "password: canary\n";
    folder.write("quay.yml", 0o600, &format!("kind: registry\nhost: quay.io\nusername: u\n{secret}"));
    folder.write(
        "git.yml",
        0o600,
        &format!("kind: scm\n{secret}urls: ['https://git.example/team']\nmesh: true\n"),
    );
    assert_eq!(credentials.registry(&name("quay"), "quay.io/team/ee:1").unwrap().host, "quay.io");
    let url = |text| Url::parse(text).unwrap();
    assert!(credentials.repository(&name("git"), &url("https://git.example/team/site.git")).is_ok());
    assert!(credentials.check_mesh(&name("git")).is_ok());
    assert!(credentials.check_registry(&name("quay")).is_ok());
    let registry = |name, image| credentials.registry(&name, image).map(drop);
    let repository = |name, address| credentials.repository(&name, &url(address)).map(drop);
    for (refused, why) in [
        (registry(name("quay"), "ghcr.io/ee"), "quay may not be sent to https://ghcr.io/ee"),
        (registry(name("quay"), "ee"), "quay may not be sent to https://docker.io/ee"),
        (registry(name("quay"), "quay.io/a?b"), "quay cannot be used for the image \"quay.io/a?b\""),
        (registry(name("none"), "quay.io/a"), "none: there is no file"),
        (registry(name("git"), "git.example/team/ee"), "git is of kind scm: a credential of kind registry"),
        (repository(name("quay"), "https://quay.io/a"), "quay is of kind registry: a credential of kind scm"),
        (
            repository(name("git"), "https://git.example/other"),
            "git may not be sent to https://git.example/other",
        ),
        (repository(name("git"), "ssh://git.example/team"), "git may not be sent to ssh://git.example/team"),
        (credentials.check_registry(&name("git")), "git is of kind scm: a credential of kind registry"),
        (credentials.check_mesh(&name("quay")), "quay may not be used by callers over the mesh"),
    ] {
        let text = refused.unwrap_err().to_string();
        assert!(text.starts_with(&format!("credential {why}")), "{text}");
        assert!(!text.contains("canary"));
    }
}
