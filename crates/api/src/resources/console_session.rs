//! The session of a browser: a refresh token in a cookie that scripts cannot read, and access tokens that a page keeps in
//! memory only.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::login::{
    LoginInput, LoginResult, VerifiedLogin, issue_token, new_secret, verify_credentials,
};
use crate::access::{
    EndpointAccess, LoginRecord, SecretHash, TokenOwner, extend_session, find_login_holder,
    find_session, session_login, store_session,
};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, delete, post};
use crate::problem_details::{ApiResult, ProblemDetails};

const PATH: &str = "/api/v1/console-session";
const COOKIE: &str = "tidegate_session";
/// Access tokens per session: every open page has one, and requests the next while it uses the last.
const MAX_TOKENS_PER_SESSION: usize = 32;

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        post(PATH, "beginConsoleSession", begin)
            .access(EndpointAccess::Open)
            .tag("access")
            .summary("Log in from a browser")
            .description(
                "Like `POST /api/v1/login`, and the response sets a cookie with which the page gets its next tokens. The cookie \
                 is valid for `http.refresh_token_ttl_s` after its last use, also after a restart of the node, is not readable by scripts, and is only sent \
                 from pages of this node.",
            )
            .request_body::<LoginInput>()
            .response::<LoginResult>(200, "The token, which is shown only once.")
            .problem_response(401, "The name or the password is wrong.")
            .problem_response(403, "The operator is banned.")
            .problem_response(
                429,
                "Too many failed logins for this name from this address, from this address, or for this name.",
            ),
        post(
            format!("{PATH}/refresh"),
            "refreshConsoleSession",
            refresh,
        )
        .access(EndpointAccess::Open)
        .tag("access")
        .summary("Get the next token of a browser")
        .description("The session and its cookie are then valid for another `http.refresh_token_ttl_s`.")
        .response::<LoginResult>(200, "The token, which is shown only once.")
        .problem_response(401, "There is no session, or it has ended."),
        delete(PATH, "endConsoleSession", end)
            .access(EndpointAccess::Open)
            .tag("access")
            .summary("Log out in a browser")
            .empty_response(204, "The session and its tokens have ended; the cookie is deleted."),
    ]
}

async fn begin(mut call: ApiCall) -> ApiResult {
    let LoginInput { username, password } = call.body_json().await?;
    let verified = verify_credentials(&call, &username, password).await?;
    // Keys are for programs.
    let verified =
        verified.filter(|verified| matches!(verified.login.owner, TokenOwner::Operator(_)));
    let Some(VerifiedLogin { login, holder }) = verified else {
        audit::record_login(&call, &username, None).await;
        return Err(ProblemDetails::unauthorized(
            "There is no operator with this name and password, or it is disabled.",
        ));
    };
    let refresh_token = new_secret()?;
    let hash = SecretHash::from_secret(&refresh_token);
    let login = session_login(&username, login.password, &hash);
    let lifetime_s = call.app.config.get().refresh_token_ttl_s;
    let lifetime = Duration::from_secs(lifetime_s.into());
    let stored = login.clone();
    call.app
        .access
        .with_sessions(move |objects| store_session(objects, hash, &stored, lifetime))
        .await?;
    audit::record_login(&call, &username, Some(&holder.authority)).await;
    let result = issue_token(&call, &login, &holder)?;
    with_cookie(
        &call,
        call::json_response(result)?,
        &refresh_token,
        lifetime_s,
    )
}

async fn refresh(call: ApiCall) -> ApiResult {
    let access = &call.app.access;
    let stale = || ProblemDetails::unauthorized("There is no session, or it has ended; log in.");
    let login = find_login(&call).await?.ok_or_else(stale)?;
    let Some(holder) = find_login_holder(&call.app, &login).await? else {
        access.end_login(login.family).await?;
        return Err(stale());
    };
    let result = issue_token(&call, &login, &holder)?;
    (access.tokens).retain_youngest(login.family, MAX_TOKENS_PER_SESSION, None);
    let response = call::json_response(result)?;
    let Some(refresh_token) = session_cookie(&call).map(str::to_owned) else {
        return Ok(response);
    };
    let lifetime_s = call.app.config.get().refresh_token_ttl_s;
    let hash = SecretHash::from_secret(&refresh_token);
    let lifetime = Duration::from_secs(lifetime_s.into());
    access
        .with_sessions(move |objects| extend_session(objects, &hash, lifetime))
        .await?;
    with_cookie(&call, response, &refresh_token, lifetime_s)
}

async fn end(call: ApiCall) -> ApiResult {
    if let Some(login) = find_login(&call).await? {
        call.app.access.end_login(login.family).await?;
        if let TokenOwner::Operator(name) = &login.owner {
            audit::record_action(&call, "logout", Some(name), None).await;
        }
    }
    with_cookie(&call, StatusCode::NO_CONTENT.into_response(), "", 0)
}

/// The login of the session in the request's cookie, if it has not ended.
async fn find_login(call: &ApiCall) -> Result<Option<LoginRecord>, ProblemDetails> {
    let Some(cookie) = session_cookie(call).map(SecretHash::from_secret) else {
        return Ok(None);
    };
    let access = &call.app.access;
    access
        .with_sessions(move |objects| find_session(objects, &cookie))
        .await
}

/// The refresh token in the request's cookie.
fn session_cookie(call: &ApiCall) -> Option<&str> {
    let fields = call.headers().get_all(header::COOKIE).iter();
    let cookies = fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(';'));
    let mut pairs = cookies.filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|pair| pair.1)
}

/// Sets the cookie; an age of 0 deletes it.
fn with_cookie(call: &ApiCall, mut response: Response, value: &str, max_age_s: u32) -> ApiResult {
    let secure = if call.app.is_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={value}; Path={PATH}; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{secure}"
    );
    let cookie = HeaderValue::try_from(cookie)
        .map_err(|_| ProblemDetails::unavailable("The session could not be put into a cookie."))?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}
