//! Operators: people who use the API with a name and a password.

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::Objects;

use super::holder::{self, check_description, yes};
use super::{Accepted, Kind, Names};
use crate::access::Role;
use crate::app::App;
use crate::call;
use crate::problem::Problem;

pub(crate) const KIND: &str = "operator";
const MAX_OPERATORS: usize = 1000;
/// The field of [`Stored`] nobody is shown.
const SECRET: &str = "password_hash";

/// As it is stored.
#[derive(Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) role: Role,
    pub(crate) enabled: bool,
    pub(crate) description: String,
    /// `$argon2id$...`
    pub(crate) password_hash: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    role: Role,
    /// A disabled operator cannot log in, and its tokens end.
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    #[schemars(length(max = 1000))]
    description: String,
    /// At least 8 characters. Left out, it stays what it is.
    #[serde(default)]
    #[schemars(length(min = 8, max = 256))]
    password: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct View<'a> {
    role: Role,
    enabled: bool,
    description: &'a str,
}

pub(crate) struct Operators;

const NAMES: Names = Names {
    kind: KIND,
    path: "operators",
    one: "an operator",
    many: "operators",
    type_name: "Operator",
    id_field: "username",
    tag: "access",
    read: Role::Admin,
    write: Role::Admin,
    id_prefix: None,
    about: "People who use this API with a name and a password. (Those who connect over MQTT are users.)",
};

impl Kind for Operators {
    fn names(&self) -> &Names {
        &NAMES
    }

    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value) {
        holder::schemas::<Input, View<'_>>(generator)
    }

    fn accept<'a>(
        &'a self,
        app: &'a App,
        _id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> Accepted<'a> {
        Box::pin(async move {
            let input: Input = call::read(input)?;
            check_description(&input.description)?;
            let password_hash = match (input.password, holder::kept(current, SECRET)) {
                (Some(password), _) => {
                    crate::access::check_password(&password)?;
                    app.gatekeeper.passwords.hash(password).await?
                }
                (None, Some(kept)) => kept,
                (None, None) => {
                    let detail = "password is missing; a new operator needs one.";
                    return Err(Problem::field("password", detail));
                }
            };
            let stored = holder::stored(Stored {
                role: input.role,
                enabled: input.enabled,
                description: input.description,
                password_hash,
            });
            Ok(stored.into())
        })
    }

    fn show(&self, _app: &App, stored: &Value) -> Value {
        holder::without(stored, SECRET)
    }

    /// Somebody has to be left who can let others in.
    fn may_become(&self, objects: &Objects, id: &str, next: Option<&Value>) -> Result<(), Problem> {
        let is_admin = |value: &Value| value["role"] == "admin" && value["enabled"] == true;
        let all = match next {
            Some(_) => holder::with_room_for(id, &NAMES, MAX_OPERATORS, objects)?,
            None => holder::all(&NAMES, MAX_OPERATORS, objects)?,
        };
        let others_do = all
            .iter()
            .any(|other| other.id != id && is_admin(&other.value));
        let was_admin = all
            .iter()
            .any(|other| other.id == id && is_admin(&other.value));
        if was_admin && !others_do && !next.is_some_and(is_admin) {
            return Err(Problem::conflict(
                "This is the last admin who can log in; make another one first.",
            ));
        }
        Ok(())
    }
}
