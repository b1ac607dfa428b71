//! Subscriptions of ThingsBoard's WebSocket: parsing of commands, one task per subscription that
//! sends stored and then live values, and the response format.

use std::sync::Arc;

use ::devices::AttributeScope;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use super::devices;
use super::telemetry_query::{run_on_all_nodes, subscribe_at_all_nodes};
use super::thingsboard_answers::AnswerSender;
use super::thingsboard_history::{
    KeyValues, MAX_KEYS, PeriodFields, TelemetryHistory, ValueSpace, to_text,
};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;
use crate::telemetry_backend::LiveTelemetryItem;

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
    #[serde(flatten)]
    period: PeriodFields,
    unsubscribe: bool,
    /// Parts of `ENTITY_DATA` and `ENTITY_COUNT`; checked separately, so that an error is answered
    /// with the `cmdId`.
    pub(super) query: Value,
    pub(super) latest_cmd: Value,
    pub(super) ts_cmd: Value,
    pub(super) history_cmd: Value,
    pub(super) agg_history_cmd: Value,
    pub(super) agg_ts_cmd: Value,
}

/// The form of the answers to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandForm {
    /// `TIMESERIES`, `TIMESERIES_HISTORY`, `ATTRIBUTES`.
    Device,
    EntityData,
    EntityCount,
}

impl Command {
    pub(super) fn form(&self) -> CommandForm {
        match self.kind.as_str() {
            "ENTITY_DATA" => CommandForm::EntityData,
            "ENTITY_COUNT" => CommandForm::EntityCount,
            _ => CommandForm::Device,
        }
    }

