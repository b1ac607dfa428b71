//! Dashboards: cards on a grid, the data that each card reads, and links that show a dashboard to
//! people without an account.

use std::collections::HashSet;

use devices::AttributeScope;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::Objects;

use super::credential_holder::{self, check_description};
use super::kind_names::{ObjectKindNames, ObjectOwner, QuotaCount};
use super::object_kind::{ObjectKind, PrepareFuture};
use crate::access::{Role, SecretHash};
use crate::call::parse;
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Kind of dashboards in the store.
pub const DASHBOARD_KIND: &str = "dashboard";
const MAX_DASHBOARDS: usize = 10_000;
const MAX_CARDS: usize = 100;
const MAX_SOURCES: usize = 20;
const MAX_KEYS: usize = 50;
const MAX_NAME_CHARS: usize = 200;
const MAX_ID_CHARS: usize = 64;
const MAX_REFERENCE_BYTES: usize = 256;
/// Longer topics are not recorded.
const MAX_TOPIC_BYTES: usize = 512;
/// Number of columns of the grid.
const COLUMNS: u32 = 24;
const MAX_ROWS: u32 = 1000;
const MAX_CARD_ROWS: u32 = 100;
/// Maximum size of a card's display options, in bytes of JSON.
const MAX_CONFIG_BYTES: usize = 16 * 1024;
/// Maximum size of all cards, in bytes of JSON.
const MAX_CARDS_BYTES: usize = 256 * 1024;
/// The field of [`StoredDashboard`] with the hashes of the tokens.
const SHARES_FIELD: &str = "shares";

/// A dashboard in its stored form.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredDashboard {
    /// `None`: the dashboard belongs to the node as a whole.
    #[serde(default)]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) cards: Vec<DashboardCard>,
    #[serde(default)]
    pub(crate) shares: Vec<StoredShare>,
}

/// A link to a dashboard in its stored form.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StoredShare {
    #[serde(flatten)]
    pub(crate) share: DashboardShare,
    pub(crate) token_hash: SecretHash,
}

/// A link that shows a dashboard to everyone with its token.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct DashboardShare {
    pub(crate) id: String,
    pub(crate) description: String,
    /// Time from which the token is rejected, in milliseconds since 1970; `null`: never.
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) created_at_ms: u64,
    /// Who created it.
    pub(crate) created_by: String,
}

/// A card of a dashboard.
// Requests and responses share the schema, so that it names only what requests must have.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["id", "kind", "x", "y", "w", "h"]))]
pub(crate) struct DashboardCard {
    /// Id within the dashboard: letters, digits, `-` and `_`.
    #[schemars(length(min = 1, max = 64))]
    pub(crate) id: String,
    pub(crate) kind: CardKind,
    #[serde(default)]
    #[schemars(length(max = 200))]
    pub(crate) title: String,
    /// Left column; the grid has 24.
    #[schemars(range(max = 23))]
    pub(crate) x: u32,
    /// Top row.
    #[schemars(range(max = 999))]
    pub(crate) y: u32,
    /// Width in columns.
    #[schemars(range(min = 1, max = 24))]
    pub(crate) w: u32,
    /// Height in rows.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) h: u32,
    /// The data that the card reads. A share link permits nothing else.
    #[serde(default)]
    #[schemars(length(max = 20))]
    pub(crate) sources: Vec<CardSource>,
    /// Display options of the console, such as units, colours and thresholds; at most 16 KiB of JSON. The node does not
    /// interpret them.
    #[serde(default)]
    pub(crate) config: Map<String, Value>,
}

/// How a card is displayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CardKind {
    Statistic,
    Gauge,
    Chart,
    Status,
    Table,
    Map,
    Text,
    /// A switch, slider, number or button that sends a command. Disabled in shared views.
    Control,
    /// Live messages of a topic filter.
    LiveMessages,
}

