//! Share links of dashboards: a client with its token reads the dashboard and the data of its
//! cards, and nothing else.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use store::Object;
use wall_clock::now_ms;

use crate::access::{Role, SecretHash, random_id, random_secret};
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, delete, get, post};
use crate::endpoint_scope::AddressedKind;
use crate::object_store::load_object;
use crate::objects::{
    DASHBOARD_KIND, DashboardShare, Dashboards, ObjectKind, StoredDashboard, StoredShare,
    change_object, save_object, with_etag,
};
use crate::problem_details::{ApiResult, ProblemDetails};

const MAX_SHARES: usize = 20;
const MAX_DESCRIPTION_CHARS: usize = 200;
const TOKEN_PREFIX: &str = "kiosk";

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ShareInput {
    /// Purpose of the link.
    #[schemars(length(max = 200))]
    description: String,
    /// Time from which the token is rejected, in milliseconds since 1970; `null`: never.
    expires_at_ms: Option<u64>,
}

/// A new link.
#[derive(Serialize, JsonSchema)]
struct CreatedShare {
    #[serde(flatten)]
    share: DashboardShare,
    /// Token for `Authorization: Bearer TOKEN` on the routes below `/api/v1/kiosk`. Keep it: it is not shown again.
    token: String,
}

/// The scope of the routes of one dashboard.
pub(super) fn addressed_dashboard() -> EndpointScope {
    let kind = AddressedKind::Object {
        storage_kind: DASHBOARD_KIND,
        declared: None,
        owner: Dashboards.names().owner,
    };
    EndpointScope::configuration_object(kind, "id")
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about_id = "The dashboard's id, percent-encoded.";
    vec![
        get("/api/v1/dashboards/{id}/shares", "listDashboardShares", list)
            .role(Role::Viewer, addressed_dashboard())
            .tag("dashboards")
            .summary("List share links of a dashboard")
            .path_parameter("id", about_id)
            .unpaged::<DashboardShare>(),
        post("/api/v1/dashboards/{id}/shares", "createDashboardShare", create)
            .role(Role::Operator, addressed_dashboard())
            .tag("dashboards")
            .summary("Create a share link of a dashboard")
            .description(
                "Everyone with the token may read the dashboard and the data of its cards, without an account. The token is \
                 shown only once. The dashboard gets a new version.",
            )
            .path_parameter("id", about_id)
            .optional_request_body::<ShareInput>()
            .response::<CreatedShare>(201, "Created.")
            .problem_response(409, "The dashboard has the maximum number of links, 20."),
        delete(
            "/api/v1/dashboards/{id}/shares/{share}",
            "deleteDashboardShare",
            remove,
        )
        .role(Role::Operator, addressed_dashboard())
        .tag("dashboards")
        .summary("Revoke a share link of a dashboard")
        .path_parameter("id", about_id)
        .path_parameter("share", "The link's id.")
        .empty_response(204, "Its token is rejected from now on."),
    ]
}

fn dashboard_not_found(id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no dashboard {id:?}."))
}

/// The dashboard in the path of the request.
pub(super) async fn load_dashboard(call: &ApiCall) -> Result<StoredDashboard, ProblemDetails> {
    let id = call.path("id");
    let dashboard = load_object(&call.app, DASHBOARD_KIND, id).await?;
    dashboard.ok_or_else(|| dashboard_not_found(id))
}

/// The dashboard and the link of a request with the token of a link.
pub(super) async fn load_shared_dashboard(
    call: &ApiCall,
) -> Result<(StoredDashboard, DashboardShare), ProblemDetails> {
    let rejected = || {
        ProblemDetails::unauthorized("The token of the share link is unknown, revoked or expired.")
    };
    let token = call.bearer().ok_or_else(rejected)?;
    let dashboard_id = token
        .strip_prefix(TOKEN_PREFIX)
        .and_then(|rest| rest.strip_prefix('.')?.split_once('.'))
        .and_then(|(id, _)| String::from_utf8(URL_SAFE_NO_PAD.decode(id).ok()?).ok())
        .ok_or_else(rejected)?;
    let hash = SecretHash::from_secret(token);
    let mut dashboard: StoredDashboard = load_object(&call.app, DASHBOARD_KIND, &dashboard_id)
        .await?
        .ok_or_else(rejected)?;
    let mut shares = dashboard.shares.drain(..);
    let share = shares.find(|stored| stored.token_hash == hash);
    drop(shares);
    let now_ms = now_ms();
    let is_active = |namespace: &String| call.app.namespaces.is_active(namespace);
    let share = share
        .map(|stored| stored.share)
        .filter(|share| share.expires_at_ms.is_none_or(|at_ms| now_ms < at_ms))
        .filter(|_| dashboard.namespace.as_ref().is_none_or(is_active))
        .ok_or_else(rejected)?;
    Ok((dashboard, share))
}

