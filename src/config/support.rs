//! What of the grammar this version loads without doing it, so that a configuration written for receptor loads.
//!
//! Owns one list, to be shortened as features arrive, and the warning that each use of it gets: what is loaded
//! and not done must be told, and must never look as if it worked.

use super::check::Item;
use super::error::Warning;

/// Directives with the parameters that have no effect; no parameters stand for all of it.
const WITHOUT_EFFECT: &[(&str, &[&str])] =
    &[("work-kubernetes", &[]), ("pyroscope-client", &[]), ("node", &KUBERNETES_TUNING)];

const KUBERNETES_TUNING: [&str; 4] = [
    "receptorkubesupportreconnect",
    "receptorkubeclientsetqps",
    "receptorkubeclientsetburst",
    "receptorkubeclientsetratelimiter",
];

/// One warning for each directive of the list that is used.
pub(super) fn warnings(items: &[Item]) -> Vec<Warning> {
    WITHOUT_EFFECT
        .iter()
        .filter_map(|(directive, parameters)| warning(items, directive, parameters))
        .collect()
}

fn warning(items: &[Item], directive: &str, parameters: &[&str]) -> Option<Warning> {
    let uses: Vec<&Item> = items.iter().filter(|item| item.directive.name == directive).collect();
    let given =
        |item: &Item, name: &str| item.settings.get(name).is_some_and(|given| !given.setting.is_blank());
    let first =
        uses.iter().find(|item| parameters.is_empty() || parameters.iter().any(|name| given(item, name)))?;
    let text = match directive {
        "work-kubernetes" => format!(
            "{directive} (used {} times): this version of meshd does not run such work; the types are not \
             advertised, and submissions to them are refused",
            uses.len()
        ),
        "pyroscope-client" => format!("{directive}: meshd sends no profiles; the directive has no effect"),
        _ => {
            let names: Vec<&str> = parameters.iter().copied().filter(|name| given(first, name)).collect();
            format!("{directive}: this version of meshd makes no use of {}", names.join(", "))
        }
    };
    Some(Warning { at: first.at.clone(), text })
}

/// True if setting this parameter has no effect.
pub(super) fn has_no_effect(directive: &str, parameter: &str) -> bool {
    WITHOUT_EFFECT.iter().any(|(name, parameters)| *name == directive && parameters.contains(&parameter))
}

/// True if nothing of the directive has an effect.
pub(super) fn does_nothing(directive: &str) -> bool {
    WITHOUT_EFFECT.iter().any(|(name, parameters)| *name == directive && parameters.is_empty())
}
