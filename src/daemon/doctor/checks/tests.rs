//! Each check finds the fault that a test makes, and none finds anything on a host where all is well.

use super::*;
use crate::daemon::doctor::facts::{Firewall, JobUser};
use crate::rpc::report::finding::Severity;

fn space(path: &str) -> FileSystem {
    let (size, free) = (100 << 30, 50 << 30);
    FileSystem { path: path.into(), size, free, inodes: 1000, free_inodes: 500, ..FileSystem::default() }
}

/// A host and a node with nothing wrong.
fn well() -> HostFacts {
    HostFacts {
        now: "2026-11-26T12:00:00Z".parse().unwrap(),
        node: "e1".to_owned(),
        runs_jobs: true,
        data: Some(space("/var/lib/meshd")),
        tmp: Some(space("/tmp")),
        files: Some(524_288),
        watches: Some(65_536),
        audit: Some(String::new()),
        selinux_enforces: true,
        fapolicyd_enforces: true,
        trusted: "/opt/runner/bin/ansible-runner 12 0ab\n".to_owned(),
        programs: vec![
            ("meshd".to_owned(), "/usr/bin/meshd".into()),
            ("work type x".to_owned(), "/opt/runner/bin/ansible-runner".into()),
        ],
        firewall: Some(Firewall { open: [(27000, 27300, "tcp".to_owned())].into(), ..Firewall::default() }),
        ports: vec![("tcp-listener on 0.0.0.0:27199".to_owned(), 27199, "tcp")],
        users: vec![JobUser { name: "meshd".to_owned(), has_subordinates: true, lingers: Some(true) }],
        runners: vec![("work type x: ansible-runner".to_owned(), Ok("2.4.3".to_owned()))],
        ..HostFacts::default()
    }
}

