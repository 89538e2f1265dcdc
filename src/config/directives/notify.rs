//! Where a controller sends notices: the setting `notify`. Owns its grammar. It refuses to know what a notice says, and
//! when it is sent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use super::super::declare::{DirectiveReader, FromParameters, settings};
use super::super::parameters::{self, TlsClientName, choice, grammar, parsed};
use super::super::schema::{Directive, HelpSection, Parameter};
use super::super::value::Located;
use super::runner::command_line;
use crate::controller::options::{NoticeEvent, NoticeWay, NotifyTarget, Webhook, is_target_name};

/// Most targets of a node.
const MOST: usize = 20;
/// The longest that one delivery may take.
const LONGEST: Duration = Duration::from_secs(60);

/// One target.
#[derive(Debug, Clone, Copy)]
enum TargetSettings {}

settings! {
    TargetSettings => NotifyTarget {
        /// address that gets a POST
        url: Option<HookUrl>,
        /// command that gets the notice on its standard input
        command: Option<HookCommand>,
        /// file with the secret that signs a POST
        secret_file "secretfile": Option<PathBuf>,
        /// tls-client profile for the address
        tls_client "tlsclient": Option<TlsClientName>,
        /// the address may be this machine, link-local, or a cloud's metadata server
        allow_local "allowlocal": bool,
        /// what it is told of; failed and error if not given
        events: Vec<EventName>,
        /// all, or named: only jobs whose saved job names it
        only_named "jobs": NoticeScope = "all",
        /// how long one delivery may take
        timeout: NoticeTime = "10s",
    }
    check one_way(url, command);
    make {
        let webhook = |url| Webhook { url, secret_file, tls_client, allow_local };
        let way = url.map(|url| NoticeWay::Webhook(webhook(url)));
        let way = way.or(command.map(|(program, words)| NoticeWay::Command(program, words)))?;
        let events = if events.is_empty() { vec![NoticeEvent::Failed, NoticeEvent::Error] } else { events };
        NotifyTarget { way, events, only_named, timeout }
    }
}

static TARGET: LazyLock<Directive> = LazyLock::new(|| {
    let parameters = <TargetSettings as FromParameters>::parameters(Parameter::new("", &[]));
    Directive::new("work-controller: notify", HelpSection::Work, &[], parameters)
});

fn one_way(url: &Option<http::Uri>, command: &Option<(String, Vec<String>)>) -> Option<&'static str> {
    (url.is_some() == command.is_some()).then_some("a target needs either `url` or `command`")
}

grammar! {
    /// Targets by their names.
    struct NotifyTargets => BTreeMap<String, NotifyTarget> = FreeMap targets;
    /// The address of a webhook.
    struct HookUrl => http::Uri = Text parsed(hook_url);
    /// A program with its arguments, in shell quoting.
    struct HookCommand => (String, Vec<String>) = Text parsed(hook_command);
    /// An event.
    struct EventName => NoticeEvent = Text parsed(str::parse::<NoticeEvent>);
    /// Of which jobs it is told.
    struct NoticeScope => bool = Text choice(&[("all", false), ("named", true)], "it must be all or named");
    /// How long a delivery may take.
    struct NoticeTime => Duration = Text parsed(time);
}

fn targets(
    given: Option<&Located>,
    reader: &mut DirectiveReader<'_>,
) -> Option<BTreeMap<String, NotifyTarget>> {
    let entries = given.map_or(&[][..], Located::entries);
    if entries.len() > MOST {
        reader.fail(format!("there may be at most {MOST} targets"));
        return None;
    }
    let target = |(name, settings): &(Located, Located)| {
        if !is_target_name(name.name()) {
            let fault = "a target's name is lower-case letters, digits, dashes and dots, at most 63";
            reader.fail_at(name.position, fault.to_owned());
            return None;
        }
        Some((name.name().to_owned(), reader.nested::<TargetSettings>(settings, &TARGET)?))
    };
    let targets: BTreeMap<_, _> = entries.iter().filter_map(target).collect();
    (targets.len() == entries.len()).then_some(targets)
}

/// The messages do not show the address, because it may hold a secret.
fn hook_url(text: &str) -> Result<http::Uri, &'static str> {
    let url: http::Uri = text.parse().map_err(|_| "it is not an address of the web")?;
    let is_web = matches!(url.scheme_str(), Some("http" | "https"));
    let has_user = url.authority().is_some_and(|place| place.as_str().contains('@'));
    match (is_web && url.host().is_some_and(|host| !host.is_empty()), has_user) {
        (true, false) => Ok(url),
        (true, true) => Err("it may hold no user name and password: sign with `secretfile`"),
        (false, _) => Err("it must begin with https:// or http://, and name a host"),
    }
}

fn hook_command(text: &str) -> Result<(String, Vec<String>), &'static str> {
    let (program, words) = command_line(text)?;
    let words = shlex::split(&words).ok_or("it must be a program and its arguments")?;
    Ok((program, words))
}

fn time(text: &str) -> Result<Duration, &'static str> {
    match parameters::duration(text)? {
        time if time >= Duration::from_secs(1) && time <= LONGEST => Ok(time),
        _ => Err("it must be from 1s to 60s"),
    }
}
