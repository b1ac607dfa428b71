//! `ENTITY_DATA` of ThingsBoard's WebSocket: a page of devices with their fields and values, and then
//! what changes.
//!
//! The first command of a `cmdId` has the query. Later ones without a query replace what is followed
//! of the same devices. Each command is answered by one message: the first by the page (`data`),
//! later ones by the devices of the page with the requested values (`update`).

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Interval;

use super::stream_connection::delayed_interval;
use super::telemetry_query::{run_on_all_nodes, subscribe_at_all_nodes};
use super::thingsboard_answers::AnswerSender;
use super::thingsboard_entity_count::REFRESH;
use super::thingsboard_entity_filter::parse_part;
use super::thingsboard_entity_query::{EntityDataQuery, EntityPage, check_key_count};
use super::thingsboard_history::{KeyValues, PeriodFields, TelemetryHistory, ValueSpace, to_text};
use super::thingsboard_latest_values::{EntityKey, KeyType, LatestValue, read_latest};
use super::thingsboard_subscriptions::{Command, CommandForm, failure};
use crate::device_service::AttributeChangeEvent;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;
use crate::telemetry_backend::{
    LiveTelemetryItem, LiveTelemetryStream, TelemetryBackendError, TelemetryReader,
};

/// Maximum number of devices on the pages of one connection.
pub(super) const MAX_DEVICES: usize = 20_000;
/// Maximum number of later commands that wait for one subscription.
pub(super) const MAX_WAITING_COMMANDS: usize = 8;
/// Number of devices whose history is read at once; other work gets the thread in between.
const HISTORY_BATCH: usize = 16;

/// A validated command.
pub(super) struct EntityDataCommand {
    query: Option<EntityDataQuery>,
    latest_keys: Option<Vec<EntityKey>>,
    telemetry: Option<PeriodCommand>,
    history: Option<PeriodCommand>,
}

/// `tsCmd` or `historyCmd`.
#[derive(Clone)]
struct PeriodCommand {
    keys: Arc<[String]>,
    period: TelemetryHistory,
}

#[derive(Deserialize)]
struct LatestFields {
    keys: Vec<EntityKey>,
}

#[derive(Deserialize)]
struct SeriesFields {
    keys: Vec<String>,
    #[serde(flatten)]
    period: PeriodFields,
}

/// The value of a part of a command that is given.
fn given(part: &Value) -> Option<&Value> {
    Some(part).filter(|part| !part.is_null())
}

impl EntityDataCommand {
    pub(super) fn read(command: &Command) -> Result<Self, String> {
        for (name, part) in [
            ("aggHistoryCmd", &command.agg_history_cmd),
            ("aggTsCmd", &command.agg_ts_cmd),
        ] {
            if given(part).is_some() {
                return Err(format!(
                    "{name}: not supported; expected historyCmd or tsCmd with agg."
                ));
            }
        }
        let latest_keys = given(&command.latest_cmd).map(|part| {
            let keys = parse_part::<LatestFields>("latestCmd", part)?.keys;
            check_key_count("latestCmd.keys", keys.len())?;
            Ok::<_, String>(keys)
        });
        let series =
            |name: &str, part, period: fn(&PeriodFields) -> Result<TelemetryHistory, String>| {
                let read = given(part).map(|part| {
                    let fields: SeriesFields = parse_part(name, part)?;
                    check_key_count(&format!("{name}.keys"), fields.keys.len())?;
                    let period =
                        period(&fields.period).map_err(|error| format!("{name}.{error}"))?;
                    Ok::<_, String>(PeriodCommand {
                        keys: fields.keys.into(),
                        period,
                    })
                });
                read.transpose()
            };
        Ok(Self {
            query: given(&command.query)
                .map(EntityDataQuery::read)
                .transpose()?,
            latest_keys: latest_keys.transpose()?,
            telemetry: series("tsCmd", &command.ts_cmd, PeriodFields::of_time_window)?,
            history: series("historyCmd", &command.history_cmd, PeriodFields::until_end)?,
        })
    }

    /// Whether it can be the first command of its `cmdId`.
    pub(super) fn has_query(&self) -> bool {
        self.query.is_some()
    }
}

