//! People: bans of operators, invites in batches, and the registration with an invite.

use std::time::Instant;

use axum::http::StatusCode;
use axum::response::IntoResponse as _;
use namespaces::NamespaceDefinition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use store::ExpectedVersion;
use wall_clock::now_ms;

use super::operator_change::change_operator;
use crate::access::{
    AuthenticationMethod, EndpointAccess, NamespaceGrant, OPERATOR_KIND, OperatorBan, Role,
    SecretHash, StoredOperator, check_registered_password,
};
use crate::audit;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, post};
use crate::object_store::{get_object, load_object, run_on_store, store_problem};
use crate::objects::{
    INVITE_KIND, Invites, ObjectKind, Operators, StoredInvite, check_email, create_object,
};
use crate::problem_details::{ApiResult, ProblemDetails};

const MAX_REASON_CHARS: usize = 1000;
const MAX_BATCH: u32 = 50;
const MAX_NAME_CHARS: usize = 30;
const MIN_NAME_CHARS: usize = 3;
/// The name under which failed registrations of an address are counted.
const ATTEMPTS: &str = "registration";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OperatorBanInput {
    /// Why; the operator sees it.
    #[schemars(length(min = 1, max = 1000))]
    reason: String,
    /// End of the ban, in milliseconds since 1970; `null`: none.
    #[serde(default)]
    until_ms: Option<u64>,
}

