//! The interface between the API and the rule engine, beyond rule objects: tests, states and
//! traces.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::broadcast;

use crate::objects::ObjectValidationError;

/// The rule engine. Methods are called on threads that may block.
pub trait RuleBackend: Send + Sync + 'static {
    /// Tests a rule on an event without publishing anything. `rule` has the stored form; `event` is
    /// the JSON of the request.
    fn test_rule(&self, rule: &Value, event: &Value) -> Result<Value, ObjectValidationError>;
    /// The state of a rule.
    fn rule_status(&self, name: &str) -> Option<Value>;
    /// The states of the rules after a name, sorted by name.
    fn rule_statuses(&self, after: Option<&str>, limit: usize) -> Vec<Value>;
    /// The trace of a rule from now on, as JSON. `None`: the rule does not exist.
    fn trace_rule(&self, name: &str) -> Option<broadcast::Receiver<Arc<Value>>>;
}

/// The backend of a node without rules.
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
