//! Notations of single values, and the values that they stand for.

use super::*;
use crate::wire::ServiceName;

#[test]
fn modes_are_octal_in_all_notations() {
    for (text, mode) in [
        ("'0660'", 0o660),
        ("0660", 0o660),
        ("0o660", 0o660),
        ("432", 432),
        ("0x1b0", 0o660),
        ("\"0x1B0\"", 0o660),
        ("0b110", 6),
    ] {
        let text = format!("- local-only\n- control-service: {{filename: /x, permissions: {text}}}\n");
        assert_eq!(load_text(&text).unwrap().0.control_services[0].permissions, mode, "{text}");
    }
    let loaded = load_args("--local-only --control-service filename=/x permissions=0660").unwrap();
    assert_eq!(loaded.config.control_services[0].permissions, 0o660);
    let (config, _) = load_text("- local-only\n- control-service\n").unwrap();
    assert_eq!(
        (config.control_services[0].permissions, config.control_services[0].service),
        (0o600, ServiceName::CONTROL)
    );
}

/// Scalars of a text parameter, as go-yaml v2 reads them and Go's setter then prints them.
#[test]
fn scalars_are_read_as_go_reads_them() {
    for (scalar, text) in [
        ("0660", "432"),
        ("-0660", "-432"),
        ("0o660", "432"),
        ("0x1F", "31"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("08", "8.000000"),
        ("1.5", "1.500000"),
        ("yes", "true"),
        ("No", "false"),
        ("ON", "true"),
        ("off", "false"),
        ("y", "true"),
        ("N", "false"),
        ("True", "true"),
        ("12:30:45", "12:30:45"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("'0660'", "0660"),
        ("\"yes\"", "yes"),
        ("!!str 5", "5"),
        ("plain words", "plain words"),
    ] {
        let text_of = format!("- work-command: {{worktype: a, command: b, params: {scalar}}}\n");
        assert_eq!(parse_text(&text_of).work_commands[0].params, text, "{scalar}");
    }
}

#[test]
fn booleans_come_as_words_and_numbers() {
    for (text, flag) in
        [("yes", true), ("'Y'", true), ("1", true), ("t", true), ("no", false), ("'0'", false), ("f", false)]
    {
        let (config, _) = load_text(&format!("- tcp-peer: {{address: 'a:1', redial: {text}}}\n")).unwrap();
        assert_eq!(config.tcp_peers[0].redial, flag, "{text}");
    }
    assert!(load_text("- tcp-peer: a:1\n").unwrap().0.tcp_peers[0].redial);
}

#[test]
fn listening_addresses_have_three_forms() {
    for (text, expected) in [
        ("8888", "0.0.0.0:8888"),
        (":8888", "0.0.0.0:8888"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("'[::1]:1'", "[::1]:1"),
    ] {
        let (config, _) = load_text(&format!(
            "- local-only\n- control-service: {{tcplisten: '{}'}}\n",
            text.trim_matches('\'')
        ))
        .unwrap();
        assert_eq!(config.control_services[0].tcp_listen.as_ref().unwrap().to_string(), expected);
    }
}
