//! Subscriptions of ThingsBoard's WebSocket: parsing of commands, one task per subscription that
//! sends stored and then live values, and the response format.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{broadcast::error::RecvError, mpsc};

use super::devices;
use super::telemetry_query::run_blocking;
use crate::problem_details::ProblemDetails;
use crate::query_parameters::MAX_TIME_MS;
use crate::state::ApiState;
use crate::telemetry_backend::{
    IntervalFunction, IntervalLength, IntervalQuery, LiveTelemetryItem, RowQuery, TelemetryBackend,
    TelemetryBackendError,
};

/// Default number of values per key in one response.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 10_000;
/// Maximum number of keys per command.
const MAX_KEYS: usize = 256;

/// Codes of ThingsBoard's responses.
pub(super) const INTERNAL_ERROR: u8 = 1;
pub(super) const BAD_REQUEST: u8 = 2;

/// One message of the client. Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Request {
    pub(super) auth_cmd: Option<AuthCommand>,
    pub(super) cmds: Vec<Command>,
    /// The same in the form of versions before 3.6.
    ts_sub_cmds: Vec<Command>,
    attr_sub_cmds: Vec<Command>,
    history_cmds: Vec<Command>,
}

#[derive(Debug, Deserialize)]
pub(super) struct AuthCommand {
    pub(super) token: String,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Command {
    #[serde(rename = "type")]
    kind: String,
    pub(super) cmd_id: i64,
    entity_type: Option<String>,
    entity_id: String,
    /// Scope of attributes: `CLIENT_SCOPE`, `SHARED_SCOPE`, `SERVER_SCOPE`; otherwise all.
    scope: Option<String>,
    /// Keys, separated by commas; default: all.
    keys: Option<String>,
    start_ts: i64,
    end_ts: i64,
    time_window: i64,
    interval: i64,
    limit: usize,
    agg: Option<String>,
    pub(super) unsubscribe: bool,
}

impl Request {
    /// All commands, in the form of the newer versions.
    pub(super) fn commands(self) -> Vec<Command> {
        let older = [
            (self.ts_sub_cmds, "TIMESERIES"),
            (self.attr_sub_cmds, "ATTRIBUTES"),
            (self.history_cmds, "TIMESERIES_HISTORY"),
        ];
        let older = older.into_iter().flat_map(|(commands, kind)| {
            commands.into_iter().map(move |mut command| {
                kind.clone_into(&mut command.kind);
                command
            })
        });
        self.cmds.into_iter().chain(older).collect()
    }
}

/// The data requested by a command.
enum Wanted {
    Telemetry(History),
    History(History),
    /// Names of scopes in the registry.
    Attributes(&'static [&'static str]),
}

/// The stored telemetry that is sent first.
#[derive(Debug, Clone)]
enum History {
    Latest,
    Range {
        from_ms: i64,
        to_ms: i64,
        limit: usize,
        /// The aggregate function and the length of an interval.
        intervals: Option<(IntervalFunction, i64)>,
    },
}

/// A validated command.
pub(super) struct Subscription {
    id: i64,
    device: String,
    /// `None`: all keys.
    keys: Option<Vec<String>>,
    wanted: Wanted,
}

/// An error response.
pub(super) fn refusal(id: i64, code: u8, detail: &str) -> String {
    json!({"subscriptionId": id, "cmdId": id, "errorCode": code, "errorMsg": detail,
        "data": {}, "latestValues": {}})
    .to_string()
}

/// Values of each key, newest first.
type Values = BTreeMap<String, Vec<(i64, Value)>>;

fn answer(id: i64, values: Values) -> String {
    let mut latest = serde_json::Map::new();
    let mut data = serde_json::Map::new();
    for (key, values) in values {
        let newest = values.iter().map(|(ts_ms, _)| *ts_ms).max();
        latest.insert(key.clone(), newest.unwrap_or_default().into());
        let values = values.into_iter().map(|(ts_ms, value)| {
            // ThingsBoard sends every value as text.
            let value = match value {
                Value::String(_) | Value::Null => value,
                other => Value::String(other.to_string()),
            };
            json!([ts_ms, value])
        });
        data.insert(key, values.collect());
    }
    json!({"subscriptionId": id, "cmdId": id, "errorCode": 0, "errorMsg": null,
        "data": data, "latestValues": latest})
    .to_string()
}

