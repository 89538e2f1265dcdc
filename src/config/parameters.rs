//! The types of parameters that several directives use.
//!
//! Owns how each value is written, what is wrong with an invalid one, and what it claims for a component. A type
//! that is both the notation and the value stands for itself (a [`NodeId`]). If the notation is narrower than the
//! type of the value, the notation has a type of its own without values ([`Port`] yields a `u16`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value as Json};

use super::address::{HostPort, bind_host};
use super::components::{ComponentFacts, SoleResource, UsedProfile};
use super::declare::{DirectiveReader, FromParameters, settings};
use super::schema::{Parameter, ValueRole};
use super::value::{Located, Value};
use crate::mesh::LinkPolicy;
use crate::tls::Fingerprint;
use crate::wire::{Cost, NodeId, ServiceName};

/// Declares how parameters are written: the value, the kind and the function that reads it. Optional: its role for
/// other directives, whether an empty text means none, and what it says about a component.
macro_rules! grammar {
    // For a notation type without values.
    ($($(#[doc = $doc:literal])+ struct $name:ident => $value:ty = $kind:ident $read:expr
        $(, role $role:expr)? $(, empty_is_absent $empty:literal)? $(, describe $describe:expr)?;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy)]
        #[allow(unreachable_pub, reason = "some stand in a directive's public fields")]
        pub enum $name {}
        $crate::config::parameters::grammar! {
            impl $name => $value = $kind $read
                $(, role $role)? $(, empty_is_absent $empty)? $(, describe $describe)?;
        }
    )+};
    // For the type of the value itself, or for another type with no other grammar.
    ($(impl $name:ty => $value:ty = $kind:ident $read:expr
        $(, role $role:expr)? $(, empty_is_absent $empty:literal)? $(, describe $describe:expr)?;)+) => {$(
        impl $crate::config::declare::Single for $name {
            type Value = $value;
            const KIND: $crate::config::schema::ValueKind = $crate::config::schema::ValueKind::$kind;
            $(const ROLE: $crate::config::schema::ValueRole = $role;)?
            $(const EMPTY_IS_ABSENT: bool = $empty;)?

            fn read(
                given: Option<&$crate::config::value::Located>,
                reader: &mut $crate::config::declare::DirectiveReader<'_>,
            ) -> Option<$value> {
                ($read)(given, reader)
            }

            $(fn describe(value: &$value, facts: &mut $crate::config::components::ComponentFacts) {
                let describe: fn(&$value, &mut $crate::config::components::ComponentFacts) = $describe;
                describe(value, facts);
            })?
        }
    )+};
}

pub(super) use grammar;

/// Reads a text with a function that says why a text is invalid.
pub(super) fn parsed<T, E: Display>(
    parse: impl Fn(&str) -> Result<T, E>,
) -> impl Fn(Option<&Located>, &mut DirectiveReader<'_>) -> Option<T> {
    move |given, reader| reader.parse(given?.name(), &parse)
}

/// Reads one of several words, in any case.
pub(super) fn choice<T: Copy>(
    words: &[(&str, T)],
    wanted: &str,
) -> impl Fn(Option<&Located>, &mut DirectiveReader<'_>) -> Option<T> {
    parsed(move |text| {
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        found.map(|(_, value)| *value).ok_or(wanted)
    })
}

/// Reads a whole number in a range.
pub(super) fn number<T: TryFrom<i64> + PartialOrd>(
    range: impl RangeBounds<T>,
    wanted: &str,
) -> impl Fn(Option<&Located>, &mut DirectiveReader<'_>) -> Option<T> {
    move |given, reader| {
        let Value::Int(number) = given?.value else { return None };
        let value = T::try_from(number).ok().filter(|value| range.contains(value));
        if value.is_none() {
            reader.refuse(&number.to_string(), wanted);
        }
        value
    }
}

/// Any text.
pub(super) fn any<T: for<'a> From<&'a str>>(
    given: Option<&Located>,
    _: &mut DirectiveReader<'_>,
) -> Option<T> {
    given.map(|given| T::from(given.name()))
}