/// Data that a card reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum CardSource {
    /// Telemetry of a device, or of the devices of a group.
    Telemetry {
        /// Device id; alternatively a `device_group`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_group: Option<String>,
        #[schemars(length(min = 1, max = 50))]
        keys: Vec<String>,
    },
    /// Attributes of a device, or of the devices of a group.
    Attributes {
        /// Device id; alternatively a `device_group`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_group: Option<String>,
        scope: AttributeScope,
        #[schemars(length(min = 1, max = 50))]
        keys: Vec<String>,
    },
    /// Names and states of a device, or of the devices of a group.
    Devices {
        /// Device id; alternatively a `device_group`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_group: Option<String>,
    },
    /// The newest alarms that are not cleared.
    Alarms {
        /// Only those of this device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// Only those of this product.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        product: Option<String>,
    },
    /// The last message on published topics, with its rate. Only on dashboards of the node as a whole.
    Topics {
        /// Topics without wildcards.
        #[schemars(length(min = 1, max = 50))]
        topics: Vec<String>,
    },
    /// Metrics of the node. Only on dashboards of the node as a whole.
    Node {
        /// Names as in `GET /api/v1/node/metrics`.
        #[schemars(length(min = 1, max = 50))]
        metrics: Vec<String>,
    },
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DashboardInput {
    /// Namespace that owns the dashboard, and whose devices its cards may read; `null`: the node as a whole, with all devices.
    /// Cannot change.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    namespace: Option<String>,
    #[serde(default)]
    #[schemars(length(max = 200))]
    name: String,
    #[serde(default)]
    #[schemars(length(max = 1000))]
    description: String,
    /// At most 256 KiB of JSON.
    #[serde(default)]
    #[schemars(length(max = 100))]
    cards: Vec<DashboardCard>,
    /// Accepted and ignored, so that the response of a GET can be sent back.
    #[serde(default, rename = "shares")]
    _shares: Option<Value>,
}

#[derive(Serialize, JsonSchema)]
struct DashboardView<'a> {
    namespace: Option<&'a str>,
    name: &'a str,
    description: &'a str,
    cards: &'a [DashboardCard],
    /// Links that show the dashboard to people without an account; see `POST /api/v1/dashboards/{id}/shares`.
    shares: &'a [DashboardShare],
}

fn invalid(path: &str, expected: String) -> ProblemDetails {
    ProblemDetails::invalid_field(path, format!("{path}: expected {expected}."))
}

fn check_range(path: String, value: u32, min: u32, max: u32) -> Result<(), ProblemDetails> {
    match (min..=max).contains(&value) {
        true => Ok(()),
        false => Err(invalid(&path, format!("{min} to {max}, not {value}"))),
    }
}

impl DashboardCard {
    fn check(&self, at: usize) -> Result<(), ProblemDetails> {
        let path = |field: &str| format!("cards[{at}].{field}");
        let is_id = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=MAX_ID_CHARS).contains(&self.id.len()) || !self.id.bytes().all(is_id) {
            let expected = format!("1 to {MAX_ID_CHARS} letters, digits, - or _");
            return Err(invalid(&path("id"), expected));
        }
        if self.title.chars().count() > MAX_NAME_CHARS {
            let expected = format!("at most {MAX_NAME_CHARS} characters");
            return Err(invalid(&path("title"), expected));
        }
        check_range(path("x"), self.x, 0, COLUMNS - 1)?;
        check_range(path("y"), self.y, 0, MAX_ROWS - 1)?;
        let most = COLUMNS - self.x;
        if !(1..=most).contains(&self.w) {
            let expected = format!(
                "1 to {most}, because x + w is at most {COLUMNS} and x is {}; not {}",
                self.x, self.w
            );
            return Err(invalid(&path("w"), expected));
        }
        check_range(path("h"), self.h, 1, MAX_CARD_ROWS)?;
        if self.sources.len() > MAX_SOURCES {
            let expected = format!("at most {MAX_SOURCES} sources");
            return Err(invalid(&path("sources"), expected));
        }
        for (number, source) in self.sources.iter().enumerate() {
            source.check(&path(&format!("sources[{number}]")))?;
        }
        if Value::Object(self.config.clone()).to_string().len() > MAX_CONFIG_BYTES {
            let expected = format!("at most {MAX_CONFIG_BYTES} bytes of JSON");
            return Err(invalid(&path("config"), expected));
        }
        Ok(())
    }
}