/// An update that is to be sent.
enum SubscriptionUpdate {
    Command(EntityDataCommand),
    Row {
        device: String,
        ts_ms: i64,
        values: Vec<(String, Value)>,
    },
    Attributes(Arc<AttributeChangeEvent>),
    /// Changes were lost; the latest values are sent again.
    Lost,
    Refresh,
}

pub(super) struct EntityDataSubscription {
    id: i64,
    app: Arc<ApiState>,
    out: AnswerSender,
    /// The devices that the connection may still show.
    free_devices: Arc<Semaphore>,
    query: Option<EntityDataQuery>,
    page: EntityPage,
    /// The position on the page, by device id.
    positions: HashMap<String, usize>,
    devices_taken: Option<OwnedSemaphorePermit>,
    /// Followed latest values.
    latest_keys: Vec<EntityKey>,
    /// The time of the newest sent value, by the positions of device and key; older ones are not
    /// the latest.
    newest_ms: HashMap<(usize, usize), i64>,
    /// Followed telemetry.
    series_keys: Arc<[String]>,
    rows: Option<Box<dyn LiveTelemetryStream>>,
    news: Option<Receiver<Arc<AttributeChangeEvent>>>,
    refresh: Option<Interval>,
}

impl EntityDataSubscription {
    pub(super) fn new(
        id: i64,
        app: Arc<ApiState>,
        out: AnswerSender,
        free_devices: Arc<Semaphore>,
    ) -> Self {
        Self {
            id,
            app,
            out,
            free_devices,
            query: None,
            page: EntityPage::default(),
            positions: HashMap::new(),
            devices_taken: None,
            latest_keys: Vec::new(),
            newest_ms: HashMap::new(),
            series_keys: Arc::default(),
            rows: None,
            news: None,
            refresh: None,
        }
    }