grammar! {
    impl bool => bool = Flag |given: Option<&Located>, _: &mut DirectiveReader<'_>| Some(given.is_some_and(Located::is_true));
    impl String => String = Text any;
    impl PathBuf => PathBuf = Text any;
    impl NodeId => NodeId = Text parsed(str::parse::<NodeId>);
    impl ServiceName => ServiceName = Text parsed(ServiceName::new);
    impl Fingerprint => Fingerprint = Text parsed(str::parse::<Fingerprint>);
    impl IpAddr => IpAddr = Text parsed(|text| text.parse().map_err(|_| "an IP address is needed"));
    impl Timestamp => Timestamp =
        Text parsed(|text| text.parse().map_err(|_| "a time is RFC 3339, such as 2030-01-31T12:00:00Z"));
    impl Duration => Duration = Text parsed(duration);
    impl Cost => Cost = Float cost;
    // Costs by neighbour.
    impl BTreeMap<NodeId, Cost> => BTreeMap<NodeId, Cost> = NodeCosts node_costs;
    impl Map<String, Json> => Map<String, Json> = FreeMap free_map;
}

grammar! {
    /// A TCP or UDP port; 0 lets the system choose.
    struct Port => u16 = Int number(0..=u16::MAX, "a port is 0 to 65535");
    /// A number of bytes.
    struct Bytes => u64 = Int number(0.., "a number of bytes is 0 or more");
    /// A number of bytes, with a unit where that is shorter.
    struct CacheSize => u64 = Text parsed(size);
    /// The mode of a file, as in `0o600`.
    struct Mode => u32 = Int number(0..=0o777, "a file mode is 0 to 0777, such as 0600");
    /// A node or service to connect to.
    struct Address => HostPort = Text parsed(HostPort::to_dial);
    /// A neighbour to connect to: any two peers may turn out to be the same node.
    struct PeerAddress => HostPort = Text parsed(HostPort::to_dial), describe |address, facts| {
        facts.label(address);
        facts.claims.push(SoleResource::Neighbour);
    };
    /// An address to listen on, of which the port alone is enough.
    struct ListenAddress => HostPort = Text parsed(HostPort::to_listen);
    /// The same for HTTP: it is up before anything else, so that probes are told of the start.
    struct HttpAddress => HostPort = Text parsed(HostPort::to_listen), describe |address, facts| {
        facts.label(format_args!("on {address}"));
        facts.listens(address, false);
        facts.comes_first();
    };
    /// A host to listen on.
    struct BindHost => String = Text parsed(bind_host);
    /// The name of a service that this node offers; reserved ones are refused.
    struct OwnService => ServiceName = Text parsed(own_service), role ValueRole::Defines("service"), describe |service, facts| {
        facts.label(service);
        facts.claims.push(SoleResource::Service(*service));
    };
    /// A Unix socket to listen on.
    struct SocketFile => PathBuf = Text any, role ValueRole::Defines("socket file"), describe |path, facts| {
        facts.label(path.display());
        facts.claims.push(SoleResource::File(path.clone()));
    };
    /// The name of a `tls-server`.
    struct TlsServerName => String = Text any, role ValueRole::Refers("tls-server"),
        describe |name, facts| facts.profiles.push(UsedProfile::Server(name.clone()));
    /// The name of a `tls-client`.
    struct TlsClientName => String = Text any, role ValueRole::Refers("tls-client"),
        describe |name, facts| facts.profiles.push(UsedProfile::Client(name.clone()));
    /// Variables of a command's environment, whose values are texts, numbers or booleans.
    struct Variables => BTreeMap<String, String> = FreeMap variables;
    /// A number of processors, as thousandths.
    struct Processors => u32 = Float processors;
}

/// A duration in Go's notation.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    // The library's message would repeat the value.
    crate::duration::parse(text).map_err(|_| "write for example 1.5h, 30m or 30m10s")
}

fn size(text: &str) -> Result<u64, &'static str> {
    const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    let unit = UNITS.into_iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, bytes) = unit.unwrap_or((text, 1));
    let is_decimal = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse::<u64>().ok().filter(|_| is_decimal);
    number
        .and_then(|number| number.checked_mul(bytes))
        .ok_or("a size is 0, a number of bytes, or for example 500MiB or 2GiB")
}

