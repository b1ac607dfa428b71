//! The first operator: a node whose store has none makes one, with a password nobody else knows.

use store::{ExpectedVersion, Objects};

use super::{Role, password, secret};
use crate::objects::operator;

/// The name of the operator the first start makes.
const FIRST_OPERATOR: &str = "admin";

/// What the node's owner has to be told, once and nowhere else.
pub struct FirstOperator {
    pub username: &'static str,
    pub password: String,
}

#[derive(Debug, thiserror::Error)]
pub enum FirstOperatorError {
    #[error("cannot make the first operator of the API: {0}")]
    Store(#[from] store::StoreError),
    #[error("cannot make the first operator of the API: {0}")]
    Object(#[from] store::ObjectError),
    #[error("cannot make the first operator of the API: {0}")]
    Randomness(#[from] super::RandomSourceError),
    #[error("cannot make the first operator of the API: {0}")]
    Hash(String),
}

/// Makes the operator `admin` if there is no operator at all; blocks.
pub fn ensure_first_operator(
    objects: &Objects,
) -> Result<Option<FirstOperator>, FirstOperatorError> {
    if !objects.list(operator::KIND, None, 1)?.is_empty() {
        return Ok(None);
    }
    let password = secret::random_password()?;
    let stored = operator::StoredOperator {
        role: Role::Admin,
        enabled: true,
        description: "Made at the first start".into(),
        password_hash: password::hash_password(&password)
            .map_err(|error| FirstOperatorError::Hash(error.to_string()))?,
    };
    let value = serde_json::to_value(stored).expect("its fields are plain");
    objects.put(
        operator::KIND,
        FIRST_OPERATOR,
        value,
        ExpectedVersion::Absent,
    )?;
    Ok(Some(FirstOperator {
        username: FIRST_OPERATOR,
        password,
    }))
}
