//! API keys: programs authenticate with an id and a secret, sent as HTTP Basic credentials.

use namespaces::Quota;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::Objects;

use super::credential_holder::{self, check_description, default_enabled};
use super::kind_names::{ObjectKindNames, ObjectOwner, QuotaCount};
use super::object_kind::{ObjectKind, PrepareFuture, PreparedObject};
use crate::access::{API_KEY_KIND, ApiKeyRole, Role, StoredApiKey, random_secret};
use crate::call::parse;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

const MAX_KEYS: usize = 10_000;
/// The field of [`StoredApiKey`] that is never shown.
const SECRET_FIELD: &str = "secret_hash";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApiKeyInput {
    /// `owner` only with a namespace, `admin` only without one.
    role: ApiKeyRole,
    /// Namespace to which the key is limited; `null`: the role is node-wide. Cannot change.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    namespace: Option<String>,
    #[serde(default = "default_enabled")]
    enabled: bool,
    /// Purpose of the key.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    description: String,
    /// Time from which the key is rejected, in milliseconds since 1970; `null`: never.
    #[serde(default)]
    expires_at_ms: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct ApiKeyView<'a> {
    role: ApiKeyRole,
    /// Namespace to which the key is limited; `null`: the role is node-wide.
    namespace: Option<&'a str>,
    enabled: bool,
    description: &'a str,
    expires_at_ms: Option<u64>,
}

pub(crate) struct ApiKeys;

const NAMES: ObjectKindNames = ObjectKindNames {
    kind: API_KEY_KIND,
    path: "api-keys",
    singular: "an API key",
    plural: "API keys",
    type_name: "ApiKey",
    id_field: "id",
    tag: "access",
    owner: ObjectOwner::NamespaceOrNode(&[QuotaCount::objects(Quota::ApiKeys)]),
    node_fields: &[],
    read: Role::Admin,
    write: Role::Admin,
    id_prefix: Some("key-"),
    description: "Programs that use this API. A key's secret is shown only once, when it is created.",
};

impl ObjectKind for ApiKeys {
    fn names(&self) -> &ObjectKindNames {
        &NAMES
    }

    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value) {
        credential_holder::schemas::<ApiKeyInput, ApiKeyView<'_>>(generator)
    }

    fn shown_once(&self) -> &'static [(&'static str, &'static str)] {
        &[(
            "secret",
            "The key's secret. Keep it: it is not shown again.",
        )]
    }

    fn prepare<'a>(
        &'a self,
        _app: &'a ApiState,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> PrepareFuture<'a> {
        Box::pin(async move {
            let input: ApiKeyInput = parse(input)?;
            check_description(&input.description)?;
            if id.contains(':') {
                let detail =
                    "id: must not contain a colon, which ends the user name of Basic credentials.";
                return Err(ProblemDetails::invalid_field("id", detail));
            }
            let mut once = Map::new();
            let (secret_hash, issued) =
                credential_holder::keep_or_issue_secret(current, SECRET_FIELD, random_secret)?;
            once.extend(issued.map(|secret| ("secret".to_owned(), secret.into())));
            let stored = StoredApiKey {
                role: input.role,
                namespace: input.namespace,
                enabled: input.enabled,
                description: input.description,
                expires_at_ms: input.expires_at_ms,
                secret_hash,
            };
            if stored.authority().is_none() {
                let detail = match stored.namespace {
                    Some(_) => "role: expected viewer, operator or owner for a key of a namespace.",
                    None => {
                        "role: expected viewer, operator or admin for a key without a namespace."
                    }
                };
                return Err(ProblemDetails::invalid_field("role", detail));
            }
            Ok(PreparedObject {
                stored: credential_holder::to_stored_value(stored),
                shown_once: once,
            })
        })
    }

    fn public_view(&self, _app: &ApiState, stored: &Value) -> Value {
        let mut shown = credential_holder::without_field(stored, SECRET_FIELD);
        // Keys of earlier versions have no such field.
        if let Some(fields) = shown.as_object_mut() {
            fields.entry(namespaces::FIELD).or_insert(Value::Null);
        }
        shown
    }

    fn check_change(
        &self,
        objects: &Objects,
        id: &str,
        next: Option<&Value>,
    ) -> Result<(), ProblemDetails> {
        credential_holder::check_capacity(id, next, &NAMES, MAX_KEYS, objects)
    }
}
