//! The data of the cards of dashboards, for callers with a role and for those with the token of a
//! share link.

use std::collections::{BTreeMap, BTreeSet};

use ::devices::alarm::Alarm;
use ::devices::{AttributeScope, DeviceState};
use namespaces::NamespaceSelection;
use observe::HistoryRange;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use wall_clock::now_ms;

use super::dashboards::{addressed_dashboard, load_dashboard, load_shared_dashboard};
use super::message_json::{PayloadEncoding, text_or_base64};
use super::telemetry_intervals::{self, INTERVAL_PARAMETERS, KeyInterval};
use super::telemetry_query::FROM_MS;
use super::{device_groups, node_history, telemetry_query};
use crate::access::{EndpointAccess, Role};
use crate::alarm_service::AlarmQuery;
use crate::blocking::run_blocking;
use crate::call::{self, ApiCall};
use crate::cluster_lists;
use crate::device_service::{DeviceService, DeviceServiceError};
use crate::endpoint::{Endpoint, get};
use crate::history_recorder::SAMPLE_INTERVAL;
use crate::node_calls;
use crate::objects::{CardSource, DashboardCard, StoredDashboard};
use crate::problem_details::{ApiResult, ProblemDetails};

/// Maximum number of devices of a source; others of its group are left out.
const MAX_DEVICES: usize = 1000;
const MAX_ALARMS: usize = 100;
/// Stands for nodes whose names readers do not learn.
const UNNAMED_NODE: &str = "another node";
/// An older sample of a metric is not its present value.
const LATEST_SAMPLE_MS: i64 = 120_000;

/// A dashboard as the holder of a share link sees it.
#[derive(Serialize, JsonSchema)]
struct SharedDashboard {
    name: String,
    description: String,
    cards: Vec<DashboardCard>,
    /// End of the link; `null`: none.
    expires_at_ms: Option<u64>,
}

/// The data of a card now.
#[derive(Serialize, JsonSchema)]
struct CardData {
    at_ms: u64,
    /// In the order of the card's sources.
    sources: Vec<SourceData>,
    /// Nodes of the cluster that did not answer, whose telemetry, states and alarms are missing; omitted if there are none.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    missing_nodes: BTreeSet<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum SourceData {
    Telemetry {
        latest: Vec<LatestOfDevice>,
        /// Only with `from_ms`.
        intervals: Vec<KeyInterval>,
        /// Whether devices of the group were left out; at most 1000 are shown.
        is_truncated: bool,
    },
    Attributes {
        latest: Vec<LatestOfDevice>,
        is_truncated: bool,
    },
    Devices {
        devices: Vec<DeviceStatus>,
        is_truncated: bool,
    },
    Alarms {
        /// At most 100, newest first.
        alarms: Vec<Alarm>,
        is_truncated: bool,
    },
    Topics {
        /// Those with a message since the node began to record topics; see `GET /api/v1/published-topics`.
        topics: Vec<TopicStatus>,
    },
    Node {
        metrics: Vec<MetricValues>,
        /// Starts of the intervals; only with `from_ms`.
        ts_ms: Vec<i64>,
    },
    /// The source cannot be read.
    Problem { detail: String },
}

#[derive(Serialize, JsonSchema)]
struct LatestOfDevice {
    device: String,
    /// By key; keys without a value are absent.
    values: BTreeMap<String, TimedValue>,
}

#[derive(Serialize, JsonSchema)]
struct TimedValue {
    ts_ms: i64,
    value: Value,
}

#[derive(Serialize, JsonSchema)]
struct DeviceStatus {
    device: String,
    name: String,
    product: String,
    state: DeviceState,
}