async fn list(call: ApiCall) -> ApiResult {
    let shares = load_dashboard(&call).await?.shares.into_iter();
    call::unpaged_list(shares.map(|stored| stored.share).collect())
}

async fn create(mut call: ApiCall) -> ApiResult {
    let input: ShareInput = call.body_json_or_default().await?;
    if input.description.chars().count() > MAX_DESCRIPTION_CHARS {
        let detail = format!("description: expected at most {MAX_DESCRIPTION_CHARS} characters.");
        return Err(ProblemDetails::invalid_field("description", detail));
    }
    let now_ms = now_ms();
    if input.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
        let detail = "expires_at_ms: expected a time in the future, in milliseconds since 1970.";
        return Err(ProblemDetails::invalid_field("expires_at_ms", detail));
    }
    let unavailable = |error| ProblemDetails::unavailable(format!("{error}."));
    let id = URL_SAFE_NO_PAD.encode(call.path("id"));
    let secret = random_secret().map_err(unavailable)?;
    let token = format!("{TOKEN_PREFIX}.{id}.{secret}");
    let share = DashboardShare {
        id: random_id("share-").map_err(unavailable)?,
        description: input.description,
        expires_at_ms: input.expires_at_ms,
        created_at_ms: now_ms,
        created_by: call.identity.name.clone(),
    };
    let stored = StoredShare {
        share: share.clone(),
        token_hash: SecretHash::from_secret(&token),
    };
    let object = change_shares(&call, move |shares| {
        // Links that have ended make room.
        shares.retain(|stored| {
            stored
                .share
                .expires_at_ms
                .is_none_or(|at_ms| now_ms < at_ms)
        });
        if shares.len() >= MAX_SHARES {
            let detail = format!(
                "The dashboard has {MAX_SHARES} links, which is the limit; revoke one first."
            );
            return Err(ProblemDetails::conflict(detail));
        }
        shares.push(stored.clone());
        Ok(())
    })
    .await?;
    let created = serde_json::json!(CreatedShare { share, token });
    Ok(with_etag(StatusCode::CREATED, &object, created))
}

async fn remove(call: ApiCall) -> ApiResult {
    let id = call.path("share").to_owned();
    change_shares(&call, move |shares| {
        let count = shares.len();
        shares.retain(|stored| stored.share.id != id);
        match shares.len() < count {
            true => Ok(()),
            false => Err(ProblemDetails::not_found(format!(
                "There is no share link {id:?} of this dashboard."
            ))),
        }
    })
    .await?;
    call::no_content()
}

/// Changes the links of the dashboard in the path as it is now, and returns the changed object.
async fn change_shares(
    call: &ApiCall,
    change: impl Fn(&mut Vec<StoredShare>) -> Result<(), ProblemDetails>,
) -> Result<Object, ProblemDetails> {
    let id = call.path("id");
    let kind: &Arc<dyn ObjectKind> = &(Arc::new(Dashboards) as _);
    let change = &change;
    change_object(&call.app, (DASHBOARD_KIND, id), |object| async move {
        let object = object.ok_or_else(|| dashboard_not_found(id))?;
        let mut dashboard: StoredDashboard =
            serde_json::from_value(object.value.clone()).map_err(|error| {
                ProblemDetails::unavailable(format!(
                    "The stored dashboard cannot be read: {error}."
                ))
            })?;
        change(&mut dashboard.shares)?;
        let value = serde_json::to_value(dashboard).expect("its fields are plain");
        let (object, _) = save_object(kind, call, id, value, Some(object)).await?;
        Ok(object)
    })
    .await
}
