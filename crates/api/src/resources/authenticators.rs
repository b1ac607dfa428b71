//! How the authenticators of MQTT clients do.

use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{ApiResult, Endpoint, get};
use crate::node_backend::AuthenticatorInfo;

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/v1/authenticator-status",
            "listAuthenticatorStatus",
            statuses,
        )
        // An error names the server that was asked.
        .role(Role::Operator)
        .tag("rules")
        .summary("List the states of authenticators")
        .description("In the order in which they are asked, those of the configuration included.")
        .paged::<AuthenticatorInfo>(),
    ]
}

async fn statuses(call: ApiCall) -> ApiResult {
    let limit = call.query.limit();
    // A cursor is the number of those before.
    let after = call
        .query
        .after()
        .and_then(|cursor| cursor.first.parse().ok());
    let before: usize = after.unwrap_or(0);
    let rows = call.app.program.authenticators().into_iter().enumerate();
    let rows: Vec<_> = rows.skip(before).take(limit + 1).collect();
    let next = (rows.len() > limit).then(|| before + limit);
    let data: Vec<_> = rows.into_iter().take(limit).map(|(_, row)| row).collect();
    call::page_of(data, next)
}
