//! The settings of a controller.

use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::controller::options::{
    Bounds, ControllerOptions, Discovery, NodeType, NoticeEvent, NoticeWay, NotifyTarget, OnLoss, Peers,
    Timers, Webhook,
};
use crate::mesh::firewall::Pattern;
use crate::wire::ServiceName;
use crate::work::limits::{Inherited, Limits};
use crate::work::{CommandType, Reach};

/// Reads a controller with these parameters, and gives the errors too.
fn read(parameters: &str) -> (Option<ControllerOptions>, Vec<String>) {
    let text = format!(
        "- local-only\n- tls-client: {{name: c}}\n- tls-server: {{name: s, cert: c, key: k}}\n- work-controller: {parameters}\n"
    );
    let mut report = Report::default();
    let items = yaml::read(Path::new("x.yml"), &text, &mut report).items;
    let config = assemble(items, &environment(), &mut report);
    let errors = report.finish().err().map(|errors| errors.to_string()).unwrap_or_default();
    let errors = errors.lines().map(|line| line.strip_prefix("x.yml:4: ").unwrap_or(line).to_owned());
    (config.controller, errors.collect())
}

fn accepted(parameters: &str) -> ControllerOptions {
    let (options, errors) = read(parameters);
    assert_eq!(errors, Vec::<String>::new(), "{parameters}");
    options.unwrap()
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn without_parameters_it_has_the_defaults_of_the_contract() {
    let seconds = Duration::from_secs;
    let defaults = ControllerOptions {
        node_type: NodeType::Control,
        store: "sqlite".to_owned(),
        store_password_file: None,
        credentials: None,
        jobs: None,
        notify: Default::default(),
        runner: Box::new(CommandType::runner(
            "ansible-runner",
            "worker",
            Limits { stderr_apart: true, ..Limits::default() },
        )),
        sync_read: Vec::new(),
        project_hosts: Vec::new(),
        run_dir: PathBuf::from("/tmp"),
        tls_client: None,
        require_tls: false,
        verify_signature: true,
        discovery: Discovery::Disabled,
        discover_nodes: Vec::new(),
        on_loss: OnLoss::TakeOver,
        timers: Timers {
            heartbeat: seconds(10),
            owner_lost_after: seconds(30),
            lost_after: seconds(180),
            poll: seconds(20),
        },
        bounds: Bounds {
            max_pending: 100_000,
            max_payload: 4 << 30,
            job_output: 1 << 30,
            payload_retention: 24 * HOUR,
            output_retention: 720 * HOUR,
            output_limit: 20 << 30,
            job_retention: 2_160 * HOUR,
            project_cache: 10 << 30,
            cleanup_every: 3 * HOUR,
        },
        forks_per_cpu: 4,
        mib_per_fork: 100,
        memory_reserve: None,
        disk_reserve: None,
        peers: Peers { service: ServiceName::new("ctrlpeer").unwrap(), tls_server: None, tls_client: None },
    };
    assert_eq!(accepted("{}"), defaults);
}

#[test]
fn every_parameter_has_an_effect() {
    let usual = accepted("{}");
    for parameter in directives::find("work-controller").unwrap().current() {
        let value = match parameter.name {
            "nodetype" => "hybrid",
            "store" => "'postgresql://meshd@db1,db2/meshd'",
            "tlsclient" | "peertlsclient" => "c",
            "peertlsserver" => "s",
            "requiretls" => "true",
            "verifysignature" => "false",
            "discovery" => "enabled",
            "discovernodes" | "projecthosts" => "[e1, /x.*/]",
            "syncread" => "[/opt/x]",
            "onloss" => "fail",
            "heartbeat" | "poll" => "5s",
            "ownerlostafter" | "lostafter" => "1h",
            "payloadretention" | "outputretention" | "jobretention" | "cleanupevery" => "77h",
            "runnerlimits" => "{user: jobs}",
            "notify" => "{ops: {command: 'true'}}",
            "rundir" | "credentials" | "jobs" | "storepasswordfile" | "runner" | "peerservice" => "other",
            _ => "77",
        };
        assert_ne!(accepted(&format!("{{{}: {value}}}", parameter.name)), usual, "{}", parameter.name);
    }
    let found = accepted("{discovernodes: [e1, /x.*/], tlsclient: c, memoryreserve: 0, cleanupevery: 0s}");
    assert_eq!(found.discover_nodes[0], Pattern::Exact("e1".to_owned()));
    assert!(found.discover_nodes[1].matches("x12") && !found.discover_nodes[1].matches("ax"));
    assert!(found.require_tls, "it follows tlsclient");
    assert!(!accepted("{tlsclient: c, requiretls: false}").require_tls);
    assert_eq!(found.memory_reserve, Some(0));
    assert_eq!(found.bounds.cleanup_every, Duration::ZERO);
}

#[test]
fn a_target_of_notices_is_an_address_or_a_command() {
    let found = accepted(
        "{notify: {chat: {url: 'https://chat.example/x', secretfile: /s, events: [failed, recovered], tlsclient: c, \
         allowlocal: true, jobs: named, timeout: 5s}, ops: {command: \"notify 'a b'\"}}}",
    );
    let way = NoticeWay::Webhook(Webhook {
        url: "https://chat.example/x".parse().unwrap(),
        secret_file: Some("/s".into()),
        tls_client: Some("c".to_owned()),
        allow_local: true,
    });
    let events = vec![NoticeEvent::Failed, NoticeEvent::Recovered];
    let chat = NotifyTarget { way, events, only_named: true, timeout: Duration::from_secs(5) };
    assert_eq!(found.notify["chat"], chat);
    assert!(!format!("{chat:?}").contains("/x"), "an address may hold a secret");
    let ops = &found.notify["ops"];
    assert_eq!(ops.way, NoticeWay::Command("notify".to_owned(), vec!["a b".to_owned()]));
    assert_eq!((&ops.events, ops.only_named), (&vec![NoticeEvent::Failed, NoticeEvent::Error], false));
    for (target, why) in [
        ("a: {}", "a target needs either `url` or `command`"),
        ("a: {url: 'https://h/', command: b}", "a target needs either `url` or `command`"),
        ("a: {url: 'ftp://h/'}", "it must begin with https:// or http://, and name a host"),
        ("a: {url: 'https://user:canary@h/'}", "it may hold no user name and password"),
        ("a: {url: 'https://h/', events: [test]}", "it must be one of first-failure, recovered"),
        ("a: {url: 'https://h/', timeout: 2m}", "it must be from 1s to 60s"),
        ("a: {url: 'https://h/', jobs: some}", "it must be all or named"),
        ("a: {url: 'https://h/', evnts: [failed]}", "events"),
        ("A: {url: 'https://h/'}", "a target's name is lower-case letters"),
    ] {
        let (_, errors) = read(&format!("{{notify: {{{target}}}}}"));
        assert!(errors.iter().any(|error| error.contains(why)), "{target}: {errors:?}");
    }
}

#[test]
fn its_runner_is_one_command_line_with_the_limits_of_a_work_type() {
    let found = accepted(
        "{runner: \"env A='b c' runner worker\", runnerlimits: {user: jobs, env: {A: 1}, timeout: 2h, cpu: 1.5, memory: 2097152, \
         pids: 7, cancelgrace: 1s, environment: clean}}",
    );
    let limits = Limits {
        user: Some("jobs".to_owned()),
        env: [("A".to_owned(), "1".to_owned())].into(),
        timeout: Some(2 * HOUR),
        cpu_millis: Some(1500),
        memory: Some(2 << 20),
        pids: Some(7),
        cancel_grace: Some(Duration::from_secs(1)),
        environment: Some(Inherited::Clean),
        stderr_apart: true,
        ..Limits::default()
    };
    let wanted = CommandType::runner("env", "'A=b c' runner worker", limits);
    assert_eq!(wanted.reach, Reach::Controller);
    assert_eq!(*found.runner, wanted);
    assert_eq!(found.runner, accepted(
        "{runner: \"env 'A=b c' runner worker\", runnerlimits: '{\"user\": \"jobs\", \"env\": {\"A\": 1}, \"timeout\": \"2h\", \
         \"cpu\": \"1.5\", \"memory\": \"2097152\", \"pids\": 7, \"cancelgrace\": \"1s\", \"environment\": \"clean\"}'}",
    ).runner);
}

const RUNDIR: &str = "work-controller: rundir: \"GIVEN\" is not allowed: it becomes part of command lines, so it \
                      may not contain blanks, quotes, backslashes, brackets, * or ?";

#[test]
fn what_is_wrong_is_named() {
    for (parameters, error) in [
        (
            "{nodetype: execution}",
            "work-controller: nodetype: \"execution\" is not allowed: it must be control or hybrid",
        ),
        (
            "{discovery: on}",
            "work-controller: discovery: \"true\" is not allowed: it must be off, disabled or enabled",
        ),
        ("{onloss: retry}", "work-controller: onloss: \"retry\" is not allowed: it must be takeover or fail"),
        ("{heartbeat: 0s}", "work-controller: heartbeat: \"0s\" is not allowed: it must be above zero"),
        (
            "{heartbeat: 11s}",
            "work-controller: `ownerlostafter` must be at least three times `heartbeat`: one lost message must not lose a node",
        ),
        (
            "{jobretention: 90d}",
            "work-controller: jobretention: \"90d\" is not allowed: write for example 1.5h, 30m or 30m10s",
        ),
        (
            "{maxpending: 0}",
            "work-controller: maxpending: 0 is not allowed: a whole number above zero is needed",
        ),
        (
            "{discovernodes: [/x]}",
            "work-controller: discovernodes: \"/x\" is not allowed: a regular expression begins and ends with a slash",
        ),
        (
            "{discovernodes: ['/(/']}",
            "work-controller: discovernodes: \"/(/\" is not allowed: \"(\" is not a regular expression",
        ),
        (
            "{tlsclient: none}",
            "work-controller: tlsclient: there is no tls-client named \"none\": there are c",
        ),
        ("{rundir: '/my runs'}", RUNDIR),
        ("{rundir: \"/o'runs\"}", RUNDIR),
        ("{rundir: '/run*'}", RUNDIR),
        ("{store: ''}", "work-controller: store: may not be empty"),
        (
            "{runner: \"a 'b\"}",
            "work-controller: runner: \"a 'b\" is not allowed: it must be a program and its arguments, with every quote closed",
        ),
        (
            "{runnerlimits: {pids: 0}}",
            "work-controller: runnerlimits: pids: 0 is not allowed: a unit is at least one process",
        ),
        (
            "{runnerlimits: {maxunits: 5}}",
            "work-controller: runnerlimits: unknown parameter `maxunits`: there are user, env, environment, timeout, cancelgrace, cpu, memory, pids",
        ),
        ("{runnerlimits: 5}", "work-controller: runnerlimits: 5 is not a map"),
    ] {
        let given = parameters.trim_matches(['{', '}']).split_once(": ").map_or("", |(_, given)| given);
        let error = error.replace("GIVEN", given.trim_matches(['\'', '"']));
        assert_eq!(read(parameters).1, [error], "{parameters}");
    }
}

#[test]
fn type_store_and_peer_service_need_a_restart() {
    let (config, _) = load_text("- local-only\n").unwrap();
    let with = |parameters| Config { controller: Some(accepted(parameters)), ..config.clone() };
    let usual = with("{}");
    let fixed = Err(NotReloadable::ModifiedOrAdded("work-controller"));
    let needed = ["{nodetype: hybrid}", "{store: 'sqlite:/x'}", "{peerservice: other}", "{peertlsserver: s}"];
    for parameters in needed {
        assert_eq!(plan(&usual, &with(parameters)).map(|_| ()), fixed, "{parameters}");
    }
    assert_eq!(plan(&config, &usual).map(|_| ()), fixed);
    assert_eq!(plan(&usual, &config).map(|_| ()), fixed);
    assert!(plan(&usual, &with("{poll: 5s}")).is_ok());
}
