//! Queries over devices in ThingsBoard's form: the devices of a filter, sorted and in pages.

use std::cmp::Ordering;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use wall_clock::now_ms;

use super::thingsboard_entity_filter::{
    BATCH, DeviceEntity, EntityFilter, MAX_SELECTED, check_selected, parse_part, read_filter,
};
use super::thingsboard_history::MAX_KEYS;
use super::thingsboard_latest_values::{EntityKey, KeyType, read_latest};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Maximum number of devices per page, which is the page of ThingsBoard's widgets.
const MAX_PAGE_SIZE: usize = 1024;
/// Maximum number of devices that are sorted by a value that is read for each of them.
const MAX_SELECTED_BY_VALUE: usize = 10_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum SortDirection {
    #[default]
    Asc,
    Desc,
}

#[derive(Debug, Clone, Deserialize)]
struct SortOrder {
    key: EntityKey,
    #[serde(default)]
    direction: SortDirection,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageLink {
    page_size: usize,
    #[serde(default)]
    page: usize,
    text_search: Option<String>,
    sort_order: Option<SortOrder>,
    #[serde(default)]
    dynamic: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataQueryFields {
    page_link: PageLink,
    entity_fields: Option<Vec<EntityKey>>,
    latest_values: Option<Vec<EntityKey>>,
}

/// The query of an `ENTITY_DATA` command.
#[derive(Debug, Clone)]
pub(super) struct EntityDataQuery {
    filter: EntityFilter,
    link: PageLink,
    fields: Vec<EntityKey>,
    pub(super) latest_values: Vec<EntityKey>,
}

/// A page of devices.
#[derive(Debug, Default)]
pub(super) struct EntityPage {
    pub(super) entities: Vec<DeviceEntity>,
    total: usize,
    page_size: usize,
    has_next: bool,
}

pub(super) fn check_key_count(name: &str, count: usize) -> Result<(), String> {
    match count <= MAX_KEYS {
        true => Ok(()),
        false => Err(format!(
            "{name}: {count} keys; expected at most {MAX_KEYS}."
        )),
    }
}

/// The position of a device in the order of a page.
#[derive(Debug, Clone, PartialEq)]
enum SortValue {
    Missing,
    Number(f64),
    Text(String),
}

impl SortValue {
    fn compare(&self, other: &Self) -> Ordering {
        let kind = |value: &Self| match value {
            Self::Missing => 0,
            Self::Number(_) => 1,
            Self::Text(_) => 2,
        };
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => one.total_cmp(other),
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            _ => kind(self).cmp(&kind(other)),
        }
    }
}

impl EntityDataQuery {
    pub(super) fn read(query: &Value) -> Result<Self, String> {
        let filter = read_filter(query)?;
        let fields: DataQueryFields = parse_part("query", query)?;
        let link = fields.page_link;
        if link.page_size == 0 || link.page_size > MAX_PAGE_SIZE {
            return Err(format!(
                "query.pageLink.pageSize: {}; expected 1 to {MAX_PAGE_SIZE}.",
                link.page_size
            ));
        }
        if link.page > MAX_SELECTED / link.page_size {
            return Err(format!(
                "query.pageLink.page: {}; expected at most {}, because a query selects at most {MAX_SELECTED} devices.",
                link.page,
                MAX_SELECTED / link.page_size
            ));
        }
        let (entity_fields, latest_values) = (
            fields.entity_fields.unwrap_or_default(),
            fields.latest_values.unwrap_or_default(),
        );
        check_key_count("query.entityFields", entity_fields.len())?;
        check_key_count("query.latestValues", latest_values.len())?;
        Ok(Self {
            filter,
            link,
            fields: entity_fields,
            latest_values,
        })
    }

    /// Whether the page is read again from time to time.
    pub(super) fn is_dynamic(&self) -> bool {
        self.link.dynamic
    }

    /// Reads the devices of the page.
    pub(super) async fn read_page(
        &self,
        app: &Arc<ApiState>,
    ) -> Result<EntityPage, ProblemDetails> {
        let text = self.link.text_search.as_deref();
        let mut scan = self.filter.scan(text.filter(|text| !text.is_empty()));
        let limit = match self.value_sort_key() {
            Some(_) => MAX_SELECTED_BY_VALUE,
            None => MAX_SELECTED,
        };
        let first = self.link.page * self.link.page_size;
        let end = first + self.link.page_size;
        let mut found: Vec<(SortValue, DeviceEntity)> = Vec::new();
        let mut total = 0;
        while let Some(batch) = scan.next_batch(app).await? {
            total += batch.len();
            check_selected(total, limit)?;
            found.extend(self.with_sort_values(app, batch).await?);
            // Only the devices up to the end of the page matter.
            if found.len() >= 2 * end + BATCH {
                self.sort(&mut found);
                found.truncate(end);
            }
        }
        self.sort(&mut found);
        let page = found.into_iter().skip(first).take(self.link.page_size);
        Ok(EntityPage {
            entities: page.map(|(_, entity)| entity).collect(),
            total,
            page_size: self.link.page_size,
            has_next: total > end,
        })
    }

    fn value_sort_key(&self) -> Option<&EntityKey> {
        let key = self.link.sort_order.as_ref().map(|order| &order.key);
        key.filter(|key| key.kind != KeyType::EntityField)
    }

