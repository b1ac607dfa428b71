//! Who understands users, authenticators, ACL rules and bans: the crate `auth`.

use api::{Invalid, ObjectRules, RuledKind};
use auth::{Auth, objects};
use serde_json::Value;

pub(super) struct Rules(pub(super) Auth);

fn name(kind: RuledKind) -> &'static str {
    match kind {
        RuledKind::User => objects::USER,
        RuledKind::Authenticator => objects::AUTHENTICATOR,
        RuledKind::AclRule => objects::ACL_RULE,
        RuledKind::Ban => objects::BAN,
    }
}

impl ObjectRules for Rules {
    fn accept(
        &self,
        kind: RuledKind,
        _id: &str,
        input: Value,
        current: Option<&Value>,
    ) -> Result<Value, Invalid> {
        let accepted = self.0.accept(name(kind), input, current);
        accepted.map_err(|error| {
            // `field: what is wrong`
            let (field, detail) = match error.message.split_once(": ") {
                Some((field, detail)) if is_field(field) => (field, detail),
                _ => ("", error.message.as_str()),
            };
            Invalid {
                field: field.to_owned(),
                detail: detail.to_owned(),
            }
        })
    }

    fn show(&self, kind: RuledKind, stored: &Value) -> Value {
        objects::shown(name(kind), stored.clone())
    }

    fn schemas(&self, kind: RuledKind) -> (Value, Value) {
        objects::schemas(name(kind))
    }
}

fn is_field(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
}