    /// Executes commands and sends changes until the connection ends.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<EntityDataCommand>) {
        while let Some(change) = self.next_change(&mut commands).await {
            let out = self.out.clone();
            let turn = out.turn().await;
            let answer = match self.answer(change).await {
                Ok(None) => continue,
                Ok(Some(answer)) => answer,
                Err(problem) => failure(CommandForm::EntityData, self.id, &problem),
            };
            // A subscription without a page has nothing to follow.
            if !turn.send(answer).await || self.query.is_none() {
                return;
            }
        }
    }

    async fn next_change(
        &mut self,
        commands: &mut mpsc::Receiver<EntityDataCommand>,
    ) -> Option<SubscriptionUpdate> {
        tokio::select! {
            biased;
            command = commands.recv() => command.map(SubscriptionUpdate::Command),
            item = next_row(&mut self.rows) => Some(match item {
                LiveTelemetryItem::Row { device, ts_ms, values } => {
                    SubscriptionUpdate::Row { device, ts_ms, values }
                }
                LiveTelemetryItem::Lost(_) | LiveTelemetryItem::MissingNodes(_) => SubscriptionUpdate::Lost,
            }),
            change = next_attribute_change(&mut self.news) => Some(change.map_or(SubscriptionUpdate::Lost, SubscriptionUpdate::Attributes)),
            () = next_tick(&mut self.refresh) => Some(SubscriptionUpdate::Refresh),
        }
    }

    async fn answer(
        &mut self,
        change: SubscriptionUpdate,
    ) -> Result<Option<String>, ProblemDetails> {
        let rows = match change {
            SubscriptionUpdate::Command(command) => return self.execute(command).await.map(Some),
            SubscriptionUpdate::Refresh => return self.refresh_page().await,
            SubscriptionUpdate::Row {
                device,
                ts_ms,
                values,
            } => self.row_update(&device, ts_ms, values),
            SubscriptionUpdate::Attributes(news) => self.attribute_update(&news).await?,
            SubscriptionUpdate::Lost => self.all_latest().await?,
        };
        Ok((!rows.is_empty()).then(|| self.update(rows)))
    }

    async fn execute(&mut self, command: EntityDataCommand) -> Result<String, ProblemDetails> {
        let is_first = command.query.is_some();
        let mut shown_keys = Vec::new();
        if let Some(query) = command.query {
            let page = query.read_page(&self.app).await?;
            self.set_page(page)?;
            self.refresh = query.is_dynamic().then(|| delayed_interval(REFRESH));
            shown_keys.clone_from(&query.latest_values);
            self.query = Some(query);
        }
        let has_latest = is_first || command.latest_keys.is_some();
        if command.latest_keys.is_some() || command.telemetry.is_some() || command.history.is_some()
        {
            self.latest_keys = command.latest_keys.unwrap_or_default();
            self.newest_ms.clear();
            let telemetry = command.telemetry.as_ref();
            self.series_keys = telemetry.map_or_else(Arc::default, |series| series.keys.clone());
            // Followed before the values are read, so that nothing is missed in between.
            self.follow().await?;
        }
        let mut rows: Vec<Map<String, Value>> = match has_latest {
            true => self.read_latest(shown_keys).await?,
            false => vec![Map::new(); self.page.entities.len()],
        };
        let periods: Vec<_> = [command.history, command.telemetry]
            .into_iter()
            .flatten()
            .collect();
        if !periods.is_empty() {
            let series = read_series(&self.app, self.device_ids(), periods).await?;
            for (row, values) in rows.iter_mut().zip(series) {
                row.insert("timeseries".to_owned(), series_json(values));
            }
        }
        Ok(match is_first {
            true => self.page_message(rows),
            false => self.update(self.entity_rows(rows)),
        })
    }

    /// The devices of the page with what is to be sent of each.
    fn entity_rows(&self, rows: Vec<Map<String, Value>>) -> Vec<Value> {
        let entities = self.page.entities.iter().zip(rows);
        let rows = entities.map(|(entity, row)| entity_json(entity.entity_id(), row));
        rows.collect()
    }

    fn page_message(&self, mut rows: Vec<Map<String, Value>>) -> String {
        for row in &mut rows {
            row.entry("timeseries").or_insert_with(|| json!({}));
        }
        let page = self.page.to_json(self.entity_rows(rows));
        self.message(page, Value::Null)
    }

    fn set_page(&mut self, page: EntityPage) -> Result<(), ProblemDetails> {
        // The places of the previous page are free again.
        self.devices_taken = None;
        let free_devices = self.free_devices.clone();
        let taken = free_devices.try_acquire_many_owned(page.entities.len() as u32);
        self.devices_taken = Some(taken.map_err(|_| {
            ProblemDetails::bad_request(format!(
                "query.pageLink.pageSize: the subscriptions of a connection show at most {MAX_DEVICES} devices; unsubscribe from one or use smaller pages."
            ))
        })?);
        let ids = page.entities.iter().map(|entity| entity.id.clone());
        self.positions = ids.enumerate().map(|(at, id)| (id, at)).collect();
        self.page = page;
        self.newest_ms.clear();
        Ok(())
    }

    /// Starts to follow the keys on the devices of the page.
    async fn follow(&mut self) -> Result<(), ProblemDetails> {
        (self.rows, self.news) = (None, None);
        if self
            .latest_keys
            .iter()
            .any(|key| !key.kind.scopes().is_empty())
        {
            self.news = Some(self.app.devices.attribute_changes());
        }
        let latest = self
            .latest_keys
            .iter()
            .filter(|key| key.kind == KeyType::TimeSeries);
        let latest = latest.map(|key| key.key.clone());
        let mut keys: Vec<_> = latest.chain(self.series_keys.iter().cloned()).collect();
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty() {
            let ids = self.device_ids();
            let rows = subscribe_at_all_nodes(&self.app, move |telemetry| {
                watch_existing(telemetry, ids, &keys)
            });
            self.rows = Some(rows.await?);
        }
        Ok(())
    }

    fn device_ids(&self) -> Vec<String> {
        let entities = self.page.entities.iter();
        entities.map(|entity| entity.id.clone()).collect()
    }

    /// `latest` of each device: its fields, the keys of the query, and the followed ones.
    async fn read_latest(
        &mut self,
        shown_keys: Vec<EntityKey>,
    ) -> Result<Vec<Map<String, Value>>, ProblemDetails> {
        // The followed keys are first, because their positions are those of `newest_ms`.
        let mut keys = self.latest_keys.clone();
        for key in shown_keys {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let found = read_latest(&self.app, self.device_ids(), keys.clone()).await?;
        let mut rows = Vec::with_capacity(found.len());
        for (at, values) in found.into_iter().enumerate() {
            self.note_newest(at, &values);
            let mut latest = latest_json(&keys, values);
            for key in keys.iter().filter(|key| key.kind != KeyType::EntityField) {
                let of_type = latest.entry(key.kind.name()).or_insert_with(|| json!({}));
                if of_type[&key.key].is_null() {
                    of_type[&key.key] = json!({"ts": 0, "value": ""});
                }
            }
            let query = self.query.as_ref();
            let fields = query.and_then(|query| query.field_values(&self.page.entities[at]));
            if let Some(fields) = fields {
                latest.insert(KeyType::EntityField.name().to_owned(), fields);
            }
            rows.push(Map::from_iter([("latest".to_owned(), latest.into())]));
        }
        Ok(rows)
    }

    fn note_newest(&mut self, device: usize, values: &[LatestValue]) {
        let followed = values
            .iter()
            .filter(|value| value.key < self.latest_keys.len());
        let newest = followed.map(|value| ((device, value.key), value.ts_ms));
        self.newest_ms.extend(newest);
    }

    fn row_update(&mut self, device: &str, ts_ms: i64, values: Vec<(String, Value)>) -> Vec<Value> {
        let Some(&at) = self.positions.get(device) else {
            return Vec::new();
        };
        let (mut latest, mut series) = (Map::new(), Map::new());
        for (key, value) in values {
            let value = json!({"ts": ts_ms, "value": to_text(value)});
            let is_latest =
                |wanted: &EntityKey| wanted.kind == KeyType::TimeSeries && wanted.key == key;
            if self.series_keys.contains(&key) {
                series.insert(key.clone(), json!([value]));
            }
            if let Some(position) = self.latest_keys.iter().position(is_latest) {
                let newest_ms = self.newest_ms.entry((at, position)).or_insert(ts_ms);
                if *newest_ms <= ts_ms {
                    *newest_ms = ts_ms;
                    latest.insert(key, value);
                }
            }
        }
        let mut row = Map::new();
        if !latest.is_empty() {
            row.insert("latest".to_owned(), json!({"TIME_SERIES": latest}));
        }
        if !series.is_empty() {
            row.insert("timeseries".to_owned(), series.into());
        }
        if row.is_empty() {
            return Vec::new();
        }
        vec![entity_json(self.page.entities[at].entity_id(), row)]
    }

    async fn attribute_update(
        &mut self,
        news: &AttributeChangeEvent,
    ) -> Result<Vec<Value>, ProblemDetails> {
        let Some(&at) = self.positions.get(&news.device) else {
            return Ok(Vec::new());
        };
        let changed = self.latest_keys.iter().filter(|key| {
            key.kind.scopes().contains(&news.scope)
                && news.values.iter().any(|(name, _)| *name == key.key)
        });
        let changed: Vec<_> = changed.cloned().collect();
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        // Read again, because a removed attribute may exist in another scope.
        let found = read_latest(&self.app, vec![news.device.clone()], changed.clone()).await?;
        let mut latest = latest_json(&changed, found.into_iter().flatten().collect());
        for key in &changed {
            let of_type = latest.entry(key.kind.name()).or_insert_with(|| json!({}));
            if of_type[&key.key].is_null() {
                of_type[&key.key] = json!({"ts": news.at_ms, "value": ""});
            }
        }
        let row = Map::from_iter([("latest".to_owned(), latest.into())]);
        Ok(vec![entity_json(self.page.entities[at].entity_id(), row)])
    }

    async fn all_latest(&mut self) -> Result<Vec<Value>, ProblemDetails> {
        if self.latest_keys.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.read_latest(Vec::new()).await?;
        Ok(self.entity_rows(rows))
    }

    /// Reads a dynamic page again; answers if it has other devices.
    async fn refresh_page(&mut self) -> Result<Option<String>, ProblemDetails> {
        let Some(query) = &self.query else {
            return Ok(None);
        };
        let page = query.read_page(&self.app).await?;
        if page.entities == self.page.entities {
            return Ok(None);
        }
        let shown_keys = query.latest_values.clone();
        self.set_page(page)?;
        self.follow().await?;
        let rows = self.read_latest(shown_keys).await?;
        Ok(Some(self.page_message(rows)))
    }

    fn update(&self, rows: Vec<Value>) -> String {
        self.message(Value::Null, rows.into())
    }

    fn message(&self, data: Value, update: Value) -> String {
        json!({"cmdId": self.id, "errorCode": 0, "errorMsg": null, "data": data, "update": update,
            "allowedEntities": MAX_DEVICES, "cmdUpdateType": "ENTITY_DATA"})
        .to_string()
    }
}

