//! The sources of configurations: command lines, files, directories, and the examples that we ship.

use super::super::directives::links::TcpPeer;
use super::*;

#[test]
fn the_help_text_names_everything_and_fits_the_terminal() {
    let help = help();
    for directive in DIRECTIVES.iter() {
        assert!(help.contains(&format!("\n  --{}: ", directive.name)), "{}", directive.name);
        for parameter in &directive.parameters {
            let is_there = help.contains(&format!("      {}=", parameter.name));
            assert_eq!(is_there, !parameter.former, "{}", parameter.name);
        }
    }
    for line in [
        "\n  --udp-peer: Connects to a neighbour over UDP\n",
        "\n      tls=TEXT                         tls-client profile\n",
        "\n      receptorkubeclientsetqps=TEXT    Kubernetes: requests per second\n",
    ] {
        assert!(help.contains(line), "{line}");
    }
    let widest = help.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(widest.chars().count() <= 100, "{widest}");
}

#[test]
fn an_alias_bomb_and_deep_nesting_end_in_an_error() {
    let mut bomb = "- a: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..9 {
        let aliases = vec![format!("*a{}", i - 1); 10].join(",");
        bomb += &format!("- a: &a{i} [{aliases}]\n");
    }
    for text in [bomb, "[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(10_000)] {
        let error = load_text(&text).unwrap_err().to_string();
        assert!(error.contains("not valid YAML"), "{error}");
    }
}

#[test]
fn help_and_version_come_before_everything_else() {
    let invoke = |line: &str| load(shlex::split(line).unwrap(), &environment());
    for line in ["", "--help", "-h", "--HELP", "--node --nonsense --help"] {
        assert!(matches!(invoke(line), Ok(Invocation::Help)), "{line}");
    }
    for line in ["--version", "-version", "--node id=a --version"] {
        assert!(matches!(invoke(line), Ok(Invocation::Version)), "{line}");
    }
}

#[test]
fn files_directories_and_arguments_are_one_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("20-peer.yaml", "- tcp-peer: b:2\n");
    write("10-peer.yml", "- tcp-peer: a:1\n");
    write("notes.txt", "not: [yaml");
    write(".hidden.yml", "not: [yaml");
    std::fs::create_dir(dir.path().join("sub.yml")).unwrap();
    let path = dir.path().display();
    let addresses = |config: &Config| {
        config.tcp_peers.iter().map(|peer: &TcpPeer| peer.address.to_string()).collect::<Vec<_>>()
    };
    let loaded =
        load_args(&format!("--node id=x --config-dir {path} --tcp-peer c:3 -c {path}/10-peer.yml")).unwrap();
    assert_eq!(addresses(&loaded.config), ["a:1", "b:2", "c:3", "a:1"]);
    assert_eq!(loaded.sources.files().len(), 3);

    write("15-peer.yml", "- tcp-peer: new:1\n");
    let again = loaded.sources.load_again().unwrap();
    assert_eq!(addresses(&again.config), ["a:1", "new:1", "b:2", "c:3", "a:1"]);
    let plan = plan(&loaded.config, &again.config).unwrap();
    assert!(
        matches!(plan.added.as_slice(), [Component::Link(Link::TcpPeer(peer))] if peer.address.host == "new")
    );

    write("15-peer.yml", "\n- tcp-peer: {}\n- nonsense\n");
    let errors = loaded.sources.load_again().unwrap_err();
    let places: Vec<String> = errors.0.iter().map(|error| error.at.to_string()).collect();
    assert_eq!(places, [format!("{path}/15-peer.yml:2"), format!("{path}/15-peer.yml:3")]);
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    let message = |line: String| load_args(&line).unwrap_err().to_string();
    assert!(message(format!("--config-dir {path}")).contains("holds no *.yml or *.yaml file"));
    assert!(
        message("--config /dev/zero".to_owned()).contains("cannot read /dev/zero")
            || message("--config /dev/zero".to_owned()).contains("is larger than")
    );
    std::fs::write(dir.path().join("binary.yml"), [0xff, 0xfe, 0, 1]).unwrap();
    assert!(
        message(format!("-c {path}/binary.yml")).contains("cannot read"),
        "{}",
        message(format!("-c {path}/binary.yml"))
    );
    std::fs::write(dir.path().join("binary.yml"), "#".repeat(5 * 1024 * 1024)).unwrap();
    assert!(message(format!("-c {path}/binary.yml")).contains("is larger than 4194304 bytes"));
}

