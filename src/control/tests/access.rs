//! Who may ask for what, as docs/security.md has it.

use super::rig;
use crate::control::access::{check, check_operator};
use crate::control::peer::ClientPeer;
use crate::rpc::request::Request;
use crate::wire::NameHash;
use crate::work::{Caller, CallerName, Origin, Rights};

fn caller(column: &str) -> Caller {
    let mesh = Origin::Mesh { node: NameHash(1), certified: true };
    let (origin, trusted, name) = match column {
        "Unix socket" => (Origin::Unix, true, CallerName::User(0)),
        "TCP, with a demanded certificate that is no other node's" => {
            (Origin::Tcp, true, CallerName::Certificate("ops".into()))
        }
        "TCP on a loopback address, or with `forward: tcp`" => (Origin::Tcp, true, CallerName::Unknown),
        "TCP" => (Origin::Tcp, false, CallerName::Unknown),
        "mesh, with `forward: all`" => (mesh, true, CallerName::Unknown),
        "mesh" => (mesh, false, CallerName::Unknown),
        other => panic!("{other}"),
    };
    Caller::new(origin, trusted, name)
}

/// The cells of the table of docs/security.md.
fn table() -> Vec<Vec<&'static str>> {
    let page = include_str!("../../../docs/security.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| request |"));
    rows.map_while(|line| line.strip_prefix("| ").or(line.strip_prefix("|--")))
        .map(|line| line.trim_end_matches(" |").split(" | ").collect())
        .collect()
}

#[tokio::test]
async fn each_caller_may_ask_for_what_the_page_says() {
    let context = rig::context().await;
    let table = table();
    assert_eq!(table.len(), 24, "{table:?}");
    for row in &table[2..] {
        let request = Request::parse(row[0].trim_matches('`').as_bytes()).unwrap();
        for (column, cell) in table[0].iter().zip(row).skip(1) {
            let caller = caller(column);
            let peer = ClientPeer { caller: caller.clone(), host: None, name: String::new() };
            let is_refused = check(&context, &peer, &request).is_err()
                || matches!(request, Request::Controller { .. }) && check_operator(&caller).is_err();
            assert_eq!(is_refused, *cell == "no", "{} of {column}", row[0]);
        }
    }
}

#[test]
fn a_certificate_that_nobody_demanded_gives_no_rights() {
    let shown = CallerName::Certificate("ops".into());
    assert_eq!(Caller::new(Origin::Tcp, false, shown).rights, Rights::Anybody);
    let page = Caller::of_page("reader".to_owned(), false);
    assert_eq!(page.rights, Rights::Operator);
    assert!(check_operator(&page).is_err());
}
