//! The compiled alarm rules of one version of a product.

use serde_json::Value as Json;
use series::KeyId;

use super::definition::{AlarmRule, rules_from_json};
use super::definition_error::AlarmDefinitionError;
use super::details_template::DetailsTemplate;
use super::device_alarms::AlarmSet;

/// Maximum number of notifications listed by a rule.
const MAX_NOTIFICATIONS_PER_RULE: usize = 16;

pub(super) struct ProductAlarmRules {
    /// Version of the product.
    pub(super) version: u64,
    pub(super) set: AlarmSet,
    /// By index in the set.
    pub(super) rules: Box<[AlarmRuleMetadata]>,
}

/// Fields of a rule other than its conditions.
pub(super) struct AlarmRuleMetadata {
    pub(super) propagate: bool,
    pub(super) details: Option<DetailsTemplate>,
    pub(super) notify: Vec<String>,
}

impl ProductAlarmRules {
    pub(super) fn new(
        version: u64,
        rules: &[AlarmRule],
        key: &mut dyn FnMut(&str) -> Result<KeyId, AlarmDefinitionError>,
    ) -> Result<Self, AlarmDefinitionError> {
        let set = AlarmSet::compile(rules, key)?;
        let mut metas = Vec::with_capacity(rules.len());
        for (at, rule) in rules.iter().enumerate() {
            let field = |name: &str| format!("alarms[{at}].{name}");
            if rule.notify.len() > MAX_NOTIFICATIONS_PER_RULE {
                let expected = format!("expected at most {MAX_NOTIFICATIONS_PER_RULE} names");
                return Err(AlarmDefinitionError::new(&field("notify"), expected));
            }
            let details = rule.details.as_deref();
            let details = details.map(|text| DetailsTemplate::compile(text, &field("details")));
            let meta = AlarmRuleMetadata {
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
        key: &mut dyn FnMut(&str) -> Result<KeyId, AlarmDefinitionError>,
    ) -> Result<Self, AlarmDefinitionError> {
        Self::new(version, &rules_from_json(rules)?, key)
    }
}

/// Validates the alarm rules of a product.
pub fn check_rules(rules: &Json) -> Result<(), AlarmDefinitionError> {
    ProductAlarmRules::from_json(0, rules, &mut |_| Ok(KeyId(0))).map(drop)
}
