//! Authentication of callers.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use wall_clock::now_ms;

use super::authority::Authority;
use super::basic;
use super::caller_identity::{AuthenticationMethod, CallerIdentity};
use super::endpoint_access::EndpointAccess;
use super::role::Role;
use super::secret::SecretHash;
use super::stored_credentials::{API_KEY_KIND, OPERATOR_KIND, StoredApiKey, StoredOperator};
use super::tokens::{LoginRecord, TokenOwner};
use crate::object_store::load_object;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// ThingsBoard's clients send their token in this header, so that a proxy can use the Authorization
/// header itself.
const X_AUTHORIZATION: HeaderName = HeaderName::from_static("x-authorization");

/// The header with the credentials for this API.
pub(crate) fn credentials_header(
    headers: &HeaderMap,
) -> Result<Option<&HeaderValue>, ProblemDetails> {
    for name in [X_AUTHORIZATION, header::AUTHORIZATION] {
        let mut fields = headers.get_all(&name).iter();
        let Some(field) = fields.next() else {
            continue;
        };
        if fields.next().is_some() {
            let detail = format!("The request has more than one {name} header.");
            return Err(ProblemDetails::unauthorized(detail));
        }
        return Ok(Some(field));
    }
    Ok(None)
}

/// Authenticates the caller as far as a route requires.
pub(crate) async fn authenticate(
    app: &ApiState,
    access: EndpointAccess,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<CallerIdentity, ProblemDetails> {
    match access {
        EndpointAccess::Open => {
            // Wrong credentials do not lock a caller out of an open route.
            let known = authenticate_caller(app, headers, from).await;
            let known = known.and_then(check_password_is_own);
            Ok(known.unwrap_or_else(|_| CallerIdentity::anonymous()))
        }
        // Callers of sources and devices use other credentials, which the handler checks.
        access if access.required_role(app).is_none() => Ok(CallerIdentity::anonymous()),
        EndpointAccess::Account => authenticate_caller(app, headers, from).await,
        _ => check_password_is_own(authenticate_caller(app, headers, from).await?),
    }
}

/// An operator whose password others know may only change it.
fn check_password_is_own(who: CallerIdentity) -> Result<CallerIdentity, ProblemDetails> {
    match who.must_change_password {
        true => Err(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            "The password was set by another operator and must be changed first, with `tidegate ctl change-password`, PUT /api/v1/me/password or in the console.",
        )),
        false => Ok(who),
    }
}

/// Authenticates the caller of a request, whatever the route requires.
async fn authenticate_caller(
    app: &ApiState,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<CallerIdentity, ProblemDetails> {
    if let Some(identity) = identify(app, headers, from).await? {
        return Ok(identity);
    }
    match app.anonymous_role.role() {
        Some(role) if app.is_local && from.to_canonical().is_loopback() => Ok(CallerIdentity {
            name: "anonymous".to_owned(),
            authentication: AuthenticationMethod::Anonymous,
            authority: Authority::Node(role),
            must_change_password: false,
        }),
        _ => Err(ProblemDetails::unauthorized(
            "Credentials are needed: a token from POST /api/v1/login as `Authorization: Bearer TOKEN`, or an API key as \
             HTTP Basic.",
        )),
    }
}

/// Identifies the caller by the X-Authorization or Authorization header. `None`: the request has
/// neither.
async fn identify(
    app: &ApiState,
    headers: &HeaderMap,
    from: IpAddr,
) -> Result<Option<CallerIdentity>, ProblemDetails> {
    let Some(field) = credentials_header(headers)? else {
        return Ok(None);
    };
    let unreadable = || {
        ProblemDetails::unauthorized(
            "The Authorization field must be `Bearer TOKEN`, or `Basic` with the id and the secret of an API key.",
        )
    };
    let text = field.to_str().map_err(|_| unreadable())?;
    let (scheme, credentials) = text.split_once(' ').ok_or_else(unreadable)?;
    let credentials = credentials.trim();
    let identity = if scheme.eq_ignore_ascii_case("bearer") {
        identify_by_token(app, credentials, from).await?
    } else if scheme.eq_ignore_ascii_case("basic") {
        let (id, secret) = basic::decode(credentials).ok_or_else(unreadable)?;
        identify_by_api_key(app, &id, &secret).await?
    } else {
        return Err(unreadable());
    };
    Ok(Some(identity))
}

async fn identify_by_token(
    app: &ApiState,
    token: &str,
    from: IpAddr,
) -> Result<CallerIdentity, ProblemDetails> {
    let hashed = SecretHash::from_secret(token);
    let is_local = app.access.local_token.as_ref() == Some(&hashed);
    if is_local && from.to_canonical().is_loopback() {
        return Ok(CallerIdentity {
            name: "local".to_owned(),
            authentication: AuthenticationMethod::LocalToken,
            authority: Authority::Node(Role::Admin),
            must_change_password: false,
        });
    }
    let stale = || {
        ProblemDetails::unauthorized(
            "The token is unknown or has expired; POST /api/v1/login gives a new one.",
        )
    };
    let login = app.access.tokens.find(&hashed).ok_or_else(stale)?;
    let Some(identity) = find_login_holder(app, &login).await? else {
        app.access.tokens.revoke(&hashed);
        return Err(stale());
    };
    Ok(identity)
}

/// The current operator or key behind a login. `None`: it was changed, disabled,
/// banned or deleted since.
pub(crate) async fn find_login_holder(
    app: &ApiState,
    login: &LoginRecord,
) -> Result<Option<CallerIdentity>, ProblemDetails> {
    let name = match &login.owner {
        TokenOwner::ApiKey(id) => return find_api_key(app, id, &login.password).await,
        TokenOwner::Operator(name) => name,
    };
    let operator = load_object::<StoredOperator>(app, OPERATOR_KIND, name).await?;
    let operator = operator.filter(|operator| {
        operator.may_log_in(now_ms())
            && SecretHash::from_secret(&operator.password_hash) == login.password
    });
    Ok(operator.map(|operator| CallerIdentity::of_operator(name, &operator)))
}

/// The API key with this id, if the secret matches and the key is currently valid.
pub(crate) async fn find_api_key(
    app: &ApiState,
    id: &str,
    secret: &SecretHash,
) -> Result<Option<CallerIdentity>, ProblemDetails> {
    let key = load_object::<StoredApiKey>(app, API_KEY_KIND, id).await?;
    let now_ms = now_ms();
    let key = key.filter(|key| {
        (key.secret_hash == *secret) & key.enabled & key.expires_at_ms.is_none_or(|at| now_ms < at)
    });
    Ok(key.and_then(|key| {
        Some(CallerIdentity {
            name: id.to_owned(),
            authentication: AuthenticationMethod::ApiKey,
            authority: key.authority()?,
            must_change_password: false,
        })
    }))
}

async fn identify_by_api_key(
    app: &ApiState,
    id: &str,
    secret: &str,
) -> Result<CallerIdentity, ProblemDetails> {
    let key = find_api_key(app, id, &SecretHash::from_secret(secret)).await?;
    key.ok_or_else(|| {
        ProblemDetails::unauthorized(
            "There is no API key with this id and secret, or it has expired or is disabled.",
        )
    })
}
