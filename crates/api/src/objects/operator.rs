//! Operators: people who use the API with a name and a password.

use std::collections::BTreeSet;

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::Objects;
use wall_clock::now_ms;

use super::credential_holder::{self, check_description, default_enabled};
use super::kind_names::{ObjectKindNames, ObjectOwner};
use super::object_kind::{ObjectKind, PrepareFuture};
use crate::access::{
    NamespaceGrant, OPERATOR_KIND, OperatorBan, Role, StoredOperator, check_password,
};
use crate::call::parse;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

const MAX_OPERATORS: usize = 10_000;
/// Maximum number of namespaces of an operator.
const MAX_GRANTS: usize = 64;
/// RFC 5321.
const MAX_EMAIL_BYTES: usize = 254;
/// The field of [`StoredOperator`] that is never shown.
const SECRET_FIELD: &str = "password_hash";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OperatorInput {
    /// Node-wide role; alternatively roles in `namespaces`.
    #[serde(default)]
    role: Option<Role>,
    /// Roles in namespaces, instead of a node-wide `role`.
    #[serde(default)]
    #[schemars(length(max = 64))]
    namespaces: Vec<NamespaceGrant>,
    /// Whether the operator may log in; disabling it revokes its tokens.
    #[serde(default = "default_enabled")]
    enabled: bool,
    #[serde(default)]
    #[schemars(length(max = 1000))]
    description: String,
    #[serde(default)]
    #[schemars(length(max = 254))]
    email: Option<String>,
    /// Accepted and ignored, so that the response of a GET can be sent back. Bans have routes of
    /// their own.
    #[serde(default, rename = "ban")]
    _ban: Option<Value>,
    /// Password of at least 8 characters. If omitted, it stays unchanged.
    #[serde(default)]
    #[schemars(length(min = 8, max = 256))]
    password: Option<String>,
    /// Whether the operator must change its password before it may do anything else. Default: `true` with a new `password`,
    /// which the person who set it knows; otherwise unchanged.
    #[serde(default)]
    must_change_password: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
struct OperatorView<'a> {
    /// Node-wide role; `null`: the operator has roles in `namespaces`.
    role: Option<Role>,
    namespaces: &'a [NamespaceGrant],
    enabled: bool,
    description: &'a str,
    email: Option<&'a str>,
    /// Why and until when the operator may not log in; `null`: not banned.
    ban: Option<&'a OperatorBan>,
    /// Whether the operator must change its password before it may do anything else.
    must_change_password: bool,
}

/// Checks that an operator has either a node-wide role or roles in namespaces that exist.
fn check_grants(
    app: &ApiState,
    role: Option<Role>,
    grants: &[NamespaceGrant],
) -> Result<(), ProblemDetails> {
    let invalid = |detail: &str| Err(ProblemDetails::invalid_field("namespaces", detail));
    match role {
        Some(_) if grants.is_empty() => return Ok(()),
        Some(_) => {
            return invalid("namespaces: expected none for an operator with a node-wide role.");
        }
        None if grants.is_empty() => {
            let detail =
                "role is missing; expected viewer, operator or admin, or roles in namespaces.";
            return Err(ProblemDetails::invalid_field("role", detail));
        }
        None if grants.len() > MAX_GRANTS => {
            return invalid(&format!("namespaces: expected at most {MAX_GRANTS}."));
        }
        None => {}
    }
    let mut seen = BTreeSet::new();
    for (at, grant) in grants.iter().enumerate() {
        let namespace = &grant.namespace;
        if app.namespaces.get(namespace).is_none() {
            return invalid(&format!(
                "namespaces[{at}].namespace: there is no namespace {namespace:?}; create it first, or name another."
            ));
        }
        if !seen.insert(namespace) {
            return invalid(&format!(
                "namespaces[{at}].namespace: {namespace:?} is given twice; give it once."
            ));
        }
    }
    Ok(())
}

/// Checks the form of an e-mail address. Whether mail arrives there is not checked.
pub(crate) fn check_email(email: &str) -> Result<(), ProblemDetails> {
    let is_plain = |text: &str| {
        !text.is_empty()
            && !text.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    };
    let parts = email.split_once('@');
    let fits =
        parts.is_some_and(|(name, host)| is_plain(name) && is_plain(host) && !host.contains('@'));
    match fits && email.len() <= MAX_EMAIL_BYTES {
        true => Ok(()),
        false => Err(ProblemDetails::invalid_field(
            "email",
            format!(
                "email: expected an address such as ann@example.com of at most {MAX_EMAIL_BYTES} bytes."
            ),
        )),
    }
}