#[derive(Serialize, JsonSchema)]
struct TopicStatus {
    topic: String,
    /// Messages per second during the last ten seconds.
    messages_per_s: f64,
    /// Messages since the node began to record topics.
    messages: u64,
    /// Time of the last message.
    last_at_ms: u64,
    /// The first 256 bytes of its payload.
    payload: String,
    payload_encoding: PayloadEncoding,
    is_truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct MetricValues {
    name: String,
    /// The latest sample of the last two minutes; `null`: there is none.
    value: Option<f64>,
    /// One average per interval; `null`: the node was off. Only with `from_ms`.
    avg: Vec<Option<f64>>,
}

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let about_data = "The latest values of all sources of the card. With `from_ms`, also the intervals of its telemetry, with the \
        same parameters as those of a device, and the intervals of metrics of the node, for which only `interval_ms` counts. A source \
        whose device, group or metric does not exist has the type `problem`. Topics are recorded while somebody reads them.";
    vec![
        get(
            "/api/v1/dashboards/{id}/cards/{card}/data",
            "getDashboardCardData",
            card_data,
        )
        .role(Role::Viewer, addressed_dashboard())
        .tag("dashboards")
        .summary("Read the data of a card")
        .description(about_data)
        .path_parameter("id", "The dashboard's id, percent-encoded.")
        .path_parameter("card", "The card's id.")
        .parameters(&INTERVAL_PARAMETERS)
        .response::<CardData>(200, "The data."),
        get(
            "/api/v1/kiosk/dashboard",
            "getSharedDashboard",
            shared_dashboard,
        )
        .access(EndpointAccess::Kiosk)
        .tag("dashboards")
        .summary("Read a shared dashboard")
        .description("The dashboard of the share link whose token the request has.")
        .response::<SharedDashboard>(200, "The dashboard.")
        .problem_response(401, "The token is unknown, revoked or expired."),
        get(
            "/api/v1/kiosk/cards/{card}/data",
            "getSharedCardData",
            shared_card_data,
        )
        .access(EndpointAccess::Kiosk)
        .tag("dashboards")
        .summary("Read the data of a shared card")
        .description(about_data)
        .path_parameter("card", "The card's id.")
        .parameters(&INTERVAL_PARAMETERS)
        .response::<CardData>(200, "The data.")
        .problem_response(401, "The token is unknown, revoked or expired.")
        .problem_response(404, "The dashboard has no such card."),
    ]
}

async fn card_data(call: ApiCall) -> ApiResult {
    let dashboard = load_dashboard(&call).await?;
    call::json_response(read_data(&call, dashboard).await?)
}

async fn shared_dashboard(call: ApiCall) -> ApiResult {
    let (dashboard, share) = load_shared_dashboard(&call).await?;
    call::json_response(SharedDashboard {
        name: dashboard.name,
        description: dashboard.description,
        cards: dashboard.cards,
        expires_at_ms: share.expires_at_ms,
    })
}

async fn shared_card_data(call: ApiCall) -> ApiResult {
    let (dashboard, _) = load_shared_dashboard(&call).await?;
    let mut data = read_data(&call, dashboard).await?;
    if !data.missing_nodes.is_empty() {
        // Whoever has the link learns that values may be missing, and nothing of the cluster.
        data.missing_nodes = BTreeSet::from([UNNAMED_NODE.to_owned()]);
    }
    call::json_response(data)
}

async fn read_data(call: &ApiCall, dashboard: StoredDashboard) -> Result<CardData, ProblemDetails> {
    let id = call.path("card");
    let mut cards = dashboard.cards.into_iter();
    let card = cards
        .find(|card| card.id == id)
        .ok_or_else(|| ProblemDetails::not_found(format!("The dashboard has no card {id:?}.")))?;
    // A dashboard shows everybody the same: what belongs to its namespace.
    let selection = match &dashboard.namespace {
        None => NamespaceSelection::All,
        Some(namespace) => NamespaceSelection::All.within(namespace),
    };
    let mut sources = Vec::with_capacity(card.sources.len());
    let mut missing_nodes = BTreeSet::new();
    for source in card.sources {
        let read = source_data(call, source, &selection, &mut missing_nodes).await;
        sources.push(match read {
            Err(problem) if problem.status.as_u16() == 404 => SourceData::Problem {
                detail: problem.detail,
            },
            read => read?,
        });
    }
    Ok(CardData {
        at_ms: now_ms(),
        sources,
        missing_nodes,
    })
}

