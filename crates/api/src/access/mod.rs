//! Authentication and authorisation of API requests: roles, credentials, and the limit on guessing.

mod access_state;
mod authentication;
mod authority;
mod basic;
mod caller_identity;
mod console_sessions;
mod endpoint_access;
mod first_operator;
mod local_operator;
mod login_attempts;
mod owner_bans;
mod password;
mod role;
mod scope_check;
mod secret;
mod stored_credentials;
mod tokens;

pub(crate) use access_state::AccessState;
pub(crate) use authentication::{
    authenticate, credentials_header, find_api_key, find_login_holder,
};
pub(crate) use authority::{Authority, NamespaceGrant, NamespaceRole};
pub(crate) use caller_identity::{AuthenticationMethod, CallerIdentity};
pub(crate) use console_sessions::{
    end_all_sessions, extend_session, find_session, session_login, store_session,
};
pub(crate) use endpoint_access::EndpointAccess;
pub use first_operator::{FirstOperator, FirstOperatorError, ensure_first_operator};
pub(crate) use local_operator::LocalOperator;
pub use owner_bans::watch_owner_bans;
pub(crate) use password::{
    check_registered as check_registered_password, check_strength as check_password,
};
pub use role::Role;
pub(crate) use scope_check::authorize;
pub use secret::new_local_token;
pub(crate) use secret::{SecretHash, random_id, random_password, random_secret, readable_token};
pub use stored_credentials::{API_KEY_KIND, OPERATOR_KIND};
pub(crate) use stored_credentials::{ApiKeyRole, OperatorBan, StoredApiKey, StoredOperator};
pub(crate) use tokens::{LoginRecord, TokenFamily, TokenOwner};
