//! Login on ThingsBoard's paths, so that programs written for its REST API work unchanged: a token,
//! and a refresh token for the next one. Permissions are those of the operator or API key.

use std::time::Duration;

use axum::response::IntoResponse as _;
use schemars::JsonSchema;
use secret::RandomSourceError;
use serde::{Deserialize, Serialize};
use serde_json::json;
use wall_clock::now_ms;

use super::login::{VerifiedLogin, verify_credentials};
use super::thingsboard_devices::EntityId;
use crate::access::{
    Authority, EndpointAccess, LoginRecord, Role, SecretHash, find_login_holder, readable_token,
};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get, post};
use crate::problem_details::{ApiResult, ProblemDetails};

/// Number of valid tokens per login: programs request the next token while they use the previous
/// one.
const MAX_TOKENS_PER_LOGIN: usize = 2;
/// ThingsBoard's id for no tenant and no customer.
const NULL_ID: &str = "13814000-1dd2-11b2-8080-808080808080";

#[derive(Deserialize, JsonSchema)]
struct ThingsboardLoginInput {
    /// Name of an operator, or id of an API key.
    username: String,
    /// Password of the operator, or secret of the key.
    password: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct RefreshInput {
    refresh_token: String,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TokenPair {
    /// Token, sent as `X-Authorization: Bearer TOKEN`.
    token: String,
    /// Refresh token for `POST /api/auth/token`.
    refresh_token: String,
}

/// An operator or an API key in the form of a ThingsBoard user.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ThingsboardUser")]
struct ThingsboardUser {
    id: EntityId,
    tenant_id: EntityId,
    customer_id: EntityId,
    /// Name of the operator or id of the API key, like `name`.
    email: String,
    name: String,
    /// `TENANT_ADMIN` for admins and operators, `CUSTOMER_USER` for viewers.
    authority: &'static str,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post("/api/auth/login", "thingsboardLogin", login)
            .access(EndpointAccess::Open)
            .tag("access")
            .summary("Log in (ThingsBoard)")
            .description(
                "For operators, and for API keys with their id and secret. After some failed logins of an operator from one address \
                 the response is 429 for a while, whatever the password.",
            )
            .request_body::<ThingsboardLoginInput>()
            .response::<TokenPair>(200, "The tokens; they are not shown again.")
            .problem_response(401, "The name or the password is wrong.")
            .problem_response(
                429,
                "Too many failed logins for this name from this address, from this address, or for this name.",
            ),
        post("/api/auth/token", "thingsboardToken", refresh)
            .access(EndpointAccess::Open)
            .tag("access")
            .summary("Refresh a token (ThingsBoard)")
            .description(
                "The previous token and this refresh token stay valid until they expire; older ones of the same login are revoked.",
            )
            .request_body::<RefreshInput>()
            .response::<TokenPair>(200, "The tokens; they are not shown again.")
            .problem_response(401, "The refresh token is unknown or has expired."),
        get("/api/auth/user", "thingsboardUser", user)
            .role(Role::Viewer, EndpointScope::Caller)
            .tag("access")
            .summary("Read the caller's identity (ThingsBoard)")
            .response::<ThingsboardUser>(200, "The operator or API key of this request."),
        post("/api/auth/logout", "thingsboardLogout", logout)
            .role(Role::Viewer, EndpointScope::Caller)
            .tag("access")
            .summary("Log out (ThingsBoard)")
            .empty_response(200, "The tokens of the login were revoked.")
            .problem_response(409, "The request was not authenticated with a login token."),
    ]
}

async fn login(mut call: ApiCall) -> ApiResult {
    let ThingsboardLoginInput { username, password } = call.body_json().await?;
    let Some(proved) = verify_credentials(&call, &username, password).await? else {
        audit::record_login(&call, &username, None).await;
        return Err(ProblemDetails::unauthorized(
            "There is no operator with this name and password and no API key with this id and secret, or it is disabled.",
        ));
    };
    let VerifiedLogin { login, holder } = proved;
    audit::record_login(&call, &username, Some(&holder.authority)).await;
    call::json_response(issue_tokens(&call, &login, &username, &holder.authority)?)
}

async fn refresh(mut call: ApiCall) -> ApiResult {
    let RefreshInput { refresh_token } = call.body_json().await?;
    let access_state = &call.app.access;
    let stale = || {
        ProblemDetails::unauthorized(
            "The refresh token is unknown or has expired; POST /api/auth/login gives a new one.",
        )
    };
    let hashed = SecretHash::from_secret(&refresh_token);
    let login = access_state
        .refresh_tokens
        .find(&hashed)
        .ok_or_else(stale)?;
    let Some(holder) = find_login_holder(&call.app, &login).await? else {
        access_state.end_login(login.family).await?;
        return Err(stale());
    };
    let pair = issue_tokens(&call, &login, &holder.name, &holder.authority)?;
    access_state
        .tokens
        .retain_youngest(login.family, MAX_TOKENS_PER_LOGIN, None);
    let refresh_tokens = &access_state.refresh_tokens;
    // The first refresh token stays valid for clients that never replace it.
    refresh_tokens.retain_youngest(login.family, MAX_TOKENS_PER_LOGIN - 1, Some(&hashed));
    call::json_response(pair)
}

async fn logout(call: ApiCall) -> ApiResult {
    let token = call.bearer().map(SecretHash::from_secret);
    let login = token.and_then(|token| call.app.access.tokens.revoke(&token));
    let Some(login) = login else {
        return Err(ProblemDetails::conflict(
            "The request was not authenticated with a login token, so there is nothing to revoke.",
        ));
    };
    call.app.access.end_login(login.family).await?;
    audit::record_action(&call, "logout", None, None).await;
    Ok(axum::http::StatusCode::OK.into_response())
}

/// ThingsBoard's name of an authority.
fn authority_name(authority: &Authority) -> &'static str {
    match authority.highest_role() {
        Role::Admin | Role::Operator => "TENANT_ADMIN",
        Role::Viewer => "CUSTOMER_USER",
    }
}

