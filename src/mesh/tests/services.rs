//! Services on offer: announced, passed on, superseded, withdrawn.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;

use super::net::Net;
use super::solo::{Solo, as_advert, at, millis, node, secs, service, update};
use crate::mesh::{LinkPolicy, LocalService, Options};
use crate::wire::advertisement::AdvertisementMessage;
use crate::wire::{Advertisement, ConnType};

fn offer() -> LocalService {
    LocalService { conn_type: ConnType::STREAM, tags: BTreeMap::from([("k".into(), "v".into())]) }
}

pub(super) fn ad(of: &str, name: &str, second: i64, cancel: bool) -> Bytes {
    let advertisement = Advertisement {
        node_id: node(of),
        service: service(name),
        time: Timestamp::from_second(second).unwrap(),
        conn_type: ConnType::DATAGRAM,
        tags: None,
        work_commands: None,
    };
    AdvertisementMessage { advertisement, cancel }.message().unwrap()
}

/// What a node lists, as `node:service`.
fn listed(solo: &Solo) -> Vec<String> {
    let ads = solo.mesh.status(solo.now()).advertisements;
    ads.iter().map(|ad| format!("{}:{}", ad.node_id, ad.service)).collect()
}

/// The latest date that can be written is not believed; a century ahead is.
#[test]
fn a_date_that_nobody_could_outdo_is_not_believed() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let now = solo.now();
    solo.mesh.advertise(service("own"), offer(), now);
    solo.advance(secs(1));
    solo.sent();
    let latest = Timestamp::MAX.as_second();
    for of in ["x", "a"] {
        for cancel in [false, true] {
            solo.packet(b, ad(of, "own", latest, cancel));
        }
    }
    solo.packet(b, ad("x", "own", 1_800_000_000, false));
    assert_eq!(listed(&solo), ["a:own", "x:own"]);
    assert_eq!(solo.mesh.counters().malformed, 4);
    // A date a century ahead is believed, and the node itself corrects it.
    let century = 1_800_000_000 + 100 * 366 * 86_400;
    solo.packet(b, ad("a", "own", century, true));
    solo.sent();
    solo.advance(secs(1));
    let told =
        solo.sent_to(b).iter().filter_map(as_advert).next_back().expect("it says how its service stands");
    let date = told.advertisement.time;
    assert!(!told.cancel && date > Timestamp::from_second(century).unwrap(), "{date}");
    assert!(date < Timestamp::from_second(century + 1).unwrap(), "{date}");
}

/// A node's clock may be ahead, or somebody may lie in its name. The dates still decide which advertisement is later,
/// but none is shown as later than it came.
#[test]
fn a_date_ahead_of_our_clock_is_shown_as_when_it_came() {
    const CENTURY: i64 = 1_800_000_000 + 100 * 366 * 86_400;
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let shown = |solo: &Solo| {
        let ads = solo.mesh.status(solo.now()).advertisements;
        ads.iter().map(|ad| ad.time).collect::<Vec<_>>()
    };
    solo.packet(b, ad("x", "svc", 1_000, false));
    assert_eq!(shown(&solo), [Timestamp::from_second(1_000).unwrap()]);
    for second in 0..3 {
        let came = solo.now().wall;
        solo.packet(b, ad("x", "svc", CENTURY + second, false));
        assert_eq!(shown(&solo), [came]);
        let ahead = solo.mesh.status(solo.now()).dated_ahead;
        let date = came + ahead[&(node("x"), service("svc"))];
        assert_eq!(date.as_second(), CENTURY + second, "a controller sees that the clock is off");
        solo.advance(secs(3));
        solo.packet(b, ad("x", "svc", CENTURY - 1, true));
        assert_eq!(shown(&solo), [came], "what is dated earlier is not later because it comes later");
    }
}

