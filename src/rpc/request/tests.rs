//! Every text here was seen from a Go node, unless the test says otherwise.

use proptest::prelude::*;

use super::*;

fn refused(line: &str) -> String {
    match Request::parse(line.as_bytes()) {
        Err(error) => error.to_string(),
        Ok(request) => panic!("{line} was taken as {request:?}"),
    }
}

fn taken(line: &str) -> Request {
    Request::parse(line.as_bytes()).unwrap_or_else(|error| panic!("{line} was refused: {error}"))
}

fn results(unit: &str, start: u64) -> Request {
    Request::Work(WorkRequest::Results(Follow {
        unit: unit.to_owned(),
        start,
        signature: None,
        ends_with_unit: false,
    }))
}

#[test]
fn words_are_refused_in_the_texts_clients_know() {
    for (line, text) in [
        ("nonsense", "Unknown command"),
        (" status", "Unknown command"),
        ("status x", "status command does not take parameters"),
        ("ping", "no ping target"),
        ("ping ", "no ping target"),
        ("traceroute", "no traceroute target"),
        ("connect", "no connect target"),
        ("connect a", "no connect target"),
        ("connect a b c d", "too many parameters"),
        ("work", "bad command"),
        ("work nonsense", "bad command"),
        ("work follow a", "bad command"),
        ("work disclaim a", "bad command"),
        ("work start a b", "bad command"),
        ("work submit", "work submit requires a target node and work type"),
        ("work submit a", "work submit requires a target node and work type"),
        ("work status", "work status requires a unit ID"),
        ("work cancel", "work cancel requires a unit ID"),
        ("work release a b", "work release does not take parameters after the unit ID"),
        ("work force-release", "work force-release requires a unit ID"),
        ("work results", "work results requires a unit ID"),
        ("work results a 1 2", "work results only takes a unit ID and optional start position"),
        (
            "work results a x",
            "error converting start position to integer: strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        (
            "work results a 99999999999999999999999",
            "error converting start position to integer: strconv.ParseInt: parsing \
             \"99999999999999999999999\": value out of range",
        ),
    ] {
        assert_eq!(refused(line), text, "{line}");
    }
}

