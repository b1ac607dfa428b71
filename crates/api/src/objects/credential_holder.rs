//! Code shared by operators, API keys and invites: each has a secret that is stored as a hash.

use schemars::{JsonSchema, SchemaGenerator};
use secret::RandomSourceError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::{Object, Objects};

use super::kind_names::ObjectKindNames;
use crate::access::SecretHash;
use crate::object_store::store_problem;
use crate::problem_details::ProblemDetails;

const MAX_DESCRIPTION_CHARS: u32 = 1000;

/// Default for serde: holders are enabled.
pub(super) fn default_enabled() -> bool {
    true
}

pub(super) fn check_description(description: &str) -> Result<(), ProblemDetails> {
    match description.chars().count() <= MAX_DESCRIPTION_CHARS as usize {
        true => Ok(()),
        false => Err(ProblemDetails::invalid_field(
            "description",
            format!(
                "description is too long; expected at most {MAX_DESCRIPTION_CHARS} characters."
            ),
        )),
    }
}

/// The schemas of the written and the shown object.
pub(super) fn schemas<I: JsonSchema, V: JsonSchema>(
    generator: &mut SchemaGenerator,
) -> (Value, Value) {
    let input = I::json_schema(generator).to_value();
    (input, V::json_schema(generator).to_value())
}

/// An existing field of an object, such as its secret, which stays unless it is replaced.
pub(super) fn existing_field<T: DeserializeOwned>(
    current: Option<&Value>,
    field: &str,
) -> Option<T> {
    T::deserialize(current?.get(field)?).ok()
}

/// The hash of the secret that an object keeps for life. A new object gets a secret, which is returned with its hash.
pub(super) fn keep_or_issue_secret(
    current: Option<&Value>,
    field: &str,
    generate: impl FnOnce() -> Result<String, RandomSourceError>,
) -> Result<(SecretHash, Option<String>), ProblemDetails> {
    if let Some(kept) = existing_field(current, field) {
        return Ok((kept, None));
    }
    let secret = generate().map_err(|error| ProblemDetails::unavailable(format!("{error}.")))?;
    Ok((SecretHash::from_secret(&secret), Some(secret)))
}

pub(super) fn to_stored_value(holder: impl Serialize) -> Value {
    serde_json::to_value(holder).expect("its fields are plain")
}

/// The object without the field that contains its secret.
pub(super) fn without_field(value: &Value, secret: &str) -> Value {
    let mut shown = value.clone();
    if let Some(fields) = shown.as_object_mut() {
        fields.remove(secret);
    }
    shown
}

pub(super) fn list_all(
    names: &ObjectKindNames,
    max: usize,
    objects: &Objects,
) -> Result<Vec<Object>, ProblemDetails> {
    objects
        .list(names.kind, None, max + 1)
        .map_err(|error| store_problem(&error))
}

/// All objects of a kind; an error if `id` would exceed the maximum number.
pub(super) fn list_with_capacity_for(
    id: &str,
    names: &ObjectKindNames,
    max: usize,
    objects: &Objects,
) -> Result<Vec<Object>, ProblemDetails> {
    let all = list_all(names, max, objects)?;
    match all.len() >= max && all.iter().all(|other| other.id != id) {
        true => Err(ProblemDetails::conflict(format!(
            "The limit of {max} {} is reached; delete some first.",
            names.plural
        ))),
        false => Ok(all),
    }
}

/// Checks that the maximum number of objects is not exceeded by a change of `id` to `next` (`None`: a deletion).
pub(super) fn check_capacity(
    id: &str,
    next: Option<&Value>,
    names: &ObjectKindNames,
    max: usize,
    objects: &Objects,
) -> Result<(), ProblemDetails> {
    match next {
        Some(_) => list_with_capacity_for(id, names, max, objects).map(drop),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_stays_and_is_not_shown() {
        let current = json!({"role": "admin", "password_hash": "$x"});
        let field = "password_hash";
        assert_eq!(existing_field(Some(&current), field), Some("$x".to_owned()));
        assert_eq!(
            existing_field::<String>(Some(&current), "secret_hash"),
            None
        );
        assert_eq!(
            existing_field::<u64>(Some(&current), field),
            None,
            "not what it was"
        );
        assert_eq!(existing_field::<String>(None, field), None);
        assert_eq!(without_field(&current, field), json!({"role": "admin"}));
    }
}
