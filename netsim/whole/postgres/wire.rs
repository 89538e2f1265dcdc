//! Messages of PostgreSQL's protocol 3.0, from the server's side, as in its documentation ("Message Formats").

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::tables::{Refusal, Rows, Value};

/// The longest message of a client.
const LONGEST: usize = 64 << 20;
const INT8: i32 = 20;
const TEXT: i32 = 25;

/// A message of a client.
#[derive(Debug)]
pub(super) enum Asked {
    /// Statements without parameters.
    Simple(String),
    Parse {
        sql: String,
        types: Vec<i32>,
    },
    Bind(Vec<Option<Vec<u8>>>),
    Sync,
    /// Any other message, which changes nothing here.
    Other,
    Terminate,
}

/// Reads the first message, which has no type letter.
pub(super) async fn startup(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let length = stream.read_i32().await?;
    body(stream, length).await.map(drop)
}

async fn body(stream: &mut (impl AsyncRead + Unpin), length: i32) -> io::Result<Vec<u8>> {
    let length = usize::try_from(length).ok().and_then(|length| length.checked_sub(4));
    let length = length.filter(|length| *length <= LONGEST).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

/// Reads the next message.
pub(super) async fn asked(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Asked> {
    let kind = stream.read_u8().await?;
    let length = stream.read_i32().await?;
    let body = body(stream, length).await?;
    let mut rest = Rest(&body);
    Ok(match kind {
        b'Q' => Asked::Simple(rest.text()),
        b'P' => {
            let (_name, sql) = (rest.text(), rest.text());
            let count = rest.i16();
            Asked::Parse { sql, types: (0..count).map(|_| rest.i32()).collect() }
        }
        b'B' => {
            let (_portal, _statement) = (rest.text(), rest.text());
            let formats = rest.i16();
            let _all_binary = rest.bytes(usize::try_from(formats).unwrap_or_default() * 2);
            let count = rest.i16();
            let value = |rest: &mut Rest<'_>| {
                usize::try_from(rest.i32()).ok().map(|length| rest.bytes(length).to_vec())
            };
            Asked::Bind((0..count).map(|_| value(&mut rest)).collect())
        }
        b'S' => Asked::Sync,
        b'X' => Asked::Terminate,
        _ => Asked::Other,
    })
}

/// A parameter of this type.
pub(super) fn value(kind: i32, bytes: Option<Vec<u8>>) -> Value {
    match bytes {
        None => Value::Null,
        Some(bytes) if kind == INT8 => {
            Value::Integer(i64::from_be_bytes(bytes.try_into().expect("eight bytes")))
        }
        Some(bytes) => Value::Text(String::from_utf8(bytes).expect("UTF-8")),
    }
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (some, rest) = self.0.split_at(count);
        self.0 = rest;
        some
    }

    fn text(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).expect("a zero behind each text");
        let text = String::from_utf8_lossy(self.bytes(end)).into_owned();
        self.bytes(1);
        text
    }

    fn i16(&mut self) -> i16 {
        i16::from_be_bytes(self.bytes(2).try_into().expect("two bytes"))
    }

    fn i32(&mut self) -> i32 {
        i32::from_be_bytes(self.bytes(4).try_into().expect("four bytes"))
    }
}

/// Whether a session is in a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Idle,
    Within,
    Failed,
}

/// Messages of the server that are sent together.
#[derive(Default)]
pub(super) struct Answer(pub(super) Vec<u8>);

impl Answer {
    fn message(&mut self, kind: u8, body: &[u8]) {
        self.0.push(kind);
        self.0.extend((body.len() as i32 + 4).to_be_bytes());
        self.0.extend(body);
    }

    /// Accepts a client.
    pub(super) fn welcome(&mut self) {
        self.message(b'R', &0i32.to_be_bytes());
        self.ready(Status::Idle);
    }

    pub(super) fn ready(&mut self, status: Status) {
        let letter = match status {
            Status::Idle => b'I',
            Status::Within => b'T',
            Status::Failed => b'E',
        };
        self.message(b'Z', &[letter]);
    }

    pub(super) fn parsed_and_bound(&mut self) {
        self.message(b'1', &[]);
        self.message(b'2', &[]);
    }

    /// The columns, if the statement has some. A column is numeric if it contains a number.
    pub(super) fn columns(&mut self, rows: &Rows) {
        if rows.columns == 0 {
            return self.message(b'n', &[]);
        }
        let mut body = (rows.columns as i16).to_be_bytes().to_vec();
        for column in 0..rows.columns {
            let is_number = rows.rows.iter().any(|row| matches!(row[column], Value::Integer(_)));
            let (kind, size) = if is_number { (INT8, 8i16) } else { (TEXT, -1) };
            body.extend(b"?\0");
            body.extend([0; 6]);
            body.extend(kind.to_be_bytes());
            body.extend(size.to_be_bytes());
            body.extend([0xff; 4]);
            body.extend(1i16.to_be_bytes());
        }
        self.message(b'T', &body);
    }

    /// The rows, and the end of the statement. For a simple query all values are texts.
    pub(super) fn rows(&mut self, rows: &Rows, is_simple: bool) {
        for row in &rows.rows {
            let mut body = (row.len() as i16).to_be_bytes().to_vec();
            for value in row {
                let bytes = match value {
                    Value::Null => {
                        body.extend((-1i32).to_be_bytes());
                        continue;
                    }
                    Value::Integer(int) if is_simple => int.to_string().into_bytes(),
                    Value::Integer(int) => int.to_be_bytes().to_vec(),
                    Value::Text(text) => text.as_bytes().to_vec(),
                };
                body.extend((bytes.len() as i32).to_be_bytes());
                body.extend(bytes);
            }
            self.message(b'D', &body);
        }
        let count = if rows.columns > 0 { rows.rows.len() } else { rows.changed };
        self.message(b'C', format!("DONE {count}\0").as_bytes());
    }

    pub(super) fn refusal(&mut self, refusal: &Refusal) {
        let body = format!("SERROR\0VERROR\0C{}\0M{}\0\0", refusal.code, refusal.words);
        self.message(b'E', body.as_bytes());
    }

    pub(super) fn notification(&mut self, channel: &str, payload: &str) {
        let mut body = 1i32.to_be_bytes().to_vec();
        body.extend(format!("{channel}\0{payload}\0").into_bytes());
        self.message(b'A', &body);
    }
}