pub(crate) struct Operators;

const NAMES: ObjectKindNames = ObjectKindNames {
    kind: OPERATOR_KIND,
    path: "operators",
    singular: "an operator",
    plural: "operators",
    type_name: "Operator",
    id_field: "username",
    tag: "access",
    owner: ObjectOwner::Node,
    node_fields: &[],
    read: Role::Admin,
    write: Role::Admin,
    id_prefix: None,
    description: "People who use this API with a name and a password. (MQTT clients log in as users.)",
};

impl ObjectKind for Operators {
    fn names(&self) -> &ObjectKindNames {
        &NAMES
    }

    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value) {
        credential_holder::schemas::<OperatorInput, OperatorView<'_>>(generator)
    }

    fn prepare<'a>(
        &'a self,
        app: &'a ApiState,
        _id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> PrepareFuture<'a> {
        Box::pin(async move {
            let input: OperatorInput = parse(input)?;
            check_description(&input.description)?;
            check_grants(app, input.role, &input.namespaces)?;
            if let Some(email) = &input.email {
                check_email(email)?;
            }
            let ban = credential_holder::existing_field(current, "ban");
            let is_new_password = input.password.is_some();
            let must_change_password = input.must_change_password.unwrap_or_else(|| {
                let kept = credential_holder::existing_field(current, "must_change_password");
                is_new_password || kept.unwrap_or_default()
            });
            let password_hash = match (
                input.password,
                credential_holder::existing_field(current, SECRET_FIELD),
            ) {
                (Some(password), _) => {
                    check_password(&password)?;
                    app.access.passwords.hash(password).await?
                }
                (None, Some(kept)) => kept,
                (None, None) => {
                    let detail = "password is missing; a new operator needs one.";
                    return Err(ProblemDetails::invalid_field("password", detail));
                }
            };
            let stored = credential_holder::to_stored_value(StoredOperator {
                role: input.role,
                namespaces: input.namespaces,
                enabled: input.enabled,
                description: input.description,
                email: input.email,
                ban,
                must_change_password,
                password_hash,
            });
            Ok(stored.into())
        })
    }

    fn public_view(&self, _app: &ApiState, stored: &Value) -> Value {
        let mut shown = credential_holder::without_field(stored, SECRET_FIELD);
        // Operators of earlier versions have no such fields.
        if let Some(fields) = shown.as_object_mut() {
            fields
                .entry("namespaces")
                .or_insert_with(|| Value::Array(Vec::new()));
            let flag = fields.entry("must_change_password");
            flag.or_insert(Value::Bool(false));
        }
        shown
    }

    fn check_change(
        &self,
        objects: &Objects,
        id: &str,
        next: Option<&Value>,
    ) -> Result<(), ProblemDetails> {
        Self::check_remaining_admin(objects, id, next)
    }
}

impl Operators {
    /// Checks that one more operator may be stored.
    pub(crate) fn check_capacity(objects: &Objects, id: &str) -> Result<(), ProblemDetails> {
        credential_holder::list_with_capacity_for(id, &NAMES, MAX_OPERATORS, objects).map(drop)
    }

    /// Checks that at least one admin who can log in remains if an operator gets this value
    /// (`None`: is deleted).
    pub(crate) fn check_remaining_admin(
        objects: &Objects,
        id: &str,
        next: Option<&Value>,
    ) -> Result<(), ProblemDetails> {
        let now_ms = now_ms();
        let is_admin = |value: &Value| {
            let operator = StoredOperator::deserialize(value);
            operator.is_ok_and(|operator| {
                operator.role == Some(Role::Admin) && operator.may_log_in(now_ms)
            })
        };
        let all = match next {
            Some(_) => {
                credential_holder::list_with_capacity_for(id, &NAMES, MAX_OPERATORS, objects)?
            }
            None => credential_holder::list_all(&NAMES, MAX_OPERATORS, objects)?,
        };
        let others_do = all
            .iter()
            .any(|other| other.id != id && is_admin(&other.value));
        let was_admin = all
            .iter()
            .any(|other| other.id == id && is_admin(&other.value));
        if was_admin && !others_do && !next.is_some_and(is_admin) {
            return Err(ProblemDetails::conflict(
                "This is the last admin who can log in; create another one first.",
            ));
        }
        Ok(())
    }
}
