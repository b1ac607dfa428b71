//! ACL rules: who may publish or subscribe to what. The first matching rule decides.

mod address_range;
mod compiled_rules;
mod denied_actions;
mod permissions;
mod topic_pattern;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

pub use address_range::AddressRange;
pub use compiled_rules::{CompiledRules, RulePolicy};
pub use denied_actions::{DeniedAction, DeniedActionQuery};
pub(crate) use permissions::{NodeRules, SessionPermissions, SubjectAttributes};
pub use topic_pattern::{RuleSubject, TopicPattern};

use crate::json::{self, OneOrMany};

/// Maximum number of rules per source; guards against mistakes and abuse.
pub const MAX_RULES: usize = 100_000;
/// Maximum number of topics, names or addresses per rule.
const MAX_CONDITIONS: usize = 10_000;

/// An ACL rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclRule {
    /// Id of a rule of the node; rules of clients have none.
    pub id: Option<Arc<str>>,
    pub is_allowed: bool,
    pub publish: bool,
    pub subscribe: bool,
    /// Bit n: matches QoS n.
    pub qos: u8,
    /// The retain flag to match; publications only.
    pub retain: Option<bool>,
    /// Empty: matches every topic.
    pub topics: Vec<TopicPattern>,
    pub usernames: Vec<NamePattern>,
    pub client_ids: Vec<NamePattern>,
    pub addresses: Vec<AddressRange>,
}

/// A name pattern, in which `*` matches any characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(Box<str>);

impl NamePattern {
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl From<&str> for NamePattern {
    fn from(pattern: &str) -> Self {
        Self(pattern.into())
    }
}

/// A rule as written in TOML, in stored objects and in answers of authenticators.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AclRuleDefinition {
    permission: String,
    #[serde(default)]
    action: Option<String>,
    #[serde(default, alias = "topic")]
    topics: OneOrMany<String>,
    #[serde(default)]
    qos: OneOrMany<QosValue>,
    #[serde(default)]
    retain: Option<RetainValue>,
    #[serde(default)]
    username: OneOrMany<String>,
    #[serde(default, alias = "clientid")]
    client_id: OneOrMany<String>,
    #[serde(default, alias = "ipaddr", alias = "peerhost")]
    address: OneOrMany<String>,
}

/// A QoS condition; databases and forms return numbers as texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum QosValue {
    Number(u8),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RetainValue {
    Flag(bool),
    Number(u8),
    Text(String),
}

