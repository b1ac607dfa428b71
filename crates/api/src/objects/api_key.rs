//! API keys: programs that use the API with an id and a secret, sent as HTTP Basic credentials.

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::Objects;

use super::holder::{self, check_description, yes};
use super::{Accept, Accepted, Kind, Names};
use crate::access::{Hashed, Role, random_secret};
use crate::app::App;
use crate::call;
use crate::problem::Problem;

pub(crate) const KIND: &str = "api_key";
const MAX_KEYS: usize = 10_000;
/// The field of [`Stored`] nobody is shown.
const SECRET: &str = "secret_hash";

/// As it is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) role: Role,
    pub(crate) enabled: bool,
    pub(crate) description: String,
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) secret_hash: Hashed,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    role: Role,
    #[serde(default = "yes")]
    enabled: bool,
    /// What it is for.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    description: String,
    /// From then on it lets nobody in; `null`: never.
    #[serde(default)]
    expires_at_ms: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct View<'a> {
    role: Role,
    enabled: bool,
    description: &'a str,
    expires_at_ms: Option<u64>,
}

pub(crate) struct ApiKeys;

const NAMES: Names = Names {
    kind: KIND,
    path: "api-keys",
    one: "an API key",
    many: "API keys",
    type_name: "ApiKey",
    id_field: "id",
    tag: "access",
    read: Role::Admin,
    write: Role::Admin,
    id_prefix: Some("key-"),
    about: "Programs that use this API. A key's secret is told once, when it is made.",
};

impl Kind for ApiKeys {
    fn names(&self) -> &Names {
        &NAMES
    }

    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value) {
        holder::schemas::<Input, View<'_>>(generator)
    }

    fn once(&self) -> &'static [(&'static str, &'static str)] {
        &[(
            "secret",
            "The key's secret. Keep it: it is not shown again.",
        )]
    }

    fn accept<'a>(
        &'a self,
        _app: &'a App,
        id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> Accepted<'a> {
        Box::pin(async move {
            let input: Input = call::read(input)?;
            check_description(&input.description)?;
            if id.contains(':') {
                let detail = "id: a colon cannot be in it, since it ends the user name of Basic credentials.";
                return Err(Problem::field("id", detail));
            }
            let mut once = Map::new();
            let secret_hash = match holder::kept(current, SECRET) {
                Some(kept) => kept,
                None => {
                    let secret = random_secret()
                        .map_err(|error| Problem::unavailable(format!("{error}.")))?;
                    let hashed = Hashed::of(&secret);
                    once.insert("secret".to_owned(), secret.into());
                    hashed
                }
            };
            let stored = holder::stored(Stored {
                role: input.role,
                enabled: input.enabled,
                description: input.description,
                expires_at_ms: input.expires_at_ms,
                secret_hash,
            });
            Ok(Accept { stored, once })
        })
    }

    fn show(&self, _app: &App, stored: &Value) -> Value {
        holder::without(stored, SECRET)
    }

    fn may_become(&self, objects: &Objects, id: &str, next: Option<&Value>) -> Result<(), Problem> {
        match next {
            Some(_) => holder::with_room_for(id, &NAMES, MAX_KEYS, objects).map(drop),
            None => Ok(()),
        }
    }
}