fn own_service(text: &str) -> Result<ServiceName, String> {
    match ServiceName::new(text) {
        Ok(service) if service.is_reserved() => Err(format!("the service {text:?} is reserved")),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

fn cost(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Cost> {
    let Value::Float(number) = given?.value else { return None };
    let cost = Cost::new(number).ok();
    if cost.is_none() {
        reader.refuse(&number.to_string(), "a cost is a number above zero");
    }
    cost
}

fn node_costs(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<BTreeMap<NodeId, Cost>> {
    let entries = given.map_or(&[][..], Located::entries);
    let entry = |(name, cost): &(Located, Located)| {
        let Value::Float(number) = cost.value else { return None };
        reader.parse(name.name(), |name| node_cost(name, number))
    };
    let costs: BTreeMap<_, _> = entries.iter().filter_map(entry).collect();
    (costs.len() == entries.len()).then_some(costs)
}

fn node_cost(name: &str, number: f64) -> Result<(NodeId, Cost), String> {
    let node = NodeId::new(name).map_err(|error| error.to_string())?;
    let cost = Cost::new(number).map_err(|_| format!("a cost is a number above zero, not {number}"))?;
    Ok((node, cost))
}

fn free_map(given: Option<&Located>, _: &mut DirectiveReader<'_>) -> Option<Map<String, Json>> {
    let entries = given.map_or(&[][..], Located::entries);
    Some(entries.iter().map(|(key, value)| (key.name().to_owned(), value.to_json())).collect())
}

fn variables(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<BTreeMap<String, String>> {
    let entries = given.map_or(&[][..], Located::entries);
    let variable = |(name, value): &(Located, Located)| {
        let name = name.name();
        let value = match value.to_json() {
            Json::String(text) => Some(text),
            value @ (Json::Number(_) | Json::Bool(_)) => Some(value.to_string()),
            Json::Null => Some(String::new()),
            Json::Array(_) | Json::Object(_) => None,
        };
        let named = !name.is_empty() && !name.contains(['=', '\0']);
        let value = value.filter(|value| named && !value.contains('\0'));
        if value.is_none() {
            reader.refuse(name, "a variable has a name without `=` and a single value");
        }
        Some((name.to_owned(), value?))
    };
    let variables: BTreeMap<_, _> = entries.iter().filter_map(variable).collect();
    (variables.len() == entries.len()).then_some(variables)
}

fn processors(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<u32> {
    let Value::Float(number) = given?.value else { return None };
    let millis = (number * 1000.0).round();
    if (10.0..=1_000_000.0).contains(&millis) {
        return Some(millis as u32);
    }
    reader.refuse(&number.to_string(), "a number of processors is 0.01 to 1000");
    None
}

/// An address to listen on, given as `port` and `bindaddr`, for UDP or TCP.
#[derive(Debug, Clone, Copy)]
pub enum Bind<const UDP: bool> {}

/// See [`Bind`].
pub(super) type TcpBind = Bind<false>;
/// See [`Bind`].
pub(super) type UdpBind = Bind<true>;

impl<const UDP: bool> FromParameters for Bind<UDP> {
    type Value = HostPort;

    fn parameters(port: Parameter) -> Vec<Parameter> {
        let host = Parameter::new("bindaddr", &["local address to listen on; 0.0.0.0: all"]);
        let host = Parameter { default: Some("0.0.0.0"), empty_is_default: true, ..host };
        [<Port as FromParameters>::parameters(port), <BindHost as FromParameters>::parameters(host)].concat()
    }

    fn read(reader: &mut DirectiveReader<'_>) -> Option<HostPort> {
        let port = <Port as FromParameters>::read(reader);
        let host = <BindHost as FromParameters>::read(&mut reader.at("bindaddr"));
        Some(HostPort { host: host?, port: port? })
    }

    fn describe(bind: &HostPort, facts: &mut ComponentFacts) {
        facts.label(format_args!("on {bind}"));
        facts.listens(bind, UDP);
    }
}

/// The policy of a listener's links.
#[derive(Debug, Clone, Copy)]
pub enum ListenPolicy {}

settings! {
    ListenPolicy => LinkPolicy {
        /// cost of the link, above zero
        cost: Cost = "1.0",
        /// other costs for single neighbours
        node_cost "nodecost": BTreeMap<NodeId, Cost>,
        /// node IDs to accept; all if not given
        allowed_peers "allowedpeers": Vec<NodeId>,
    }
    make LinkPolicy { cost, node_cost, allowed_peers: only(allowed_peers), ..LinkPolicy::default() }
}

/// The policy of the link to a peer.
#[derive(Debug, Clone, Copy)]
pub enum DialPolicy {}

settings! {
    DialPolicy => LinkPolicy {
        /// cost of the link, above zero
        cost: Cost = "1.0",
        /// node IDs to accept; all if not given
        allowed_peers "allowedpeers": Vec<NodeId>,
    }
    make LinkPolicy { cost, allowed_peers: only(allowed_peers), ..LinkPolicy::default() }
}

/// The only neighbours that are admitted; `None`, which admits all, for an empty list.
fn only(peers: Vec<NodeId>) -> Option<BTreeSet<NodeId>> {
    Some(BTreeSet::from_iter(peers)).filter(|peers| !peers.is_empty())
}