async fn user(call: ApiCall) -> ApiResult {
    let name = call.identity.name.clone();
    call::json_response(ThingsboardUser {
        id: EntityId::new("USER", name.clone()),
        tenant_id: EntityId::new("TENANT", NULL_ID),
        customer_id: EntityId::new("CUSTOMER", NULL_ID),
        email: name.clone(),
        name,
        authority: authority_name(&call.identity.authority),
    })
}

/// Issues both tokens of a login. They are readable as JSON Web Tokens, because clients parse them
/// for the expiry.
fn issue_tokens(
    call: &ApiCall,
    login: &LoginRecord,
    name: &str,
    authority: &Authority,
) -> Result<TokenPair, ProblemDetails> {
    let access_state = &call.app.access;
    let config = call.app.config.get();
    let iat = now_ms() / 1000;
    let make = |lifetime_s: u32, scopes: &[&str]| {
        let claims = json!({"sub": name, "role": authority.node_role(), "scopes": scopes, "iss": "tidegate",
            "iat": iat, "exp": iat + u64::from(lifetime_s)});
        readable_token(&claims)
    };
    let unavailable = |error: RandomSourceError| ProblemDetails::unavailable(format!("{error}."));
    let scope = authority_name(authority);
    let token = make(config.token_ttl_s, &[scope]).map_err(unavailable)?;
    let refresh_token =
        make(config.refresh_token_ttl_s, &["REFRESH_TOKEN"]).map_err(unavailable)?;
    let lifetime = |seconds: u32| Duration::from_secs(seconds.into());
    (access_state.tokens).add(&token, login.clone(), lifetime(config.token_ttl_s));
    let lifetime = lifetime(config.refresh_token_ttl_s);
    (access_state.refresh_tokens).add(&refresh_token, login.clone(), lifetime);
    Ok(TokenPair {
        token,
        refresh_token,
    })
}
