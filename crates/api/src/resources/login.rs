//! Login, logout, password changes, and the identity of the caller.

use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use store::ExpectedVersion;
use wall_clock::now_ms;

use crate::access::{
    self, AuthenticationMethod, Authority, EndpointAccess, NamespaceGrant, OPERATOR_KIND, Role,
    SecretHash, StoredOperator, TokenFamily, TokenOwner, check_password, random_secret,
};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post, put};
use crate::object_store::{load_object, run_on_store, store_problem};
use crate::problem_details::{ApiResult, ProblemDetails};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoginInput {
    username: String,
    password: String,
}

#[derive(Serialize, JsonSchema)]
struct LoginResult {
    /// Token, sent as `Authorization: Bearer TOKEN`.
    token: String,
    expires_at_ms: u64,
    expires_in_s: u32,
    username: String,
    /// The node-wide role; `null`: the operator has roles in `namespaces`.
    role: Option<Role>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<NamespaceGrant>,
}

#[derive(Serialize, JsonSchema)]
struct CurrentCaller {
    /// Name of the operator, id of the API key, `local` or `anonymous`.
    name: String,
    /// The node-wide role; `null`: the caller has roles in `namespaces`.
    role: Option<Role>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<NamespaceGrant>,
    authentication: AuthenticationMethod,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PasswordChangeInput {
    current_password: String,
    #[schemars(length(min = 8, max = 256))]
    password: String,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/v1/login", "login", login)
            .access(EndpointAccess::Open)
            .tag("access")
            .summary("Log in")
            .description(
                "Operators log in with name and password. After repeated failures for a name from one address, the response is 429 for a while, whatever the password.",
            )
            .request_body::<LoginInput>()
            .response::<LoginResult>(200, "The token, which is shown only once.")
            .problem_response(401, "The name or the password is wrong.")
            .problem_response(
                429,
                "Too many failed logins for this name from this address, from this address, or for this name.",
            ),
        post("/api/v1/logout", "logout", logout)
            .role(Role::Viewer, EndpointScope::Caller)
            .tag("access")
            .summary("Log out")
            .empty_response(204, "The token was revoked.")
            .problem_response(409, "The request was not authenticated with a login token."),
        get("/api/v1/me", "getMe", current_caller)
            .role(Role::Viewer, EndpointScope::Caller)
            .tag("access")
            .summary("Who asks")
            .response::<CurrentCaller>(200, "The identity of the caller."),
        put("/api/v1/me/password", "setMyPassword", set_password)
            .role(Role::Viewer, EndpointScope::Caller)
            .tag("access")
            .summary("Change the caller's password")
            .description("For operators. All their tokens are revoked.")
            .request_body::<PasswordChangeInput>()
            .empty_response(204, "The password was changed; log in again.")
            .problem_response(409, "The caller is not an operator and has no password.")
            .problem_response(429, "Too many wrong passwords."),
    ]
}

/// A caller whose name and password were verified.
pub(super) struct VerifiedLogin {
    pub(super) login: access::LoginRecord,
    pub(super) authority: Authority,
}

/// Returns the operator, or the API key with this id, if the password is right. Counts as an
/// attempt.
pub(super) async fn verify_credentials(
    call: &ApiCall,
    name: &str,
    password: String,
) -> Result<Option<VerifiedLogin>, ProblemDetails> {
    // The secret of a key cannot be guessed, so it is checked regardless of earlier failures.
    let secret = SecretHash::from_secret(&password);
    let (owner, password, authority) = match access::find_api_key(&call.app, name, &secret).await? {
        Some(key) => (TokenOwner::ApiKey(key.name), secret, key.authority),
        None => {
            let Some(operator) = verify_operator(call, name, password).await? else {
                return Ok(None);
            };
            let password = SecretHash::from_secret(&operator.password_hash);
            (
                TokenOwner::Operator(name.to_owned()),
                password,
                operator.authority(),
            )
        }
    };
    let login = access::LoginRecord {
        owner,
        password,
        family: TokenFamily::new(),
    };
    Ok(Some(VerifiedLogin { login, authority }))
}

fn check_not_locked_out(call: &ApiCall, username: &str) -> Result<(), ProblemDetails> {
    let attempts = &call.app.access.attempts;
    let Some(left) = attempts.blocked_for(call.client_ip, username, Instant::now()) else {
        return Ok(());
    };
    let left_s = left.as_secs() + 1;
    let detail = format!("Too many failed logins; try again in {left_s} s.");
    Err(ProblemDetails::too_many_requests(left_s, detail))
}

