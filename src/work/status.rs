//! The status file: its JSON as Go nodes and other tools read it, and the answer for clients that is made from it. Owns
//! only the shape; `store` decides where the file lies and who may write it. ExtraData of types unknown here is kept
//! word for word.

mod job;

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use self::job::{CONTROLLER, JobExtra};
use super::asked::{self, AskedHash};
use super::caller::{self, Submitter};
use super::unit::{Life, State};
use crate::pods::extra::KubeExtra;
use crate::rpc::{OutputBound, UnitReport};

/// The work type of a unit that runs on another node.
pub const REMOTE: &str = "remote";

/// What a `status` file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// State, Detail and StdoutSize.
    pub life: Life,
    /// The work type; [`REMOTE`] for a unit that runs on another node.
    pub work_type: Cow<'static, str>,
    /// What only units of that type have.
    pub extra: Extra,
    /// Who submitted the unit. Unknown for units that a Go node or an earlier version made.
    pub submitter: Option<Submitter>,
    /// What its submission asked for. Unknown for the same units.
    pub asked: Option<AskedHash>,
    /// How the unit's process ended, once it has: its exit status, or 128 and the number of the signal that ended it.
    pub exit_code: Option<i32>,
    /// Its type verified signatures when it was submitted. The unit needs signatures even if the type changes.
    pub verify_signature: bool,
    /// How much it may print, if that is bounded apart from the limits of its type.
    pub max_stdout: Option<Box<OutputBound>>,
    /// Its submission was refused: it never starts, and nobody may know of it.
    pub refused: bool,
}

/// ExtraData by kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Extra {
    /// `null`: a command unit that has ended.
    None,
    /// A command unit.
    Command(CommandExtra),
    /// A job of the controller.
    Job(Box<JobExtra>),
    /// A unit that runs as a pod.
    Kubernetes(Box<KubeExtra>),
    /// A unit on another node.
    Remote(Box<RemoteExtra>),
    /// Anything else, kept as it was read.
    Other(Box<Value>),
}

/// What runs a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitKind {
    /// Processes of this node.
    Local,
    /// Another node.
    Remote,
    /// A cluster.
    Pod,
    /// Other units, for a controller.
    Job,
}

/// ExtraData of a command unit while it waits or runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct CommandExtra {
    /// The runner's process ID, 0 before the start.
    pub pid: u32,
    /// The command's arguments, configured and given ones joined.
    pub params: String,
}

/// ExtraData of a remote unit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RemoteExtra {
    /// The node that shall run it.
    pub remote_node: Box<str>,
    /// The work type there.
    pub remote_work_type: Box<str>,
    /// Its parameters, secrets included.
    #[serde(deserialize_with = "null_is_empty")]
    pub remote_params: Params,
    /// The unit's ID there, empty until known.
    #[serde(rename = "RemoteUnitID")]
    pub remote_unit_id: Box<str>,
    /// The other node has said that it has everything.
    pub remote_started: bool,
    /// A client asked for cancellation.
    pub local_cancelled: bool,
    /// A client asked for release.
    pub local_released: bool,
    /// Its release there ends the processes that it has left running.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sweep: bool,
    /// Requests to the other node carry a signature.
    pub sign_work: bool,
    /// TLS profile for the way there, empty for none.
    #[serde(rename = "TLSClient")]
    pub tls_client: Box<str>,
    /// Latest time of start.
    #[serde(with = "go_time")]
    pub expiration: Option<Timestamp>,
    /// Another node submitted it; this one has taken it over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// Its node does not know it, or knows it no longer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
    /// Its node remembers that it was released there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub was_released: bool,
    /// It was given up before anything of it was sent.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unsent: bool,
    /// Bytes sent of a payload of which its node had pieces, and bytes that need not be sent.
    #[serde(skip_serializing_if = "is_zero")]
    pub payload_sent: u64,
    /// The same.
    #[serde(skip_serializing_if = "is_zero")]
    pub payload_saved: u64,
    /// Why this node ends the unit; empty if it does not. A unit that is being ended adds no more output.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub stopped: Box<str>,
    /// Fields of newer nodes, kept.
    #[serde(flatten)]
    pub rest: UnknownFields,
}