/// The data of one source. Only dashboards without a namespace have sources of the node.
async fn source_data(
    call: &ApiCall,
    source: CardSource,
    selection: &NamespaceSelection,
    missing_nodes: &mut BTreeSet<String>,
) -> Result<SourceData, ProblemDetails> {
    if source.is_of_node() && !matches!(selection, NamespaceSelection::All) {
        let detail =
            "Topics and metrics of the node are shown only on dashboards without a namespace.";
        return Err(ProblemDetails::not_found(detail));
    }
    match source {
        CardSource::Topics { topics } => topic_data(call, topics).await,
        CardSource::Node { metrics } => node_data(call, metrics).await,
        CardSource::Telemetry {
            device,
            device_group,
            keys,
        } => {
            let (devices, is_truncated) =
                source_devices(call, device, device_group, selection).await?;
            telemetry_data(call, devices, keys, is_truncated, missing_nodes).await
        }
        CardSource::Attributes {
            device,
            device_group,
            scope,
            keys,
        } => {
            let (ids, is_truncated) = source_devices(call, device, device_group, selection).await?;
            let latest = super::devices::run_blocking(&call.app, move |devices| {
                attribute_values(devices, ids, scope, &keys)
            });
            Ok(SourceData::Attributes {
                latest: latest.await?,
                is_truncated,
            })
        }
        CardSource::Devices {
            device,
            device_group,
        } => {
            let (ids, is_truncated) = source_devices(call, device, device_group, selection).await?;
            let devices = call.app.devices.clone();
            let read =
                super::devices::run_blocking(&call.app, move |_| device_statuses(&devices, &ids));
            let mut devices = read.await?;
            add_states(call, &mut devices, missing_nodes).await?;
            Ok(SourceData::Devices {
                devices,
                is_truncated,
            })
        }
        CardSource::Alarms { device, product } => {
            let query = AlarmQuery {
                device,
                product,
                states: ["ACTIVE_UNACK", "ACTIVE_ACK"].map(str::to_owned).into(),
                limit: MAX_ALARMS,
                namespaces: selection.clone(),
                ..AlarmQuery::default()
            };
            let page = cluster_lists::newest_alarms(&call.app, query, 0).await?;
            missing_nodes.extend(page.missing_nodes);
            let mut alarms = page.rows;
            for alarm in &mut alarms {
                // Written for colleagues, and not for the holders of share links.
                alarm.comments.clear();
            }
            Ok(SourceData::Alarms {
                alarms,
                is_truncated: page.has_more,
            })
        }
    }
}

/// The ids of a source's devices, and whether others of its group were left out.
async fn source_devices(
    call: &ApiCall,
    device: Option<String>,
    group: Option<String>,
    selection: &NamespaceSelection,
) -> Result<(Vec<String>, bool), ProblemDetails> {
    let selection = selection.clone();
    if let Some(group) = group {
        let members = move |groups: &device_groups::DeviceGroups| {
            groups.first_members(&group, &selection, MAX_DEVICES)
        };
        return device_groups::run_blocking(&call.app, members).await;
    }
    let id = device.unwrap_or_default();
    super::devices::run_blocking(&call.app, move |devices| {
        devices.require_device(&id)?;
        devices.check_selected(&id, &selection)?;
        Ok((vec![id], false))
    })
    .await
}

/// Replaces the states by those that all nodes of the cluster know.
async fn add_states(
    call: &ApiCall,
    devices: &mut [DeviceStatus],
    missing_nodes: &mut BTreeSet<String>,
) -> Result<(), ProblemDetails> {
    let Some(cluster) = call.app.program.cluster_backend() else {
        return Ok(());
    };
    let ids = devices.iter().map(|status| status.device.clone()).collect();
    let presences = node_calls::presences(&call.app, cluster, ids).await?;
    for (index, status) in devices.iter_mut().enumerate() {
        if let Some((_, presence)) = presences.latest(index) {
            status.state = presence.state();
        }
    }
    missing_nodes.extend(presences.missing_nodes);
    Ok(())
}

fn device_statuses(
    devices: &DeviceService,
    ids: &[String],
) -> Result<Vec<DeviceStatus>, DeviceServiceError> {
    let mut statuses = Vec::with_capacity(ids.len());
    for id in ids {
        // A device that was deleted meanwhile is left out.
        let Some(device) = devices.registry().device(id)? else {
            continue;
        };
        statuses.push(DeviceStatus {
            device: id.clone(),
            name: devices.registry().to_new_device(&device)?.name,
            product: device.product.id().to_string(),
            state: devices.state_of(&device)?,
        });
    }
    Ok(statuses)
}

