//! Firewall rules as configured.
//!
//! Owns the notation of a rule: an action, and for each of four names either an exact text or a regular
//! expression between slashes, which must match the whole name. It refuses to know packets: the mesh decides
//! which rule a packet meets.

use regex::Regex;

use super::error::{Fault, Hint, shown};
use super::fields::Fields;
use super::value::{Value, Written, quoted};

/// What happens to a packet that meets a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirewallAction {
    /// It passes, whatever later rules say.
    Accept,
    /// It is discarded and its sender is told.
    Reject,
    /// It is discarded in silence.
    Drop,
}

/// A test for a name.
#[derive(Debug, Clone)]
pub enum NameMatch {
    /// This name and no other.
    Exact(String),
    /// Every name that the expression matches from end to end.
    Regex(Regex),
}

impl NameMatch {
    /// True if the name passes the test.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}

impl PartialEq for NameMatch {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Regex(a), Self::Regex(b)) => a.as_str() == b.as_str(),
            (Self::Exact(_), Self::Regex(_)) | (Self::Regex(_), Self::Exact(_)) => false,
        }
    }
}

impl Eq for NameMatch {}

/// A rule; it is met if all tests that it has pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirewallRule {
    /// What happens then.
    pub action: FirewallAction,
    /// Tests the sender.
    pub from_node: Option<NameMatch>,
    /// Tests the receiver.
    pub to_node: Option<NameMatch>,
    /// Tests the sending service.
    pub from_service: Option<NameMatch>,
    /// Tests the receiving service.
    pub to_service: Option<NameMatch>,
}

const KEYS: [&str; 5] = ["action", "fromnode", "tonode", "fromservice", "toservice"];

/// Reads the rules of a parameter; all errors are noted.
pub(super) fn rules(fields: &mut Fields<'_>, parameter: &'static str) -> Option<Vec<FirewallRule>> {
    let nodes = fields.rules(parameter);
    let rules: Vec<_> = nodes
        .iter()
        .filter_map(|node| match rule(node) {
            Ok(rule) => Some(rule),
            Err(faults) => {
                faults.into_iter().for_each(|fault| fields.fail_at(parameter, node, fault));
                None
            }
        })
        .collect();
    (rules.len() == nodes.len()).then_some(rules)
}

fn rule(node: &Written) -> Result<FirewallRule, Vec<Fault>> {
    let Value::Map(entries) = &node.value else {
        return Err(vec![Fault::WrongType {
            given: node.show(),
            wanted: "a rule, such as {action: reject, tonode: foo}",
        }]);
    };
    let mut faults = Vec::new();
    let mut action = None;
    let mut names: [Option<NameMatch>; 4] = [const { None }; 4];
    for (key, value) in entries {
        let outcome = match KEYS.iter().position(|known| known.eq_ignore_ascii_case(key)) {
            None => Err(Fault::UnknownParameter { name: shown(key), hint: Hint::new(key, KEYS) }),
            Some(0) => parse_action(value).map(|parsed| action = Some(parsed)),
            Some(index) => name_match(key, value).map(|test| names[index - 1] = test),
        };
        faults.extend(outcome.err());
    }
    if action.is_none() && faults.is_empty() {
        faults.push(Fault::Shape("a rule needs an action: accept, reject or drop".to_owned()));
    }
    let [from_node, to_node, from_service, to_service] = names;
    match action {
        Some(action) if faults.is_empty() => {
            Ok(FirewallRule { action, from_node, to_node, from_service, to_service })
        }
        _ => Err(faults),
    }
}

fn parse_action(value: &Written) -> Result<FirewallAction, Fault> {
    match value.as_text().unwrap_or_default().to_ascii_lowercase().as_str() {
        "accept" => Ok(FirewallAction::Accept),
        "reject" => Ok(FirewallAction::Reject),
        "drop" => Ok(FirewallAction::Drop),
        _ => Err(Fault::Invalid {
            given: value.show(),
            reason: "an action is accept, reject or drop".to_owned(),
        }),
    }
}

/// An empty text tests nothing.
fn name_match(key: &str, value: &Written) -> Result<Option<NameMatch>, Fault> {
    let invalid =
        |reason: String| Fault::Invalid { given: value.show(), reason: format!("{}: {reason}", shown(key)) };
    let text = value.as_text().ok_or_else(|| invalid("a name is text".to_owned()))?;
    let Some(rest) = text.strip_prefix('/') else {
        return Ok(Some(text).filter(|text| !text.is_empty()).map(NameMatch::Exact));
    };
    let pattern = rest
        .strip_suffix('/')
        .ok_or_else(|| invalid("a regular expression begins and ends with a slash".to_owned()))?;
    // The group keeps an alternative inside the anchors.
    let regex = Regex::new(&format!("^(?:{pattern})$"))
        .map_err(|_| invalid(format!("{} is no regular expression", quoted(pattern))))?;
    Ok(Some(NameMatch::Regex(regex)))
}
