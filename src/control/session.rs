//! The conversation with one client: greeting, command lines, answers, until one side ends it.
//!
//! Owns the order of things and the patience with silent clients. What a line means is `request`'s to say, and what
//! a command does stands in the command's own file.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::channel::{Channel, ClientStream, Line, MAX_LINE};
use super::server::ServerLimits;
use super::{
    Context, access, connect, controller, doctor, link, loglevel, node, ping, reload, traceroute, work,
};
use crate::node::{CountedBy, NodeHandle};
use crate::os::address::network_of;
use crate::rpc::request::{Request, RequestError, WorkRequest};
use crate::work::{Caller, Origin, Rights};

/// What follows a command on its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Another command may.
    Command,
    /// Nothing: the connection is closed.
    Close,
}

/// How far the service has ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop {
    /// No new commands.
    pub(super) commands: CancellationToken,
    /// The daemon ends: what it streams goes on at the next one.
    pub(super) daemon: CancellationToken,
}

impl Stop {
    /// Streams something to a client, until the daemon ends. The client asks the next one for the rest.
    pub(super) async fn or_streamed(
        &self,
        streamed: impl Future<Output = io::Result<Next>>,
    ) -> io::Result<Next> {
        tokio::select! {
            biased;
            next = streamed => next,
            () = self.daemon.cancelled() => {
                tracing::info!("what is streamed ends with the daemon: its reader has to go on from what it has");
                Ok(Next::Close)
            }
        }
    }
}

/// Who speaks.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// As the door knows it.
    pub(super) caller: Caller,
    /// The address of a TCP client.
    pub(super) host: Option<IpAddr>,
    /// For logs.
    pub(super) name: String,
}

/// Those whose connections and lines are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Neighbour {
    /// The users of this machine's Unix socket.
    Local,
    /// Hosts of a network that come by TCP.
    Hosts(Option<IpAddr>),
    /// Nodes of the mesh.
    Mesh(CountedBy),
}

/// What is there for the users of this machine, for the others that are trusted, and for everybody else: nobody can use up that
/// of another share.
#[derive(Debug, Clone)]
pub(super) struct Shares<T> {
    local: T,
    trusted: T,
    others: T,
}

impl<T> Shares<T> {
    /// The same for each.
    pub(super) fn new(share: impl Fn() -> T) -> Self {
        Self { local: share(), trusted: share(), others: share() }
    }

    /// The share of a neighbour.
    pub(super) fn of(&self, neighbour: Neighbour, trusted: bool) -> &T {
        match neighbour {
            Neighbour::Local => &self.local,
            Neighbour::Hosts(_) | Neighbour::Mesh(_) if trusted => &self.trusted,
            Neighbour::Hosts(_) | Neighbour::Mesh(_) => &self.others,
        }
    }
}

impl Peer {
    /// As the work engine knows it, with what came with a request.
    pub(super) fn caller(&self, signature: Option<String>) -> Caller {
        Caller { signature, ..self.caller.clone() }
    }

    /// With whom it is counted.
    pub(super) fn neighbour(&self, node: &NodeHandle) -> Neighbour {
        match self.caller.origin {
            Origin::Unix => Neighbour::Local,
            Origin::Tcp => Neighbour::Hosts(self.host.map(network_of)),
            Origin::Mesh { node: caller, certified } => Neighbour::Mesh(node.counted(caller, certified)),
        }
    }
}

/// Talks to one client until it leaves, or until `stop` finds it between two commands.
pub(super) async fn run(
    context: &Context,
    link: Box<dyn ClientStream>,
    peer: &Peer,
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
            // The daemon's end does not wait for clients that keep their side open.
            () = stop.commands.cancelled() => {}
        },
        Err(error) => tracing::debug!(%error, "client lost"),
    }
    tracing::debug!("client disconnected");
}

async fn converse(
    context: &Context,
    channel: &mut Channel,
    peer: &Peer,
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
            // On the heap while it lasts: a client that waits is not to hold room for the largest command.
            Line::Text(line) => Box::pin(command(context, channel, peer, line, stop)).await?,
            Line::TooLong => {
                channel.drop_line();
                return channel.refuse(&format!("control line exceeds {MAX_LINE} bytes")).await;
            }
            Line::End => Next::Close,
        };
        match next {
            Next::Command => patience = limits.idle,
            Next::Close => return Ok(()),
        }
    }
}

/// The next line, or a text about a client that does not send one. For a line to begin a client may take its time; once
/// it has, the client may not.
async fn next_line(
    channel: &mut Channel,
    patience: Duration,
    line_patience: Duration,
) -> io::Result<Result<Line, String>> {
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
    peer: &Peer,
    line: Vec<u8>,
    stop: &Stop,
) -> io::Result<Next> {
    let request = Request::parse(&line);
    // A command may go on for long.
    drop(line);
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            channel.refuse(&error.to_string()).await?;
            // Behind a start comes a payload; behind HTTP, which browsers speak to TCP ports, come lines of a web page.
            let is_last = matches!(error, RequestError::BadStart(_) | RequestError::OtherProtocol);
            let ends = is_last || matches!(peer.caller.origin, Origin::Tcp);
            return Ok(if ends { Next::Close } else { Next::Command });
        }
    };
    // The command's name only: parameters may be secrets.
    let span = tracing::info_span!("command", name = request.name());
    execute(context, channel, peer, request, stop).instrument(span).await
}

async fn execute(
    context: &Context,
    channel: &mut Channel,
    peer: &Peer,
    request: Request,
    stop: &Stop,
) -> io::Result<Next> {
    if let Err(refusal) = access::check(context, peer, &request) {
        let is_start = matches!(&request, Request::Work(WorkRequest::Submit(submit)) if submit.at_once);
        let next = if is_start { Next::Close } else { Next::Command };
        return channel.answer(Err(refusal)).await.map(|()| next);
    }
    let answer = match request {
        Request::Status { fields } => {
            let seen = context.observer.look(&context.observer.sections(fields.as_deref())).await;
            let sent = match seen.is_small() {
                true => channel.send(seen.line()).await,
                false => channel.send_large(move || seen.line()).await,
            };
            return sent.map(|()| Next::Command);
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
        Request::LinkTest(test) => {
            let answer = tokio::select! {
                answer = link::test(context, &test) => answer,
                () = channel.gone() => return Ok(Next::Close),
                () = stop.commands.cancelled() => return stopping(channel).await,
            };
            return channel.answer(answer).await.map(|()| Next::Close);
        }
        Request::Doctor(asked) => tokio::select! {
            answer = doctor::answer(context, peer, asked) => answer,
            () = channel.gone() => return Ok(Next::Close),
            () = stop.commands.cancelled() => return stopping(channel).await,
        },
        Request::LogLevel { level } => loglevel::answer(context, level.as_deref()),
        Request::Controller { operation } => {
            return controller::execute(context, channel, peer, operation, stop).await;
        }
        Request::Work(request) => return work::execute(context, channel, peer, request, stop).await,
        Request::Connect { node, service, tls } => {
            return match connect::dial(context, &node, &service, tls).await {
                Ok(service) => connect::bridge(channel, service).await.map(|()| Next::Close),
                Err(refusal) => channel.answer(Err(refusal)).await.map(|()| Next::Command),
            };
        }
    };
    channel.answer(answer).await.map(|()| Next::Command)
}

/// A probe, which may have seconds to wait and does nothing, does not hold up the end.
async fn stopping(channel: &mut Channel) -> io::Result<Next> {
    channel.refuse("the control service is stopping").await?;
    Ok(Next::Close)
}