/// Fields that have no meaning here.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnknownFields(Option<Box<Map<String, Value>>>);

impl Serialize for UnknownFields {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.0.iter().flat_map(|fields| fields.iter()))
    }
}

impl<'de> Deserialize<'de> for UnknownFields {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let fields = Map::deserialize(d)?;
        Ok(Self((!fields.is_empty()).then(|| Box::new(fields))))
    }
}

/// Parameters by name, in as little memory as they need, because many units may be kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Params(Box<[(Box<str>, Box<str>)]>);

impl Params {
    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// A map of them.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// The parameters that may be shown.
    fn without_secrets(&self) -> Self {
        Self(self.0.iter().filter(|(name, _)| !is_secret(name)).cloned().collect())
    }
}

impl From<BTreeMap<String, String>> for Params {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self(map.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Serialize for Params {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Params {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(d).map(Self::from)
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn null_is_empty<'de, D, T>(d: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Go's time, whose zero stands for none.
mod go_time {
    use super::*;

    const ZERO: &str = "0001-01-01T00:00:00Z";

    pub(super) fn serialize<S: Serializer>(time: &Option<Timestamp>, s: S) -> Result<S::Ok, S::Error> {
        match time {
            None => s.serialize_str(ZERO),
            Some(time) => s.collect_str(time),
        }
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Timestamp>, D::Error> {
        let text = String::deserialize(d)?;
        if text == ZERO {
            return Ok(None);
        }
        text.parse().map(Some).map_err(serde::de::Error::custom)
    }
}

/// The keys of a file that no report has; Go nodes skip them.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct FileOnlyKeys {
    /// Written only while the Detail, which Go nodes go by, says something else.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    payload_awaited: bool,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "caller::lenient")]
    submitter: Option<Submitter>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "asked::lenient")]
    asked: Option<AskedHash>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    verify_signature: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_stdout: Option<Box<OutputBound>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
}

/// A file to write. It is read back as a report and as [`FileOnlyKeys`].
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Written<'a> {
    state: u8,
    detail: &'a str,
    stdout_size: u64,
    work_type: &'a str,
    extra_data: &'a Extra,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(flatten)]
    own: FileOnlyKeys,
}

impl Status {
    /// A unit that has just been made.
    pub fn new(work_type: &str, extra: Extra) -> Self {
        // Many remote units may be kept, and all of them share one name in memory.
        let work_type = if work_type == REMOTE { REMOTE.into() } else { work_type.to_owned().into() };
        Self {
            life: Life::new(),
            work_type,
            extra,
            submitter: None,
            asked: None,
            exit_code: None,
            verify_signature: false,
            max_stdout: None,
            refused: false,
        }
    }

    /// Reads a file's content.
    ///
    /// # Errors
    /// The content is not a whole status.
    pub fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        // ExtraData stays text until its type is known.
        let report: UnitReport<Option<Box<RawValue>>> = serde_json::from_slice(bytes)?;
        let FileOnlyKeys { payload_awaited, submitter, asked, verify_signature, max_stdout, refused } =
            serde_json::from_slice(bytes)?;
        let UnitReport { state, detail, stdout_size, work_type, extra_data, exit_code, .. } = report;
        let mut life = Life::read(state, detail, stdout_size);
        life.awaits_payload |= payload_awaited && state == State::Pending;
        let extra = Extra::parse(&work_type, extra_data.as_deref())?;
        if matches!(&extra, Extra::Remote(remote) if remote.remote_started) {
            // The Detail is the other node's, and tells what arrives there.
            life.awaits_payload = false;
        }
        let new = Self::new(&work_type, extra);
        Ok(Self { life, submitter, asked, exit_code, verify_signature, max_stdout, refused, ..new })
    }