impl CardSource {
    fn check(&self, path: &str) -> Result<(), ProblemDetails> {
        let check_name = |field: &str, name: &Option<String>| match name {
            Some(name) if !(1..=MAX_REFERENCE_BYTES).contains(&name.len()) => Err(invalid(
                &format!("{path}.{field}"),
                format!("1 to {MAX_REFERENCE_BYTES} bytes"),
            )),
            _ => Ok(()),
        };
        let check_either = |device: &Option<String>, group: &Option<String>| {
            check_name("device", device)?;
            check_name("device_group", group)?;
            match device.is_some() ^ group.is_some() {
                true => Ok(()),
                false => Err(invalid(
                    &format!("{path}.device"),
                    "either device or device_group".to_owned(),
                )),
            }
        };
        match self {
            Self::Telemetry {
                device,
                device_group,
                keys,
            }
            | Self::Attributes {
                device,
                device_group,
                keys,
                ..
            } => {
                check_either(device, device_group)?;
                let is_key = |key: &String| (1..=MAX_REFERENCE_BYTES).contains(&key.len());
                if !(1..=MAX_KEYS).contains(&keys.len()) || !keys.iter().all(is_key) {
                    let expected =
                        format!("1 to {MAX_KEYS} keys of 1 to {MAX_REFERENCE_BYTES} bytes");
                    return Err(invalid(&format!("{path}.keys"), expected));
                }
                Ok(())
            }
            Self::Devices {
                device,
                device_group,
            } => check_either(device, device_group),
            Self::Alarms { device, product } => {
                check_name("device", device)?;
                check_name("product", product)
            }
            Self::Topics { topics } => {
                let is_topic = |topic: &String| {
                    (1..=MAX_TOPIC_BYTES).contains(&topic.len())
                        && !topic.contains(['+', '#', '\0'])
                };
                if !(1..=MAX_KEYS).contains(&topics.len()) || !topics.iter().all(is_topic) {
                    let expected = format!(
                        "1 to {MAX_KEYS} topics of 1 to {MAX_TOPIC_BYTES} bytes without wildcards"
                    );
                    return Err(invalid(&format!("{path}.topics"), expected));
                }
                Ok(())
            }
            Self::Node { metrics } => {
                let is_name = |name: &String| (1..=MAX_REFERENCE_BYTES).contains(&name.len());
                if !(1..=MAX_KEYS).contains(&metrics.len()) || !metrics.iter().all(is_name) {
                    let expected =
                        format!("1 to {MAX_KEYS} names of 1 to {MAX_REFERENCE_BYTES} bytes");
                    return Err(invalid(&format!("{path}.metrics"), expected));
                }
                Ok(())
            }
        }
    }

    /// Whether the data belongs to the node as a whole instead of a namespace.
    pub(crate) fn is_of_node(&self) -> bool {
        matches!(self, Self::Topics { .. } | Self::Node { .. })
    }
}

/// Members of a namespace may not see what belongs to the node.
fn check_owner(namespace: Option<&str>, cards: &[DashboardCard]) -> Result<(), ProblemDetails> {
    let Some(namespace) = namespace else {
        return Ok(());
    };
    let sources = cards.iter().enumerate().flat_map(|(at, card)| {
        let numbered = card.sources.iter().enumerate();
        numbered.map(move |(number, source)| (at, number, source))
    });
    for (at, number, source) in sources {
        if source.is_of_node() {
            let expected = format!(
                "telemetry, devices or alarms, because the dashboard belongs to the namespace {namespace:?}; topics and \
                 metrics of the node are only for dashboards without a namespace"
            );
            return Err(invalid(
                &format!("cards[{at}].sources[{number}].type"),
                expected,
            ));
        }
    }
    Ok(())
}

fn check_cards(cards: &[DashboardCard]) -> Result<(), ProblemDetails> {
    if cards.len() > MAX_CARDS {
        let expected = format!("at most {MAX_CARDS} cards, not {}", cards.len());
        return Err(invalid("cards", expected));
    }
    let mut ids = HashSet::new();
    for (at, card) in cards.iter().enumerate() {
        card.check(at)?;
        if !ids.insert(card.id.as_str()) {
            let path = format!("cards[{at}].id");
            return Err(invalid(
                &path,
                format!("an id that no other card has, not {:?}", card.id),
            ));
        }
    }
    let bytes = serde_json::to_string(cards).map_or(0, |json| json.len());
    match bytes <= MAX_CARDS_BYTES {
        true => Ok(()),
        false => Err(invalid(
            "cards",
            format!("at most {MAX_CARDS_BYTES} bytes of JSON, not {bytes}"),
        )),
    }
}

pub(crate) struct Dashboards;

const NAMES: ObjectKindNames = ObjectKindNames {
    kind: DASHBOARD_KIND,
    path: "dashboards",
    singular: "a dashboard",
    plural: "dashboards",
    type_name: "Dashboard",
    id_field: "id",
    tag: "dashboards",
    owner: ObjectOwner::NamespaceOrNode(&[QuotaCount::objects(namespaces::Quota::Dashboards)]),
    node_fields: &[],
    read: Role::Viewer,
    write: Role::Operator,
    id_prefix: Some("dash-"),
    description: "Cards on a grid of 24 columns, each with the data that it reads. Send If-Match with a change, so that changes of \
                  two people do not overwrite each other.",
};

impl ObjectKind for Dashboards {
    fn names(&self) -> &ObjectKindNames {
        &NAMES
    }

    fn schemas(&self, generator: &mut SchemaGenerator) -> (Value, Value) {
        credential_holder::schemas::<DashboardInput, DashboardView<'_>>(generator)
    }