/// Every file of `conf.d` is a complete configuration.
#[test]
fn the_worked_examples_load() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf.d");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 3, "{paths:?}");
    for path in paths {
        let loaded =
            load_args(&format!("--config {}", path.display())).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(loaded.warnings, [], "{}", path.display());
        assert!(!loaded.config.control_services.is_empty(), "{}", path.display());
    }
}

/// Every file of `tests/configs`, written by others, is a complete configuration. The only warnings are of settings
/// of `node` without effect, and of files that are open to strangers.
#[test]
fn what_others_write_loads() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs");
    let is_expected = |text: &str| text.starts_with("node: ") || text.ends_with(ADVICE);
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let loaded =
            load_args(&format!("--config {}", path.display())).unwrap_or_else(|errors| panic!("{errors}"));
        let without_effect: Vec<_> =
            loaded.warnings.iter().filter(|warning| !is_expected(&warning.text)).collect();
        assert!(without_effect.is_empty(), "{}: {without_effect:?}", path.display());
        count += 1;
    }
    assert!(count >= 10, "{count} files");
}

#[test]
fn version_2_says_the_same_as_version_1() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let one = "
- node: {id: foo, firewallrules: [{action: accept}]}
- log-level: debug
- local-only
- tcp-listener: {port: 1, cost: 2}
- tcp-listener: {port: 2}
- tcp-peer: a:1
- work-kubernetes: {worktype: k, namespace: n, image: i}
- work-kubernetes: {worktype: l, namespace: n, image: i}
- work-signing: {privatekey: /k}
- unix-socket-server: {filename: /run/x, remotenode: b, remoteservice: c}
";
    let two = "
---
version: 2
node:
  id: foo
  firewallrules:
    - action: accept
log-level: debug
Local-Only: yes
trace: false
tcp-listeners:
  - {port: 1, cost: 2}
  - port: 2
tcp-peers: [a:1]
work-kubernetes:
  - worktype: k
    namespace: n
    image: i
  - {worktype: l, namespace: n, image: i}
work-signing:
  privatekey: /k
unix-socket-servers:
  filename: /run/x
  remoteNode: b
  remoteService: c
";
    assert_eq!(parse_text(two), parse_text(one));

    std::fs::write(path("one.yml"), "- node: foo\n- local-only\n").unwrap();
    std::fs::write(path("two.yml"), "version: '2'\nnode: foo\nlocal-only: {}\n").unwrap();
    for (option, name, watched) in
        [("--config", "one.yml", 0), ("--config", "two.yml", 1), ("--config-v2", "two.yml", 1)]
    {
        let loaded = load_args(&format!("{option} {}", path(name).display())).unwrap();
        assert_eq!((loaded.sources.files().len(), loaded.sources.watched().len()), (1, watched), "{name}");
    }
    let error = load_args(&format!("--config-v2 {}", path("one.yml").display())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "command line argument 2: --config-v2 takes a file in version 2, a map with `version: 2`"
    );
}

#[test]
fn tls_profiles_are_read_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.yml");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        tls_profiles(&path).map_err(|errors| errors.to_string())
    };
    let client = "- tls-client: {name: c, rootcas: /r, insecureskipverify: yes}\n";
    let (servers, clients) = read(&format!("- from-the-future: 1\n- tcp-peer: {{}}\n{client}")).unwrap();
    assert_eq!((servers.len(), clients.len()), (0, 1));
    assert!(clients[0].insecure_skip_verify && clients[0].files.authorities == Some("/r".into()));
    let (servers, _) = read("version: 2\ntls-server: {name: s, cert: /c, key: /k}\n").unwrap();
    assert_eq!(servers[0].name, "s");
    let error = read(&format!("{client}- tls-client: {{name: d, cert: /c}}\n")).unwrap_err();
    assert_eq!(
        error,
        format!("{}:2: tls-client: `cert` and `key` go together: give both or neither", path.display())
    );
    assert!(read("[").unwrap_err().contains("not valid YAML"));
}
