//! Routes of everything except configuration objects: one file per subject with its rows of the
//! route table. A new subject is a file, its module and its line in [`RESOURCES`].

mod access_check;
mod alarm_feed;
mod alarm_query;
mod alarms;
mod authenticators;
mod backup;
mod backups;
mod broker_problems;
mod certificates;
mod change_feed;
mod clients;
mod cluster;
mod cluster_rebalance;
mod command_options;
mod command_requests;
mod commands;
mod connectors;
mod console_session;
mod dashboard_data;
mod dashboards;
mod device_attributes;
mod device_events;
mod device_files;
mod device_groups;
pub(crate) mod device_http;
mod device_uploads;
mod devices;
mod event_feed;
mod events;
mod exports;
mod file_download;
mod file_exports;
mod files;
mod firmware;
mod firmware_campaigns;
mod group_commands;
mod health;
mod imports;
mod jobs;
mod limits;
mod listeners;
mod live_messages;
mod login;
mod message_json;
mod message_trace;
mod namespaces;
pub(crate) mod node;
mod node_history;
pub(crate) mod openapi_page;
mod operator_change;
mod people;
mod publish;
mod published_topics;
mod pull_sources;
mod quarantine;
mod queues;
mod rejected_connections;
mod relay_endpoints;
mod retained;
mod rule_language;
mod rules;
mod sessions;
mod settings;
mod simulations;
mod stream_connection;
mod subscriptions;
mod telemetry;
mod telemetry_export;
mod telemetry_feed;
mod telemetry_intervals;
mod telemetry_query;
mod thingsboard;
mod thingsboard_alarms;
mod thingsboard_answers;
mod thingsboard_devices;
mod thingsboard_entity_count;
mod thingsboard_entity_data;
mod thingsboard_entity_filter;
mod thingsboard_entity_query;
mod thingsboard_history;
mod thingsboard_latest_values;
mod thingsboard_login;
mod thingsboard_paging;
mod thingsboard_rpc;
mod thingsboard_subscriptions;
mod thingsboard_websocket;
mod thingsboard_writes;
pub(crate) mod tus;
pub(crate) mod upload_body;
mod websocket;

use crate::endpoint::Endpoint;

/// The rows of all subjects, in the order of the OpenAPI document.
pub(crate) const RESOURCES: &[fn() -> Vec<Endpoint>] = &[
    health::endpoints,
    openapi_page::endpoints,
    node::endpoints,
    node_history::endpoints,
    login::endpoints,
    console_session::endpoints,
    namespaces::endpoints,
    people::endpoints,
    clients::endpoints,
    rejected_connections::endpoints,
    sessions::endpoints,
    subscriptions::endpoints,
    telemetry::endpoints,
    telemetry_intervals::endpoints,
    device_http::endpoints,
    thingsboard::endpoints,
    thingsboard_alarms::endpoints,
    thingsboard_devices::endpoints,
    thingsboard_login::endpoints,
    queues::endpoints,
    retained::endpoints,
    publish::endpoints,
    live_messages::endpoints,
    published_topics::endpoints,
    message_trace::endpoints,
    rules::endpoints,
    rule_language::endpoints,
    authenticators::endpoints,
    access_check::endpoints,
    connectors::endpoints,
    devices::endpoints,
    device_events::endpoints,
    device_files::endpoints,
    device_attributes::endpoints,
    dashboards::endpoints,
    dashboard_data::endpoints,
    alarms::endpoints,
    device_groups::endpoints,
    pull_sources::endpoints,
    relay_endpoints::endpoints,
    files::endpoints,
    file_exports::endpoints,
    device_uploads::endpoints,
    tus::endpoints,
    firmware::endpoints,
    firmware_campaigns::endpoints,
    command_requests::endpoints,
    commands::endpoints,
    group_commands::endpoints,
    thingsboard_rpc::endpoints,
    thingsboard_websocket::endpoints,
    thingsboard_writes::endpoints,
    certificates::endpoints,
    listeners::endpoints,
    settings::endpoints,
    limits::endpoints,
    imports::endpoints,
    exports::endpoints,
    jobs::endpoints,
    simulations::endpoints,
    quarantine::endpoints,
    cluster::endpoints,
    cluster_rebalance::endpoints,
    events::endpoints,
    backup::endpoints,
    backups::endpoints,
];
