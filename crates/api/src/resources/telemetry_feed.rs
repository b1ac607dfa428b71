//! Telemetry as one listener of the API gets it, ended when the listener's credentials are.

use std::future::Future;

use serde_json::{Map, Value, json};

use super::events;
use super::listener::{Item, Items, Listener};
use super::telemetry_question::{ask, keys};
use crate::call::Call;
use crate::endpoint::Outcome;
use crate::parameters::{Parameter, Shape};
use crate::problem::Problem;
use crate::telemetry_tools::{LiveItem, LiveRows};

pub(super) const DEVICES: Parameter = Parameter {
    name: "devices",
    shape: Shape::Text,
    about: "Ids of devices, separated by commas.",
};

struct Feed {
    listener: Listener,
    rows: Box<dyn LiveRows>,
}

impl Items for Feed {
    fn next(&mut self) -> impl Future<Output = Option<Item>> + Send {
        self.next_item()
    }
}

impl Feed {
    async fn next_item(&mut self) -> Option<Item> {
        // The credentials are looked at when nothing is borrowed any more.
        let woken = tokio::select! {
            biased;
            silence = self.listener.silence() => {
                silence?;
                None
            }
            item = self.rows.next() => Some(item?),
        };
        let Some(item) = woken else {
            return self.listener.keep_alive().await;
        };
        Some(match item {
            LiveItem::Row {
                device,
                ts_ms,
                values,
            } => {
                let values: Map<String, Value> = values.into_iter().collect();
                let row = json!({"device": device, "ts_ms": ts_ms, "values": values});
                Item::Event("telemetry".into(), row.to_string())
            }
            LiveItem::Lost(count) => Item::lost(count),
        })
    }
}

pub(super) async fn of_device(call: Call) -> Outcome {
    let device = call.path("id").to_owned();
    watch(call, vec![device]).await
}

pub(super) async fn of_devices(call: Call) -> Outcome {
    let devices = call.query.words(DEVICES);
    if devices.is_empty() {
        let detail = "devices: expected at least one id.";
        return Err(Problem::parameter(DEVICES.name, detail));
    }
    watch(call, devices).await
}

async fn watch(mut call: Call, devices: Vec<String>) -> Outcome {
    let place = events::place(&call)?;
    let keys = keys(&call)?;
    let rows = ask(&call.app, move |tools| {
        tools.watch(&devices, keys.as_deref())
    })
    .await?;
    let feed = Feed {
        listener: Listener::new(&call, place),
        rows,
    };
    events::stream_of(&mut call, feed)
}
