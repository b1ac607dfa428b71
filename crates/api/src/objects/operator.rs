//! Operators: people who use the API with a name and a password.

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::Objects;

use super::{Accepted, Kind, Names, store_problem};
use crate::access::Role;
use crate::app::App;
use crate::call;
use crate::problem::Problem;

pub(crate) const KIND: &str = "operator";
const MAX_OPERATORS: usize = 1000;

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

pub(super) fn yes() -> bool {
    true
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

    fn input_schema(&self, generator: &mut SchemaGenerator) -> Value {
        Input::json_schema(generator).to_value()
    }

    fn view_schema(&self, generator: &mut SchemaGenerator) -> Value {
        View::json_schema(generator).to_value()
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
            let kept = current.and_then(|current| current["password_hash"].as_str());
            let password_hash = match (input.password, kept) {
                (Some(password), _) => {
                    crate::access::check_password(&password)?;
                    app.gatekeeper.passwords.hash(password).await?
                }
                (None, Some(kept)) => kept.to_owned(),
                (None, None) => {
                    let detail = "password is missing; a new operator needs one.";
                    return Err(Problem::field("password", detail));
                }
            };
            let stored = Stored {
                role: input.role,
                enabled: input.enabled,
                description: input.description,
                password_hash,
            };
            let stored = serde_json::to_value(stored).expect("its fields are plain");
            Ok(stored.into())
        })
    }

    fn show(&self, _app: &App, stored: &Value) -> Value {
        without(stored, &["password_hash"])
    }

    /// Somebody has to be left who can let others in.
    fn may_become(&self, objects: &Objects, id: &str, next: Option<&Value>) -> Result<(), Problem> {
        let is_admin = |value: &Value| value["role"] == "admin" && value["enabled"] == true;
        let all = objects
            .list(KIND, None, MAX_OPERATORS + 1)
            .map_err(|error| store_problem(&error))?;
        if all.len() >= MAX_OPERATORS && next.is_some() && all.iter().all(|other| other.id != id) {
            let detail =
                format!("There are {MAX_OPERATORS} operators already; no more are allowed.");
            return Err(Problem::conflict(detail));
        }
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

pub(super) fn check_description(description: &str) -> Result<(), Problem> {
    match description.chars().count() <= 1000 {
        true => Ok(()),
        false => Err(Problem::field(
            "description",
            "description is too long; expected at most 1000 characters.",
        )),
    }
}

/// An object without some of its fields.
pub(super) fn without(value: &Value, fields: &[&str]) -> Value {
    let mut shown = value.clone();
    if let Some(all) = shown.as_object_mut() {
        all.retain(|name, _| !fields.contains(&name.as_str()));
    }
    shown
}