    /// The file's content: one line of JSON.
    pub fn to_line(&self) -> Vec<u8> {
        let written = Written {
            state: self.life.state as u8,
            detail: &self.life.detail,
            stdout_size: self.life.stdout_size.min(i64::MAX.unsigned_abs()),
            work_type: &self.work_type,
            extra_data: &self.extra,
            exit_code: self.exit_code,
            own: FileOnlyKeys {
                payload_awaited: self.life.hides_awaited_payload(),
                submitter: self.submitter,
                asked: self.asked,
                verify_signature: self.verify_signature,
                max_stdout: self.max_stdout.clone(),
                refused: self.refused,
            },
        };
        let mut line =
            serde_json::to_vec(&written).expect("strings, numbers and a JSON value always make JSON");
        line.push(b'\n');
        line
    }

    /// What runs the unit.
    pub fn kind(&self) -> UnitKind {
        match &self.extra {
            Extra::None | Extra::Command(_) | Extra::Other(_) => UnitKind::Local,
            Extra::Remote(_) => UnitKind::Remote,
            Extra::Kubernetes(_) => UnitKind::Pod,
            Extra::Job(_) => UnitKind::Job,
        }
    }

    /// The remote part, if this is a remote unit.
    pub fn remote(&self) -> Option<&RemoteExtra> {
        if let Extra::Remote(remote) = &self.extra { Some(remote) } else { None }
    }

    /// The remote part for changing, if this is a remote unit.
    pub fn remote_mut(&mut self) -> Option<&mut RemoteExtra> {
        if let Extra::Remote(remote) = &mut self.extra { Some(remote) } else { None }
    }

    /// The answer for clients; `known` says whether the work type is configured here.
    pub fn report(&self, known: bool) -> UnitReport {
        let UnitReport { state, detail, stdout_size, work_type, extra_data, exit_code } =
            self.report_of(known, self.life.stdout_size);
        let extra_data = serde_json::to_value(extra_data).unwrap_or_default();
        UnitReport { state, detail, stdout_size, work_type, extra_data, exit_code }
    }

    /// The same as JSON, with another size of stdout.
    ///
    /// # Errors
    /// None that is known: a report is made of texts, numbers and JSON.
    pub(super) fn report_json(&self, known: bool, stdout_size: u64) -> serde_json::Result<String> {
        serde_json::to_string(&self.report_of(known, stdout_size))
    }

    fn report_of(&self, known: bool, stdout_size: u64) -> UnitReport<PublicExtra<'_>> {
        UnitReport {
            state: self.life.state,
            detail: self.life.detail.clone(),
            stdout_size,
            work_type: self.work_type.clone().into_owned(),
            extra_data: PublicExtra(known.then_some(&self.extra)),
            exit_code: self.exit_code,
        }
    }
}

impl Extra {
    fn parse(work_type: &str, text: Option<&RawValue>) -> Result<Self, serde_json::Error> {
        match (text.map_or("null", RawValue::get), work_type == REMOTE) {
            ("null", true) => Ok(Self::Remote(Box::default())),
            ("null", false) => Ok(Self::None),
            (text, true) => serde_json::from_str(text).map(Self::Remote),
            (text, false) => match serde_json::from_str(text) {
                Ok(command) => Ok(Self::Command(command)),
                Err(_) => {
                    let value: Value = serde_json::from_str(text)?;
                    if work_type == CONTROLLER {
                        return serde_json::from_value(value).map(Self::Job);
                    }
                    match KubeExtra::is_one(&value) {
                        true => serde_json::from_value(value).map(Self::Kubernetes),
                        false => Ok(Self::Other(Box::new(value))),
                    }
                }
            },
        }
    }
}

impl Serialize for Extra {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => s.serialize_unit(),
            Self::Command(command) => command.serialize(s),
            Self::Job(extra) => extra.serialize(s),
            Self::Kubernetes(extra) => extra.serialize(s),
            Self::Remote(remote) => remote.serialize(s),
            Self::Other(value) => value.serialize(s),
        }
    }
}

/// Whether a parameter of this name is never shown.
pub fn is_secret(name: &str) -> bool {
    name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("secret_"))
}

/// ExtraData without secrets; `None` for a type that is unknown here.
struct PublicExtra<'a>(Option<&'a Extra>);

