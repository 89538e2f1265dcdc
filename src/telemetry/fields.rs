//! Lines with fields, for programs that read the log: JSON on standard output, or the journal's own protocol
//! (systemd.io/JOURNAL_NATIVE_PROTOCOL). A line also has the fields of its spans. A line about the unit of a job also
//! has the job's number, so that one filter finds a job's lines on all nodes. Refuses to know how long values may be.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::MakeWriter as _;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::values::short;
use super::{Lines, LogFormat};

pub(super) const MESSAGE: &str = "message";

/// Writes lines with fields.
pub(super) struct FieldLines {
    lines: Lines,
    format: LogFormat,
    /// Finds the job of a unit by the unit's ID.
    job_of: fn(&str) -> Option<u64>,
}

impl FieldLines {
    pub(super) fn new(lines: Lines, format: LogFormat, job_of: fn(&str) -> Option<u64>) -> Self {
        Self { lines, format, job_of }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for FieldLines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = LogFields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = LogFields::default();
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(known) = span.extensions().get::<LogFields>() {
                fields.0.extend(known.0.iter().map(|(name, value)| (*name, value.clone())));
            }
        }
        event.record(&mut fields);
        if !fields.0.contains_key("job")
            && let Some(job) = fields.0.get("unit").and_then(Value::as_str).and_then(self.job_of)
        {
            fields.0.insert("job", job.into());
        }
        let line = line(self.format, *event.metadata().level(), fields);
        // `Lines` counts lost lines and reports them.
        let _lost = self.lines.make_writer().write_all(&line);
    }
}

/// The bytes of a line in the given format.
pub(super) fn line(format: LogFormat, level: Level, mut fields: LogFields) -> Vec<u8> {
    let message = fields.take_message();
    match format {
        LogFormat::Text => format!("{message}\n").into_bytes(),
        LogFormat::Json => json(level, &message, fields),
        LogFormat::Journald => journal(level, &message, &fields),
    }
}

fn json(level: Level, message: &str, fields: LogFields) -> Vec<u8> {
    let level = level.as_str().to_ascii_lowercase();
    let own = [("time", jiff::Timestamp::now().to_string()), ("level", level), (MESSAGE, message.to_owned())];
    let mut line: Map<String, Value> =
        own.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    for (name, value) in fields.0 {
        line.entry(name).or_insert(value);
    }
    let mut line = Value::Object(line).to_string().into_bytes();
    line.push(b'\n');
    line
}

fn journal(level: Level, message: &str, fields: &LogFields) -> Vec<u8> {
    let priority = match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    };
    let mut entry = Vec::new();
    for (name, value) in &fields.0 {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        put(&mut entry, &format!("MESHD_{}", name.to_ascii_uppercase()), &text);
    }
    put(&mut entry, "PRIORITY", priority);
    put(&mut entry, "SYSLOG_IDENTIFIER", "meshd");
    put(&mut entry, "MESSAGE", &shown(message, fields));
    entry
}

/// A message followed by all fields.
fn shown(message: &str, fields: &LogFields) -> String {
    let mut shown = message.to_owned();
    for (name, value) in &fields.0 {
        // Writing to a string cannot fail.
        let _ = write!(shown, " {name}={value}");
    }
    shown
}

/// Adds a field. Its value has a length in front, because it may come from anybody; its name comes from the code.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend(name.bytes().map(|byte| if byte.is_ascii_alphanumeric() { byte } else { b'_' }));
    entry.push(b'\n');
    entry.extend((value.len() as u64).to_le_bytes());
    entry.extend(value.bytes());
    entry.push(b'\n');
}

/// The fields of a line or a span.
#[derive(Debug, Default)]
pub(super) struct LogFields(BTreeMap<&'static str, Value>);

impl LogFields {
    /// The fields of a line that only has a message.
    pub(super) fn message(text: String) -> Self {
        Self(BTreeMap::from([(MESSAGE, text.into())]))
    }

    pub(super) fn take_message(&mut self) -> String {
        self.0.remove(MESSAGE).as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// The line as one text.
    pub(super) fn into_text(mut self) -> String {
        let message = self.take_message();
        shown(&message, &self)
    }

    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name(), value.into());
    }
}

impl Visit for LogFields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, short(value));
    }
}

/// The journal's socket. Each write is one entry.
pub(super) struct Journal(UnixDatagram);

impl Journal {
    /// Connects to the journal.
    ///
    /// # Errors
    /// If no journal listens there.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self(socket))
    }
}

impl Write for Journal {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        // A refused entry is lost, but the log goes on.
        let _lost = self.0.send(entry);
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> LogFields {
        let mut fields = LogFields::message("unit has started".to_owned());
        fields.0.extend([("unit", Value::from("c1")), ("job", 7.into()), ("detail", "two\nlines\"".into())]);
        fields
    }

    #[test]
    fn a_line_of_json_has_its_fields_beside_its_own_keys() {
        let line = line(LogFormat::Json, Level::WARN, fields());
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"warn".into(), &"unit has started".into()));
        assert_eq!((&line["job"], &line["detail"]), (&7.into(), &"two\nlines\"".into()));
        assert!(line["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
    }

    #[test]
    fn an_entry_of_the_journal_is_whole_in_one_datagram_and_no_value_is_a_field() {
        let temp = tempfile::tempdir().unwrap();
        let listener = UnixDatagram::bind(temp.path().join("s")).unwrap();
        let mut journal = Journal::connect(&temp.path().join("s")).unwrap();
        let mut hostile = fields();
        hostile.0.insert("peer", "x\nPRIORITY=0".into());
        journal.write_all(&line(LogFormat::Journald, Level::INFO, hostile)).unwrap();
        let mut buffer = vec![0; 65536];
        let length = listener.recv(&mut buffer).unwrap();
        let (mut rest, mut found) = (&buffer[..length], BTreeMap::new());
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let name = String::from_utf8(rest[..end].to_vec()).unwrap();
            let size = u64::from_le_bytes(rest[end + 1..end + 9].try_into().unwrap()) as usize;
            found.insert(name, String::from_utf8(rest[end + 9..end + 9 + size].to_vec()).unwrap());
            rest = &rest[end + 10 + size..];
        }
        assert_eq!(found["PRIORITY"], "6");
        assert_eq!((&*found["MESHD_UNIT"], &*found["MESHD_JOB"]), ("c1", "7"));
        assert_eq!(found["MESHD_PEER"], "x\nPRIORITY=0");
        assert!(found["MESSAGE"].starts_with("unit has started "), "{found:?}");
        assert_eq!(found.len(), 7, "{found:?}");
    }
}