/// Invites with the same fields.
#[derive(Deserialize, JsonSchema)]
struct InviteBatchInput {
    /// Number of invites.
    #[schemars(range(min = 1, max = 50))]
    count: u32,
    /// Fields of the invites, as for `createInvite`, without `id`.
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// An invite of a batch.
#[derive(Serialize, JsonSchema)]
struct InviteCode {
    id: String,
    /// The code. Hand it out now: it is not shown again.
    code: String,
}

/// The invites of a batch.
#[derive(Serialize, JsonSchema)]
struct InviteCodes {
    data: Vec<InviteCode>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RegistrationInput {
    /// Code of an invite.
    #[schemars(length(min = 1, max = 512))]
    code: String,
    /// Name of the new operator: letters, digits and `_`.
    #[schemars(length(min = 3, max = 30), regex(pattern = "^[A-Za-z0-9_]+$"))]
    username: String,
    /// At least 8 characters, with an upper-case letter, a lower-case letter and a digit.
    #[schemars(length(min = 8, max = 256))]
    password: String,
    #[serde(default)]
    #[schemars(length(max = 254))]
    email: Option<String>,
    /// Id of the new namespace, if the invite creates one; default: the name in lower case.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    namespace: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Registration {
    username: String,
    namespaces: Vec<NamespaceGrant>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let of_operator = |endpoint: Endpoint| {
        endpoint
            .role(Role::Admin, EndpointScope::Node)
            .tag("access")
            .path_parameter("username", "The operator's name, percent-encoded.")
    };
    vec![
        of_operator(post(
            "/api/v1/operators/{username}/ban",
            "banOperator",
            ban,
        ))
        .summary("Ban an operator")
        .description(
            "The operator's tokens are revoked and its streams end. A login is rejected with the reason until the ban ends. The relay \
             endpoints of namespaces without another owner who may log in are closed.",
        )
        .request_body::<OperatorBanInput>()
        .empty_response(204, "The operator is banned.")
        .problem_response(409, "It is the caller, or the last admin who can log in."),
        of_operator(post(
            "/api/v1/operators/{username}/unban",
            "unbanOperator",
            unban,
        ))
        .summary("End the ban of an operator")
        .empty_response(204, "The operator may log in again.")
        .problem_response(409, "The operator is not banned."),
        post("/api/v1/invite-batches", "createInviteBatch", create_batch)
            .role(Role::Admin, EndpointScope::Selected)
            .tag("access")
            .summary("Create several invites")
            .request_body::<InviteBatchInput>()
            .response::<InviteCodes>(201, "The invites with their codes, which are shown only once."),
        post("/api/v1/register", "register", register)
            .access(EndpointAccess::Open)
            .tag("access")
            .summary("Register with an invite")
            .description(
                "Creates an operator with a role in the namespace of the invite, or in a new namespace. Only if `http.registration_enabled` \
                 is set.",
            )
            .request_body::<RegistrationInput>()
            .response::<Registration>(201, "The operator may log in now.")
            .problem_response(403, "Registration is off, or the code is unknown, used up or expired.")
            .problem_response(409, "The name of the operator or namespace is in use.")
            .problem_response(429, "Too many wrong codes from this address."),
    ]
}

async fn ban(mut call: ApiCall) -> ApiResult {
    let OperatorBanInput { reason, until_ms } = call.body_json().await?;
    if reason.trim().is_empty() || reason.chars().count() > MAX_REASON_CHARS {
        let detail = format!("reason: expected 1 to {MAX_REASON_CHARS} characters.");
        return Err(ProblemDetails::invalid_field("reason", detail));
    }
    if until_ms.is_some_and(|until_ms| until_ms <= now_ms()) {
        let detail = "until_ms: expected a time in the future, in milliseconds since 1970.";
        return Err(ProblemDetails::invalid_field("until_ms", detail));
    }
    let username = call.path("username").to_owned();
    let is_self = call.identity.authentication == AuthenticationMethod::Token
        && call.identity.name == username;
    if is_self {
        return Err(ProblemDetails::conflict(
            "Nobody can ban themselves; another admin can.",
        ));
    }
    let ban = OperatorBan {
        reason,
        by: call.identity.name.clone(),
        at_ms: now_ms(),
        until_ms,
    };
    let after = json!({"reason": ban.reason, "until_ms": ban.until_ms});
    change_operator(&call, &username, |operator| {
        operator.ban = Some(ban.clone());
        Ok(())
    })
    .await?;
    call.app.access.end_logins_of(&username).await?;
    audit::record_action(&call, "operator.ban", Some(&username), Some(after)).await;
    call::no_content()
}

async fn unban(call: ApiCall) -> ApiResult {
    let username = call.path("username").to_owned();
    change_operator(&call, &username, |operator| {
        let ended = operator.ban.take();
        ended.map(drop).ok_or_else(|| {
            ProblemDetails::conflict(format!("The operator {username:?} is not banned."))
        })
    })
    .await?;
    audit::record_action(&call, "operator.unban", Some(&username), None).await;
    call::no_content()
}

async fn create_batch(mut call: ApiCall) -> ApiResult {
    let InviteBatchInput { count, fields } = call.body_json().await?;
    if !(1..=MAX_BATCH).contains(&count) {
        let detail = format!("count: expected 1 to {MAX_BATCH}.");
        return Err(ProblemDetails::invalid_field("count", detail));
    }
    if fields.contains_key("id") {
        let detail = "id: expected none; the invites of a batch have generated ids.";
        return Err(ProblemDetails::invalid_field("id", detail));
    }
    let kind: std::sync::Arc<dyn ObjectKind> = std::sync::Arc::new(Invites);
    let mut codes = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (object, shown) = create_object(&kind, &call, fields.clone()).await?;
        codes.push(InviteCode {
            id: object.id,
            code: shown["code"].as_str().unwrap_or_default().to_owned(),
        });
    }
    Ok((StatusCode::CREATED, axum::Json(InviteCodes { data: codes })).into_response())
}

fn check_username(username: &str) -> Result<(), ProblemDetails> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let fits = (MIN_NAME_CHARS..=MAX_NAME_CHARS).contains(&username.len());
    match fits && username.bytes().all(is_allowed) {
        true => Ok(()),
        false => Err(ProblemDetails::invalid_field(
            "username",
            format!(
                "username: expected {MIN_NAME_CHARS} to {MAX_NAME_CHARS} of the characters A-Z, a-z, 0-9 and _."
            ),
        )),
    }
}

fn rejected_code() -> ProblemDetails {
    ProblemDetails::new(
        StatusCode::FORBIDDEN,
        "The code is unknown, used up or expired; ask for another invite.",
    )
}

/// The invite of a code, if a person may register with it now.
async fn find_invite(call: &ApiCall, code: &str) -> Result<(String, StoredInvite), ProblemDetails> {
    let (id, secret) = code.rsplit_once('.').ok_or_else(rejected_code)?;
    let invite = load_object::<StoredInvite>(&call.app, INVITE_KIND, id).await?;
    let secret = SecretHash::from_secret(secret);
    let invite = invite.filter(|invite| invite.admits(&secret, now_ms()));
    Ok((id.to_owned(), invite.ok_or_else(rejected_code)?))
}

