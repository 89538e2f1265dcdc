//! Firewall rules as configured.
//!
//! Owns the notation of a rule: an action, and for each of four names either an exact text or a regular expression
//! between slashes, which must match the whole name. [`crate::mesh::firewall`] owns what a rule is and which rule
//! applies to a packet.

use regex::Regex;
use regex_syntax::ast::Ast;
use regex_syntax::ast::parse::Parser;

use super::declare::DirectiveReader;
use super::error::{invalid, shown, unknown_parameter, wrong_type};
use super::parameters::grammar;
use super::value::{Located, Value, quoted};
use crate::mesh::firewall::{Action, Pattern, Rule};

const KEYS: [&str; 5] = ["action", "fromnode", "tonode", "fromservice", "toservice"];

grammar! {
    /// The rules of a node; all errors are noted.
    struct FirewallRules => Vec<Rule> = FirewallRules rules;
}

fn rules(given: Option<&Located>, reader: &mut DirectiveReader<'_>) -> Option<Vec<Rule>> {
    let nodes = given.map_or(&[][..], Located::items);
    let mut rules = Vec::new();
    for node in nodes {
        let mut ambiguous = Vec::new();
        match rule(node, &mut ambiguous) {
            Ok(rule) => rules.push(rule),
            Err(faults) => faults.into_iter().for_each(|fault| reader.fail_at(node.position, fault)),
        }
        ambiguous.iter().for_each(|text| reader.warn_at(node.position, text));
    }
    (rules.len() == nodes.len()).then_some(rules)
}

/// Reads one rule, and adds to `ambiguous` its expressions that a receptor node would read differently.
fn rule(node: &Located, ambiguous: &mut Vec<String>) -> Result<Rule, Vec<String>> {
    let Value::Map(entries) = &node.value else {
        return Err(vec![wrong_type(&node.show(), "a rule, such as {action: reject, tonode: foo}")]);
    };
    let mut faults = Vec::new();
    let mut action = None;
    let mut names: [Option<Pattern>; 4] = [const { None }; 4];
    for (key, value) in entries {
        let key = key.name();
        let outcome = match KEYS.iter().position(|known| known.eq_ignore_ascii_case(key)) {
            None => Err(unknown_parameter(key, &KEYS)),
            Some(0) => parse_action(value).map(|parsed| action = Some(parsed)),
            Some(index) => {
                ambiguous.extend(two_readings(key, value));
                name_match(key, value).map(|test| names[index - 1] = test)
            }
        };
        faults.extend(outcome.err());
    }
    if action.is_none() && faults.is_empty() {
        faults.push("a rule needs an action: accept, reject or drop".to_owned());
    }
    let [from_node, to_node, from_service, to_service] = names;
    match action {
        Some(action) if faults.is_empty() => {
            Ok(Rule { action, from_node, to_node, from_service, to_service })
        }
        _ => Err(faults),
    }
}

fn parse_action(value: &Located) -> Result<Action, String> {
    match value.as_text().unwrap_or_default().to_ascii_lowercase().as_str() {
        "accept" => Ok(Action::Accept),
        "reject" => Ok(Action::Reject),
        "drop" => Ok(Action::Drop),
        _ => Err(invalid(&value.show(), "an action is accept, reject or drop")),
    }
}

/// `None` for an empty text, which matches every name.
fn name_match(key: &str, value: &Located) -> Result<Option<Pattern>, String> {
    let refused = |reason: String| invalid(&value.show(), &format!("{}: {reason}", shown(key)));
    let text = value.as_text().ok_or_else(|| refused("a name is text".to_owned()))?;
    if text.is_empty() { Ok(None) } else { pattern(&text).map(Some).map_err(refused) }
}

/// A name, or a regular expression between slashes, which must match a whole name.
pub(super) fn pattern(text: &str) -> Result<Pattern, String> {
    let Some(rest) = text.strip_prefix('/') else { return Ok(Pattern::Exact(text.to_owned())) };
    let pattern = rest
        .strip_suffix('/')
        .ok_or_else(|| "a regular expression begins and ends with a slash".to_owned())?;
    // The group keeps alternatives inside the anchors.
    let regex = Regex::new(&format!("^(?:{pattern})$"))
        .map_err(|_| format!("{} is not a regular expression", quoted(pattern)))?;
    Ok(Pattern::Regex(regex))
}

/// Warns of an expression whose alternatives are not in a group. A receptor node anchors only the start of the
/// first alternative and the end of the last, so its rule matches more names than the same rule here.
fn two_readings(key: &str, value: &Located) -> Option<String> {
    let text = value.as_text()?;
    let pattern = text.strip_prefix('/')?.strip_suffix('/')?;
    let Ok(Ast::Alternation(_)) = Parser::new().parse(pattern) else { return None };
    let pattern = pattern.replace(char::is_control, "\u{fffd}");
    Some(format!(
        "{}: /{pattern}/ is read as ^(?:{pattern})$ here, where each alternative is a whole name, and as ^{pattern}$ by \
         a receptor node, where it is only a beginning, a part or an end: write /(?:{pattern})/, which both read as \
         whole names",
        shown(key)
    ))
}
