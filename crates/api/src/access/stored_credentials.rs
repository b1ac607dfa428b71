//! The stored forms of operators and API keys, by which callers are authenticated.

use serde::{Deserialize, Serialize};

use super::role::Role;
use super::secret::SecretHash;

/// Kind of operators in the store.
pub(crate) const OPERATOR_KIND: &str = "operator";
/// Kind of API keys in the store.
pub(crate) const API_KEY_KIND: &str = "api_key";

/// An operator in its stored form.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredOperator {
    pub(crate) role: Role,
    pub(crate) enabled: bool,
    pub(crate) description: String,
    /// `$argon2id$...`
    pub(crate) password_hash: String,
}

/// An API key in its stored form.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredApiKey {
    pub(crate) role: Role,
    pub(crate) enabled: bool,
    pub(crate) description: String,
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) secret_hash: SecretHash,
}
