//! Firewall rules: they decide about a packet by its four names, before anything else does.
//!
//! The first rule that matches wins; no match accepts (docs/protocol.md#firewall). Patterns are compiled when
//! they are configured, never per packet.

use regex::Regex;

/// What a rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Let it pass.
    Accept,
    /// Discard it, and send the sender a notice.
    Reject,
    /// Discard it silently.
    Drop,
}

/// A pattern for one name of a packet.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// Exactly this name.
    Exact(String),
    /// An expression that must match the whole name; its text already contains the anchors.
    Regex(Regex),
}

impl Eq for Pattern {}

impl Pattern {
    /// True if the name matches.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(a), Self::Exact(b)) => a == b,
            (Self::Regex(a), Self::Regex(b)) => a.as_str() == b.as_str(),
            (Self::Exact(_), Self::Regex(_)) | (Self::Regex(_), Self::Exact(_)) => false,
        }
    }
}

/// A rule: it matches if all its patterns do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What happens to a packet that matches.
    pub action: Action,
    /// The sending node.
    pub from_node: Option<Pattern>,
    /// The node that it is for.
    pub to_node: Option<Pattern>,
    /// The sending service.
    pub from_service: Option<Pattern>,
    /// The service that it is for.
    pub to_service: Option<Pattern>,
}

/// The four names of a packet.
#[derive(Debug, Clone, Copy)]
pub struct PacketNames<'a> {
    /// The sending node.
    pub from_node: &'a str,
    /// The node that it is for.
    pub to_node: &'a str,
    /// The sending service.
    pub from_service: &'a str,
    /// The service that it is for.
    pub to_service: &'a str,
}

impl Rule {
    fn matches(&self, names: PacketNames<'_>) -> bool {
        let holds = |pattern: &Option<Pattern>, name| pattern.as_ref().is_none_or(|p| p.matches(name));
        holds(&self.from_node, names.from_node)
            && holds(&self.to_node, names.to_node)
            && holds(&self.from_service, names.from_service)
            && holds(&self.to_service, names.to_service)
    }
}

/// What `rules` decide about a packet with these names.
pub fn decide(rules: &[Rule], names: PacketNames<'_>) -> Action {
    rules.iter().find(|rule| rule.matches(names)).map_or(Action::Accept, |rule| rule.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: PacketNames<'_> =
        PacketNames { from_node: "alpha", to_node: "beta", from_service: "abcd1234", to_service: "control" };

    fn exact(name: &str) -> Option<Pattern> {
        Some(Pattern::Exact(name.to_owned()))
    }

    fn rule(action: Action) -> Rule {
        Rule { action, from_node: None, to_node: None, from_service: None, to_service: None }
    }

    #[test]
    fn the_first_match_wins_and_no_match_accepts() {
        assert_eq!(decide(&[], PACKET), Action::Accept);
        assert_eq!(decide(&[rule(Action::Drop), rule(Action::Reject)], PACKET), Action::Drop);
        let other = Rule { to_node: exact("gamma"), ..rule(Action::Drop) };
        assert_eq!(decide(&[other, rule(Action::Reject)], PACKET), Action::Reject);
    }

    #[test]
    fn every_pattern_of_a_rule_must_match() {
        let awx = Rule { to_node: exact("beta"), to_service: exact("control"), ..rule(Action::Reject) };
        assert_eq!(decide(std::slice::from_ref(&awx), PACKET), Action::Reject);
        assert_eq!(decide(&[awx], PacketNames { to_service: "other", ..PACKET }), Action::Accept);
    }

    #[test]
    fn an_expression_is_compared_with_the_whole_name() {
        let regex = |text: &str| Some(Pattern::Regex(Regex::new(text).unwrap()));
        let rule = Rule { from_node: regex("^al.*$"), ..rule(Action::Drop) };
        assert_eq!(decide(std::slice::from_ref(&rule), PACKET), Action::Drop);
        assert_eq!(decide(&[rule], PacketNames { from_node: "real", ..PACKET }), Action::Accept);
    }
}