impl Serialize for PublicExtra<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            None => s.serialize_str(UNKNOWN_TYPE),
            Some(Extra::Remote(remote)) if remote.remote_params.iter().any(|(name, _)| is_secret(name)) => {
                let mut shown = remote.clone();
                shown.remote_params = shown.remote_params.without_secrets();
                shown.serialize(s)
            }
            Some(Extra::Kubernetes(extra)) => extra.shown().serialize(s),
            Some(extra) => extra.serialize(s),
        }
    }
}

/// ExtraData of a unit whose work type is not configured here.
const UNKNOWN_TYPE: &str = "Unknown WorkType";

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by a Go node.
    const REMOTE_LINE: &str = r#"{"State":0,"Detail":"Starting Worker","StdoutSize":0,"WorkType":"remote","ExtraData":{"RemoteNode":"nowhere","RemoteWorkType":"sh","RemoteParams":{"params":"x","secretx":"1"},"RemoteUnitID":"","RemoteStarted":false,"LocalCancelled":false,"LocalReleased":false,"SignWork":false,"TLSClient":"","Expiration":"0001-01-01T00:00:00Z"}}"#;
    const COMMAND_LINE: &str = r#"{"State":1,"Detail":"Running: PID 15367","StdoutSize":3,"WorkType":"sh","ExtraData":{"Pid":15357,"Params":"-c 'echo hi; sleep 2'"}}"#;

    fn round(line: &str) -> Status {
        let status = Status::parse(line.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(status.to_line()).unwrap(), format!("{line}\n"));
        status
    }

    #[test]
    fn files_of_a_go_node_come_back_byte_for_byte() {
        assert_eq!(&*round(REMOTE_LINE).remote().unwrap().remote_node, "nowhere");
        assert_eq!(
            round(COMMAND_LINE).extra,
            Extra::Command(CommandExtra { pid: 15357, params: "-c 'echo hi; sleep 2'".into() })
        );
        round(r#"{"State":2,"Detail":"exit status 0","StdoutSize":3,"WorkType":"sh","ExtraData":null}"#);
        round(
            r#"{"State":1,"Detail":"x","StdoutSize":3,"WorkType":"kube","ExtraData":{"Image":"i","Pid":1,"Deep":{"b":1,"a":2}}}"#,
        );
    }

    #[test]
    fn secrets_stay_on_disk_and_out_of_answers() {
        let line = REMOTE_LINE.replace("secretx", "Secret_x");
        let status = Status::parse(line.as_bytes()).unwrap();
        assert!(String::from_utf8(status.to_line()).unwrap().contains("Secret_x"));
        let report = serde_json::to_string(&status.report(true)).unwrap();
        assert!(!report.contains("ecret_x"), "{report}");
        assert!(
            report.contains(r#""params":"x""#) && report.ends_with(r#""StateName":"Pending"}"#),
            "{report}"
        );
    }

    #[test]
    fn an_unknown_type_says_so() {
        let report = serde_json::to_value(round(COMMAND_LINE).report(false)).unwrap();
        assert_eq!(report["ExtraData"], "Unknown WorkType");
        assert_eq!(report["State"], 1);
    }

    #[test]
    fn a_list_says_the_same_as_a_status() {
        let secret = REMOTE_LINE.replace("secretx", "secret_x");
        let other = r#"{"State":1,"Detail":"x","WorkType":"kube","ExtraData":{"Image":"i","Pid":1}}"#;
        let ended = r#"{"State":2,"Detail":"exit status 0","StdoutSize":3,"WorkType":"sh","ExtraData":null}"#;
        for line in [REMOTE_LINE, COMMAND_LINE, &secret, other, ended] {
            let status = Status::parse(line.as_bytes()).unwrap();
            for known in [true, false] {
                let report = serde_json::to_string(&status.report(known)).unwrap();
                assert_eq!(status.report_json(known, status.life.stdout_size).unwrap(), report);
            }
        }
    }

    #[test]
    fn damage_is_an_error() {
        for bad in ["", "{", "null", r#"{"State":9}"#, r#"{"State":-1}"#, r#"{"State":"x"}"#] {
            assert!(Status::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
