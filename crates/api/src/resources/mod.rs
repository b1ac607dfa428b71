//! What the API offers beside configuration objects: one file per subject, each with its rows of the table of routes.

mod alarm_feed;
pub(crate) mod alarms;
pub(crate) mod authenticators;
pub(crate) mod backup;
pub(crate) mod clients;
pub(crate) mod command_sending;
pub(crate) mod commands;
pub(crate) mod connectors;
pub(crate) mod device_api;
pub(crate) mod device_attributes;
pub(crate) mod device_events;
pub(crate) mod device_files;
pub(crate) mod device_groups;
pub(crate) mod devices;
pub(crate) mod docs;
mod event_feed;
pub(crate) mod events;
pub(crate) mod health;
mod listener;
pub(crate) mod listeners;
pub(crate) mod login;
mod message;
pub(crate) mod node;
pub(crate) mod publish;
pub(crate) mod pull_sources;
pub(crate) mod queues;
pub(crate) mod retained;
pub(crate) mod rules;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod subscriptions;
pub(crate) mod telemetry;
mod telemetry_export;
mod telemetry_feed;
pub(crate) mod telemetry_intervals;
mod telemetry_question;
pub(crate) mod thingsboard;
pub(crate) mod thingsboard_alarms;
pub(crate) mod thingsboard_devices;
pub(crate) mod thingsboard_login;
mod thingsboard_pages;
pub(crate) mod thingsboard_rpc;
mod thingsboard_subscriptions;
pub(crate) mod thingsboard_websocket;
pub(crate) mod thingsboard_writes;
mod websocket;

use axum::http::StatusCode;
use broker::control::Refusal;

use crate::problem::Problem;

/// A broker's no, as a problem.
fn refused(refusal: &Refusal) -> Problem {
    match refusal {
        Refusal::Invalid { field, expected } => {
            Problem::field(field, format!("{field}: {expected}."))
        }
        Refusal::Denied => Problem::new(StatusCode::FORBIDDEN, format!("{refusal}.")),
        Refusal::Quota(_) => Problem::conflict(format!("{refusal}.")),
        Refusal::NotStored | Refusal::Unavailable => Problem::unavailable(format!("{refusal}.")),
    }
}

fn no_session(client_id: &str) -> Problem {
    Problem::not_found(format!("There is no session of a client {client_id:?}."))
}