/// The one finding after a change of that host.
fn told(change: impl FnOnce(&mut HostFacts)) -> Finding {
    let mut facts = well();
    change(&mut facts);
    let mut found = all(&facts);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn nothing_is_told_where_all_is_well() {
    assert_eq!(all(&well()), []);
    assert_eq!(all(&HostFacts { files: Some(1 << 20), ..HostFacts::default() }), []);
}

type Change = fn(&mut HostFacts);

const FAULTS: &[(Change, Severity, &str, &str)] = &[
    (
        |facts| facts.open_keys = ["/etc/e1.key".into()].into(),
        Severity::Warning,
        "/etc/e1.key: this private key can be read by others",
        "chmod 600 /etc/e1.key",
    ),
    (
        |facts| facts.data = Some(FileSystem { size: 4 << 20, free: 100, ..space("/var/lib/meshd") }),
        Severity::Error,
        "100 bytes of 4 MiB are free, less than the reserve of 204 KiB",
        "meshctl work release",
    ),
    (
        |facts| facts.ends = [("/etc/e1.crt".into(), "2026-11-25T12:00:00Z".parse().unwrap())].into(),
        Severity::Error,
        "/etc/e1.crt: the certificate has expired on 2026-11-25",
        "meshctl node renew e1",
    ),
    (
        |facts| facts.ends = [("/etc/e1.crt".into(), "2026-12-06T12:00:00Z".parse().unwrap())].into(),
        Severity::Warning,
        "expires on 2026-12-06T12:00:00Z, in 10 days",
        "meshctl node renew e1",
    ),
    (
        |facts| facts.data.as_mut().unwrap().free = 100 << 20,
        Severity::Error,
        "100 MiB of 102400 MiB are free, less than the reserve of 1024 MiB",
        "meshctl work release",
    ),
    (
        |facts| facts.data.as_mut().unwrap().free_inodes = 9,
        Severity::Error,
        "9 of 1000 inodes",
        "meshctl work release",
    ),
    (|facts| facts.tmp.as_mut().unwrap().free = 0, Severity::Error, "/tmp: it is full", "find /tmp"),
    (
        |facts| facts.tmp.as_mut().unwrap().is_read_only = true,
        Severity::Error,
        "/tmp: it is read-only",
        "find /tmp",
    ),
    (|facts| facts.tmp.as_mut().unwrap().is_noexec = true, Severity::Warning, "noexec", "remount,exec"),
    (|facts| facts.files = Some(256), Severity::Error, "may open 256 files", "LimitNOFILE"),
    (|facts| facts.watches = Some(100), Severity::Warning, "100 directories", "fs.inotify.max_user_watches"),
    (
        |facts| facts.no_inotify = Some("Too many open files".to_owned()),
        Severity::Warning,
        "no inotify instance is available (Too many open files)",
        "fs.inotify.max_user_instances",
    ),
    (
        |facts| facts.runners[0].1 = Ok("1.4.9".to_owned()),
        Severity::Error,
        "it is version 1.4.9",
        "ansible-runner>=2.0",
    ),
    (
        |facts| facts.runners[0].1 = Err("No module named ansible_runner".to_owned()),
        Severity::Error,
        "No module named ansible_runner",
        "pip install",
    ),
    (
        |facts| facts.runners[0].1 = Ok("hello".to_owned()),
        Severity::Warning,
        "cannot understand its version: \"hello\"",
        "ansible-runner",
    ),
    (
        |facts| facts.hidden_units.push(("/etc/systemd/system/meshd.service".into(), false)),
        Severity::Warning,
        "/etc/systemd/system/meshd.service: it hides the unit",
        "systemctl revert meshd.service",
    ),
    (
        |facts| facts.hidden_units.push(("/etc/systemd/system/meshd.service".into(), true)),
        Severity::Error,
        "masked",
        "systemctl unmask meshd.service",
    ),
    // Records as auditd of RHEL 9 writes them.
    (
        |facts| {
            facts.audit = Some(
                "type=AVC msg=audit(1795694300.123:456): avc:  denied  { name_bind } for  pid=1234 comm=\"meshd\" src=27199 \
                 scontext=system_u:system_r:init_t:s0 tcontext=system_u:object_r:unreserved_port_t:s0 tclass=tcp_socket \
                 permissive=0\n\
                 type=AVC msg=audit(1795694300.124:457): avc:  denied  { read } for  pid=99 comm=\"httpd\" name=\"x\" \
                 tclass=file permissive=0\n\
                 type=AVC msg=audit(1600000000.124:2): avc:  denied  { read } for  pid=99 comm=\"meshd\" name=\"old\" \
                 tclass=file permissive=0\n"
                    .to_owned(),
            );
        },
        Severity::Error,
        "SELinux: meshd may not name_bind tcp_socket 27199",
        "audit2allow",
    ),
    (
        |facts| {
            facts.audit = Some(
                "type=FANOTIFY msg=audit(1795694300.372:590): resp=2 fan_type=1 fan_info=D subj_trust=2 obj_trust=0\n\
                 type=SYSCALL msg=audit(1795694300.372:590): arch=c000003e syscall=59 success=no exit=-1 pid=7 \
                 comm=\"ansible-runner\" exe=\"/usr/bin/python3.9\"\n\
                 type=FANOTIFY msg=audit(1795694301.000:591): resp=1 fan_type=1\n\
                 type=SYSCALL msg=audit(1795694301.000:591): comm=\"meshd\"\n"
                    .to_owned(),
            );
        },
        Severity::Error,
        "fapolicyd: ansible-runner was denied",
        "fapolicyd-cli --file add",
    ),
    (
        |facts| facts.trusted.clear(),
        Severity::Warning,
        "fapolicyd does not know /opt/runner/bin/ansible-runner",
        "fapolicyd-cli --file add /opt/runner/bin/ansible-runner",
    ),
    (
        |facts| facts.ports[0].1 = 27500,
        Severity::Warning,
        "do not let in tcp port 27500",
        "firewall-cmd --permanent --add-port=27500/tcp",
    ),
    (
        |facts| facts.ports[0].2 = "udp",
        Severity::Warning,
        "do not let in udp port 27199",
        "firewall-cmd --permanent --add-port=27199/udp",
    ),
    (
        |facts| facts.users[0].has_subordinates = false,
        Severity::Warning,
        "user meshd: it has no range",
        "--add-subuids",
    ),
    (
        |facts| facts.users[0].lingers = Some(false),
        Severity::Warning,
        "does not linger",
        "loginctl enable-linger meshd",
    ),
];

#[test]
fn each_fault_is_told_once_with_its_remedy() {
    for (change, severity, what, remedy) in FAULTS {
        let found = told(change);
        assert!(found.to_string().contains(what) && found.severity == *severity, "{what}: {found}");
        assert!(found.remedy.as_ref().is_some_and(|text| text.contains(remedy)), "{remedy}: {found}");
    }
}

#[test]
fn an_audit_log_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let found = told(|facts| facts.audit = None);
    assert_eq!(found.severity, Severity::NotAsked, "{found}");
}

#[test]
fn what_permissive_hosts_log_and_those_without_a_firewall_is_no_finding() {
    let mut facts = well();
    (facts.selinux_enforces, facts.fapolicyd_enforces, facts.firewall) = (false, false, None);
    facts.audit = None;
    facts.trusted.clear();
    facts.ports[0].1 = 1;
    assert_eq!(all(&facts), []);
}
