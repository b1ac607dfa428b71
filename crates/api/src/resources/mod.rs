//! Routes of everything except configuration objects: one file per subject with its rows of the
//! route table.

mod alarm_feed;
mod alarm_query;
pub(crate) mod alarms;
pub(crate) mod authenticators;
pub(crate) mod backup;
pub(crate) mod clients;
pub(crate) mod command_requests;
pub(crate) mod commands;
pub(crate) mod connectors;
pub(crate) mod device_attributes;
pub(crate) mod device_events;
pub(crate) mod device_files;
pub(crate) mod device_groups;
pub(crate) mod device_http;
pub(crate) mod devices;
mod event_feed;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod listeners;
pub(crate) mod login;
mod message_json;
pub(crate) mod node;
pub(crate) mod openapi_page;
pub(crate) mod publish;
pub(crate) mod pull_sources;
pub(crate) mod queues;
pub(crate) mod retained;
pub(crate) mod rules;
pub(crate) mod sessions;
pub(crate) mod settings;
mod stream_connection;
pub(crate) mod subscriptions;
pub(crate) mod telemetry;
mod telemetry_export;
mod telemetry_feed;
pub(crate) mod telemetry_intervals;
mod telemetry_query;
pub(crate) mod thingsboard;
pub(crate) mod thingsboard_alarms;
mod thingsboard_answers;
pub(crate) mod thingsboard_devices;
mod thingsboard_entity_count;
mod thingsboard_entity_data;
mod thingsboard_entity_filter;
mod thingsboard_entity_query;
mod thingsboard_history;
mod thingsboard_latest_values;
pub(crate) mod thingsboard_login;
mod thingsboard_paging;
pub(crate) mod thingsboard_rpc;
mod thingsboard_subscriptions;
pub(crate) mod thingsboard_websocket;
pub(crate) mod thingsboard_writes;
mod websocket;

use axum::http::StatusCode;
use broker::control::ControlError;

use crate::problem_details::ProblemDetails;

/// Converts an error of the broker to an error response.
fn publish_problem(refusal: &ControlError) -> ProblemDetails {
    match refusal {
        ControlError::InvalidField { field, expected } => {
            ProblemDetails::invalid_field(field, format!("{field}: {expected}."))
        }
        ControlError::ReservedTopic => {
            ProblemDetails::new(StatusCode::FORBIDDEN, format!("{refusal}."))
        }
        ControlError::LimitReached(_) => ProblemDetails::conflict(format!("{refusal}.")),
        ControlError::StoreUnavailable | ControlError::Unavailable => {
            ProblemDetails::unavailable(format!("{refusal}."))
        }
    }
}

fn session_not_found(client_id: &str) -> ProblemDetails {
    ProblemDetails::not_found(format!("There is no session of a client {client_id:?}."))
}
