//! The conversation with one client: greeting, command lines, answers, until one side ends it.
//!
//! Owns the order of these steps and the time limits for silent clients. `request` knows what a line means, and each
//! command's own file what the command does.

use std::io;
use std::time::Duration;

use tokio::time::timeout;
use tracing::Instrument;

use super::channel::{Channel, ClientStream, MAX_LINE, ReadLine};
use super::peer::ClientPeer;
use super::stop::{AfterCommand, Stop};
use super::{
    Context, access, connect, controller, doctor, link, loglevel, node, ping, reload, traceroute, work,
};
use crate::rpc::request::{Request, RequestError, WorkRequest};
use crate::work::{Origin, Rights};

/// Limits for clients. The defaults are for production; tests use small ones.
#[derive(Debug, Clone)]
pub(crate) struct ServerLimits {
    /// Most clients at a time of one neighbour: the users of the Unix socket, a network or a node. Trusted neighbours
    /// may have twice as many together, and so may the others.
    pub connections: usize,
    /// How long a new client may take to begin its first command line.
    pub first_command: Duration,
    /// How long a line may take from its first byte to its end.
    pub line: Duration,
    /// How long a client may take to begin each further line, and to read an answer. AWX keeps connections open.
    pub idle: Duration,
    /// How long a connection that we end stays half open for the client to read the rest.
    pub linger: Duration,
    /// How long commands may go on once the daemon stops.
    pub grace: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            first_command: Duration::from_secs(20),
            line: Duration::from_secs(20),
            idle: Duration::from_secs(30 * 60),
            linger: Duration::from_secs(2),
            grace: Duration::from_secs(5),
        }
    }
}

/// Serves one client until it leaves, or, after `stop`, until its current command has ended.
pub(super) async fn run(
    context: &Context,
    link: Box<dyn ClientStream>,
    peer: &ClientPeer,
    limits: &ServerLimits,
    stop: &Stop,
) {
    let mut channel = Channel::new(
        link,
        limits.idle,
        context.lines.room(peer.caller.may(Rights::Trusted), peer.neighbour(&context.node)),
    );
    tracing::debug!("client connected");
    match converse(context, &mut channel, peer, limits, stop).await {
        Ok(()) => tokio::select! {
            biased;
            () = channel.close(limits.linger) => {}
            // A stopping service does not wait for clients that keep their side open.
            () = stop.commands.cancelled() => {}
        },
        Err(error) => tracing::debug!(%error, "client lost"),
    }
    tracing::debug!("client disconnected");
}

async fn converse(
    context: &Context,
    channel: &mut Channel,
    peer: &ClientPeer,
    limits: &ServerLimits,
    stop: &Stop,
) -> io::Result<()> {
    channel.send(&format!("Receptor Control, node {}\n", context.node.id())).await?;
    let mut patience = limits.first_command;
    loop {
        let line = tokio::select! {
            biased;
            () = stop.commands.cancelled() => return Ok(()),
            line = next_line(channel, patience, limits.line) => line?,
        };
        let line = match line {
            Ok(line) => line,
            Err(late) => {
                channel.drop_line();
                return channel.refuse(&late).await;
            }
        };
        let next = match line {
            // On the heap, because the session of an idle client must not hold memory for the largest command.
            ReadLine::Text(line) => Box::pin(command(context, channel, peer, line, stop)).await?,
            ReadLine::TooLong => {
                channel.drop_line();
                return channel.refuse(&format!("control line exceeds {MAX_LINE} bytes")).await;
            }
            ReadLine::End => AfterCommand::Close,
        };
        match next {
            AfterCommand::Command => patience = limits.idle,
            AfterCommand::Close => return Ok(()),
        }
    }
}

/// The next line, or a refusal if the client is too slow: `patience` is for the first byte, `line_patience` for the
/// rest.
async fn next_line(
    channel: &mut Channel,
    patience: Duration,
    line_patience: Duration,
) -> io::Result<Result<ReadLine, String>> {
    match timeout(patience, channel.line_begins()).await {
        Ok(begun) => begun?,
        Err(_) => return Ok(Err(format!("no command within {} s", patience.as_secs()))),
    }
    match timeout(line_patience, channel.read_line()).await {
        Ok(line) => line.map(Ok),
        Err(_) => Ok(Err(format!("the command's line did not end within {} s", line_patience.as_secs()))),
    }
}