    fn prepare<'a>(
        &'a self,
        _app: &'a ApiState,
        _id: &'a str,
        input: Value,
        current: Option<&'a Value>,
    ) -> PrepareFuture<'a> {
        Box::pin(async move {
            let input: DashboardInput = parse(input)?;
            if input.name.chars().count() > MAX_NAME_CHARS {
                let expected = format!("at most {MAX_NAME_CHARS} characters");
                return Err(invalid("name", expected));
            }
            check_description(&input.description)?;
            check_cards(&input.cards)?;
            check_owner(input.namespace.as_deref(), &input.cards)?;
            let stored = StoredDashboard {
                namespace: input.namespace,
                name: input.name,
                description: input.description,
                cards: input.cards,
                shares: credential_holder::existing_field(current, SHARES_FIELD)
                    .unwrap_or_default(),
            };
            Ok(credential_holder::to_stored_value(stored).into())
        })
    }

    fn public_view(&self, _app: &ApiState, stored: &Value) -> Value {
        let mut shown = stored.clone();
        for share in shown[SHARES_FIELD].as_array_mut().into_iter().flatten() {
            *share = credential_holder::without_field(share, "token_hash");
        }
        shown
    }

    fn check_change(
        &self,
        objects: &Objects,
        id: &str,
        next: Option<&Value>,
    ) -> Result<(), ProblemDetails> {
        credential_holder::check_capacity(id, next, &NAMES, MAX_DASHBOARDS, objects)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn card(change: Value) -> Result<DashboardCard, ProblemDetails> {
        let mut card = json!({"id": "a", "kind": "chart", "x": 0, "y": 0, "w": 6, "h": 4});
        for (name, value) in change.as_object().into_iter().flatten() {
            card[name] = value.clone();
        }
        let card: DashboardCard = parse(card)?;
        check_cards(std::slice::from_ref(&card)).map(|()| card)
    }

    #[test]
    fn a_card_is_within_its_limits() {
        let telemetry = json!({"type": "telemetry", "device": "d", "keys": ["t"]});
        assert!(card(json!({"sources": [telemetry], "config": {"unit": "K"}})).is_ok());
        assert!(card(json!({"x": 18, "w": 6})).is_ok());
        for (field, change) in [
            ("cards[0].id", json!({"id": ""})),
            ("cards[0].id", json!({"id": "a b"})),
            ("cards[0].title", json!({"title": "x".repeat(201)})),
            ("cards[0].x", json!({"x": 24})),
            ("cards[0].y", json!({"y": 1000})),
            ("cards[0].w", json!({"x": 18, "w": 7})),
            ("cards[0].h", json!({"h": 0})),
            (
                "cards[0].config",
                json!({"config": {"t": "x".repeat(17_000)}}),
            ),
            (
                "cards[0].sources",
                json!({"sources": vec![json!({"type": "alarms"}); 21]}),
            ),
            (
                "cards[0].sources[0].device",
                json!({"sources": [{"type": "telemetry", "keys": ["t"]}]}),
            ),
            (
                "cards[0].sources[0].device",
                json!({"sources": [{"type": "devices", "device": "d", "device_group": "g"}]}),
            ),
            (
                "cards[0].sources[0].keys",
                json!({"sources": [{"type": "telemetry", "device": "d", "keys": []}]}),
            ),
            (
                "sources[0]",
                json!({"sources": [{"type": "telemetry", "devices": []}]}),
            ),
            (
                "cards[0].sources[0].topics",
                json!({"sources": [{"type": "topics", "topics": ["plant/#"]}]}),
            ),
            (
                "cards[0].sources[0].metrics",
                json!({"sources": [{"type": "node", "metrics": []}]}),
            ),
            ("kind", json!({"kind": "pie"})),
        ] {
            let problem = card(change.clone()).expect_err(field);
            assert_eq!(problem.parameter.as_deref(), Some(field), "{change}");
        }
    }

    #[test]
    fn only_dashboards_of_the_node_show_its_topics_and_metrics() {
        for source in [
            json!({"type": "topics", "topics": ["plant/1"]}),
            json!({"type": "node", "metrics": ["connections"]}),
        ] {
            let card = card(json!({"sources": [{"type": "alarms"}, source]})).expect("valid");
            let cards = [card];
            assert!(check_owner(None, &cards).is_ok());
            let problem = check_owner(Some("acme"), &cards).expect_err("of a namespace");
            assert_eq!(
                problem.parameter.as_deref(),
                Some("cards[0].sources[1].type")
            );
        }
    }

    #[test]
    fn two_cards_have_two_ids() {
        let one = card(json!({})).expect("valid");
        let problem = check_cards(&[one.clone(), one]).expect_err("the same id");
        assert_eq!(problem.parameter.as_deref(), Some("cards[1].id"));
    }
}