#[test]
fn json_is_refused_in_the_texts_clients_know() {
    let results = |start: &str| {
        format!(r#"{{"command":"work","subcommand":"results","unitid":"a","startpos":{start}}}"#)
    };
    for (line, text) in [
        (r#"{"x""#, "unexpected end of JSON input"),
        (r#"{"x":1}"#, "JSON did not contain a command"),
        (r#"{"command":5}"#, "command must be a string"),
        (r#"{"command":"STATUS"}"#, "Unknown command"),
        (
            r#"{"command":"status","requested_fields":[5]}"#,
            "each element of requested_fields must be a string",
        ),
        (r#"{"command":"ping"}"#, "no ping target"),
        (r#"{"command":"ping","target":5}"#, "ping target must be string"),
        (r#"{"command":"traceroute","target":null}"#, "traceroute target must be string"),
        (r#"{"command":"connect"}"#, "no connect target node"),
        (r#"{"command":"connect","node":1}"#, "connect target node must be string"),
        (r#"{"command":"connect","node":"a"}"#, "no connect target service"),
        (r#"{"command":"connect","node":"a","service":"b","tls":1}"#, "connect tls name must be string"),
        (r#"{"command":"work"}"#, "field subcommand missing"),
        (r#"{"command":"work","subcommand":5}"#, "field subcommand must be a string"),
        (r#"{"command":"work","subcommand":"status"}"#, "field unitid missing"),
        (r#"{"command":"work","subcommand":"cancel","unitid":1}"#, "field unitid must be a string"),
        (
            r#"{"command":"work","subcommand":"submit","node":"n","worktype":5}"#,
            "submit parameters must all be strings and worktype is not",
        ),
        (r#"{"command":"work","subcommand":"submit"}"#, "field node missing"),
        (r#"{"command":"work","subcommand":"start","node":"n","worktype":"t"}"#, "field workUnitID missing"),
        (r#"{"command":"work","subcommand":"submit","node":"n"}"#, "field worktype missing"),
        (r#"{"command":"work","subcommand":"results","unitid":"a"}"#, "field startpos missing"),
        (&results("\"5\""), "field startpos value 5 is not convertible to an int"),
        (&results("\"x\""), "strconv.ParseInt: parsing \"x\": invalid syntax"),
        (&results("true"), "field startpos value %!s(bool=true) is not convertible to an int"),
        (&results("null"), "field startpos value %!s(<nil>) is not convertible to an int"),
    ] {
        assert_eq!(refused(line), text, "{line}");
    }
}

/// Lines that make a Go node end its process, or answer in its JSON reader's own words.
#[test]
fn lines_that_lie_about_types_are_only_errors() {
    for (line, text) in [
        (r#"{"command":"status","requested_fields":5}"#, "requested_fields must be an array of strings"),
        (r#"{"command":"status","requested_fields":null}"#, "requested_fields must be an array of strings"),
        ("work results a -5", "start position -5 is negative"),
    ] {
        assert_eq!(refused(line), text, "{line}");
    }
    for line in ["{bad}", "{5:1}", r#"{"command":"status"} x"#, r#"{"a":1e999}"#] {
        assert!(refused(line).starts_with("invalid JSON: "), "{line}");
    }
    let deep = format!(r#"{{"command":{}"#, "[".repeat(100_000));
    assert!(refused(&deep).starts_with("invalid JSON: recursion limit"), "deep nesting");
}

#[test]
fn commands_in_words() {
    assert_eq!(taken("sTaTuS"), Request::Status { fields: None });
    assert_eq!(taken("status "), Request::Status { fields: None });
    assert_eq!(taken("PING a b"), Request::Ping { target: "a b".to_owned() });
    assert_eq!(taken("reload now"), Request::Reload);
    let connect = |service: &str, tls: Option<&str>| Request::Connect {
        node: "a".to_owned(),
        service: service.to_owned(),
        tls: tls.map(str::to_owned),
    };
    assert_eq!(taken("connect a b"), connect("b", None));
    assert_eq!(taken("connect a b prof"), connect("b", Some("prof")));
    assert_eq!(taken("connect a b "), connect("b", None));
    assert_eq!(taken("WORK LIST"), Request::Work(WorkRequest::List { unit: None }));
    assert_eq!(taken("work list a b"), Request::Work(WorkRequest::List { unit: Some("a".to_owned()) }));
    assert_eq!(
        taken("work force-release a"),
        Request::Work(WorkRequest::Release {
            unit: "a".to_owned(),
            force: true,
            sweep: false,
            signature: None
        })
    );
    assert_eq!(taken("work results a"), results("a", 0));
    assert_eq!(taken("work Results a +17"), results("a", 17));
}

fn submitted(line: &str) -> SubmitRequest {
    match taken(line) {
        Request::Work(WorkRequest::Submit(submit)) => submit,
        other => panic!("{line} was taken as {other:?}"),
    }
}

#[test]
fn submit_in_words_keeps_its_parameters_as_one_text() {
    let submit = submitted("work submit n cat  --a  'b c' ");
    assert_eq!((&*submit.node, &*submit.work_type), ("n", "cat"));
    assert_eq!(submit.params, BTreeMap::from([("params".to_owned(), " --a  'b c' ".to_owned())]));
    assert!(submitted("work submit n cat").params.is_empty());
    assert_eq!(submitted("work submit  cat").node, "");
}

#[test]
fn submit_in_json_takes_every_other_key_as_parameter() {
    let submit = submitted(
        r#"{"command":"work","subcommand":"SUBMIT","node":"n","worktype":"t","tlsclient":"","ttl":"20s",
            "signwork":"true","signature":"s","params":"--x","secret_key":"hush"}"#,
    );
    assert_eq!((submit.tls_client.as_deref(), submit.ttl.as_deref()), (None, Some("20s")));
    assert!(submit.sign_work);
    assert_eq!(submit.signature.as_deref(), Some("s"));
    assert_eq!(submit.params.keys().collect::<Vec<_>>(), ["params", "secret_key"]);
    assert!(!format!("{submit:?}").contains("hush"));
    let odd = r#"{"command":"work","subcommand":"submit","node":"n","worktype":"t","signwork":"yes"}"#;
    assert!(!submitted(odd).sign_work);
}

#[test]
fn positions_in_json_are_numbers_of_any_kind() {
    for (number, start) in [("0", 0), ("12.9", 12), ("-0.5", 0), ("1e3", 1000), ("1e300", i64::MAX as u64)] {
        let line = format!(r#"{{"command":"work","subcommand":"results","unitid":"a","startpos":{number}}}"#);
        assert_eq!(taken(&line), results("a", start), "{number}");
    }
    let signed =
        taken(r#"{"command":"work","subcommand":"follow","unitid":"a","startpos":7,"signature":"t"}"#);
    let follow =
        Follow { unit: "a".to_owned(), start: 7, signature: Some("t".to_owned()), ends_with_unit: false };
    assert_eq!(signed, Request::Work(WorkRequest::Follow(follow)));
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9.]{1,9}", "\\PC{1,9}", Just("two words\n".to_owned())]
}

fn option() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(name())
}

fn follow() -> impl Strategy<Value = Follow> {
    (name(), 0..u64::MAX, option(), any::<bool>()).prop_map(|(unit, start, signature, ends_with_unit)| {
        Follow { unit, start, signature, ends_with_unit }
    })
}

fn submit() -> impl Strategy<Value = SubmitRequest> {
    let parameter = "p[a-z_]{0,6}".prop_filter("a key of the request", |key| key != "payloadlength");
    let params = proptest::collection::btree_map(parameter, ".{0,9}", 0..4);
    let options = (option(), option(), option(), option(), proptest::option::of(any::<u64>()));
    (name(), name(), params, any::<[bool; 3]>(), options).prop_map(
        |(node, work_type, params, [sign_work, at_once, in_pieces], options)| {
            let (tls_client, ttl, signature, unit_id, payload_length) = options;
            SubmitRequest {
                node,
                work_type,
                params,
                tls_client,
                ttl,
                sign_work,
                signature,
                payload_length,
                // A unit that starts at once has an ID.
                at_once: at_once && unit_id.is_some(),
                in_pieces: in_pieces && at_once && unit_id.is_some(),
                unit_id,
            }
        },
    )
}

fn work() -> impl Strategy<Value = WorkRequest> {
    prop_oneof![
        submit().prop_map(WorkRequest::Submit),
        (name(), name(), option(), any::<bool>(), option()).prop_map(
            |(node, unit, tls_client, sign_work, signature)| {
                WorkRequest::Adopt(AdoptRequest { node, unit, tls_client, sign_work, signature })
            }
        ),
        option().prop_map(|unit| WorkRequest::List { unit }),
        (name(), option()).prop_map(|(unit, signature)| WorkRequest::Status { unit, signature }),
        (name(), option()).prop_map(|(unit, signature)| WorkRequest::Cancel { unit, signature }),
        (name(), any::<[bool; 2]>(), option()).prop_map(|(unit, [force, sweep], signature)| {
            WorkRequest::Release { unit, force, sweep, signature }
        }),
        (name(), name(), option()).prop_map(|(unit, work_type, signature)| WorkRequest::Disclaim {
            unit,
            work_type,
            signature
        }),
        follow().prop_map(WorkRequest::Results),
        follow().prop_map(WorkRequest::Follow),
        follow().prop_map(WorkRequest::Stderr),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let fields = proptest::option::of(proptest::collection::vec(name(), 0..3));
    prop_oneof![
        fields.prop_map(|fields| Request::Status { fields }),
        name().prop_map(|target| Request::Ping { target }),
        name().prop_map(|target| Request::Traceroute { target }),
        (name(), name(), option()).prop_map(|(node, service, tls)| Request::Connect { node, service, tls }),
        Just(Request::Reload),
        name().prop_map(|node| Request::NodeForget { node }),
        any::<bool>().prop_map(|clear| Request::NodeCache { clear }),
        (name(), 1..=MOST_SECONDS, 1..=MOST_MB).prop_map(|(node, seconds, mb)| Request::LinkTest(LinkTest {
            node,
            seconds,
            mb
        })),
        option().prop_map(|level| Request::LogLevel { level }),
        (option(), option(), option()).prop_map(|(node, tls_client, signature)| Request::Doctor(
            DoctorRequest { node, tls_client, signature }
        )),
        work().prop_map(Request::Work),
    ]
}

#[test]
fn what_go_nodes_are_asked_stands_in_the_line() {
    let line = |request: Request| request.to_line();
    assert_eq!(line(Request::Status { fields: None }), "status\n");
    assert_eq!(line(Request::Work(WorkRequest::List { unit: None })), "work list\n");
    let status =
        |unit: &str| line(Request::Work(WorkRequest::Status { unit: unit.to_owned(), signature: None }));
    assert_eq!(status("abcd"), "work status abcd\n");
    assert_eq!(status("a b"), "{\"command\":\"work\",\"subcommand\":\"status\",\"unitid\":\"a b\"}\n");
    let submit = SubmitRequest {
        node: "n".to_owned(),
        work_type: "t".to_owned(),
        params: BTreeMap::from(["node", "ttl", "x"].map(|name| (name.to_owned(), "p".to_owned()))),
        sign_work: true,
        payload_length: Some(7),
        ..SubmitRequest::default()
    };
    let wanted = r#"{"command":"work","subcommand":"submit","node":"n","worktype":"t","signwork":"true","payloadlength":"7","ttl":"p","x":"p"}"#;
    assert_eq!(line(Request::Work(WorkRequest::Submit(submit))), format!("{wanted}\n"));
}

proptest! {
    #[test]
    fn a_printed_request_is_one_line_and_reads_back(request in request()) {
        let line = request.to_line();
        let line = line.strip_suffix('\n').unwrap();
        prop_assert!(!line.contains(['\n', '\r']));
        prop_assert_eq!(Request::parse(line.as_bytes()), Ok(request));
    }

    #[test]
    fn no_bytes_panic(line in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::parse(&line);
    }

    #[test]
    fn no_command_like_line_panics(
        line in "(status|ping|connect|work (submit|list|results|cancel)|\\{\"command\":\"work\",)[ a-z0-9\":{},\\[\\]-]{0,40}"
    ) {
        let _ = Request::parse(line.as_bytes());
    }
}

/// Our own command: no Go node has it.
#[test]
fn log_levels_are_told_and_changed() {
    let level = |level: Option<&str>| Request::LogLevel { level: level.map(str::to_owned) };
    assert_eq!(taken("loglevel"), level(None));
    assert_eq!(taken("LogLevel debug"), level(Some("debug")));
    assert_eq!(taken(r#"{"command":"loglevel"}"#), level(None));
    assert_eq!(taken(r#"{"command":"loglevel","level":"trace"}"#), level(Some("trace")));
    assert_eq!(refused("loglevel a b"), "too many parameters");
    assert_eq!(refused(r#"{"command":"loglevel","level":1}"#), "loglevel level must be a string");
}
