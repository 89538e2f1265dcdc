//! What a control node runs on itself: the settings `runner` and `runnerlimits`, and what an earlier configuration has in
//! their place, a work type.
//!
//! Owns the rule that such a work type goes on and is closed to other nodes. It refuses to know what is run, and when.

use std::sync::LazyLock;

use super::super::declare::{Declared as _, Reader, Settings, settings};
use super::super::error::Report;
use super::super::item::Item;
use super::super::parameters::{grammar, parsed};
use super::super::schema::{Directive, Group, Parameter};
use super::super::value::Located;
use super::Config;
use super::controller::{TypeName, WorkController};
use super::work::UnitLimits;
use crate::controller::options::OwnRunner;
use crate::work::limits::Limits;
use crate::work::{CommandType, Reach};

/// The command line if none is given.
const RUNNER: &str = "ansible-runner worker";
/// The name of the work type of earlier versions, if none is given.
const FORMER: &str = "local";

/// The runner of a controller's own node.
#[derive(Debug, Clone, Copy)]
pub enum Own {}

settings! {
    Own => OwnRunner {
        /// command that runs what is due on this node itself
        /// That is health checks of this node, syncs of projects, and a hybrid's own jobs. One command line, split into
        /// words as a shell does it; `ansible-runner worker` if not given. Nobody but the controller can start it.
        command "runner": Option<CommandLine>,
        /// limits: user, env, environment, timeout, cpu, memory, pids
        /// A map, with cancelgrace as well; each of them is what it is for a `work-command`.
        limits "runnerlimits": Option<OwnLimits>,
        /// work type of children on this node
        former "localtype": Option<TypeName> [former],
    }
    make {
        // `settle` looks after it.
        let _former = former;
        let (command, params) = command.or_else(|| command_line(RUNNER).ok()).unwrap_or_default();
        OwnRunner::Program(Box::new(CommandType::runner(command, params, limits.unwrap_or_default())))
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
    let parameters = <RunnerLimits as Settings>::parameters(Parameter::new("", &[]));
    Directive::new("work-controller: runnerlimits", Group::Work, &[], parameters)
});

grammar! {
    /// A program and its arguments, these in shell quoting.
    struct CommandLine => (String, String) = Text parsed(command_line);
    /// Limits as a map.
    struct OwnLimits => Limits =
        FreeMap |given: Option<&Located>, reader: &mut Reader<'_>| reader.nested::<RunnerLimits>(given?, &LIMITS);
}

fn command_line(text: &str) -> Result<(String, String), &'static str> {
    const WANTED: &str = "it is a program and its arguments, in which every quote is closed";
    let mut words = shlex::split(text).ok_or(WANTED)?.into_iter();
    let program = words.next().filter(|program| !program.is_empty()).ok_or(WANTED)?;
    let arguments: Vec<String> = words.collect();
    let arguments = shlex::try_join(arguments.iter().map(String::as_str)).map_err(|_| WANTED)?;
    Ok((program, arguments))
}

/// Has the work type that an earlier configuration has for this node itself go on, for this node alone.
pub(in super::super) fn settle(config: &mut Config, items: &[Item], report: &mut Report) {
    let Some(controller) = &mut config.controller else { return };
    let Some(item) = items.iter().find(|item| item.directive.name == WorkController::NAME) else { return };
    let named = item.settings.get("localtype").map(Located::name).filter(|name| !name.is_empty());
    let name = named.unwrap_or(FORMER);
    let mut types = config.work_commands.iter_mut().chain(&mut config.work_python);
    let Some(former) = types.find(|kind| kind.name == name) else {
        if named.is_some() {
            report.warn(
                item.at.clone(),
                format!("{WHAT}: localtype names no work type of this node: {INSTEAD}"),
            );
        }
        return;
    };
    former.reach = Reach::Operators;
    let is_used = !item.is_given("runner") && !item.is_given("runnerlimits");
    if is_used {
        controller.runner = OwnRunner::WorkType(name.to_owned());
    }
    let role = if is_used { "is this node's own runner, as before" } else { "is not used by it any more" };
    let text = format!(
        "{WHAT}: the work type {name} {role}; it is not advertised, and taken through the Unix socket alone: {INSTEAD}"
    );
    report.warn(item.at.clone(), text);
}

const WHAT: &str = WorkController::NAME;
const INSTEAD: &str =
    "write its command line as `runner` of work-controller and its limits as `runnerlimits`, and remove it";
