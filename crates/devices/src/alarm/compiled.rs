//! The alarm rules of one version of a product, ready.

use serde_json::Value as Json;
use series::KeyId;

use super::Invalid;
use super::definition::{AlarmRule, rules_from_json};
use super::details::Text;
use super::machine::AlarmSet;

/// Names of notifications that a rule may have.
const MAX_NOTIFY: usize = 16;

pub(super) struct Compiled {
    /// Of the product.
    pub(super) version: u64,
    pub(super) set: AlarmSet,
    /// By the places of the set.
    pub(super) rules: Box<[Meta]>,
}

/// What a rule says besides its conditions.
pub(super) struct Meta {
    pub(super) propagate: bool,
    pub(super) details: Option<Text>,
    pub(super) notify: Vec<String>,
}

impl Compiled {
    pub(super) fn new(
        version: u64,
        rules: &[AlarmRule],
        key: &mut dyn FnMut(&str) -> Result<KeyId, Invalid>,
    ) -> Result<Self, Invalid> {
        let set = AlarmSet::compile(rules, key)?;
        let mut metas = Vec::with_capacity(rules.len());
        for (at, rule) in rules.iter().enumerate() {
            let field = |name: &str| format!("alarms[{at}].{name}");
            if rule.notify.len() > MAX_NOTIFY {
                let expected = format!("expected at most {MAX_NOTIFY} names");
                return Err(Invalid::new(&field("notify"), expected));
            }
            let details = rule.details.as_deref();
            let details = details.map(|text| Text::compile(text, &field("details")));
            let meta = Meta {
                propagate: rule.propagate,
                details: details.transpose()?,
                notify: rule.notify.clone(),
            };
            if rule.enabled {
                metas.push(meta);
            }
        }
        Ok(Self {
            version,
            set,
            rules: metas.into(),
        })
    }

    pub(super) fn from_json(
        version: u64,
        rules: &Json,
        key: &mut dyn FnMut(&str) -> Result<KeyId, Invalid>,
    ) -> Result<Self, Invalid> {
        Self::new(version, &rules_from_json(rules)?, key)
    }
}

/// Whether these can be the alarm rules of a product.
pub fn check_rules(rules: &Json) -> Result<(), Invalid> {
    Compiled::from_json(0, rules, &mut |_| Ok(KeyId(0))).map(drop)
}
