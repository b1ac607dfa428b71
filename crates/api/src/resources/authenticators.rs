//! States of the authenticators of MQTT clients.

use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::node_backend::AuthenticatorInfo;
use crate::problem_details::ApiResult;

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/v1/authenticator-status",
            "listAuthenticatorStatus",
            statuses,
        )
        // Errors name the server that was queried.
        .role(Role::Operator, EndpointScope::Node)
        .tag("rules")
        .summary("List the states of authenticators")
        .description("In the order of evaluation, including declared ones.")
        .paged::<AuthenticatorInfo>(),
    ]
}

async fn statuses(call: ApiCall) -> ApiResult {
    let limit = call.query.limit();
    // A cursor is the number of preceding rows.
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
