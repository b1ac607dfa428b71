//! Invites: codes with which people register themselves as operators, in a namespace that exists or
//! in one of their own.

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::Objects;

use super::credential_holder::{self, check_description, default_enabled};
use super::kind_names::{ObjectKindNames, ObjectOwner};
use super::object_kind::{ObjectKind, PrepareFuture, PreparedObject};
use crate::access::{NamespaceRole, Role, SecretHash, random_password};
use crate::call::parse;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Kind of invites in the store.
pub const INVITE_KIND: &str = "invite";
const MAX_INVITES: usize = 10_000;
const MAX_USES: u32 = 1000;
/// The field of [`StoredInvite`] that is never shown.
const SECRET_FIELD: &str = "code_hash";

/// An invite in its stored form.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredInvite {
    /// The namespace that people join; `None`: each gets a namespace of its own.
    #[serde(default)]
    pub(crate) namespace: Option<String>,
    /// Their role in that namespace.
    pub(crate) role: NamespaceRole,
    pub(crate) enabled: bool,
    pub(crate) description: String,
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) max_uses: u32,
    /// The operators that registered with it.
    pub(crate) used_by: Vec<String>,
    pub(crate) code_hash: SecretHash,
}

impl StoredInvite {
    /// Whether a person with this secret may register now.
    pub(crate) fn admits(&self, secret: &SecretHash, now_ms: u64) -> bool {
        (self.code_hash == *secret)
            & self.enabled
            & (self.used_by.len() < self.max_uses as usize)
            & self.expires_at_ms.is_none_or(|at_ms| now_ms < at_ms)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct InviteInput {
    /// Namespace that people join; `null`: each gets a namespace of its own. Cannot change.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    namespace: Option<String>,
    /// Role in the namespace; default: `viewer` in one that exists, `owner` in one of their own.
    #[serde(default)]
    role: Option<NamespaceRole>,
    #[serde(default = "default_enabled")]
    enabled: bool,
    /// Purpose of the invite.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    description: String,
    /// Time from which the code is rejected, in milliseconds since 1970; `null`: never.
    #[serde(default)]
    expires_at_ms: Option<u64>,
    /// Number of people who may register with the code.
    #[serde(default = "default_max_uses")]
    #[schemars(range(min = 1, max = 1000))]
    max_uses: u32,
    /// Accepted and ignored, so that the response of a GET can be sent back.
    #[serde(default, rename = "used_by")]
    _used_by: Option<Value>,
}

#[derive(Serialize, JsonSchema)]
struct InviteView<'a> {
    namespace: Option<&'a str>,
    role: NamespaceRole,
    enabled: bool,
    description: &'a str,
    expires_at_ms: Option<u64>,
    max_uses: u32,
    /// The operators that registered with the code.
    used_by: &'a [String],
}

fn default_max_uses() -> u32 {
    1
}

pub(crate) struct Invites;

const NAMES: ObjectKindNames = ObjectKindNames {
    kind: INVITE_KIND,
    path: "invites",
    singular: "an invite",
    plural: "invites",
    type_name: "Invite",
    id_field: "id",
    tag: "access",
    owner: ObjectOwner::NamespaceOrNode(&[]),
    node_fields: &[],
    read: Role::Admin,
    write: Role::Admin,
    id_prefix: Some("inv-"),
    description: "Codes with which people register themselves, if `http.registration_enabled` allows it. A code is shown only \
                  once, when it is created.",
};

impl ObjectKind for Invites {
    fn names(&self) -> &ObjectKindNames {
        &NAMES
    }

    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value) {
        credential_holder::schemas::<InviteInput, InviteView<'_>>(generator)
    }

    fn shown_once(&self) -> &'static [(&'static str, &'static str)] {
        &[("code", "The code. Hand it out now: it is not shown again.")]
    }

    fn prepare<'a>(
        &'a self,
        _app: &'a ApiState,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> PrepareFuture<'a> {
        Box::pin(async move {
            let input: InviteInput = parse(input)?;
            check_description(&input.description)?;
            if !(1..=MAX_USES).contains(&input.max_uses) {
                let detail = format!("max_uses: expected 1 to {MAX_USES}.");
                return Err(ProblemDetails::invalid_field("max_uses", detail));
            }
            let role = match (&input.namespace, input.role) {
                (Some(_), role) => role.unwrap_or(NamespaceRole::Viewer),
                (None, None | Some(NamespaceRole::Owner)) => NamespaceRole::Owner,
                (None, Some(_)) => {
                    let detail =
                        "role: expected owner, because each person gets a namespace of its own.";
                    return Err(ProblemDetails::invalid_field("role", detail));
                }
            };
            let mut once = Map::new();
            let (code_hash, issued) =
                credential_holder::keep_or_issue_secret(current, SECRET_FIELD, random_password)?;
            once.extend(issued.map(|secret| ("code".to_owned(), format!("{id}.{secret}").into())));
            let used_by = credential_holder::existing_field(current, "used_by");
            let stored = StoredInvite {
                namespace: input.namespace,
                role,
                enabled: input.enabled,
                description: input.description,
                expires_at_ms: input.expires_at_ms,
                max_uses: input.max_uses,
                used_by: used_by.unwrap_or_default(),
                code_hash,
            };
            Ok(PreparedObject {
                stored: credential_holder::to_stored_value(stored),
                shown_once: once,
            })
        })
    }

    fn public_view(&self, _app: &ApiState, stored: &Value) -> Value {
        credential_holder::without_field(stored, SECRET_FIELD)
    }

    fn check_change(
        &self,
        objects: &Objects,
        id: &str,
        next: Option<&Value>,
    ) -> Result<(), ProblemDetails> {
        credential_holder::check_capacity(id, next, &NAMES, MAX_INVITES, objects)
    }
}
