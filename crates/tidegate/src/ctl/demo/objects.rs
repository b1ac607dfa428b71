//! The configuration objects and devices of the demo fleet. Each carries [`MARK`], so that nothing else is ever changed or
//! deleted.

use std::fmt;

use outbound::url_encoding::url_encode;
use serde_json::{Map, Value, json};

use super::values::DeviceKind;
use crate::ctl::error::CtlError;
use crate::ctl::http::{ApiClient, VersionedObject};
use crate::ctl::objects::put_object;

/// In the description, name or tags of everything that the demo creates.
pub(super) const MARK: &str = "tidegate demo";

/// An object of the demo.
pub(super) struct DemoObject {
    path: &'static str,
    id: &'static str,
    body: Value,
}

/// A device of the demo.
pub(super) struct DemoDevice {
    pub(super) id: String,
    pub(super) kind: DeviceKind,
    /// Beginning with 1, within its kind.
    pub(super) number: u64,
}

/// What happened to an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CreationOutcome {
    New,
    Existing,
}

impl fmt::Display for DemoObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.path.rsplit('/').next().unwrap_or_default();
        write!(f, "{kind}/{}", self.id)
    }
}

/// In the order of creation: a later one may refer to an earlier one.
pub(super) fn demo_objects() -> Vec<DemoObject> {
    let object = |path, id, body| DemoObject { path, id, body };
    vec![
        object("/api/v1/products", DeviceKind::Pump.product(), pumps()),
        object("/api/v1/products", DeviceKind::Room.product(), rooms()),
        object("/api/v1/products", DeviceKind::Meter.product(), meters()),
        object(
            "/api/v1/device-groups",
            "demo-ground-floor",
            json!({"description": description("All devices on the ground floor"), "tags": {"demo": MARK, "floor": "0"}}),
        ),
        object(
            "/api/v1/device-groups",
            "demo-pumps",
            json!({"description": description("All pumps"), "product": DeviceKind::Pump.product()}),
        ),
        object("/api/v1/dashboards", "demo-site", dashboard()),
        object(
            "/api/v1/endpoints",
            "demo-lobby",
            json!({"name": description("Lobby screens"), "mode": "direct", "history_messages": 50}),
        ),
        object(
            "/api/v1/rules",
            "demo-hot-pumps",
            json!({
                "description": description("Tells the lobby screens which pump is too hot"),
                "sql": "SELECT clientid, payload.temperature AS temperature FROM \"v1/devices/me/telemetry\" \
                        WHERE clientid LIKE 'demo-pump-%' AND payload.temperature > 80",
                "actions": [
                    {"kind": "republish", "topic": "demo/alerts/${clientid}", "payload": "{\"temperature\": ${temperature}}"},
                    {"kind": "relay", "endpoint": "demo-lobby", "payload": "${clientid}: ${temperature} °C"},
                ],
            }),
        ),
        object(
            "/api/v1/rules",
            "demo-average-load",
            json!({
                "description": description("The average load of the site over half a minute"),
                "sql": "SELECT avg(payload.load) AS average FROM \"demo/site/energy\" GROUP BY tumbling(30s)",
                "actions": [{"kind": "republish", "topic": "demo/site/average"}],
            }),
        ),
    ]
}

/// The 50 devices.
pub(super) fn demo_devices() -> Vec<DemoDevice> {
    let kinds = [
        (DeviceKind::Pump, 12),
        (DeviceKind::Room, 30),
        (DeviceKind::Meter, 8),
    ];
    let numbers = kinds
        .into_iter()
        .flat_map(|(kind, count)| (1..=count).map(move |number| (kind, number)));
    numbers
        .map(|(kind, number)| DemoDevice {
            id: format!("{}-{number:02}", kind.product()),
            kind,
            number,
        })
        .collect()
}

impl DeviceKind {
    fn product(self) -> &'static str {
        match self {
            Self::Pump => "demo-pump",
            Self::Room => "demo-room",
            Self::Meter => "demo-meter",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Pump => "Pump",
            Self::Room => "Room",
            Self::Meter => "Meter",
        }
    }
}

fn description(text: &str) -> String {
    format!("{text} ({MARK})")
}