async fn command(
    context: &Context,
    channel: &mut Channel,
    peer: &ClientPeer,
    line: Vec<u8>,
    stop: &Stop,
) -> io::Result<AfterCommand> {
    let request = Request::parse(&line);
    // The command may run for long and does not need the line.
    drop(line);
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            channel.refuse(&error.to_string()).await?;
            // Closes the connection, so that what follows is not read as commands: a payload follows a start, and
            // headers and a body follow HTTP, which browsers may send to TCP ports.
            let is_last = matches!(error, RequestError::BadStart(_) | RequestError::OtherProtocol);
            let ends = is_last || matches!(peer.caller.origin, Origin::Tcp);
            return Ok(if ends { AfterCommand::Close } else { AfterCommand::Command });
        }
    };
    // The command's name only: parameters may be secrets.
    let span = tracing::info_span!("command", name = request.name());
    execute(context, channel, peer, request, stop).instrument(span).await
}

async fn execute(
    context: &Context,
    channel: &mut Channel,
    peer: &ClientPeer,
    request: Request,
    stop: &Stop,
) -> io::Result<AfterCommand> {
    if let Err(refusal) = access::check(context, peer, &request) {
        let is_start = matches!(&request, Request::Work(WorkRequest::Submit(submit)) if submit.at_once);
        let next = if is_start { AfterCommand::Close } else { AfterCommand::Command };
        return channel.answer(Err(refusal)).await.map(|()| next);
    }
    let answer = match request {
        Request::Status { fields } => {
            let seen = context.observer.look(&context.observer.sections(fields.as_deref())).await;
            let sent = match seen.is_small() {
                true => channel.send(seen.line()).await,
                false => channel.send_large(move || seen.line()).await,
            };
            return sent.map(|()| AfterCommand::Command);
        }
        Request::Ping { target } => tokio::select! {
            answer = ping::answer(context, &target) => Ok(answer),
            () = stop.commands.cancelled() => return stopping(channel).await,
        },
        Request::Traceroute { target } => tokio::select! {
            answer = traceroute::answer(context, &target) => Ok(answer),
            () = stop.commands.cancelled() => return stopping(channel).await,
        },
        Request::Reload => Ok(reload::answer(context).await),
        Request::NodeForget { node } => node::forget(context, &node).await,
        Request::NodeCache { clear } => Ok(node::cache(context, clear).await),
        Request::LinkTest(test) => {
            let answer = tokio::select! {
                answer = link::test(context, &test) => answer,
                () = channel.gone() => return Ok(AfterCommand::Close),
                () = stop.commands.cancelled() => return stopping(channel).await,
            };
            return channel.answer(answer).await.map(|()| AfterCommand::Close);
        }
        Request::Doctor(asked) => tokio::select! {
            answer = doctor::answer(context, peer, asked) => answer,
            () = channel.gone() => return Ok(AfterCommand::Close),
            () = stop.commands.cancelled() => return stopping(channel).await,
        },
        Request::LogLevel { level } => loglevel::answer(context, level.as_deref()),
        Request::Controller { operation } => {
            return controller::execute(context, channel, peer, operation, stop).await;
        }
        Request::Work(request) => return work::execute(context, channel, peer, request, stop).await,
        Request::Connect { node, service, tls } => {
            return match connect::dial(context, &node, &service, tls).await {
                Ok(service) => connect::bridge(channel, service).await.map(|()| AfterCommand::Close),
                Err(refusal) => channel.answer(Err(refusal)).await.map(|()| AfterCommand::Command),
            };
        }
    };
    channel.answer(answer).await.map(|()| AfterCommand::Command)
}

/// Refuses a command that was cut short by the end of the service: probes may wait for seconds, and change nothing.
async fn stopping(channel: &mut Channel) -> io::Result<AfterCommand> {
    channel.refuse("the control service is stopping").await?;
    Ok(AfterCommand::Close)
}