    pub(super) fn is_unsubscribe(&self) -> bool {
        let names = ["ENTITY_DATA_UNSUBSCRIBE", "ENTITY_COUNT_UNSUBSCRIBE"];
        self.unsubscribe || names.contains(&self.kind.as_str())
    }
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
enum RequestedData {
    Telemetry(TelemetryHistory),
    History(TelemetryHistory),
    Attributes(&'static [AttributeScope]),
}

/// A validated command.
pub(super) struct Subscription {
    id: i64,
    device: String,
    /// `None`: all keys.
    keys: Option<Vec<String>>,
    requested: RequestedData,
}

/// An error response.
pub(super) fn rejection(form: CommandForm, id: i64, code: u8, detail: &str) -> String {
    let mut answer = json!({"cmdId": id, "errorCode": code, "errorMsg": detail});
    let more = match form {
        CommandForm::Device => json!({"subscriptionId": id, "data": {}, "latestValues": {}}),
        CommandForm::EntityData => {
            json!({"data": null, "update": null, "cmdUpdateType": "ENTITY_DATA"})
        }
        CommandForm::EntityCount => json!({"count": 0, "cmdUpdateType": "COUNT_DATA"}),
    };
    if let (Value::Object(answer), Value::Object(more)) = (&mut answer, more) {
        answer.extend(more);
    }
    answer.to_string()
}

/// The answer to a command that failed while it ran.
pub(super) fn failure(form: CommandForm, id: i64, problem: &ProblemDetails) -> String {
    let code = match problem.status.is_server_error() {
        true => INTERNAL_ERROR,
        false => BAD_REQUEST,
    };
    rejection(form, id, code, &problem.detail)
}

fn answer(id: i64, values: KeyValues) -> String {
    let mut latest = serde_json::Map::new();
    let mut data = serde_json::Map::new();
    for (key, values) in values {
        let newest = values.iter().map(|(ts_ms, _)| *ts_ms).max();
        latest.insert(key.clone(), newest.unwrap_or_default().into());
        let values = values
            .into_iter()
            .map(|(ts_ms, value)| json!([ts_ms, value]));
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
        let requested = match command.kind.as_str() {
            "TIMESERIES" if command.period.time_window > 0 => {
                RequestedData::Telemetry(command.period.of_time_window()?)
            }
            "TIMESERIES" => RequestedData::Telemetry(TelemetryHistory::Latest),
            "TIMESERIES_HISTORY" => RequestedData::History(command.period.until_end()?),
            "ATTRIBUTES" => RequestedData::Attributes(match command.scope.as_deref() {
                None | Some("" | "ANY_SCOPE") => &AttributeScope::ALL,
                Some("CLIENT_SCOPE") => &[AttributeScope::Client],
                Some("SHARED_SCOPE") => &[AttributeScope::Shared],
                Some("SERVER_SCOPE") => &[AttributeScope::Server],
                Some(other) => {
                    return Err(format!(
                        "scope: {other:?} is unknown; expected CLIENT_SCOPE, SHARED_SCOPE or SERVER_SCOPE."
                    ));
                }
            }),
            other => {
                return Err(format!(
                    "type: {other:?} is not supported; expected TIMESERIES, TIMESERIES_HISTORY, ATTRIBUTES, ENTITY_DATA or ENTITY_COUNT."
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
        let has_intervals = match &requested {
            RequestedData::Telemetry(history) | RequestedData::History(history) => {
                history.is_aggregated()
            }
            RequestedData::Attributes(_) => false,
        };
        if has_intervals && keys.is_empty() {
            return Err("keys: expected at least one, where agg is given.".to_owned());
        }
        Ok(Self {
            id: command.cmd_id,
            device: command.entity_id,
            keys: (!keys.is_empty()).then_some(keys),
            requested,
        })
    }

    /// Sends stored values, then live ones, until the receiver is closed.
    pub(super) async fn run(self, app: Arc<ApiState>, out: AnswerSender) {
        let result = match &self.requested {
            RequestedData::Telemetry(history) => self.follow_telemetry(history, &app, &out).await,
            RequestedData::History(history) => self.send_telemetry(history, &app, &out).await,
            RequestedData::Attributes(scopes) => self.follow_attributes(scopes, &app, &out).await,
        };
        if let Err(problem) = result {
            let failure = failure(CommandForm::Device, self.id, &problem);
            out.turn().await.send(failure).await;
        }
    }

    async fn send_telemetry(
        &self,
        history: &TelemetryHistory,
        app: &Arc<ApiState>,
        out: &AnswerSender,
    ) -> Result<(), ProblemDetails> {
        let (device, keys, history) = (self.device.clone(), self.keys.clone(), history.clone());
        let turn = out.turn().await;
        let read = run_on_all_nodes(app, move |telemetry| {
            history.read(telemetry, &device, keys.as_deref(), &mut ValueSpace::new())
        });
        let (values, _) = read.await?;
        turn.send(answer(self.id, values)).await;
        Ok(())
    }

    async fn follow_telemetry(
        &self,
        history: &TelemetryHistory,
        app: &Arc<ApiState>,
        out: &AnswerSender,
    ) -> Result<(), ProblemDetails> {
        // Subscribed before reading, so that nothing is missed in between.
        let (device, keys) = (self.device.clone(), self.keys.clone());
        let mut rows = subscribe_at_all_nodes(app, move |telemetry| {
            telemetry.subscribe(&[device], keys.as_deref())
        })
        .await?;
        self.send_telemetry(history, app, out).await?;
        while let Some(item) = rows.next().await {
            match item {
                LiveTelemetryItem::Row { ts_ms, values, .. } => {
                    let values = values.into_iter();
                    let values = values.map(|(key, value)| (key, vec![(ts_ms, to_text(value))]));
                    let turn = out.turn().await;
                    if !turn.send(answer(self.id, values.collect())).await {
                        break;
                    }
                }
                // After a loss the latest values are sent again.
                LiveTelemetryItem::Lost(_) | LiveTelemetryItem::MissingNodes(_) => {
                    self.send_telemetry(&TelemetryHistory::Latest, app, out)
                        .await?
                }
            }
        }
        Ok(())
    }

    async fn send_attributes(
        &self,
        scopes: &'static [AttributeScope],
        app: &ApiState,
        out: &AnswerSender,
    ) -> Result<(), ProblemDetails> {
        let device = self.device.clone();
        let turn = out.turn().await;
        let found = devices::run_blocking(app, move |tools| {
            let mut found = Vec::new();
            for scope in scopes {
                found.extend(tools.attributes(&device, *scope)?);
            }
            Ok(found)
        });
        let values = found.await?.into_iter().filter_map(|attribute| {
            let sample = (attribute.updated_at_ms as i64, to_text(attribute.value));
            self.wants(&attribute.key)
                .then(|| (attribute.key, vec![sample]))
        });
        turn.send(answer(self.id, values.collect())).await;
        Ok(())
    }

    async fn follow_attributes(
        &self,
        scopes: &'static [AttributeScope],
        app: &ApiState,
        out: &AnswerSender,
    ) -> Result<(), ProblemDetails> {
        let mut updates = app.devices.attribute_changes();
        self.send_attributes(scopes, app, out).await?;
        loop {
            let change = match updates.recv().await {
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
            let values: KeyValues = values
                .map(|(key, value)| {
                    (
                        key.clone(),
                        vec![(at_ms, to_text(value.clone().unwrap_or_default()))],
                    )
                })
                .collect();
            if !values.is_empty() && !out.turn().await.send(answer(self.id, values)).await {
                return Ok(());
            }
        }
    }

    fn wants(&self, key: &str) -> bool {
        let keys = self.keys.as_ref();
        keys.is_none_or(|keys| keys.iter().any(|requested| requested == key))
    }
}
