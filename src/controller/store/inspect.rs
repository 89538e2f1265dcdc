//! Looks at a store without changing it: whether it can be reached, whether this program understands it, and whether
//! notifications arrive.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};

use super::error::Error;
use super::options::{Options, PostgresOptions};
use super::schema::STEPS;
use super::sqlite;
use super::tls::Tls;

/// How long a server may take for the whole inspection, and how long a notification may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const NOTICE_WITHIN: Duration = Duration::from_secs(2);

/// How a store looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFinding {
    /// There is none yet: the first start makes it.
    Absent,
    /// It can be used.
    Fine,
    /// It can be used, but notifications do not arrive: a transaction pooler stands in between.
    NoNotifications,
}

/// Looks at a store, which may be in use, and changes nothing.
///
/// # Errors
/// It cannot be reached, or this program does not understand it.
pub async fn inspect(options: &Options) -> Result<StoreFinding, Error> {
    match options {
        Options::Sqlite(path) => inspect_file(path),
        Options::Postgres(options) => {
            let looked = tokio::time::timeout(ANSWER_WITHIN, inspect_server(options)).await;
            looked.unwrap_or_else(|_| Err(Error::Away("the server does not answer".into())))
        }
    }
}

fn inspect_file(path: &Path) -> Result<StoreFinding, Error> {
    match path.exists() {
        true => match sqlite::look(path) {
            // A file cannot be away, so the settings are wrong.
            Err(Error::Away(why)) => Err(Error::Settings(format!("{}: {why}", path.display()))),
            looked => looked.map(|()| StoreFinding::Fine),
        },
        false => Ok(StoreFinding::Absent),
    }
}

async fn inspect_server(options: &PostgresOptions) -> Result<StoreFinding, Error> {
    let tls = Tls::new(&options.ssl)?;
    let (listening, mut connection) = options.config()?.connect(tls.clone()).await.map_err(away)?;
    let (heard, mut notices) = mpsc::channel::<()>(1);
    let watching = tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if matches!(message, AsyncMessage::Notification(_)) {
                // One notification is enough.
                let _second = heard.try_send(());
            }
        }
    });
    let (client, connection) = options.config()?.connect(tls).await.map_err(away)?;
    let serving = tokio::spawn(connection);
    let found = look(&client, &listening, &mut notices).await;
    watching.abort();
    serving.abort();
    found
}

async fn look(
    client: &Client,
    listening: &Client,
    notices: &mut mpsc::Receiver<()>,
) -> Result<StoreFinding, Error> {
    let found =
        one(client, "SELECT count(*) FROM pg_tables WHERE schemaname = 'meshd' AND tablename = 'meta'");
    let exists = found.await?.as_deref() == Some("1");
    if exists {
        let min_reader = one(client, "SELECT value FROM meshd.meta WHERE key = 'min_reader'").await?;
        let min_reader: i64 = min_reader.and_then(|text| text.parse().ok()).unwrap_or(0);
        let program = STEPS.len() as i64;
        if min_reader > program {
            return Err(Error::TooOld { program, min_reader });
        }
    }
    let channel = format!("meshd_check_{:016x}", rand::random::<u64>());
    listening.batch_execute(&format!("LISTEN {channel}")).await.map_err(away)?;
    client.batch_execute(&format!("NOTIFY {channel}")).await.map_err(away)?;
    let (heard, late) = (pin!(notices.recv()), pin!(tokio::time::sleep(NOTICE_WITHIN)));
    Ok(match select(heard, late).await {
        Either::Left((Some(()), _)) if exists => StoreFinding::Fine,
        Either::Left((Some(()), _)) => StoreFinding::Absent,
        Either::Left((None, _)) | Either::Right(_) => StoreFinding::NoNotifications,
    })
}

/// The one value of a query.
async fn one(client: &Client, query: &str) -> Result<Option<String>, Error> {
    let messages = client.simple_query(query).await.map_err(away)?;
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

fn away(error: tokio_postgres::Error) -> Error {
    Error::Away(error.to_string())
}