impl AclRule {
    /// A rule that matches every client and every action.
    pub fn match_all(is_allowed: bool) -> Self {
        Self {
            id: None,
            is_allowed,
            publish: true,
            subscribe: true,
            qos: 0b111,
            retain: None,
            topics: Vec::new(),
            usernames: Vec::new(),
            client_ids: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// Parses a rule; the error names the field and the expected value.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let written: AclRuleDefinition = json::parse(value)?;
        let is_allowed = match written.permission.as_str() {
            "allow" => true,
            "deny" => false,
            other => {
                return Err(format!(
                    "permission: expected \"allow\" or \"deny\", found {other:?}"
                ));
            }
        };
        let (publish, subscribe) = match written.action.as_deref().unwrap_or("all") {
            "publish" | "pub" => (true, false),
            "subscribe" | "sub" => (false, true),
            "all" | "pubsub" => (true, true),
            other => {
                return Err(format!(
                    "action: expected \"publish\", \"subscribe\" or \"all\", found {other:?}"
                ));
            }
        };
        let retain = match written.retain {
            None => None,
            Some(RetainValue::Flag(flag)) => Some(flag),
            Some(RetainValue::Number(number)) => Some(number != 0),
            Some(RetainValue::Text(text)) => match text.as_str() {
                "all" => None,
                "true" | "1" => Some(true),
                "false" | "0" => Some(false),
                other => return Err(format!("retain: expected true or false, found {other:?}")),
            },
        };
        let conditions = [
            ("topics", written.topics.0.len()),
            ("username", written.username.0.len()),
            ("client_id", written.client_id.0.len()),
            ("address", written.address.0.len()),
        ];
        for (field, len) in conditions {
            if len > MAX_CONDITIONS {
                return Err(format!("{field}: more than {MAX_CONDITIONS} entries"));
            }
        }
        let topics = written.topics.0.iter();
        let topics = topics
            .map(|text| TopicPattern::parse(text).map_err(|error| format!("topics: {error}")));
        let addresses = written.address.0.iter();
        let addresses = addresses.map(|text| text.parse().map_err(|e| format!("address: {e}")));
        let names = |names: &OneOrMany<String>| -> Vec<NamePattern> {
            names.0.iter().map(|name| name.as_str().into()).collect()
        };
        Ok(Self {
            id: None,
            is_allowed,
            publish,
            subscribe,
            qos: parse_qos_set(&written.qos.0)?,
            retain,
            topics: topics.collect::<Result<_, String>>()?,
            usernames: names(&written.username),
            client_ids: names(&written.client_id),
            addresses: addresses.collect::<Result<_, String>>()?,
        })
    }

    /// Parses a list of rules, or the older allow-only form of EMQX: `{"pub": [...], "sub": [...],
    /// "all": [...]}`.
    pub fn list_from_json(value: &Value) -> Result<Vec<Self>, String> {
        match value {
            Value::Array(rules) if rules.len() > MAX_RULES => {
                Err(format!("more than {MAX_RULES} rules"))
            }
            Value::Array(rules) => rules
                .iter()
                .enumerate()
                .map(|(at, rule)| {
                    Self::from_json(rule).map_err(|error| format!("rule {}: {error}", at + 1))
                })
                .collect(),
            Value::Object(allowed) => {
                let mut rules = Vec::new();
                for (action, topics) in allowed {
                    let rule = serde_json::json!({
                        "permission": "allow", "action": action, "topics": topics,
                    });
                    rules.push(Self::from_json(&rule)?);
                }
                rules.push(Self::match_all(false));
                Ok(rules)
            }
            other => Err(format!(
                "expected a list of rules, found {}",
                json::type_name(other)
            )),
        }
    }

    /// Whether the rule applies to this client for some topic.
    fn applies_to(&self, who: &RuleSubject<'_>) -> bool {
        let named = |patterns: &[NamePattern], name: Option<&str>| {
            patterns.is_empty()
                || name.is_some_and(|name| patterns.iter().any(|pattern| pattern.matches(name)))
        };
        named(&self.usernames, who.username)
            && named(&self.client_ids, Some(who.client_id))
            && (self.addresses.is_empty()
                || who.address.is_some_and(|address| {
                    self.addresses.iter().any(|range| range.contains(address))
                }))
    }

    /// Whether the rule is the same for every client.
    fn is_client_independent(&self) -> bool {
        self.usernames.is_empty()
            && self.client_ids.is_empty()
            && self.addresses.is_empty()
            && self.topics.iter().all(TopicPattern::is_client_independent)
    }
}

fn parse_qos_set(written: &[QosValue]) -> Result<u8, String> {
    if written.is_empty() {
        return Ok(0b111);
    }
    let mut set = 0;
    for qos in written {
        let numbers: Vec<Option<u8>> = match qos {
            QosValue::Number(number) => vec![Some(*number)],
            // Databases store lists as `0,1`.
            QosValue::Text(text) => (text.split(','))
                .map(|number| number.trim().parse().ok())
                .collect(),
        };
        for number in numbers {
            match number {
                Some(number @ 0..=2) => set |= 1 << number,
                _ => return Err("qos: expected 0, 1 or 2, or a list of them".into()),
            }
        }
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(value: Value) -> String {
        AclRule::from_json(&value).unwrap_err()
    }

    #[test]
    fn one_value_is_as_good_as_a_list() {
        let one = json!({"permission": "allow", "action": "publish", "topic": "a", "qos": 1,
            "username": "ann", "address": "10.0.0.0/8"});
        let many = json!({"permission": "allow", "action": "pub", "topics": ["a"], "qos": [1],
            "username": ["ann"], "ipaddr": ["10.0.0.0/8"]});
        let rule = AclRule::from_json(&one).unwrap();
        assert_eq!(rule, AclRule::from_json(&many).unwrap());
        assert_eq!(rule.qos, 0b010);
        assert!(rule.publish && !rule.subscribe);
    }

    #[test]
    fn errors_name_the_field() {
        assert!(error(json!({"permission": "yes"})).starts_with("permission: expected"));
        assert!(error(json!({"permission": "deny", "action": "x"})).starts_with("action: "));
        assert!(error(json!({"permission": "deny", "qos": 3})).starts_with("qos: "));
        assert!(error(json!({"permission": "deny", "topics": ["#/a"]})).starts_with("topics: "));
        assert!(error(json!({"permission": "deny", "address": "x"})).starts_with("address: "));
        assert!(error(json!({"permission": "deny", "usrname": "x"})).contains("usrname"));
        assert!(error(json!({"action": "all"})).contains("permission"));
    }

    #[test]
    fn the_older_form_allows_what_it_lists_and_nothing_else() {
        let rules = AclRule::list_from_json(&json!({"pub": ["a", "b"], "sub": ["c"]})).unwrap();
        assert_eq!(rules.len(), 3);
        assert!(!rules[2].is_allowed && rules[2].topics.is_empty());
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name, matches) in [
            ("ann", "ann", true),
            ("ann", "anna", false),
            ("dev-*", "dev-1", true),
            ("dev-*", "dev-", true),
            ("*-1", "dev-1", true),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c", false),
            ("*", "", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(
                NamePattern::from(pattern).matches(name),
                matches,
                "{pattern} {name}"
            );
        }
    }
}