impl Subscription {
    /// Validates a command.
    pub(super) fn read(command: Command) -> Result<Self, String> {
        if command
            .entity_type
            .as_deref()
            .is_some_and(|kind| kind != "DEVICE")
        {
            let kind = command.entity_type.unwrap_or_default();
            return Err(format!(
                "entityType: {kind:?} is not supported; expected DEVICE."
            ));
        }
        if command.entity_id.is_empty() {
            return Err("entityId: expected the id of a device.".to_owned());
        }
        let wanted = match command.kind.as_str() {
            "TIMESERIES" if command.time_window > 0 => {
                let to_ms = command.start_ts.saturating_add(command.time_window);
                Wanted::Telemetry(history(&command, to_ms)?)
            }
            "TIMESERIES" => Wanted::Telemetry(History::Latest),
            "TIMESERIES_HISTORY" => Wanted::History(history(&command, command.end_ts)?),
            "ATTRIBUTES" => Wanted::Attributes(match command.scope.as_deref() {
                None | Some("" | "ANY_SCOPE") => &["client", "shared", "server"],
                Some("CLIENT_SCOPE") => &["client"],
                Some("SHARED_SCOPE") => &["shared"],
                Some("SERVER_SCOPE") => &["server"],
                Some(other) => {
                    return Err(format!(
                        "scope: {other:?} is unknown; expected CLIENT_SCOPE, SHARED_SCOPE or SERVER_SCOPE."
                    ));
                }
            }),
            other => {
                return Err(format!(
                    "type: {other:?} is not supported; expected TIMESERIES, TIMESERIES_HISTORY or ATTRIBUTES."
                ));
            }
        };
        let keys = command.keys.as_deref().unwrap_or_default().split(',');
        let keys: Vec<_> = keys
            .map(str::trim)
            .filter(|key| !key.is_empty())
            .map(str::to_owned)
            .collect();
        if keys.len() > MAX_KEYS {
            return Err(format!(
                "keys: {} keys; expected at most {MAX_KEYS}.",
                keys.len()
            ));
        }
        let has_intervals = matches!(
            &wanted,
            Wanted::Telemetry(History::Range {
                intervals: Some(_),
                ..
            }) | Wanted::History(History::Range {
                intervals: Some(_),
                ..
            })
        );
        if has_intervals && keys.is_empty() {
            return Err("keys: expected at least one, where agg is given.".to_owned());
        }
        Ok(Self {
            id: command.cmd_id,
            device: command.entity_id,
            keys: (!keys.is_empty()).then_some(keys),
            wanted,
        })
    }

    /// Sends stored values, then live ones, until the receiver is closed.
    pub(super) async fn run(self, app: Arc<ApiState>, out: mpsc::Sender<String>) {
        let worked = match &self.wanted {
            Wanted::Telemetry(history) => self.follow_telemetry(history, &app, &out).await,
            Wanted::History(history) => self.send_telemetry(history, &app, &out).await,
            Wanted::Attributes(scopes) => self.follow_attributes(scopes, &app, &out).await,
        };
        if let Err(problem) = worked {
            let code = match problem.status.is_server_error() {
                true => INTERNAL_ERROR,
                false => BAD_REQUEST,
            };
            // The client may have disconnected.
            let _ = out.send(refusal(self.id, code, &problem.detail)).await;
        }
    }

    async fn send_telemetry(
        &self,
        history: &History,
        app: &Arc<ApiState>,
        out: &mpsc::Sender<String>,
    ) -> Result<(), ProblemDetails> {
        let (device, keys, history) = (self.device.clone(), self.keys.clone(), history.clone());
        let values = run_blocking(app, move |tools| history.read(tools, &device, keys)).await?;
        let _ = out.send(answer(self.id, values)).await;
        Ok(())
    }

    async fn follow_telemetry(
        &self,
        history: &History,
        app: &Arc<ApiState>,
        out: &mpsc::Sender<String>,
    ) -> Result<(), ProblemDetails> {
        // Subscribed before reading, so that nothing is missed in between.
        let (device, keys) = (self.device.clone(), self.keys.clone());
        let rows = run_blocking(app, move |tools| {
            tools.subscribe(&[device], keys.as_deref())
        });
        let mut rows = rows.await?;
        self.send_telemetry(history, app, out).await?;
        while let Some(item) = rows.next().await {
            match item {
                LiveTelemetryItem::Row { ts_ms, values, .. } => {
                    let values = values.into_iter();
                    let values = values.map(|(key, value)| (key, vec![(ts_ms, value)]));
                    if out.send(answer(self.id, values.collect())).await.is_err() {
                        break;
                    }
                }
                // After a loss the latest values are sent again.
                LiveTelemetryItem::Lost(_) => {
                    self.send_telemetry(&History::Latest, app, out).await?
                }
            }
        }
        Ok(())
    }

