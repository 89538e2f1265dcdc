//! A connection: its statements and the state of its transaction. It ends when its client leaves, or sends nothing
//! within a transaction for too long.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::broadcast;
use tokio::time::timeout;

use super::tables::{Refusal, Rows, Tables, Transaction, Value};
use super::wire::{self, Answer, Asked, Status};

/// As the product sets it for each transaction.
const IDLE_WITHIN: Duration = Duration::from_secs(10);

struct Session {
    tables: Rc<Tables>,
    /// The open transaction, and whether one of its statements has failed.
    transaction: Option<(Transaction, bool)>,
    /// Notifications to send at the commit: channel and payload.
    notes: Vec<(String, String)>,
    heard: Option<broadcast::Receiver<(String, String)>>,
}

/// Serves a client until it leaves.
pub(super) async fn serve(mut stream: TcpStream, tables: Rc<Tables>) {
    let session = Session { tables, transaction: None, notes: Vec::new(), heard: None };
    let _gone = session.run(&mut stream).await;
}

impl Session {
    async fn run(mut self, stream: &mut TcpStream) -> io::Result<()> {
        let (mut from, mut into) = stream.split();
        wire::startup(&mut from).await?;
        let mut answer = Answer::default();
        answer.welcome();
        let (mut sql, mut types, mut values) = (String::new(), Vec::new(), Vec::new());
        loop {
            into.write_all(&answer.0).await?;
            answer = Answer::default();
            if self.transaction.is_none() && self.heard.is_some() {
                // Once a message has begun it is read completely, because a cancelled read would lose part of it.
                tokio::select! {
                    ready = from.readable() => ready?,
                    (channel, payload) = heard(&mut self.heard) => {
                        answer.notification(&channel, &payload);
                        continue;
                    }
                }
            }
            let limit = if self.transaction.is_some() { IDLE_WITHIN } else { Duration::MAX };
            let Ok(asked) = timeout(limit, wire::asked(&mut from)).await else {
                answer.refusal(&Refusal { code: "25P03", words: "the transaction stood still".to_owned() });
                return into.write_all(&answer.0).await;
            };
            match asked? {
                Asked::Terminate => return Ok(()),
                Asked::Other => {}
                Asked::Parse { sql: text, types: these } => (sql, types) = (text, these),
                Asked::Bind(bound) => {
                    values = types.iter().zip(bound).map(|(kind, bytes)| wire::value(*kind, bytes)).collect();
                }
                Asked::Sync => {
                    match self.statement(&sql, &std::mem::take(&mut values)).await {
                        Ok(rows) => {
                            answer.parsed_and_bound();
                            answer.columns(&rows);
                            answer.rows(&rows, false);
                        }
                        Err(refusal) => answer.refusal(&refusal),
                    }
                    answer.ready(self.status());
                }
                Asked::Simple(text) => {
                    // A plain split is enough, because no statement of the product contains a semicolon.
                    for statement in text.split(';').map(str::trim).filter(|statement| !statement.is_empty())
                    {
                        match self.statement(statement, &[]).await {
                            Ok(rows) => {
                                if rows.columns > 0 {
                                    answer.columns(&rows);
                                }
                                answer.rows(&rows, true);
                            }
                            Err(refusal) => {
                                answer.refusal(&refusal);
                                break;
                            }
                        }
                    }
                    answer.ready(self.status());
                }
            }
        }
    }

    fn status(&self) -> Status {
        match &self.transaction {
            None => Status::Idle,
            Some((_, false)) => Status::Within,
            Some((_, true)) => Status::Failed,
        }
    }

    async fn statement(&mut self, sql: &str, values: &[Value]) -> Result<Rows, Refusal> {
        let mut words = sql.split_whitespace();
        match words.next().unwrap_or_default() {
            "BEGIN" => self.transaction = Some((self.tables.begin(), false)),
            "ROLLBACK" => {
                self.transaction = None;
                self.notes.clear();
            }
            "COMMIT" => {
                let notes = std::mem::take(&mut self.notes);
                if let Some((transaction, false)) = self.transaction.take() {
                    transaction.commit(&self.tables, notes)?;
                }
            }
            "LISTEN" => self.heard = Some(self.tables.listen()),
            "NOTIFY" => {
                let channel = words.next().unwrap_or_default().trim_end_matches(',');
                let payload = words.next().unwrap_or_default().trim_matches('\'');
                self.notes.push((channel.to_owned(), payload.to_owned()));
            }
            "SET" => {}
            _ => return self.query(sql, values).await,
        }
        Ok(Rows::default())
    }

    async fn query(&mut self, sql: &str, values: &[Value]) -> Result<Rows, Refusal> {
        match &mut self.transaction {
            Some((_, true)) => Err(Refusal { code: "25P02", words: "the transaction is aborted".to_owned() }),
            Some((transaction, failed)) => {
                let result = transaction.query(&self.tables, sql, values).await;
                *failed = result.is_err();
                result
            }
            None => {
                let mut own = self.tables.begin();
                let rows = own.query(&self.tables, sql, values).await?;
                own.commit(&self.tables, Vec::new())?;
                Ok(rows)
            }
        }
    }
}

async fn heard(by: &mut Option<broadcast::Receiver<(String, String)>>) -> (String, String) {
    loop {
        match by {
            Some(heard) => match heard.recv().await {
                Ok(note) => return note,
                // A client that misses notifications looks again for other reasons.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => *by = None,
            },
            None => std::future::pending().await,
        }
    }
}
