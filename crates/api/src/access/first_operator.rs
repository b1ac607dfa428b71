//! Creates the first operator: if the store contains none, the node creates one with a random
//! password.

use store::{ExpectedVersion, Objects};

use super::role::Role;
use super::stored_credentials::{OPERATOR_KIND, StoredOperator};
use super::{password, secret};

/// Name of the operator that the first start creates.
const FIRST_OPERATOR: &str = "admin";

/// Credentials of the first operator. They are shown to the node's owner once and stored nowhere
/// else in clear text.
pub struct FirstOperator {
    pub username: &'static str,
    pub password: String,
}

#[derive(Debug, thiserror::Error)]
pub enum FirstOperatorError {
    #[error("cannot create the first operator of the API: {0}")]
    Store(#[from] store::StoreError),
    #[error("cannot create the first operator of the API: {0}")]
    Object(#[from] store::ObjectError),
    #[error("cannot create the first operator of the API: {0}")]
    Randomness(#[from] ::secret::RandomSourceError),
    #[error("cannot create the first operator of the API: {0}")]
    Hash(String),
}

/// Creates the operator `admin` if there is no operator at all. Blocks.
pub fn ensure_first_operator(
    objects: &Objects,
) -> Result<Option<FirstOperator>, FirstOperatorError> {
    if !objects.list(OPERATOR_KIND, None, 1)?.is_empty() {
        return Ok(None);
    }
    let password = secret::random_password()?;
    let stored = StoredOperator {
        role: Some(Role::Admin),
        namespaces: Vec::new(),
        enabled: true,
        description: "Created at the first start".into(),
        email: None,
        ban: None,
        // It was printed, so others may have read it.
        must_change_password: true,
        password_hash: password::hash_password(&password)
            .map_err(|error| FirstOperatorError::Hash(error.to_string()))?,
    };
    let value = serde_json::to_value(stored).expect("its fields are plain");
    let put = objects.put(
        OPERATOR_KIND,
        FIRST_OPERATOR,
        value,
        ExpectedVersion::Absent,
    );
    match put {
        // Another node of the cluster has created it meanwhile.
        Err(store::ObjectError::Conflict { .. }) => return Ok(None),
        put => put?,
    };
    Ok(Some(FirstOperator {
        username: FIRST_OPERATOR,
        password,
    }))
}