fn attribute_values(
    devices: &DeviceService,
    ids: Vec<String>,
    scope: AttributeScope,
    keys: &[String],
) -> Result<Vec<LatestOfDevice>, DeviceServiceError> {
    let registry = devices.registry();
    let mut latest = Vec::with_capacity(ids.len());
    for id in ids {
        // A device that was deleted meanwhile is left out.
        let Some(device) = registry.device(&id)? else {
            continue;
        };
        let mut values = BTreeMap::new();
        for key in keys {
            if let Some(attribute) = registry.attribute(&device, scope, key)? {
                let value = TimedValue {
                    ts_ms: attribute.updated_at_ms as i64,
                    value: attribute.value,
                };
                values.insert(attribute.key, value);
            }
        }
        latest.push(LatestOfDevice { device: id, values });
    }
    Ok(latest)
}

async fn topic_data(call: &ApiCall, topics: Vec<String>) -> Result<SourceData, ProblemDetails> {
    let observer = call.app.observer.clone();
    let read = move || observer.topics_named(&topics);
    let nodes = run_blocking(read, "The topics cannot be read now.").await?;
    let topics = nodes.into_iter().filter_map(|node| {
        let last = node.last?;
        let is_truncated = last.payload.len() < last.payload_bytes;
        let (payload, payload_encoding) = text_or_base64(&last.payload, is_truncated);
        Some(TopicStatus {
            topic: node.path,
            messages_per_s: (node.messages_per_s * 100.0).round() / 100.0,
            messages: node.messages,
            last_at_ms: last.received_ms,
            payload,
            payload_encoding,
            is_truncated,
        })
    });
    Ok(SourceData::Topics {
        topics: topics.collect(),
    })
}

async fn node_data(call: &ApiCall, names: Vec<String>) -> Result<SourceData, ProblemDetails> {
    let now_ms = now_ms() as i64;
    let latest_range = HistoryRange {
        from_ms: (now_ms - LATEST_SAMPLE_MS).max(0),
        to_ms: now_ms,
        interval_ms: SAMPLE_INTERVAL.as_millis() as i64,
    };
    let latest = node_history::read_table(call, names.clone(), latest_range).await?;
    let mut metrics: Vec<MetricValues> = (latest.columns.into_iter())
        .map(|column| MetricValues {
            value: column.avg.iter().rev().copied().flatten().next(),
            name: column.name,
            avg: Vec::new(),
        })
        .collect();
    let mut ts_ms = Vec::new();
    if call.query.number_value(FROM_MS).is_some() {
        let table = node_history::read_table(call, names, node_history::range(call)?).await?;
        ts_ms = table.ts_ms;
        for (metric, column) in metrics.iter_mut().zip(table.columns) {
            metric.avg = column.avg;
        }
    }
    Ok(SourceData::Node { metrics, ts_ms })
}

async fn telemetry_data(
    call: &ApiCall,
    devices: Vec<String>,
    keys: Vec<String>,
    is_truncated: bool,
    missing_nodes: &mut BTreeSet<String>,
) -> Result<SourceData, ProblemDetails> {
    let intervals = match call.query.number_value(FROM_MS) {
        None => Vec::new(),
        Some(_) => {
            let query =
                telemetry_intervals::interval_query(call, devices.clone(), keys.clone(), false)?;
            telemetry_intervals::read_cluster_intervals(call, query, missing_nodes).await?
        }
    };
    let read = telemetry_query::run_on_all_nodes(&call.app, move |telemetry| {
        let samples = telemetry.latest_of_devices(&devices, Some(&keys))?;
        let mut latest = Vec::with_capacity(devices.len());
        for (device, samples) in devices.into_iter().zip(samples) {
            // A device that was deleted meanwhile has none.
            let samples = samples.unwrap_or_default().into_iter();
            let values = samples.map(|sample| {
                let value = TimedValue {
                    ts_ms: sample.ts_ms,
                    value: sample.value,
                };
                (sample.key, value)
            });
            latest.push(LatestOfDevice {
                values: values.collect(),
                device,
            });
        }
        Ok(latest)
    });
    let (latest, missing) = read.await?;
    missing_nodes.extend(missing);
    Ok(SourceData::Telemetry {
        latest,
        intervals,
        is_truncated,
    })
}