    async fn with_sort_values(
        &self,
        app: &Arc<ApiState>,
        batch: Vec<DeviceEntity>,
    ) -> Result<Vec<(SortValue, DeviceEntity)>, ProblemDetails> {
        if let Some(key) = self.value_sort_key() {
            let ids = batch.iter().map(|entity| entity.id.clone()).collect();
            let latest = read_latest(app, ids, vec![key.clone()]).await?;
            let values = latest.into_iter().map(|latest| {
                let value = latest.into_iter().next().map(|latest| latest.value);
                match value {
                    Some(Value::String(text)) => match text.parse() {
                        Ok(number) => SortValue::Number(number),
                        Err(_) => SortValue::Text(text.to_lowercase()),
                    },
                    _ => SortValue::Missing,
                }
            });
            return Ok(values.zip(batch).collect());
        }
        let field = self
            .link
            .sort_order
            .as_ref()
            .map(|order| order.key.key.as_str());
        let value = |entity: &DeviceEntity| match field {
            None | Some("createdTime") => SortValue::Number(entity.created_ms as f64),
            Some(field) => SortValue::Text(entity.field(field).to_lowercase()),
        };
        let batch = batch.into_iter();
        Ok(batch.map(|entity| (value(&entity), entity)).collect())
    }

    fn sort(&self, found: &mut [(SortValue, DeviceEntity)]) {
        let order = self.link.sort_order.as_ref();
        let is_descending = order.is_some_and(|order| order.direction == SortDirection::Desc);
        found.sort_by(|(one_value, one), (other_value, other)| {
            let values = one_value.compare(other_value);
            let ascending = values.then_with(|| one.id.cmp(&other.id));
            match is_descending {
                true => ascending.reverse(),
                false => ascending,
            }
        });
    }

    /// The requested fields of a device, by key.
    pub(super) fn field_values(&self, entity: &DeviceEntity) -> Option<Value> {
        let ts_ms = now_ms();
        let fields = self
            .fields
            .iter()
            .filter(|field| field.kind == KeyType::EntityField);
        let values = fields.map(|field| {
            let value = json!({"ts": ts_ms, "value": entity.field(&field.key)});
            (field.key.clone(), value)
        });
        let values: Map<_, _> = values.collect();
        (!values.is_empty()).then_some(Value::Object(values))
    }
}

impl EntityPage {
    pub(super) fn to_json(&self, rows: Vec<Value>) -> Value {
        json!({"data": rows, "totalPages": self.total.div_ceil(self.page_size),
            "totalElements": self.total, "hasNext": self.has_next})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(more: Value) -> Value {
        let mut query = json!({"entityFilter": {"type": "entityType", "entityType": "DEVICE"},
            "pageLink": {"pageSize": 10, "page": 0}});
        for (key, value) in more.as_object().unwrap() {
            query[key] = value.clone();
        }
        query
    }

    #[test]
    fn invalid_queries_name_the_field_and_what_is_expected() {
        let many: Vec<_> = (0..=MAX_PAGE_SIZE).map(|id| id.to_string()).collect();
        for (wrong, expected) in [
            (
                json!({"pageLink": {"pageSize": 0}}),
                "pageSize: 0; expected 1 to 1024",
            ),
            (json!({"pageLink": {"pageSize": 5000}}), "pageSize: 5000"),
            (
                json!({"pageLink": {"pageSize": 1000, "page": 101}}),
                "page: 101; expected at most 100",
            ),
            (json!({"keyFilters": [{}]}), "keyFilters: not supported"),
            (
                json!({"entityFilter": {"type": "assetType"}}),
                "`singleEntity`",
            ),
            (
                json!({"entityFilter": {"type": "entityType", "entityType": "ASSET"}}),
                "\"ASSET\" is not supported; expected DEVICE",
            ),
            (
                json!({"entityFilter": {"type": "entityList", "entityType": "DEVICE", "entityList": many}}),
                "entityList: 1025 devices; expected at most 1024",
            ),
            (
                json!({"entityFilter": {"type": "deviceType"}}),
                "deviceTypes: expected at least one",
            ),
            (
                json!({"latestValues": vec![json!({"type": "TIME_SERIES", "key": "t"}); 257]}),
                "latestValues: 257 keys; expected at most 256",
            ),
            (
                json!({"latestValues": [{"type": "X", "key": "t"}]}),
                "`TIME_SERIES`",
            ),
        ] {
            let error = EntityDataQuery::read(&query(wrong.clone())).unwrap_err();
            assert!(
                error.starts_with("query") && error.contains(expected),
                "{wrong}: {error}"
            );
        }
        assert!(EntityDataQuery::read(&query(json!({"keyFilters": null}))).is_ok());
    }

    #[test]
    fn numbers_sort_before_text_and_missing_values_before_both() {
        let text = |text: &str| SortValue::Text(text.to_owned());
        let mut values = vec![
            text("b"),
            SortValue::Number(10.0),
            text("a"),
            SortValue::Missing,
        ];
        values.insert(1, SortValue::Number(9.0));
        values.sort_by(SortValue::compare);
        let (nine, ten) = (SortValue::Number(9.0), SortValue::Number(10.0));
        assert_eq!(
            values,
            [SortValue::Missing, nine, ten, text("a"), text("b")]
        );
    }
}
