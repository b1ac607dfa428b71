//! What the API asks of the rule engine beside its objects: trying a rule, how rules do, watching one.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::broadcast;

use crate::objects::ObjectValidationError;

/// The rule engine. Called on threads that may block.
pub trait RuleBackend: Send + Sync + 'static {
    /// Tries a rule on an event, without a message being sent. `rule` is as it would be stored, `event` what a client has
    /// written.
    fn test_rule(&self, rule: &Value, event: &Value) -> Result<Value, ObjectValidationError>;
    /// How a rule of this name does.
    fn rule_status(&self, name: &str) -> Option<Value>;
    /// How the rules behind a name do, sorted by name.
    fn rule_statuses(&self, after: Option<&str>, limit: usize) -> Vec<Value>;
    /// What meets a rule from now on, as JSON. `None`: there is no such rule.
    fn trace_rule(&self, name: &str) -> Option<broadcast::Receiver<Arc<Value>>>;
}

/// A node without rules.
pub struct NoRuleBackend;

impl RuleBackend for NoRuleBackend {
    fn test_rule(&self, _rule: &Value, _event: &Value) -> Result<Value, ObjectValidationError> {
        Err(ObjectValidationError {
            field: String::new(),
            detail: "This node has no rules.".to_owned(),
        })
    }

    fn rule_status(&self, _name: &str) -> Option<Value> {
        None
    }

    fn rule_statuses(&self, _after: Option<&str>, _limit: usize) -> Vec<Value> {
        Vec::new()
    }

    fn trace_rule(&self, _name: &str) -> Option<broadcast::Receiver<Arc<Value>>> {
        None
    }
}
