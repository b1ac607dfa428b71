//! Rejected connections of clients, with the step that rejected them and the reason.

use std::net::IpAddr;

use observe::RejectedConnectionQuery;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::Role;
use crate::call::{self, ApiCall};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{
    CLIENT_ID_CONTAINS, Parameter, ParameterType, USERNAME, text_parameter,
};

const DEFAULT_LIMIT: u64 = 100;
const ADDRESS: Parameter = text_parameter("address", "IP address of the client.");
/// Not paged, because the order changes with every attempt.
const LIMIT: Parameter = Parameter {
    name: "limit",
    description: "Maximum number of rows; default 100.",
    shape: ParameterType::Number(1, 1000),
};

/// Equal rejected connections of a client.
#[derive(Serialize, JsonSchema)]
struct RejectedConnection {
    /// Time of the last attempt.
    at_ms: u64,
    first_at_ms: u64,
    /// Number of equal attempts.
    count: u64,
    /// `null`: the client sent none that can be read.
    client_id: Option<Box<str>>,
    /// `null` without a user name, and without a password, because the name may then be the token of a device.
    username: Option<Box<str>>,
    /// IP address; `null`: a Unix socket.
    address: Option<IpAddr>,
    listener: Box<str>,
    /// The step that rejected the client: `protocol`, `ban`, `limit`, `authentication` or `availability`.
    step: &'static str,
    /// MQTT 5 reason code, such as 134 (bad user name or password).
    reason_code: u8,
    reason: Box<str>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/rejected-connections", "listRejectedConnections", list)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("clients")
            .summary("List rejected connection attempts")
            .description(
                "Since the node started, those with the newest attempts first. Equal attempts are one row with a `count`. The node \
                 keeps 1000 rows; the oldest ones are removed.",
            )
            .parameters(&[CLIENT_ID_CONTAINS, USERNAME, ADDRESS, LIMIT])
            .unpaged::<RejectedConnection>(),
    ]
}

impl From<observe::RejectedConnection> for RejectedConnection {
    fn from(attempt: observe::RejectedConnection) -> Self {
        Self {
            at_ms: attempt.last_ms,
            first_at_ms: attempt.first_ms,
            count: attempt.count,
            client_id: attempt.client_id,
            username: attempt.username,
            address: attempt.address,
            listener: attempt.listener,
            step: attempt.step,
            reason_code: attempt.code,
            reason: attempt.reason,
        }
    }
}

async fn list(call: ApiCall) -> ApiResult {
    let address = match call.query.text_value(ADDRESS.name) {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            let detail = format!("address is {text:?}; expected an IP address, such as 10.0.0.7.");
            ProblemDetails::invalid_parameter(ADDRESS.name, detail)
        })?),
    };
    let query = RejectedConnectionQuery {
        client_id_contains: call.query.owned_text(CLIENT_ID_CONTAINS),
        username: call.query.owned_text(USERNAME),
        address,
        limit: call.query.number_value(LIMIT).unwrap_or(DEFAULT_LIMIT) as usize,
    };
    let rows = call.app.observer.rejected_connections(&query).into_iter();
    call::unpaged_list(rows.map(RejectedConnection::from).collect())
}
