//! The types that parameters are declared with, as far as several directives use them.
//!
//! Owns how each is written, what is wrong with one that is not, and what it claims for a component. A type that
//! is both the notation and the value stands for itself (a [`NodeId`]); where a notation is narrower than the value
//! that it yields, it is a type of its own without values ([`Port`] yields a `u16`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use super::address::{HostPort, bind_host};
use super::components::{Claim, Facts, Profile};
use super::declare::{Reader, Refusal, Settings, Single, settings};
use super::schema::{Kind, Parameter, Role};
use super::value::{Located, Value};
use crate::mesh::LinkPolicy;
use crate::tls::Fingerprint;
use crate::wire::{Cost, NodeId, ServiceName};

/// Declares values that are written as text: how each is parsed, what role it has, and what it tells.
macro_rules! text {
    ($($(#[doc = $doc:literal])+ struct $name:ident => $value:ty = $parse:expr
        $(, role $role:expr)? $(, tell $tell:expr)?;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}
        $crate::config::parameters::text! { impl $name => $value = $parse $(, role $role)? $(, tell $tell)?; }
    )+};
    ($(impl $name:ty => $value:ty = $parse:expr $(, role $role:expr)? $(, tell $tell:expr)?;)+) => {$(
        impl $crate::config::declare::Single for $name {
            type Value = $value;
            $(const ROLE: $crate::config::schema::Role = $role;)?

            fn read(
                given: Option<&$crate::config::value::Located>,
                reader: &mut $crate::config::declare::Reader<'_>,
            ) -> Option<$value> {
                reader.parse(given?.name(), $parse)
            }

            $(fn tell(value: &$value, facts: &mut $crate::config::components::Facts) {
                let tell: fn(&$value, &mut $crate::config::components::Facts) = $tell;
                tell(value, facts);
            })?
        }
    )+};
}

/// Declares values that are one of several words, in any case.
macro_rules! choice {
    ($value:ty, $wanted:literal: $($word:literal => $variant:ident),+) => {
        $crate::config::parameters::text! { impl $value => $value = |text: &str| match text.to_ascii_lowercase().as_str() {
            $($word => Ok(<$value>::$variant),)+
            _ => Err($wanted),
        }; }
    };
}

/// Declares whole numbers in a range, with the words for those outside.
macro_rules! number {
    ($($(#[doc = $doc:literal])+ $name:ident => $value:ty = $range:expr, $wanted:literal;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy)]
        pub enum $name {}

        impl $crate::config::declare::Single for $name {
            type Value = $value;
            const KIND: $crate::config::schema::Kind = $crate::config::schema::Kind::Int;

            fn read(
                given: Option<&$crate::config::value::Located>,
                reader: &mut $crate::config::declare::Reader<'_>,
            ) -> Option<$value> {
                let $crate::config::value::Value::Int(number) = given?.value else { return None };
                let value = <$value>::try_from(number).ok().filter(|value| ($range).contains(value));
                if value.is_none() {
                    reader.refuse(&number.to_string(), $wanted);
                }
                value
            }
        }
    )+};
}

pub(super) use {choice, number, text};

number! {
    /// A TCP or UDP port; 0 lets the system choose.
    Port => u16 = 0..=u16::MAX, "a port is 0 to 65535";
    /// A number of bytes.
    Bytes => u64 = 0.., "a number of bytes is 0 or more";
    /// The mode of a file, as in `0o600`.
    Mode => u32 = 0..=0o777, "a file mode is 0 to 0777, such as 0600";
}

text! {
    impl String => String = any;
    impl PathBuf => PathBuf = any;
    impl NodeId => NodeId = str::parse::<NodeId>;
    impl ServiceName => ServiceName = ServiceName::new;
    impl Fingerprint => Fingerprint = str::parse::<Fingerprint>;
    impl IpAddr => IpAddr = |text| text.parse().map_err(|_| "an IP address is needed");
    impl Timestamp => Timestamp =
        |text| text.parse().map_err(|_| "a time is RFC 3339, such as 2030-01-31T12:00:00Z");
    impl Duration => Duration = duration;
}

/// Any text.
pub(super) fn any<T: for<'a> From<&'a str>>(text: &str) -> Result<T, Refusal> {
    Ok(T::from(text))
}

/// A duration in Go's notation.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    // The library's message would repeat the value.
    crate::duration::parse(text).map_err(|_| "write for example 1.5h, 30m or 30m10s")
}

text! {
    /// A node or service to connect to.
    struct Address => HostPort = HostPort::to_dial;
    /// A neighbour to connect to: any two peers may turn out to be the same node.
    struct PeerAddress => HostPort = HostPort::to_dial, tell |address, facts| {
        facts.label(address);
        facts.claims.push(Claim::Neighbour);
    };
    /// An address to listen on, of which the port alone is enough.
    struct ListenAddress => HostPort = HostPort::to_listen;
    /// A host to listen on.
    struct BindHost => String = bind_host;
    /// The name of a service that this node offers; reserved ones are refused.
    struct OwnService => ServiceName = own_service, role Role::Defines("service"), tell |service, facts| {
        facts.label(service);
        facts.claims.push(Claim::Service(*service));
    };
    /// A Unix socket to listen on.
    struct SocketFile => PathBuf = any, role Role::Defines("socket file"), tell |path, facts| {
        facts.label(path.display());
        facts.claims.push(Claim::File(path.clone()));
    };
    /// The name of a `tls-server`.
    struct TlsServerName => String = any, role Role::Refers("tls-server"),
        tell |name, facts| facts.profiles.push(Profile::Server(name.clone()));
    /// The name of a `tls-client`.
    struct TlsClientName => String = any, role Role::Refers("tls-client"),
        tell |name, facts| facts.profiles.push(Profile::Client(name.clone()));
}