/// Returns the operator if the password is right. Counts as an attempt.
async fn verify_operator(
    call: &ApiCall,
    username: &str,
    password: String,
) -> Result<Option<StoredOperator>, ProblemDetails> {
    let gatekeeper = &call.app.access;
    check_not_locked_out(call, username)?;
    let operator = load_object::<StoredOperator>(&call.app, OPERATOR_KIND, username).await?;
    let operator = operator.filter(|operator| operator.enabled);
    let hash = operator
        .as_ref()
        .map(|operator| operator.password_hash.clone());
    if gatekeeper.passwords.verify(password, hash).await? {
        gatekeeper.attempts.record_success(call.client_ip, username);
        return Ok(operator);
    }
    gatekeeper
        .attempts
        .record_failure(call.client_ip, username, Instant::now());
    Ok(None)
}

async fn login(mut call: ApiCall) -> ApiResult {
    let LoginInput { username, password } = call.body_json().await?;
    let Some(operator) = verify_operator(&call, &username, password).await? else {
        audit::record_login(&call, &username, None).await;
        return Err(ProblemDetails::unauthorized(
            "There is no operator with this name and password, or it is disabled.",
        ));
    };
    let expires_in_s = call.app.config.get().token_ttl_s;
    let lives = Duration::from_secs(expires_in_s.into());
    let token =
        random_secret().map_err(|error| ProblemDetails::unavailable(format!("{error}.")))?;
    let login = access::LoginRecord {
        owner: TokenOwner::Operator(username.clone()),
        password: SecretHash::from_secret(&operator.password_hash),
        family: TokenFamily::new(),
    };
    call.app.access.tokens.add(&token, login, lives);
    let authority = operator.authority();
    audit::record_login(&call, &username, Some(&authority)).await;
    call::json_response(LoginResult {
        token,
        expires_at_ms: now_ms() + u64::from(expires_in_s) * 1000,
        expires_in_s,
        username,
        role: authority.node_role(),
        namespaces: authority.grants(),
    })
}

async fn logout(call: ApiCall) -> ApiResult {
    if call.identity.authentication != AuthenticationMethod::Token {
        return Err(ProblemDetails::conflict(
            "The request was not authenticated with a login token, so there is nothing to revoke.",
        ));
    }
    let gatekeeper = &call.app.access;
    let login =
        (call.bearer()).and_then(|token| gatekeeper.tokens.revoke(&SecretHash::from_secret(token)));
    if let Some(login) = login {
        gatekeeper.end_login(login.family);
    }
    audit::record_action(&call, "logout", None, None).await;
    call::no_content()
}

async fn current_caller(call: ApiCall) -> ApiResult {
    call::json_response(CurrentCaller {
        name: call.identity.name.clone(),
        role: call.identity.authority.node_role(),
        namespaces: call.identity.authority.grants(),
        authentication: call.identity.authentication,
    })
}

async fn set_password(mut call: ApiCall) -> ApiResult {
    let PasswordChangeInput {
        current_password,
        password,
    } = call.body_json().await?;
    if call.identity.authentication != AuthenticationMethod::Token {
        return Err(ProblemDetails::conflict(
            "Only operators who have logged in have a password.",
        ));
    }
    check_password(&password)?;
    let username = call.identity.name.clone();
    let Some(operator) = verify_operator(&call, &username, current_password).await? else {
        let detail = "current_password: wrong password.";
        return Err(ProblemDetails::invalid_field("current_password", detail));
    };
    let password_hash = call.app.access.passwords.hash(password).await?;
    let changed = StoredOperator {
        password_hash,
        ..operator
    };
    let value = serde_json::to_value(changed).expect("its fields are plain");
    {
        let _changing = call.app.changing.lock().await;
        let name = username.clone();
        run_on_store(&call.app, move |objects| {
            let current = objects.get(OPERATOR_KIND, &name)?;
            let Some(current) = current else {
                return Ok(false);
            };
            let expected = ExpectedVersion::Version(current.version);
            let put = objects.put(OPERATOR_KIND, &name, value, expected);
            Ok(put.is_ok())
        })
        .await?
        .map_err(|error| store_problem(&error))?
        .then_some(())
        .ok_or_else(|| {
            ProblemDetails::conflict("The operator was changed meanwhile; try again.")
        })?;
    }
    audit::record_action(&call, "operator.password", Some(&username), None).await;
    call::no_content()
}