fn number_property(id: &str, name: &str, unit: &str) -> Value {
    json!({"id": id, "name": name, "valueType": {"type": "double", "unit": unit}})
}

fn product(name: &str, properties: &[Value], alarm: Value) -> Value {
    json!({
        "name": name,
        "description": description(name),
        "credentials": ["token"],
        "protocols": ["thingsboard"],
        "model": {"properties": properties},
        "alarms": [alarm],
    })
}

fn pumps() -> Value {
    let properties = [
        number_property("temperature", "Temperature", "°C"),
        number_property("pressure", "Pressure", "bar"),
        number_property("vibration", "Vibration", "mm/s"),
    ];
    let above = |limit: u32| json!({"key": "temperature", "is": ">", "value": limit});
    let alarm = json!({
        "id": "overheated",
        "raise": [{"severity": "MAJOR", "when": above(78)}, {"severity": "CRITICAL", "when": above(90)}],
        "clear": {"when": {"key": "temperature", "is": "<", "value": 72}},
        "details": "${temperature} °C at ${deviceName}",
    });
    product("Pumps", &properties, alarm)
}

fn rooms() -> Value {
    let properties = [
        number_property("temperature", "Temperature", "°C"),
        number_property("humidity", "Humidity", "%"),
        number_property("co2", "CO₂", "ppm"),
    ];
    let alarm = json!({
        "id": "stale-air",
        "raise": [{"severity": "WARNING", "when": {"key": "co2", "is": ">", "value": 1200}}],
        "clear": {"when": {"key": "co2", "is": "<", "value": 1100}},
        "details": "${co2} ppm of carbon dioxide in ${deviceName}",
    });
    product("Rooms", &properties, alarm)
}

fn meters() -> Value {
    let properties = [
        number_property("power", "Power", "kW"),
        number_property("energy", "Energy", "kWh"),
    ];
    let alarm = json!({
        "id": "silent",
        "raise": [{"severity": "MINOR", "when": {"key": "power", "is": "silent_for", "value": 120}}],
        "clear": {"when": {"key": "power", "is": ">", "value": 0}},
        "details": "${deviceName} reports nothing",
    });
    product("Meters", &properties, alarm)
}

/// One card of each kind that shows something without further choices.
fn dashboard() -> Value {
    let card = |id: &str,
                kind: &str,
                title: &str,
                [x, y, w, h]: [u32; 4],
                sources: Value,
                config: Value| {
        json!({"id": id, "kind": kind, "title": title, "x": x, "y": y, "w": w, "h": h, "sources": sources, "config": config})
    };
    let telemetry =
        |device: &str, key: &str| json!({"type": "telemetry", "device": device, "keys": [key]});
    let of_pumps =
        |keys: &[&str]| json!([{"type": "telemetry", "device_group": "demo-pumps", "keys": keys}]);
    let device = |id: &str| json!([{"type": "devices", "device": id}]);
    let celsius = json!({"unit": "°C", "digits": 1});
    json!({
        "name": "Site",
        "description": description("An overview of the site"),
        "cards": [
            card("power", "statistic", "Power of meter 1", [0, 0, 6, 3], json!([telemetry("demo-meter-01", "power")]),
                 json!({"unit": "kW", "digits": 1})),
            card("air", "statistic", "CO₂ in room 5", [6, 0, 6, 3], json!([telemetry("demo-room-05", "co2")]),
                 json!({"unit": "ppm", "digits": 0})),
            card("run", "control", "Pump 1 runs", [0, 3, 6, 3], device("demo-pump-01"),
                 json!({"control": "switch", "method": "run"})),
            card("speed", "control", "Speed of pump 1", [6, 3, 6, 3], device("demo-pump-01"),
                 json!({"control": "slider", "method": "set_speed", "min": 0, "max": 100, "unit": "%"})),
            card("hottest", "gauge", "Pump 3", [12, 0, 6, 6], json!([telemetry("demo-pump-03", "temperature")]), celsius.clone()),
            card("alarms", "status", "Alarms", [18, 0, 6, 6], json!([{"type": "alarms"}]), json!({})),
            card("temperatures", "chart", "Temperature of the pumps", [0, 6, 16, 8],
                 json!([telemetry("demo-pump-01", "temperature"), telemetry("demo-pump-02", "temperature"),
                        telemetry("demo-pump-03", "temperature")]), celsius),
            card("ground-floor", "status", "Ground floor", [16, 6, 8, 8],
                 json!([{"type": "devices", "device_group": "demo-ground-floor"}]), json!({})),
            card("map", "map", "Pumps on the quay", [0, 14, 12, 8], of_pumps(&["latitude", "longitude"]), json!({})),
            card("messages", "live_messages", "Messages of the site", [12, 14, 12, 8], json!([]),
                 json!({"topic_filter": "demo/site/#"})),
        ],
    })
}

