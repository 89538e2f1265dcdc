//! What a control node runs on itself: the settings `runner` and `runnerlimits`. Owns their grammar. It refuses to
//! know what is run, and when.

use std::sync::LazyLock;

use super::super::declare::{DirectiveReader, FromParameters, settings};
use super::super::parameters::{grammar, parsed};
use super::super::schema::{Directive, HelpSection, Parameter};
use super::super::value::Located;
use super::work::UnitLimits;
use crate::work::CommandType;
use crate::work::limits::Limits;

/// The default command line.
const RUNNER: &str = "ansible-runner worker";

/// The runner of a controller's own node.
#[derive(Debug, Clone, Copy)]
pub enum OwnRunner {}

settings! {
    OwnRunner => Box<CommandType> {
        /// command that runs what is due on this node itself
        /// That is health checks of this node, syncs of projects, and a hybrid's own jobs. One command line, split into
        /// words as a shell does it; `ansible-runner worker` if not given. Nobody but the controller can start it.
        command "runner": Option<CommandLine>,
        /// limits: user, env, environment, timeout, cpu, memory, pids
        /// A map, with cancelgrace as well; each of them is what it is for a `work-command`.
        limits "runnerlimits": Option<OwnLimits>,
    }
    make {
        let (command, params) = command.or_else(|| command_line(RUNNER).ok()).unwrap_or_default();
        // A line on stderr would break the stream of a job's events.
        let limits = Limits { stderr_apart: true, ..limits.unwrap_or_default() };
        Box::new(CommandType::runner(command, params, limits))
    }
}

/// The limits of that runner.
#[derive(Debug, Clone, Copy)]
enum RunnerLimits {}

settings! {
    RunnerLimits => Limits {
        /// user whose rights it has; needs a node that runs as root
        user: Option<String>,
        /// what bounds it otherwise
        each: UnitLimits,
    }
    make Limits { user, ..each }
}

static LIMITS: LazyLock<Directive> = LazyLock::new(|| {
    let parameters = <RunnerLimits as FromParameters>::parameters(Parameter::new("", &[]));
    Directive::new("work-controller: runnerlimits", HelpSection::Work, &[], parameters)
});

grammar! {
    /// A program and its arguments, these in shell quoting.
    struct CommandLine => (String, String) = Text parsed(command_line);
    /// Limits as a map.
    struct OwnLimits => Limits =
        FreeMap |given: Option<&Located>, reader: &mut DirectiveReader<'_>| reader.nested::<RunnerLimits>(given?, &LIMITS);
}

pub(super) fn command_line(text: &str) -> Result<(String, String), &'static str> {
    const WANTED: &str = "it must be a program and its arguments, with every quote closed";
    let mut words = shlex::split(text).ok_or(WANTED)?.into_iter();
    let program = words.next().filter(|program| !program.is_empty()).ok_or(WANTED)?;
    let arguments: Vec<String> = words.collect();
    let arguments = shlex::try_join(arguments.iter().map(String::as_str)).map_err(|_| WANTED)?;
    Ok((program, arguments))
}
