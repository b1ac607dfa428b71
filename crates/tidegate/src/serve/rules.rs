//! Who understands users, authenticators, ACL rules and bans.

use api::{Invalid, ObjectRules, RuledKind};
use serde_json::{Value, json};

/// Nobody: there is no place for such objects yet, so none is taken.
pub(super) struct NoRules;

impl ObjectRules for NoRules {
    fn accept(
        &self,
        _kind: RuledKind,
        _id: &str,
        _input: Value,
        _current: Option<&Value>,
    ) -> Result<Value, Invalid> {
        Err(Invalid {
            field: String::new(),
            detail: "This node does not take such objects.".to_owned(),
        })
    }

    fn show(&self, _kind: RuledKind, _stored: &Value) -> Value {
        json!({})
    }

    fn schemas(&self, _kind: RuledKind) -> (Value, Value) {
        (json!({"type": "object"}), json!({"type": "object"}))
    }
}