#[test]
fn own_services_are_told_at_once_and_every_minute() {
    let mut solo = Solo::with("a", Options { max_idle: secs(1_000), ..Options::default() });
    let b = solo.neighbour("b");
    let now = solo.now();
    solo.mesh.advertise(service("svc"), offer(), now);
    solo.advance(millis(200));
    let told: Vec<_> = solo.sent_to(b).iter().filter_map(as_advert).collect();
    assert_eq!(told.len(), 1);
    assert!(!told[0].cancel && told[0].advertisement.tags == Some(offer().tags));
    let mut last = told[0].advertisement.time;
    for _ in 0..3 {
        let told = solo.time;
        let again: Vec<_> = loop {
            solo.advance(millis(100));
            let again: Vec<_> = solo.sent_to(b).iter().filter_map(as_advert).collect();
            if !again.is_empty() {
                break again;
            }
        };
        assert!((secs(53)..=secs(60)).contains(&(solo.time - told)), "{:?}", solo.time - told);
        assert_eq!(again.len(), 1);
        assert!(again[0].advertisement.time > last);
        last = again[0].advertisement.time;
    }
}

#[test]
fn the_later_date_counts_and_news_is_passed_on_unchanged() {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    let news = ad("x", "svc", 100, false);
    solo.packet(b, news.clone());
    assert_eq!(solo.sent(), [(c, news.clone())]);
    for old in [news, ad("x", "svc", 99, false), ad("x", "svc", 100, true)] {
        solo.packet(c, old);
        assert_eq!(solo.sent(), []);
    }
    solo.packet(c, ad("x", "svc", 101, false));
    assert_eq!(solo.sent().len(), 1);
    assert_eq!(listed(&solo), ["x:svc"]);
}

/// A receptor node sends a new neighbour no advertisements until its next round.
#[test]
fn a_receptor_neighbours_services_come_from_others_until_it_has_told_one_itself() {
    let mut solo = Solo::new("a");
    let [g, c, d] = ["g", "c", "d"].map(|peer| solo.neighbour(peer));
    let offers = [ad("g", "one", 10, false), ad("g", "two", 10, false)];
    for offer in &offers {
        solo.packet(c, offer.clone());
        assert_eq!(solo.sent(), [(d, offer.clone())], "it would believe what it hears of itself");
    }
    solo.packet(c, ad("g", "two", 11, true));
    assert_eq!(listed(&solo), ["g:one", "g:two"]);
    solo.packet(g, ad("g", "one", 12, false));
    solo.sent();
    solo.packet(c, ad("g", "three", 13, false));
    assert_eq!((solo.sent(), listed(&solo)), (Vec::new(), vec!["g:one".to_owned(), "g:two".to_owned()]));
}

#[test]
fn a_withdrawal_is_passed_on_once_and_remembered() {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    solo.packet(b, ad("x", "svc", 100, false));
    solo.sent();
    let withdrawal = ad("x", "svc", 101, true);
    solo.packet(b, withdrawal.clone());
    assert_eq!(solo.sent(), [(c, withdrawal.clone())]);
    assert_eq!(listed(&solo), [] as [String; 0]);
    solo.packet(c, withdrawal);
    solo.packet(c, ad("x", "svc", 100, false));
    assert_eq!(solo.sent(), []);
    assert_eq!(listed(&solo), [] as [String; 0], "what is late does not bring it back");
}

#[test]
fn who_withdrew_with_a_clock_that_was_ahead_is_believed_once_it_is_right() {
    let mut solo = Solo::new("a");
    let (b, c) = (solo.neighbour("b"), solo.neighbour("c"));
    let wall = solo.now().wall.as_second();
    solo.packet(b, ad("x", "svc", wall + 599, false));
    solo.packet(b, ad("x", "svc", wall + 600, true));
    solo.sent();
    for late in [wall - 31, wall + 599] {
        solo.packet(b, ad("x", "svc", late, false));
        assert_eq!((solo.sent(), listed(&solo)), (Vec::new(), Vec::new()), "{late}");
    }
    let now = ad("x", "svc", wall, false);
    solo.packet(b, now.clone());
    assert_eq!((solo.sent(), listed(&solo)), (vec![(c, now)], vec!["x:svc".to_owned()]));
    // A withdrawal that is only a little ahead still outdoes an earlier date.
    solo.packet(b, ad("x", "svc", wall + 20, true));
    solo.packet(b, ad("x", "svc", wall + 10, false));
    assert_eq!(listed(&solo), [] as [String; 0]);
}

