//! What the API asks of the rule engine beside its objects: trying a rule, how rules do, watching one.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::broadcast;

use crate::objects::Invalid;

/// The rule engine. Called on threads that may block.
pub trait RuleTools: Send + Sync + 'static {
    /// Tries a rule on an event, without a message being sent. `rule` is as it would be stored, `event` what a client has
    /// written.
    fn test(&self, rule: &Value, event: &Value) -> Result<Value, Invalid>;
    /// How a rule of this name does.
    fn status(&self, name: &str) -> Option<Value>;
    /// How the rules behind a name do, sorted by name.
    fn statuses(&self, after: Option<&str>, limit: usize) -> Vec<Value>;
    /// What meets a rule from now on, as JSON. `None`: there is no such rule.
    fn watch(&self, name: &str) -> Option<broadcast::Receiver<Arc<Value>>>;
}

/// A node without rules.
pub struct NoRuleTools;

impl RuleTools for NoRuleTools {
    fn test(&self, _rule: &Value, _event: &Value) -> Result<Value, Invalid> {
        Err(Invalid {
            field: String::new(),
            detail: "This node has no rules.".to_owned(),
        })
    }

    fn status(&self, _name: &str) -> Option<Value> {
        None
    }

    fn statuses(&self, _after: Option<&str>, _limit: usize) -> Vec<Value> {
        Vec::new()
    }

    fn watch(&self, _name: &str) -> Option<broadcast::Receiver<Arc<Value>>> {
        None
    }
}
