//! What of the grammar this version loads without doing it, so that a configuration written for receptor loads.
//!
//! Owns the warning that each use of it gets: what is loaded and not done must be said, and must never look as if it
//! worked. What that is, the declarations say.

use super::check::Item;
use super::directives::DIRECTIVES;
use super::error::Warning;
use super::schema::Directive;

/// One warning for each directive that is used and not done, as a whole or in some parameters.
pub(super) fn warnings(items: &[Item]) -> Vec<Warning> {
    DIRECTIVES.iter().filter_map(|directive| warning(items, directive)).collect()
}

fn warning(items: &[Item], directive: &Directive) -> Option<Warning> {
    let uses = || items.iter().filter(|item| item.directive.name == directive.name);
    if let Some(instead) = directive.without_effect {
        let first = uses().next()?;
        let count =
            if directive.singleton { String::new() } else { format!(" (used {} times)", uses().count()) };
        let text = format!("{}{count}: {instead}", directive.name);
        return Some(Warning { at: first.at.clone(), text });
    }
    let idle = directive.parameters.iter().filter(|parameter| parameter.without_effect);
    let idle: Vec<&str> = idle.map(|parameter| parameter.name).collect();
    let given = |item: &Item, name: &str| item.settings.get(name).is_some_and(|given| !given.is_blank());
    let first = uses().find(|item| idle.iter().any(|name| given(item, name)))?;
    let names: Vec<&str> = idle.into_iter().filter(|name| given(first, name)).collect();
    let text = format!("{}: this version of meshd makes no use of {}", directive.name, names.join(", "));
    Some(Warning { at: first.at.clone(), text })
}
