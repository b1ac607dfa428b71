//! Endpoints and their statistics in the store of the node.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use store::{Durability, Objects, StoreError, Table, Tables};

use crate::definition::{EndpointDefinition, KIND};
use crate::service::RelayService;
use crate::statistics::StatisticsRecord;

/// Table of the statistics, by endpoint id.
const STATISTICS_TABLE: &str = "endpoint_statistics";
/// Statistics written at once.
const STATISTICS_BATCH: usize = 1000;

/// The statistics of endpoints, as stored.
#[derive(Clone)]
pub struct StoredStatistics {
    tables: Tables,
    table: Table,
}

impl StoredStatistics {
    fn open(objects: &Objects) -> Result<Self, StoreError> {
        let tables = objects.tables().clone();
        let table = tables.table(STATISTICS_TABLE);
        Ok(Self { tables, table })
    }

    fn read(&self, id: &str) -> Result<StatisticsRecord, StoreError> {
        let stored = self.table.get(id.as_bytes())?;
        // An unreadable record only loses totals.
        let record = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(record.unwrap_or_default())
    }

    /// Writes the statistics that have changed, and removes those of removed endpoints.
    ///
    /// # Errors
    /// Fails if the store cannot be written; the next call writes them again.
    pub fn write_changed(&self, service: &RelayService) -> Result<(), StoreError> {
        // Before they are read, so that no later change is missed.
        service.reset_change_count();
        loop {
            let removed = service.take_removed();
            let changed = service.changed_statistics(STATISTICS_BATCH);
            if removed.is_empty() && changed.is_empty() {
                return Ok(());
            }
            let written = self.write(&removed, &changed);
            if let Err(error) = written {
                service.retry_statistics(removed, changed.iter().map(|(id, _)| id.as_str()));
                return Err(error);
            }
            if changed.len() < STATISTICS_BATCH {
                return Ok(());
            }
        }
    }

    fn write(
        &self,
        removed: &[String],
        changed: &[(String, StatisticsRecord)],
    ) -> Result<(), StoreError> {
        let mut batch = self.tables.batch()?;
        for id in removed {
            batch.remove(&self.table, id.as_bytes())?;
        }
        for (id, record) in changed {
            // Only numbers: serialising cannot fail.
            let bytes = serde_json::to_vec(record).unwrap_or_default();
            batch.put(&self.table, id.as_bytes(), &bytes)?;
        }
        batch.commit(Durability::Buffered)
    }
}

/// Reads the stored endpoints and follows their changes. Declared ones take precedence and do not change.
///
/// # Errors
/// Fails if the store cannot be read.
pub fn open_endpoints(
    service: &RelayService,
    objects: &Objects,
    declared: &[(String, Value)],
) -> Result<StoredStatistics, StoreError> {
    let statistics = StoredStatistics::open(objects)?;
    let ids: Arc<HashSet<String>> = Arc::new(declared.iter().map(|(id, _)| id.clone()).collect());
    let mut found = declared.to_vec();
    objects.for_each(KIND, |object| {
        if !ids.contains(&object.id) {
            found.push((object.id, object.value));
        }
    })?;
    let mut endpoints = Vec::with_capacity(found.len());
    for (id, value) in found {
        if let Some(definition) = read_stored(&id, value) {
            let record = statistics.read(&id)?;
            endpoints.push((id, definition, record));
        }
    }
    service.add_all(endpoints);
    let (service, stored, kept) = (service.clone(), objects.downgrade(), statistics.clone());
    objects.observe_changes(Box::new(move |change| {
        if change.kind != KIND || ids.contains(&change.id) {
            return;
        }
        let Some(objects) = stored.upgrade() else {
            return;
        };
        let applied = objects
            .get(KIND, &change.id)
            .and_then(|object| apply(&service, &kept, &change.id, object.map(|it| it.value)));
        if let Err(error) = applied {
            tracing::error!(endpoint = change.id, %error, "reading a changed endpoint failed; the previous version remains in use");
        }
    }));
    Ok(statistics)
}

fn apply(
    service: &RelayService,
    statistics: &StoredStatistics,
    id: &str,
    value: Option<Value>,
) -> Result<(), StoreError> {
    let Some(value) = value else {
        service.remove(id);
        return Ok(());
    };
    match read_stored(id, value) {
        Some(definition) => service.set(id, definition, || statistics.read(id)),
        None => Ok(()),
    }
}

/// `None`, and an entry in the log, if the definition is invalid.
fn read_stored(id: &str, value: Value) -> Option<EndpointDefinition> {
    let definition = EndpointDefinition::read_stored(value);
    definition
        .inspect_err(|error| {
            tracing::error!(endpoint = id, %error, "stored endpoint is invalid; ignored");
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use store::{ExpectedVersion, Store, StoreConfig};

    use super::*;

    #[test]
    fn a_start_reads_declared_and_stored_endpoints_with_their_statistics() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(directory.path(), StoreConfig::default()).unwrap();
        let put = |id: &str, value: Value| {
            (store.objects())
                .put(KIND, id, value, ExpectedVersion::Any)
                .unwrap();
        };
        put("stored", json!({"name": "stored"}));
        put("both", json!({"name": "stored"}));
        put("invalid", json!({"mode": 7}));
        let declared = ["both", "declared"].map(|id| (id.to_owned(), json!({"name": "declared"})));
        let open = || {
            let service = RelayService::new();
            let statistics = open_endpoints(&service, store.objects(), &declared).unwrap();
            (service, statistics)
        };
        let (service, statistics) = open();
        let ids: Vec<_> = service.all_statuses().into_iter().map(|it| it.id).collect();
        assert_eq!(ids, ["both", "declared", "stored"]);
        for (id, messages) in [("both", 2), ("stored", 3)] {
            let topic = format!("$relay/{id}");
            let message = hooks::MessageView::from_client("c", &topic, b"x", 1);
            for _ in 0..messages {
                hooks::relay::RelayService::published(&service, id, &message);
            }
        }
        statistics.write_changed(&service).unwrap();
        drop(service);
        let (restored, _) = open();
        let messages = |id| restored.status(id).unwrap().statistics.total_messages;
        assert_eq!(
            (messages("both"), messages("declared"), messages("stored")),
            (2, 0, 3)
        );
        // Changes are followed from then on; those of declared ones are not.
        put("stored", json!({"disabled_reason": "closed"}));
        put("both", json!({"disabled_reason": "closed"}));
        put("new", json!({}));
        let is_enabled = |id| restored.status(id).map(|status| status.is_enabled);
        assert_eq!(is_enabled("stored"), Some(false));
        assert_eq!(is_enabled("both"), Some(true));
        assert_eq!(is_enabled("new"), Some(true));
    }
}