#[test]
fn a_withdrawal_in_a_ring_stops() {
    let mut net = Net::of(&["a", "b", "c"], &[("a", "b"), ("b", "c"), ("c", "a")]);
    let now = net.now();
    net.mesh("a").bind(service("svc"));
    net.mesh("a").advertise(service("svc"), offer(), now);
    net.run(secs(1));
    for name in ["b", "c"] {
        let now = net.now();
        assert_eq!(net.mesh(name).status(now).advertisements.len(), 1);
    }
    net.log.clear();
    let now = net.now();
    net.mesh("a").unbind(service("svc"), now);
    net.run(secs(5));
    for name in ["b", "c"] {
        let now = net.now();
        assert_eq!(net.mesh(name).status(now).advertisements.len(), 0);
    }
    let withdrawals = net.log.iter().filter_map(|sent| as_advert(&sent.message)).filter(|ad| ad.cancel);
    assert!((2..=4).contains(&withdrawals.count()));
}

#[test]
fn a_service_of_our_past_is_withdrawn() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    solo.packet(b, ad("a", "old", 2_000_000_000, false));
    solo.advance(millis(200));
    let told: Vec<_> = solo.sent_to(b).iter().filter_map(as_advert).collect();
    assert!(matches!(&told[..], [ad] if ad.cancel && ad.advertisement.service == service("old")), "{told:?}");
    assert!(told[0].advertisement.time > Timestamp::from_second(2_000_000_000).unwrap());
    solo.packet(b, ad("a", "old", 1_000, true));
    solo.advance(millis(200));
    assert_eq!(solo.sent(), []);
}

/// The epoch of a node that starts at that time after the test's start.
fn life(since_start: std::time::Duration) -> u64 {
    (u64::try_from(at(since_start).wall.as_second()).unwrap()) << 24
}

#[test]
fn a_service_that_a_node_does_not_renew_in_its_new_life_is_dropped() {
    let mut solo = Solo::new("b");
    let c = solo.neighbour("c");
    let wall = solo.now().wall.as_second();
    solo.packet(c, ad("c", "svc", wall, false));
    solo.mesh.handle_session_closed(c, at(solo.time));
    solo.advance(secs(30));
    assert_eq!(listed(&solo), ["c:svc"], "absent nodes stay listed");
    let (epoch, links) = (life(solo.time), [("b", 1.0)]);
    let c = solo.open_with(LinkPolicy::default());
    solo.say(c, &update("c", "new_life", epoch, 1, &links));
    solo.refuse_probe(c, "c");
    solo.sent();
    for sequence in 2..21 {
        assert_eq!(listed(&solo), ["c:svc"]);
        solo.say(c, &update("c", &format!("{sequence:08}"), epoch, sequence, &links));
        solo.advance(secs(9));
    }
    let to_c = solo.sent_to(c).iter().filter(|message| as_advert(message).is_some()).count();
    assert_eq!(to_c, 0, "a receptor node would believe what it hears of itself");
    solo.say(c, &update("c", "the_last", epoch, 21, &links));
    solo.advance(secs(20));
    assert_eq!(listed(&solo), [] as [String; 0]);
}

#[test]
fn a_service_that_is_renewed_in_a_new_life_stays() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let wall = solo.now().wall.as_second();
    solo.packet(b, ad("b", "kept", wall - 100, false));
    solo.packet(b, ad("b", "lost", wall - 100, false));
    let links = [("a", 1.0)];
    solo.mesh.handle_session_closed(b, at(solo.time));
    let b = solo.open_with(LinkPolicy::default());
    solo.say(b, &update("b", "new_life", life(solo.time), 1, &links));
    solo.refuse_probe(b, "b");
    for _ in 0..19 {
        assert_eq!(listed(&solo).len(), 2);
        solo.say(b, &update("b", "", life(solo.time), 1, &links));
        solo.advance(secs(9));
        let wall = solo.now().wall.as_second();
        solo.packet(b, ad("b", "kept", wall, false));
    }
    solo.packet(b, ad("b", "kept", wall + 500, false));
    solo.advance(secs(10));
    assert_eq!(listed(&solo), ["b:kept"]);
    solo.advance(secs(10));
    solo.packet(b, ad("b", "lost", wall - 100, false));
    assert_eq!(listed(&solo), ["b:kept"], "an echo does not bring it back");
}

