//! Login, logout, password changes, and the identity of the caller.

use std::time::{Duration, Instant};

use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wall_clock::now_ms;

use super::operator_change::change_operator;
use crate::access::{
    self, AuthenticationMethod, CallerIdentity, EndpointAccess, NamespaceGrant, OPERATOR_KIND,
    OperatorBan, Role, SecretHash, StoredOperator, TokenFamily, TokenOwner, check_password,
    check_registered_password, random_secret,
};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post, put};
use crate::object_store::load_object;
use crate::objects::check_email;
use crate::problem_details::{ApiResult, ProblemDetails};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginInput {
    pub(super) username: String,
    pub(super) password: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct LoginResult {
    /// Token, sent as `Authorization: Bearer TOKEN`.
    token: String,
    expires_at_ms: u64,
    expires_in_s: u32,
    pub(super) username: String,
    /// The node-wide role; `null`: the operator has roles in `namespaces`.
    role: Option<Role>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<NamespaceGrant>,
    /// Whether the password was generated or set by another operator: until `PUT /api/v1/me/password` changed it, the response to
    /// all other requests is 403.
    must_change_password: bool,
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
    /// Whether the caller has to change its password before it may do anything else.
    must_change_password: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PasswordChangeInput {
    current_password: String,
    #[schemars(length(min = 8, max = 256))]
    password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EmailChangeInput {
    current_password: String,
    /// `null` removes the address.
    #[schemars(length(max = 254))]
    email: Option<String>,
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
            .problem_response(403, "The operator is banned.")
            .problem_response(
                429,
                "Too many failed logins for this name from this address, from this address, or for this name.",
            ),
        post("/api/v1/logout", "logout", logout)
            .access(EndpointAccess::Account)
            .tag("access")
            .summary("Log out")
            .empty_response(204, "The token was revoked.")
            .problem_response(409, "The request was not authenticated with a login token."),
        get("/api/v1/me", "getMe", current_caller)
            .access(EndpointAccess::Account)
            .tag("access")
            .summary("Read the identity of the caller")
            .response::<CurrentCaller>(200, "The identity of the caller."),
        post(
            "/api/v1/me/logout-everywhere",
            "logOutEverywhere",
            logout_everywhere,
        )
        .access(EndpointAccess::Account)
        .tag("access")
        .summary("Log out everywhere")
        .description("For operators. All their tokens are revoked, and their streams end.")
        .empty_response(204, "All tokens were revoked; log in again.")
        .problem_response(409, "The caller is not an operator who has logged in."),
        put("/api/v1/me/email", "setMyEmail", set_email)
            .role(Role::Viewer, EndpointScope::Caller)
            .tag("access")
            .summary("Change the caller's e-mail address")
            .description("For operators.")
            .request_body::<EmailChangeInput>()
            .empty_response(204, "The address was changed.")
            .problem_response(409, "The caller is not an operator who has logged in.")
            .problem_response(429, "Too many wrong passwords."),
        put("/api/v1/me/password", "setMyPassword", set_password)
            .access(EndpointAccess::Account)
            .tag("access")
            .summary("Change the caller's password")
            .description(
                "For operators. All their tokens are revoked. A password that was generated or set by another operator must be changed \
                 before anything else; until then, the response to other requests is 403.",
            )
            .request_body::<PasswordChangeInput>()
            .empty_response(204, "The password was changed; log in again.")
            .problem_response(409, "The caller is not an operator and has no password.")
            .problem_response(429, "Too many wrong passwords."),
    ]
}

/// A caller whose name and password were verified.
pub(super) struct VerifiedLogin {
    pub(super) login: access::LoginRecord,
    pub(super) holder: CallerIdentity,
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
    let (owner, password, holder) = match access::find_api_key(&call.app, name, &secret).await? {
        Some(key) => (TokenOwner::ApiKey(key.name.clone()), secret, key),
        None => {
            let Some(operator) = verify_operator(call, name, password).await? else {
                return Ok(None);
            };
            let password = SecretHash::from_secret(&operator.password_hash);
            (
                TokenOwner::Operator(name.to_owned()),
                password,
                CallerIdentity::of_operator(name, &operator),
            )
        }
    };
    let login = access::LoginRecord {
        owner,
        password,
        family: TokenFamily::new(),
    };
    Ok(Some(VerifiedLogin { login, holder }))
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
    let access_state = &call.app.access;
    check_not_locked_out(call, username)?;
    let operator = load_object::<StoredOperator>(&call.app, OPERATOR_KIND, username).await?;
    let operator = operator.filter(|operator| operator.enabled);
    let hash = operator
        .as_ref()
        .map(|operator| operator.password_hash.clone());
    if access_state.passwords.verify(password, hash).await? {
        access_state
            .attempts
            .record_success(call.client_ip, username);
        if let Some(ban) = operator
            .as_ref()
            .and_then(|operator| operator.current_ban(now_ms()))
        {
            let rejected = banned(username, ban);
            audit::record_login(call, username, None).await;
            return Err(rejected);
        }
        return Ok(operator);
    }
    access_state
        .attempts
        .record_failure(call.client_ip, username, Instant::now());
    Ok(None)
}

/// Told only to callers that know the password.
fn banned(username: &str, ban: &OperatorBan) -> ProblemDetails {
    let until = match ban.until_ms {
        Some(until_ms) => format!(" until {until_ms} (milliseconds since 1970)"),
        None => String::new(),
    };
    let detail = format!("The operator {username:?} is banned{until}: {}", ban.reason);
    ProblemDetails::new(StatusCode::FORBIDDEN, detail)
}

async fn login(mut call: ApiCall) -> ApiResult {
    let LoginInput { username, password } = call.body_json().await?;
    let Some(operator) = verify_operator(&call, &username, password).await? else {
        audit::record_login(&call, &username, None).await;
        return Err(ProblemDetails::unauthorized(
            "There is no operator with this name and password, or it is disabled.",
        ));
    };
    let login = access::LoginRecord {
        owner: TokenOwner::Operator(username.clone()),
        password: SecretHash::from_secret(&operator.password_hash),
        family: TokenFamily::new(),
    };
    let holder = CallerIdentity::of_operator(&username, &operator);
    let result = issue_token(&call, &login, &holder)?;
    audit::record_login(&call, &username, Some(&holder.authority)).await;
    call::json_response(result)
}

/// Issues an access token of a login.
pub(super) fn issue_token(
    call: &ApiCall,
    login: &access::LoginRecord,
    holder: &CallerIdentity,
) -> Result<LoginResult, ProblemDetails> {
    let token = new_secret()?;
    let expires_in_s = call.app.config.get().token_ttl_s;
    let lifetime = Duration::from_secs(expires_in_s.into());
    (call.app.access.tokens).add(&token, login.clone(), lifetime);
    Ok(LoginResult {
        token,
        expires_at_ms: now_ms() + u64::from(expires_in_s) * 1000,
        expires_in_s,
        username: holder.name.clone(),
        role: holder.authority.node_role(),
        namespaces: holder.authority.grants(),
        must_change_password: holder.must_change_password,
    })
}

pub(super) fn new_secret() -> Result<String, ProblemDetails> {
    random_secret().map_err(|error| ProblemDetails::unavailable(format!("{error}.")))
}

async fn logout(call: ApiCall) -> ApiResult {
    if call.identity.authentication != AuthenticationMethod::Token {
        return Err(ProblemDetails::conflict(
            "The request was not authenticated with a login token, so there is nothing to revoke.",
        ));
    }
    let access_state = &call.app.access;
    let login = (call.bearer())
        .and_then(|token| access_state.tokens.revoke(&SecretHash::from_secret(token)));
    if let Some(login) = login {
        access_state.end_login(login.family).await?;
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
        must_change_password: call.identity.must_change_password,
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
    // People with roles in namespaces may have registered themselves.
    match call.identity.authority.node_role() {
        Some(_) => check_password(&password)?,
        None => check_registered_password(&password)?,
    }
    let username = call.identity.name.clone();
    let Some(operator) = verify_operator(&call, &username, current_password.clone()).await? else {
        let detail = "current_password: wrong password.";
        return Err(ProblemDetails::invalid_field("current_password", detail));
    };
    if operator.must_change_password && password == current_password {
        let detail = "password: expected another one than the current password.";
        return Err(ProblemDetails::invalid_field("password", detail));
    }
    let password_hash = call.app.access.passwords.hash(password).await?;
    change_operator(&call, &username, |current| {
        // Another password may have been set meanwhile.
        if current.password_hash != operator.password_hash {
            let detail = "The operator was changed meanwhile; try again.";
            return Err(ProblemDetails::conflict(detail));
        }
        current.password_hash = password_hash.clone();
        current.must_change_password = false;
        Ok(())
    })
    .await?;
    audit::record_action(&call, "operator.password", Some(&username), None).await;
    call::no_content()
}

/// The name of the caller, who must be an operator with a login token.
fn operator_name(call: &ApiCall) -> Result<String, ProblemDetails> {
    match call.identity.authentication {
        AuthenticationMethod::Token => Ok(call.identity.name.clone()),
        _ => Err(ProblemDetails::conflict(
            "This is only possible for operators who have logged in.",
        )),
    }
}

async fn logout_everywhere(call: ApiCall) -> ApiResult {
    let username = operator_name(&call)?;
    call.app.access.end_logins_of(&username).await?;
    audit::record_action(&call, "logout.everywhere", Some(&username), None).await;
    call::no_content()
}

async fn set_email(mut call: ApiCall) -> ApiResult {
    let EmailChangeInput {
        current_password,
        email,
    } = call.body_json().await?;
    let username = operator_name(&call)?;
    if let Some(email) = &email {
        check_email(email)?;
    }
    if verify_operator(&call, &username, current_password)
        .await?
        .is_none()
    {
        let detail = "current_password: wrong password.";
        return Err(ProblemDetails::invalid_field("current_password", detail));
    }
    change_operator(&call, &username, |operator| {
        operator.email = email.clone();
        Ok(())
    })
    .await?;
    audit::record_action(&call, "operator.email", Some(&username), None).await;
    call::no_content()
}
