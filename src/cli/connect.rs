//! `meshctl connect`: connects standard input and output to a service of a node. Owns the terminal's raw mode, its
//! restoration and the key that leaves; apart from that key, the bytes pass unread.

use std::{
    io::{self, IsTerminal, Stdin},
    pin::pin,
};

use clap::Args;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{
    CliContext,
    completion::nodes,
    exit::{Exit, Failure},
    output::interrupted,
};

const CHUNK: usize = 64 << 10;
/// Ctrl-], as in telnet: leaves a raw terminal whose other end hangs.
const ESCAPE: u8 = 0x1d;

#[derive(Debug, Args)]
pub(super) struct ConnectCommand {
    /// Node to connect to
    #[arg(add = nodes())]
    node: String,
    /// Service of that node
    service: String,
    /// Send each key as it is pressed, Ctrl-C included (Ctrl-] leaves)
    #[arg(long, short)]
    raw: bool,
    /// TLS profile of the local node for this connection
    #[arg(long, value_name = "NAME")]
    tls_client: Option<String>,
}

impl ConnectCommand {
    pub(super) async fn run(self, context: &CliContext) -> Result<Exit, Failure> {
        let profile = self.tls_client.filter(|name| !name.is_empty());
        let connection = context.client.connect().await?;
        let tunnel = connection.connect_to(self.node.clone(), self.service.clone(), profile).await?;
        let (reader, writer) = tunnel.split();
        let raw = self.raw && io::stdin().is_terminal();
        if raw {
            context.output.note(&format!("Connected to {} of {}. Ctrl-] leaves.", self.service, self.node));
        }
        let _terminal = if raw { Some(RawTerminal::enter()?) } else { None };
        let mut input = pin!(send(tokio::io::stdin(), writer, raw.then_some(ESCAPE)));
        let mut output = pin!(receive(reader, context));
        let mut stop = pin!(interrupted());
        let mut sending = true;
        loop {
            tokio::select! {
                left = &mut input, if sending => match left {
                    InputSent::Everything => sending = false,
                    InputSent::UntilEscape => return Ok(Exit::Success),
                },
                received = &mut output => return received.map(|()| Exit::Success),
                failure = &mut stop => return Err(failure),
            }
        }
    }
}

enum InputSent {
    /// Input ended, or the other end stopped reading; it may still send.
    Everything,
    /// The user wants to leave.
    UntilEscape,
}

async fn send(
    mut input: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
    escape: Option<u8>,
) -> InputSent {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = input.read(&mut buffer).await.unwrap_or(0);
        if count == 0 {
            break;
        }
        if escape.is_some_and(|escape| buffer[..count].contains(&escape)) {
            return InputSent::UntilEscape;
        }
        if writer.write_all(&buffer[..count]).await.is_err() || writer.flush().await.is_err() {
            return InputSent::Everything;
        }
    }
    // An error does not matter: the other end may have closed first.
    let _ = writer.shutdown().await;
    InputSent::Everything
}

async fn receive(mut reader: impl AsyncRead + Unpin, context: &CliContext) -> Result<(), Failure> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = reader
            .read(&mut buffer)
            .await
            .map_err(|error| Failure::new(Exit::Unreachable, format!("the connection broke: {error}")))?;
        if count == 0 {
            return Ok(());
        }
        context.output.bytes(&buffer[..count]).await?;
    }
}

/// Keeps the terminal in raw mode until dropped.
struct RawTerminal {
    stdin: Stdin,
    before: Termios,
}

impl RawTerminal {
    fn enter() -> Result<Self, Failure> {
        let stdin = io::stdin();
        let failed =
            |error| Failure::new(Exit::Failed, format!("cannot set the terminal to raw mode: {error}"));
        let before = tcgetattr(&stdin).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Flush, &raw).map_err(failed)?;
        Ok(Self { stdin, before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(&self.stdin, OptionalActions::Flush, &self.before);
    }
}