    async fn send_attributes(
        &self,
        scopes: &'static [&'static str],
        app: &ApiState,
        out: &mpsc::Sender<String>,
    ) -> Result<(), ProblemDetails> {
        let device = self.device.clone();
        let found = devices::run_blocking(app, move |tools| {
            let mut found = Vec::new();
            for scope in scopes {
                found.extend(tools.attributes(&device, scope)?);
            }
            Ok(found)
        });
        let values = found.await?.into_iter().filter_map(|mut attribute| {
            let key = attribute["key"].as_str()?.to_owned();
            let updated_ms = attribute["updated_ms"].as_i64().unwrap_or_default();
            let value = attribute["value"].take();
            self.wants(&key).then(|| (key, vec![(updated_ms, value)]))
        });
        let _ = out.send(answer(self.id, values.collect())).await;
        Ok(())
    }

    async fn follow_attributes(
        &self,
        scopes: &'static [&'static str],
        app: &ApiState,
        out: &mpsc::Sender<String>,
    ) -> Result<(), ProblemDetails> {
        let mut news = app.device_backend.attribute_news();
        self.send_attributes(scopes, app, out).await?;
        loop {
            let change = match news.recv().await {
                Ok(change) => change,
                Err(RecvError::Lagged(_)) => {
                    self.send_attributes(scopes, app, out).await?;
                    continue;
                }
                Err(RecvError::Closed) => return Ok(()),
            };
            if change.device != self.device || !scopes.contains(&change.scope) {
                continue;
            }
            let at_ms = change.at_ms as i64;
            let values = change.values.iter().filter(|(key, _)| self.wants(key));
            let values: Values = values
                .map(|(key, value)| {
                    (
                        key.clone(),
                        vec![(at_ms, value.clone().unwrap_or_default())],
                    )
                })
                .collect();
            if !values.is_empty() && out.send(answer(self.id, values)).await.is_err() {
                return Ok(());
            }
        }
    }

    fn wants(&self, key: &str) -> bool {
        let keys = self.keys.as_ref();
        keys.is_none_or(|keys| keys.iter().any(|wanted| wanted == key))
    }
}

fn history(command: &Command, to_ms: i64) -> Result<History, String> {
    let from_ms = command.start_ts;
    if from_ms < 0 || to_ms < from_ms || to_ms > MAX_TIME_MS as i64 {
        return Err(format!(
            "startTs: {from_ms}, endTs: {to_ms}; expected times from 0 to {MAX_TIME_MS} in this order."
        ));
    }
    let intervals = match command.agg.as_deref() {
        None | Some("" | "NONE") => None,
        Some(name) => {
            let function =
                IntervalFunction::from_name(&name.to_ascii_lowercase()).ok_or_else(|| {
                    format!("agg: {name:?} is unknown; expected NONE, AVG, MIN, MAX, SUM or COUNT.")
                })?;
            let length_ms = match command.interval {
                given if given > 0 => given,
                _ => (to_ms - from_ms).max(1),
            };
            Some((function, length_ms))
        }
    };
    Ok(History::Range {
        from_ms,
        to_ms,
        limit: match command.limit {
            0 => DEFAULT_LIMIT,
            limit => limit.min(MAX_LIMIT),
        },
        intervals,
    })
}

impl History {
    fn read(
        &self,
        tools: &dyn TelemetryBackend,
        device: &str,
        keys: Option<Vec<String>>,
    ) -> Result<Values, TelemetryBackendError> {
        let mut values = Values::new();
        let mut put = |key: String, ts_ms, value| {
            let of_key: &mut Vec<_> = values.entry(key).or_default();
            of_key.push((ts_ms, value));
        };
        match self {
            Self::Latest => {
                for sample in tools.latest(device, keys.as_deref())? {
                    put(sample.key, sample.ts_ms, sample.value);
                }
            }
            Self::Range {
                from_ms,
                to_ms,
                intervals: Some((function, length_ms)),
                ..
            } => {
                let query = IntervalQuery {
                    devices: vec![device.to_owned()],
                    keys: keys.unwrap_or_default(),
                    from_ms: *from_ms,
                    to_ms: *to_ms,
                    length: IntervalLength::Ms(*length_ms),
                    origin_ms: Some(*from_ms),
                    time_zone: None,
                    functions: vec![*function],
                    merged: false,
                };
                for row in tools.intervals(&query)? {
                    let value = row.values.into_iter().next();
                    if let Some(value) = value.filter(|value| !value.is_null()) {
                        // Dated at the middle of the interval, as on the HTTP paths.
                        put(row.key, row.ts_ms + length_ms / 2, value);
                    }
                }
            }
            Self::Range {
                from_ms,
                to_ms,
                limit,
                intervals: None,
            } => {
                let keys = match keys {
                    Some(keys) => keys,
                    None => {
                        let latest = tools.latest(device, None)?.into_iter();
                        latest.map(|sample| sample.key).take(MAX_KEYS).collect()
                    }
                };
                for key in keys {
                    let query = RowQuery {
                        device: device.to_owned(),
                        keys: Some(vec![key]),
                        from_ms: *from_ms,
                        to_ms: *to_ms,
                        limit: *limit,
                        newest_first: true,
                    };
                    tools.rows(&query, &mut |ts_ms, row| {
                        for (key, value) in row {
                            put(key, ts_ms, value);
                        }
                        true
                    })?;
                }
            }
        }
        Ok(values)
    }
}
