//! The live telemetry of one subscriber; it ends when the subscriber's credentials are revoked.

use std::future::Future;

use serde_json::{Map, Value, json};

use super::devices::check_all_selected;
use super::events;
use super::stream_connection::{ItemStream, StreamConnection, StreamItem};
use super::telemetry_query::{keys, subscribe_at_all_nodes};
use crate::call::ApiCall;
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, ParameterType};
use crate::telemetry_backend::{LiveTelemetryItem, LiveTelemetryStream};

pub(super) const DEVICES: Parameter = Parameter {
    name: "devices",
    shape: ParameterType::Text,
    description: "Device ids, separated by commas.",
};

struct TelemetryFeed {
    listener: StreamConnection,
    rows: Box<dyn LiveTelemetryStream>,
}

impl ItemStream for TelemetryFeed {
    fn next(&mut self) -> impl Future<Output = Option<StreamItem>> + Send {
        self.next_item()
    }
}

impl TelemetryFeed {
    async fn next_item(&mut self) -> Option<StreamItem> {
        // The credentials are checked outside the select, when nothing is borrowed any more.
        let woken = tokio::select! {
            biased;
            silence = self.listener.wait_for_keep_alive() => {
                silence?;
                None
            }
            item = self.rows.next() => Some(item?),
        };
        let Some(item) = woken else {
            return self.listener.check_and_keep_alive().await;
        };
        Some(match item {
            LiveTelemetryItem::Row {
                device,
                ts_ms,
                values,
            } => {
                let values: Map<String, Value> = values.into_iter().collect();
                let row = json!({"device": device, "ts_ms": ts_ms, "values": values});
                StreamItem::Event("telemetry".into(), row.to_string())
            }
            LiveTelemetryItem::Lost(count) => StreamItem::lost_items(count),
            LiveTelemetryItem::MissingNodes(nodes) => StreamItem::missing_nodes(&nodes),
        })
    }
}

pub(super) async fn stream_device(call: ApiCall) -> ApiResult {
    let device = call.path("id").to_owned();
    start_stream(call, vec![device]).await
}

pub(super) async fn stream_devices(call: ApiCall) -> ApiResult {
    let devices = call.query.comma_separated(DEVICES);
    if devices.is_empty() {
        let detail = "devices: expected at least one id.";
        return Err(ProblemDetails::invalid_parameter(DEVICES.name, detail));
    }
    let devices = check_all_selected(&call, devices).await?;
    start_stream(call, devices).await
}

async fn start_stream(mut call: ApiCall, devices: Vec<String>) -> ApiResult {
    let place = events::begin_stream(&call)?;
    let keys = keys(&call)?;
    let rows = subscribe_at_all_nodes(&call.app, move |telemetry| {
        telemetry.subscribe(&devices, keys.as_deref())
    })
    .await?;
    let feed = TelemetryFeed {
        listener: StreamConnection::new(&call, place),
        rows,
    };
    events::stream_response(&mut call, feed)
}