/// The next live row; never, if none are followed.
async fn next_row(rows: &mut Option<Box<dyn LiveTelemetryStream>>) -> LiveTelemetryItem {
    if let Some(stream) = rows {
        match stream.next().await {
            Some(item) => return item,
            None => *rows = None,
        }
    }
    std::future::pending().await
}

/// The next change of attributes; `None`: some were lost.
async fn next_attribute_change(
    news: &mut Option<Receiver<Arc<AttributeChangeEvent>>>,
) -> Option<Arc<AttributeChangeEvent>> {
    if let Some(receiver) = news {
        match receiver.recv().await {
            Ok(change) => return Some(change),
            Err(RecvError::Lagged(_)) => return None,
            Err(RecvError::Closed) => *news = None,
        }
    }
    std::future::pending().await
}

async fn next_tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

/// Follows those of the devices that still exist.
fn watch_existing(
    telemetry: &dyn TelemetryReader,
    mut ids: Vec<String>,
    keys: &[String],
) -> Result<Box<dyn LiveTelemetryStream>, TelemetryBackendError> {
    loop {
        match telemetry.subscribe(&ids, Some(keys)) {
            Err(TelemetryBackendError::NoDevice(gone)) if ids.contains(&gone) => {
                ids.retain(|id| *id != gone);
            }
            watched => return watched,
        }
    }
}

