//! Users, authenticators, ACL rules and bans: what the API stores takes effect at once, and what was stored before does
//! at the start. `auth` says what fits; this says it to the API.

use api::{Invalid, ObjectRules, RuledKind};
use auth::{Auth, objects as kept};
use serde_json::{Map, Value, json};
use store::Objects;

/// Objects read in one go at the start.
const AT_ONCE: usize = 1000;
/// Fields nobody is shown; left out of a change they stay what they are.
const SECRETS: [&str; 3] = ["password", "secret", "headers"];
/// What a user's password became.
const PROOFS: [&str; 2] = ["password_hash", "scram"];

pub(super) struct Rules {
    pub(super) auth: Auth,
}

/// Takes over what is stored, and from now on every change. Blocks.
pub(super) fn follow(auth: &Auth, objects: &Objects) -> Result<(), store::Error> {
    let follower = (auth.clone(), objects.clone());
    objects.on_change(Box::new(move |change| {
        let (auth, objects) = &follower;
        if !kept::KINDS.contains(&&*change.kind) {
            return;
        }
        match objects.get(&change.kind, &change.id) {
            Ok(object) => {
                let value = object.as_ref().map(|object| &object.value);
                apply(auth, &change.kind, &change.id, value);
            }
            Err(error) => {
                tracing::error!(kind = change.kind, id = change.id, %error, "a change cannot be read");
                apply(auth, &change.kind, &change.id, None);
            }
        }
    }));
    for kind in kept::KINDS {
        let mut after: Option<String> = None;
        loop {
            let found = objects.list(kind, after.as_deref(), AT_ONCE)?;
            for object in &found {
                apply(auth, kind, &object.id, Some(&object.value));
            }
            match found.last() {
                Some(last) if found.len() == AT_ONCE => after = Some(last.id.clone()),
                _ => break,
            }
        }
    }
    Ok(())
}

fn apply(auth: &Auth, kind: &str, id: &str, value: Option<&Value>) {
    if let Err(error) = auth.apply(kind, id, value) {
        tracing::error!(kind, id, %error, "a stored object is of no use and left out");
    }
}

fn name_of(kind: RuledKind) -> &'static str {
    match kind {
        RuledKind::User => kept::USER,
        RuledKind::Authenticator => kept::AUTHENTICATOR,
        RuledKind::AclRule => kept::ACL_RULE,
        RuledKind::Ban => kept::BAN,
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
        let input = keep_secrets(kind, input, current);
        let refused = |error: auth::Invalid| invalid(&error.message);
        let sealed = kept::seal(name_of(kind), input).map_err(refused)?;
        let checked = self.auth.check_object(name_of(kind), &sealed);
        checked.map_err(refused)?;
        Ok(sealed)
    }

    fn show(&self, kind: RuledKind, stored: &Value) -> Value {
        kept::shown(name_of(kind), stored.clone())
    }

    fn schemas(&self, kind: RuledKind) -> (Value, Value) {
        schemas(kind)
    }
}

/// What is left out of a change and never shown stays what it is.
fn keep_secrets(kind: RuledKind, mut input: Value, current: Option<&Value>) -> Value {
    let Some(fields) = input.as_object_mut() else {
        return input;
    };
    let given = |fields: &Map<String, Value>, name: &str| fields.contains_key(name);
    let names: &[&str] = match kind {
        RuledKind::User => {
            // Shown, and not to be said.
            fields.remove("has_password");
            let proves_anew =
                given(fields, "password") || PROOFS.iter().any(|name| given(fields, name));
            if proves_anew { &[] } else { &PROOFS }
        }
        RuledKind::Authenticator => &SECRETS,
        RuledKind::AclRule | RuledKind::Ban => &[],
    };
    for name in names {
        if !given(fields, name)
            && let Some(value) = current.and_then(|current| current.get(*name))
        {
            fields.insert((*name).to_owned(), value.clone());
        }
    }
    input
}