#[test]
fn a_node_whose_clock_was_set_back_hears_of_its_past_and_is_believed_again() {
    let mut net = Net::of(&["a", "b", "c"], &[("a", "b"), ("b", "c")]);
    let now = net.now();
    // In its last run, its clock was years ahead.
    let link = net.mesh("b").sessions.by_peer()[&node("a")];
    net.mesh("b").handle_packet(link, ad("a", "svc", 2_000_000_000, false), now);
    net.mesh("a").advertise(service("svc"), offer(), now);
    net.run(secs(10));
    for name in ["b", "c"] {
        let now = net.now();
        let ads = net.mesh(name).status(now).advertisements;
        assert_eq!(ads.first().unwrap().tags, Some(offer().tags), "{name} still believes in the past");
    }
}

/// The node's clock was ahead, or a lie says so. Dates have to grow by milliseconds for readers to see it alive.
#[test]
fn a_node_that_has_to_date_ahead_of_its_clock_is_heard_again_each_minute() {
    let mut solo = Solo::with("a", Options { max_idle: secs(1_000), ..Options::default() });
    let b = solo.neighbour("b");
    let now = solo.now();
    solo.mesh.advertise(service("svc"), offer(), now);
    solo.packet(b, ad("a", "svc", 2_000_000_000, false));
    let mut dates = Vec::new();
    for _ in 0..3 {
        solo.advance(secs(61));
        let told = solo.sent_to(b).iter().filter_map(as_advert).next_back().unwrap();
        dates.push(told.advertisement.time.as_millisecond());
    }
    assert!(dates.is_sorted_by(|one, next| one < next), "{dates:?}");
}

#[test]
fn two_nodes_that_contradict_each_other_do_not_do_so_without_end() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let now = solo.now();
    solo.mesh.advertise(service("svc"), offer(), now);
    solo.advance(millis(200));
    solo.sent();
    for second in 0..1_000 {
        solo.packet(b, ad("a", "svc", 2_000_000_000 + second, false));
        solo.advance(millis(1));
    }
    let told = solo.sent_to(b).iter().filter_map(as_advert).count();
    assert!((1..=11).contains(&told), "{told}");
}

#[test]
fn a_new_neighbour_is_not_told_newer_dates_than_the_others() {
    let mut solo = Solo::new("a");
    let b = solo.neighbour("b");
    let now = solo.now();
    solo.mesh.advertise(service("svc"), offer(), now);
    solo.packet(b, ad("x", "other", 100, false));
    solo.advance(secs(1));
    let told: Vec<_> = solo.sent_to(b).into_iter().filter(|m| as_advert(m).is_some()).collect();
    let c = solo.open_with(LinkPolicy::default());
    solo.say(c, &update("c", "greeting", 1, 1, &[]));
    assert!(solo.sent_to(c).iter().all(|message| as_advert(message).is_none()), "it would not listen yet");
    solo.say(c, &update("c", "lists_us", 1, 2, &[("a", 1.0)]));
    let heard: Vec<_> = solo.sent_to(c).into_iter().filter(|m| as_advert(m).is_some()).collect();
    assert_eq!(heard.len(), 2);
    assert!(heard.contains(&told[0]), "the same bytes, which a mesh that knows them does not flood again");
}

#[test]
fn advertisers_and_services_are_bounded() {
    let options = Options { max_nodes: 10, max_services_per_node: 4, ..Options::default() };
    let mut solo = Solo::with("a", options);
    let b = solo.neighbour("b");
    for i in 0..20 {
        solo.packet(b, ad(&format!("made-up-{i}"), "svc", 100, false));
        solo.packet(b, ad("made-up-0", &format!("svc{i}"), 100, false));
        solo.packet(b, ad("a", &format!("svc{i}"), 100, false));
    }
    assert_eq!(listed(&solo).len(), 5 + 3);
    solo.sent();
    solo.advance(millis(200));
    assert_eq!(solo.sent_to(b).iter().filter_map(as_advert).count(), 4);
}
