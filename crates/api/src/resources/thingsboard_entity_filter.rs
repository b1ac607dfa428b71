//! Filters over devices in ThingsBoard's form, as for `ENTITY_DATA` and `ENTITY_COUNT`: reads the
//! devices that a filter selects.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::devices;
use super::thingsboard_devices::{EntityId, device_name};
use crate::device_service::{DeviceQuery, DeviceService, DeviceServiceError};
use crate::problem_details::ProblemDetails;
use crate::state::ApiState;

/// Maximum number of devices that a filter selects, because all of them are sorted.
pub(super) const MAX_SELECTED: usize = 100_000;
/// Maximum number of ids in a filter.
const MAX_LISTED: usize = 1024;
/// Number of devices that are read at once; other work gets the thread in between.
pub(super) const BATCH: usize = 500;

/// `entityFilter` of a query.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub(super) enum EntityFilter {
    SingleEntity {
        single_entity: EntityId,
    },
    EntityList {
        entity_type: String,
        entity_list: Vec<String>,
    },
    EntityName {
        entity_type: String,
        entity_name_filter: String,
    },
    EntityType {
        entity_type: String,
    },
    DeviceType {
        /// Of versions before 3.5.
        device_type: Option<String>,
        #[serde(default)]
        device_types: Option<Vec<String>>,
        device_name_filter: Option<String>,
    },
}

/// A filter without a page, as for `ENTITY_COUNT`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CountQueryFields {
    entity_filter: EntityFilter,
    key_filters: Option<Vec<Value>>,
}

/// What a query shows of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceEntity {
    pub(super) id: String,
    name: String,
    product: String,
    pub(super) created_ms: u64,
}

/// Parses a part of a command; `name` is the field of the command.
pub(super) fn parse_part<T: for<'de> Deserialize<'de>>(
    name: &str,
    part: &Value,
) -> Result<T, String> {
    T::deserialize(part).map_err(|error| format!("{name}: {error}."))
}

/// Parses the filter of a query.
pub(super) fn read_filter(query: &Value) -> Result<EntityFilter, String> {
    let fields: CountQueryFields = parse_part("query", query)?;
    if fields
        .key_filters
        .is_some_and(|filters| !filters.is_empty())
    {
        return Err(
            "query.keyFilters: not supported; expected none. Select devices by entityFilter."
                .to_owned(),
        );
    }
    fields.entity_filter.check()?;
    Ok(fields.entity_filter)
}

impl EntityFilter {
    fn check(&self) -> Result<(), String> {
        let kind = match self {
            Self::SingleEntity { single_entity } => &single_entity.entity_type,
            Self::EntityList { entity_type, .. }
            | Self::EntityName { entity_type, .. }
            | Self::EntityType { entity_type } => entity_type,
            Self::DeviceType { .. } => "DEVICE",
        };
        if kind != "DEVICE" {
            return Err(format!(
                "query.entityFilter: the entityType {kind:?} is not supported; expected DEVICE."
            ));
        }
        if let Self::EntityList { entity_list, .. } = self
            && entity_list.len() > MAX_LISTED
        {
            return Err(format!(
                "query.entityFilter.entityList: {} devices; expected at most {MAX_LISTED}.",
                entity_list.len()
            ));
        }
        if let Some(types) = self.device_types()
            && types.is_empty()
        {
            return Err(
                "query.entityFilter.deviceTypes: expected at least one product id.".to_owned(),
            );
        }
        Ok(())
    }

    /// The products of a `deviceType` filter, each once.
    fn device_types(&self) -> Option<Vec<&str>> {
        let Self::DeviceType {
            device_type,
            device_types,
            ..
        } = self
        else {
            return None;
        };
        let given = device_types.as_deref().filter(|types| !types.is_empty());
        let mut types: Vec<&str> = match given {
            Some(types) => types.iter().map(String::as_str).collect(),
            None => device_type.as_deref().into_iter().collect(),
        };
        types.sort_unstable();
        types.dedup();
        Some(types)
    }

    fn name_pattern(&self) -> Option<NamePattern> {
        let pattern = match self {
            Self::EntityName {
                entity_name_filter, ..
            } => Some(entity_name_filter),
            Self::DeviceType {
                device_name_filter, ..
            } => device_name_filter.as_ref(),
            _ => None,
        };
        pattern
            .filter(|text| !text.is_empty())
            .map(|text| NamePattern::new(text))
    }

    pub(super) fn scan(&self, text: Option<&str>) -> DeviceScan {
        let query = |product: Option<&str>| DeviceQuery {
            product: product.map(str::to_owned),
            text: text.map(str::to_owned),
            limit: BATCH,
            ..DeviceQuery::default()
        };
        let (ids, queries) = match self {
            Self::SingleEntity { single_entity } => (vec![single_entity.id.clone()], Vec::new()),
            Self::EntityList { entity_list, .. } => {
                let mut ids = entity_list.clone();
                ids.sort_unstable();
                ids.dedup();
                (ids, Vec::new())
            }
            Self::EntityName { .. } | Self::EntityType { .. } => (Vec::new(), vec![query(None)]),
            Self::DeviceType { .. } => {
                let products = self.device_types().unwrap_or_default().into_iter();
                let queries = products.map(|product| query(Some(product)));
                (Vec::new(), queries.collect())
            }
        };
        DeviceScan {
            ids,
            queries,
            text: text.map(str::to_lowercase),
            name: self.name_pattern(),
        }
    }