async fn register(mut call: ApiCall) -> ApiResult {
    if !call.app.config.get().registration_enabled {
        return Err(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            "Registration is off; an admin can create an operator, or set http.registration_enabled.",
        ));
    }
    let input: RegistrationInput = call.body_json().await?;
    let attempts = &call.app.access.attempts;
    if let Some(left) = attempts.secret_blocked_for(call.client_ip, ATTEMPTS, Instant::now()) {
        let left_s = left.as_secs() + 1;
        let detail = format!("Too many wrong codes; try again in {left_s} s.");
        return Err(ProblemDetails::too_many_requests(left_s, detail));
    }
    if let Err(rejected) = find_invite(&call, &input.code).await {
        attempts.record_secret_failure(call.client_ip, ATTEMPTS, Instant::now());
        audit::record_action(&call, "operator.register_failed", None, None).await;
        return Err(rejected);
    }
    check_username(&input.username)?;
    check_registered_password(&input.password)?;
    if let Some(email) = &input.email {
        check_email(email)?;
    }
    let password_hash = call.app.access.passwords.hash(input.password).await?;

    let changing = call.app.changing.lock().await;
    // Others may have used it meanwhile.
    let (invite_id, mut invite) = find_invite(&call, &input.code).await?;
    let username = input.username;
    if get_object(&call.app, OPERATOR_KIND, &username)
        .await?
        .is_some()
    {
        let detail = format!("There is an operator {username:?} already; choose another name.");
        return Err(ProblemDetails::conflict(detail));
    }
    let is_new = invite.namespace.is_none();
    let namespace = match &invite.namespace {
        Some(namespace) if call.app.namespaces.is_active(namespace) => namespace.clone(),
        Some(_) => return Err(rejected_code()),
        None => {
            let wanted = input.namespace;
            let id = wanted.unwrap_or_else(|| username.to_ascii_lowercase());
            namespaces::check_id(&id).map_err(|error| {
                let detail = format!("namespace: {}.", error.detail);
                ProblemDetails::invalid_field("namespace", detail)
            })?;
            if call.app.namespaces.get(&id).is_some() {
                let detail =
                    format!("There is a namespace {id:?} already; choose another `namespace`.");
                return Err(ProblemDetails::conflict(detail));
            }
            id
        }
    };
    let grants = vec![NamespaceGrant {
        namespace: namespace.clone(),
        role: invite.role,
    }];
    let operator = StoredOperator {
        role: None,
        namespaces: grants.clone(),
        enabled: true,
        description: format!("Registered with the invite {invite_id}"),
        email: input.email,
        ban: None,
        must_change_password: false,
        password_hash,
    };
    invite.used_by.push(username.clone());
    let definition = is_new.then(|| NamespaceDefinition {
        name: username.clone(),
        description: format!("Created for {username} with the invite {invite_id}"),
        ..NamespaceDefinition::default()
    });
    store_registration(
        &call,
        (&invite_id, invite),
        (&namespace, definition),
        (&username, operator),
    )
    .await?;
    drop(changing);
    if is_new {
        audit::record_action(&call, "namespace.create", Some(&namespace), None).await;
    }
    let after = json!({"invite": invite_id, "namespace": namespace});
    audit::record_action(&call, "operator.register", Some(&username), Some(after)).await;
    let answer = Registration {
        username,
        namespaces: grants,
    };
    Ok((StatusCode::CREATED, axum::Json(answer)).into_response())
}

/// Stores what a registration creates. The use of the invite comes first: after a failure it is
/// lost, but never used twice.
async fn store_registration(
    call: &ApiCall,
    (invite_id, invite): (&str, StoredInvite),
    (namespace, definition): (&str, Option<NamespaceDefinition>),
    (username, operator): (&str, StoredOperator),
) -> Result<(), ProblemDetails> {
    const PLAIN: &str = "its fields are plain";
    let (invite_id, namespace, username) = (
        invite_id.to_owned(),
        namespace.to_owned(),
        username.to_owned(),
    );
    let invite = serde_json::to_value(invite).expect(PLAIN);
    let operator = serde_json::to_value(operator).expect(PLAIN);
    run_on_store(&call.app, move |objects| {
        let problem = |error: store::ObjectError| match error {
            store::ObjectError::Storage(error) => store_problem(&error),
            other => ProblemDetails::conflict(format!("{other}.")),
        };
        Operators::check_capacity(objects, &username)?;
        let put = objects.put(INVITE_KIND, &invite_id, invite, ExpectedVersion::Any);
        put.map_err(problem)?;
        if let Some(definition) = definition {
            let value = serde_json::to_value(definition).expect(PLAIN);
            let put = objects.put(namespaces::KIND, &namespace, value, ExpectedVersion::Absent);
            put.map_err(problem)?;
        }
        let put = objects.put(OPERATOR_KIND, &username, operator, ExpectedVersion::Absent);
        put.map(drop).map_err(problem)
    })
    .await?
}