/// `field: what was expected`, as `auth` says it.
fn invalid(message: &str) -> Invalid {
    let is_name = |text: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_[].".contains(c);
        !text.is_empty() && text.chars().all(is_part)
    };
    match message.split_once(": ").filter(|(field, _)| is_name(field)) {
        Some((field, detail)) => Invalid {
            field: field.to_owned(),
            detail: format!("{detail}."),
        },
        None => Invalid {
            field: String::new(),
            detail: format!("{message}."),
        },
    }
}

/// Of what is written and what is shown.
fn schemas(kind: RuledKind) -> (Value, Value) {
    let text = |about: &str| json!({"type": "string", "description": about});
    let texts = |about: &str| {
        json!({
            "description": about,
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        })
    };
    let object = |properties: Value, required: &[&str], is_closed: bool| {
        json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": !is_closed,
        })
    };
    match kind {
        RuledKind::User => {
            let common = json!({
                "is_superuser": {"type": "boolean", "description": "No rule applies to it."},
                "description": {"type": "string"},
            });
            let with = |name: &str, schema: Value| {
                let mut properties = common.clone();
                properties[name] = schema;
                properties
            };
            let password = json!({
                "type": "string", "minLength": 1,
                "description": "Kept as hashes only. Left out of a change, it stays what it is.",
            });
            let has_password = json!({"type": "boolean"});
            (
                object(with("password", password), &[], false),
                object(with("has_password", has_password), &["has_password"], false),
            )
        }
        RuledKind::Authenticator => {
            let about = "`users`, `password_file`, `jwt`, `http`, `mysql`, `postgres`, `redis` or `certificate`; the other \
                         fields are those of the type, see the documentation of authentication.";
            let properties = json!({
                "type": text(about),
                "enabled": {"type": "boolean"},
                "order": {"type": "integer"},
            });
            let schema = object(properties, &["type"], false);
            (schema.clone(), schema)
        }
        RuledKind::AclRule => {
            let properties = json!({
                "permission": {"type": "string", "enum": ["allow", "deny"]},
                "action": {"type": "string", "enum": ["publish", "subscribe", "all"]},
                "topics": texts("Filters, also with `${clientid}`, `${username}`, `${cert_common_name}`."),
                "username": texts("Users it is for."),
                "client_id": texts("Clients it is for."),
                "address": texts("Addresses or networks it is for: `192.0.2.0/24`."),
                "order": {"type": "integer", "description": "Rules are asked from the lowest to the highest."},
                "enabled": {"type": "boolean"},
            });
            let schema = object(properties, &["permission"], false);
            (schema.clone(), schema)
        }
        RuledKind::Ban => {
            let properties = json!({
                "client_id": text("Exactly one of this,"),
                "username": text("this,"),
                "address": text("and this: an address or a network."),
                "until_ms": {"type": ["integer", "null"], "minimum": 0, "description": "Milliseconds since 1970; none: for good."},
                "reason": text("For those who read it later."),
            });
            (
                object(properties.clone(), &[], true),
                object(properties, &[], false),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_that_are_left_out_stay() {
        let stored = json!({"password_hash": "h", "scram": "s", "is_superuser": true});
        let kept = |input| keep_secrets(RuledKind::User, input, Some(&stored));
        assert_eq!(
            kept(json!({"has_password": true})),
            json!({"password_hash": "h", "scram": "s"})
        );
        assert_eq!(kept(json!({"password": "new"})), json!({"password": "new"}));
        let database = json!({"type": "mysql", "password": "p"});
        assert_eq!(
            keep_secrets(
                RuledKind::Authenticator,
                json!({"type": "mysql"}),
                Some(&database)
            ),
            database
        );
    }

    #[test]
    fn the_field_of_an_error_is_told_apart() {
        assert_eq!(invalid("password: too short").field, "password");
        assert_eq!(invalid("expected exactly one of a, b: not both").field, "");
    }
}