    /// The number of devices that the filter selects.
    pub(super) async fn count(&self, app: &Arc<ApiState>) -> Result<u64, ProblemDetails> {
        if self.name_pattern().is_none() {
            // Counters of the registry; nothing is read.
            let types = self.device_types();
            let types = types.map(|types| types.into_iter().map(str::to_owned).collect::<Vec<_>>());
            if types.is_some() || matches!(self, Self::EntityType { .. }) {
                let counts = devices::run_blocking(app, |tools| tools.counts()).await?;
                let count_of = |id: &String| counts.products.get(id).copied().unwrap_or(0);
                return Ok(match types {
                    Some(types) => types.iter().map(count_of).sum(),
                    None => counts.devices.into(),
                });
            }
        }
        let mut scan = self.scan(None);
        let mut count = 0;
        while let Some(batch) = scan.next_batch(app).await? {
            count += batch.len();
            check_selected(count, MAX_SELECTED)?;
        }
        Ok(count as u64)
    }
}

pub(super) fn check_selected(count: usize, limit: usize) -> Result<(), ProblemDetails> {
    match count <= limit {
        true => Ok(()),
        false => Err(ProblemDetails::bad_request(format!(
            "query.entityFilter: more than {limit} devices are selected; narrow it by type, name or textSearch, or sort by an entity field."
        ))),
    }
}

/// A pattern of `entityNameFilter`: a prefix, or with `%` at its ends a suffix or a part. Case is
/// ignored.
#[derive(Debug, Clone)]
struct NamePattern {
    text: String,
    is_open_at_start: bool,
    is_open_at_end: bool,
}

impl NamePattern {
    fn new(pattern: &str) -> Self {
        let at_start = pattern.strip_prefix('%');
        let rest = at_start.unwrap_or(pattern);
        let at_end = rest.strip_suffix('%');
        Self {
            text: at_end.unwrap_or(rest).to_lowercase(),
            is_open_at_start: at_start.is_some(),
            is_open_at_end: at_end.is_some() || at_start.is_none(),
        }
    }

    fn matches(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        match (self.is_open_at_start, self.is_open_at_end) {
            (true, true) => name.contains(&self.text),
            (true, false) => name.ends_with(&self.text),
            (false, true) => name.starts_with(&self.text),
            (false, false) => name == self.text,
        }
    }
}

/// Reads the devices of a filter, one batch after another.
pub(super) struct DeviceScan {
    ids: Vec<String>,
    /// The last one is read first.
    queries: Vec<DeviceQuery>,
    /// Lowercase part of the id or name.
    text: Option<String>,
    name: Option<NamePattern>,
}

impl DeviceScan {
    /// The next devices, possibly none; `None`: all have been read.
    pub(super) async fn next_batch(
        &mut self,
        app: &Arc<ApiState>,
    ) -> Result<Option<Vec<DeviceEntity>>, ProblemDetails> {
        let mut batch = if !self.ids.is_empty() {
            let ids = self.ids.split_off(self.ids.len().saturating_sub(BATCH));
            let mut entities =
                devices::run_blocking(app, move |tools| read_entities(tools, &ids)).await?;
            if let Some(text) = &self.text {
                let is_in = |whole: &str| whole.to_lowercase().contains(text);
                entities.retain(|entity| is_in(&entity.id) || is_in(&entity.name));
            }
            entities
        } else if let Some(mut query) = self.queries.pop() {
            let page_query = query.clone();
            let page = devices::run_blocking(app, move |tools| tools.list(&page_query)).await?;
            if let Some(next) = page.next {
                query.from = next;
                self.queries.push(query);
            }
            page.rows.iter().map(to_entity).collect()
        } else {
            return Ok(None);
        };
        if let Some(name) = &self.name {
            batch.retain(|entity| name.matches(&entity.name));
        }
        Ok(Some(batch))
    }
}

fn read_entities(
    tools: &DeviceService,
    ids: &[String],
) -> Result<Vec<DeviceEntity>, DeviceServiceError> {
    let mut entities = Vec::new();
    for id in ids {
        let device = tools.get(id)?;
        entities.extend(device.map(|device| to_entity(&device.value)));
    }
    Ok(entities)
}

fn to_entity(device: &Value) -> DeviceEntity {
    let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
    DeviceEntity {
        id: text("id"),
        name: device_name(device).to_owned(),
        product: text("product"),
        created_ms: device["created_at_ms"].as_u64().unwrap_or_default(),
    }
}

impl DeviceEntity {
    /// A field of the device; empty if ThingsBoard has it and this node does not.
    pub(super) fn field(&self, key: &str) -> String {
        match key {
            "name" | "label" | "title" | "displayName" => self.name.clone(),
            "type" => self.product.clone(),
            "createdTime" => self.created_ms.to_string(),
            "entityType" => "DEVICE".to_owned(),
            "id" => self.id.clone(),
            _ => String::new(),
        }
    }

    pub(super) fn entity_id(&self) -> Value {
        json!({"entityType": "DEVICE", "id": self.id})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_pattern_is_a_prefix_unless_it_has_percent_signs() {
        for (pattern, matching, other) in [
            ("pump", "Pump 7", "old pump"),
            ("pump%", "PUMP", "old pump"),
            ("%pump", "old Pump", "pump 7"),
            ("%pump%", "old pump 7", "pum"),
            ("50%_", "50%_x", "50xx"),
        ] {
            let pattern = NamePattern::new(pattern);
            assert!(pattern.matches(matching), "{pattern:?} {matching}");
            assert!(!pattern.matches(other), "{pattern:?} {other}");
        }
    }
}