/// The periods of each device.
async fn read_series(
    app: &Arc<ApiState>,
    ids: Vec<String>,
    periods: Vec<PeriodCommand>,
) -> Result<Vec<KeyValues>, ProblemDetails> {
    let periods = Arc::<[PeriodCommand]>::from(periods);
    let mut series = Vec::with_capacity(ids.len());
    let mut space = ValueSpace::new();
    for batch in ids.chunks(HISTORY_BATCH) {
        let (batch, periods) = (batch.to_vec(), periods.clone());
        let read = run_on_all_nodes(app, move |telemetry| {
            let mut series = Vec::with_capacity(batch.len());
            for device in &batch {
                series.push(read_periods(telemetry, device, &periods, &mut space)?);
            }
            Ok((series, space))
        });
        let ((more, left), _) = read.await?;
        series.extend(more);
        space = left;
    }
    Ok(series)
}

fn read_periods(
    telemetry: &dyn TelemetryReader,
    device: &str,
    periods: &[PeriodCommand],
    space: &mut ValueSpace,
) -> Result<KeyValues, TelemetryBackendError> {
    let mut values = KeyValues::new();
    for series in periods {
        match series
            .period
            .read(telemetry, device, Some(&series.keys), space)
        {
            Err(TelemetryBackendError::NoDevice(_)) => {}
            read => values.extend(read?),
        }
        for key in &*series.keys {
            values.entry(key.clone()).or_default();
        }
    }
    Ok(values)
}

fn series_json(values: KeyValues) -> Value {
    let values = values.into_iter().map(|(key, values)| {
        let values = values.into_iter();
        let values = values.map(|(ts_ms, value)| json!({"ts": ts_ms, "value": value}));
        (key, values.collect())
    });
    Value::Object(values.collect())
}

/// Values by type and key.
fn latest_json(keys: &[EntityKey], values: Vec<LatestValue>) -> Map<String, Value> {
    let mut latest = Map::new();
    for value in values {
        let key = &keys[value.key];
        let of_type = latest.entry(key.kind.name()).or_insert_with(|| json!({}));
        of_type[&key.key] = json!({"ts": value.ts_ms, "value": value.value});
    }
    latest
}

/// A device of an answer; absent parts are null.
fn entity_json(entity_id: Value, mut row: Map<String, Value>) -> Value {
    row.insert("entityId".to_owned(), entity_id);
    for part in ["latest", "timeseries"] {
        row.entry(part).or_insert(Value::Null);
    }
    Value::Object(row)
}