impl DemoObject {
    fn path(&self) -> String {
        format!("{}/{}", self.path, self.id)
    }

    /// Creates the object, unless an earlier run did.
    pub(super) async fn create(&self, client: &ApiClient) -> anyhow::Result<CreationOutcome> {
        match own(client, &self.path(), &self.to_string()).await? {
            Some(_) => Ok(CreationOutcome::Existing),
            None => {
                client.put(&self.path(), &self.body, None).await?;
                Ok(CreationOutcome::New)
            }
        }
    }

    /// Deletes the object if the demo created it; `false`: it does not exist.
    pub(super) async fn remove(&self, client: &ApiClient) -> anyhow::Result<bool> {
        remove_own(client, &self.path(), &self.to_string()).await
    }
}

impl DemoDevice {
    fn path(&self) -> String {
        format!("/api/v1/devices/{}", url_encode(&self.id))
    }

    /// Creates the device, or gives it a new token; returns the token.
    pub(super) async fn create(
        &self,
        client: &ApiClient,
    ) -> anyhow::Result<(CreationOutcome, String)> {
        let credentials = json!([{"type": "token"}]);
        let existing = own(client, &self.path(), &self.id).await?;
        let (created, device) = match existing {
            Some(device) => {
                let changes = Map::from_iter([("credentials".to_owned(), credentials)]);
                let changed = put_object(client, &self.path(), device, changes).await?;
                (CreationOutcome::Existing, changed)
            }
            None => {
                let name = format!("{} {}", self.kind.title(), self.number);
                let body = json!({
                    "id": self.id,
                    "name": name,
                    "product": self.kind.product(),
                    "credentials": credentials,
                    "tags": {"demo": MARK, "floor": (self.number % 4).to_string()},
                });
                (
                    CreationOutcome::New,
                    client.post("/api/v1/devices", &body).await?,
                )
            }
        };
        let token = device["issued"][0]["token"].as_str().unwrap_or_default();
        Ok((created, token.to_owned()))
    }

    /// Deletes the device if the demo created it; `false`: it does not exist.
    pub(super) async fn remove(&self, client: &ApiClient) -> anyhow::Result<bool> {
        remove_own(client, &self.path(), &self.id).await
    }
}

/// The object at a path, if it exists. An error if it was not created by this command.
async fn own(
    client: &ApiClient,
    path: &str,
    name: &str,
) -> Result<Option<VersionedObject>, CtlError> {
    let object = match client.get_versioned(path).await {
        Ok(object) => object,
        Err(CtlError::Rejected { status: 404, .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    match is_marked(&object.value) {
        true => Ok(Some(object)),
        false => Err(CtlError::Usage(format!(
            "{name} exists and was not created by this command; the demo needs this id: rename or delete it first"
        ))),
    }
}

async fn remove_own(client: &ApiClient, path: &str, name: &str) -> anyhow::Result<bool> {
    let object = match client.get(path).await {
        Ok(object) => object,
        Err(CtlError::Rejected { status: 404, .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if !is_marked(&object) {
        eprintln!("{name} is kept: this command did not create it");
        return Ok(false);
    }
    client.delete(path).await?;
    Ok(true)
}

fn is_marked(object: &Value) -> bool {
    let texts = [
        &object["description"],
        &object["name"],
        &object["tags"]["demo"],
    ];
    let mut texts = texts.iter().filter_map(|text| text.as_str());
    texts.any(|text| text.contains(MARK))
}