fn own_service(text: &str) -> Result<ServiceName, Refusal> {
    let service = ServiceName::new(text)?;
    if service.is_reserved() { Err(format!("the service {text:?} is reserved").into()) } else { Ok(service) }
}

/// An address to listen on, as `port` and `bindaddr`: of UDP or TCP.
#[derive(Debug, Clone, Copy)]
pub enum Bind<const UDP: bool> {}

/// See [`Bind`].
pub type TcpBind = Bind<false>;
/// See [`Bind`].
pub type UdpBind = Bind<true>;

impl<const UDP: bool> Settings for Bind<UDP> {
    type Value = HostPort;

    fn parameters(port: Parameter) -> Vec<Parameter> {
        let host = Parameter::new("bindaddr", &["local address to listen on"]);
        let host = Parameter { default: Some("0.0.0.0"), empty_is_default: true, ..host };
        [<Port as Settings>::parameters(port), <BindHost as Settings>::parameters(host)].concat()
    }

    fn read(reader: &mut Reader<'_>) -> Option<HostPort> {
        let port = <Port as Settings>::read(reader);
        let host = <BindHost as Settings>::read(&mut reader.at("bindaddr"));
        Some(HostPort { host: host?, port: port? })
    }

    fn tell(bind: &HostPort, facts: &mut Facts) {
        facts.label(format_args!("on {bind}"));
        facts.listens(bind, UDP);
    }
}

impl Single for Cost {
    type Value = Self;
    const KIND: Kind = Kind::Float;

    fn read(given: Option<&Located>, reader: &mut Reader<'_>) -> Option<Self> {
        let Value::Float(number) = given?.value else { return None };
        let cost = Self::new(number).ok();
        if cost.is_none() {
            reader.refuse(&number.to_string(), "a cost is a number above zero");
        }
        cost
    }
}

/// Costs by neighbour.
impl Single for BTreeMap<NodeId, Cost> {
    type Value = Self;
    const KIND: Kind = Kind::NodeCosts;

    fn read(given: Option<&Located>, reader: &mut Reader<'_>) -> Option<Self> {
        let entries = given.map_or(&[][..], Located::entries);
        let entry = |(name, cost): &(Located, Located)| {
            let Value::Float(number) = cost.value else { return None };
            reader.parse(name.name(), |name| node_cost(name, number))
        };
        let costs: Self = entries.iter().filter_map(entry).collect();
        (costs.len() == entries.len()).then_some(costs)
    }
}

fn node_cost(name: &str, number: f64) -> Result<(NodeId, Cost), Refusal> {
    let node = NodeId::new(name)?;
    let cost = Cost::new(number).map_err(|_| format!("a cost is a number above zero, not {number}"))?;
    Ok((node, cost))
}

/// What holds for the links of a listener.
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

/// What holds for the link to a peer.
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

/// The only neighbours that are let in; `None`, which lets everybody in, for an empty list.
fn only(peers: Vec<NodeId>) -> Option<BTreeSet<NodeId>> {
    Some(BTreeSet::from_iter(peers)).filter(|peers| !peers.is_empty())
}

/// A map of anything.
impl Single for serde_json::Map<String, serde_json::Value> {
    type Value = Self;
    const KIND: Kind = Kind::FreeMap;

    fn read(given: Option<&Located>, _reader: &mut Reader<'_>) -> Option<Self> {
        let entries = given.map_or(&[][..], Located::entries);
        Some(entries.iter().map(|(key, value)| (key.name().to_owned(), value.to_json())).collect())
    }
}

/// Variables of a command's environment, whose values are texts, numbers or booleans.
#[derive(Debug, Clone, Copy)]
pub enum Variables {}

impl Single for Variables {
    type Value = BTreeMap<String, String>;
    const KIND: Kind = Kind::FreeMap;

    fn read(given: Option<&Located>, reader: &mut Reader<'_>) -> Option<BTreeMap<String, String>> {
        let entries = given.map_or(&[][..], Located::entries);
        let variable = |(name, value): &(Located, Located)| {
            let name = name.name();
            let value = match value.to_json() {
                serde_json::Value::String(text) => Some(text),
                value @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_)) => {
                    Some(value.to_string())
                }
                serde_json::Value::Null => Some(String::new()),
                serde_json::Value::Array(_) | serde_json::Value::Object(_) => None,
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
}

/// A number of processors, as thousandths.
#[derive(Debug, Clone, Copy)]
pub enum Processors {}

impl Single for Processors {
    type Value = u32;
    const KIND: Kind = Kind::Float;

    fn read(given: Option<&Located>, reader: &mut Reader<'_>) -> Option<u32> {
        let Value::Float(number) = given?.value else { return None };
        let millis = (number * 1000.0).round();
        if (10.0..=1_000_000.0).contains(&millis) {
            return Some(millis as u32);
        }
        reader.refuse(&number.to_string(), "a number of processors is 0.01 to 1000");
        None
    }
}
