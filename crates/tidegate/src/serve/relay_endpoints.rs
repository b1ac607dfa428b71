//! The relay endpoints of the node: validation of their objects, and their statistics in the store.

use std::sync::Arc;
use std::time::Duration;

use api::ObjectValidationError;
use hooks::relay::RelayService as RelayServicePort;
use hooks::{Hooks, HooksFactory, NoHooks};
use relay::{EndpointDefinition, EndpointError, RelayService, StoredStatistics};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{interval, sleep};

use super::node_devices::inline_schema;
use super::relay_events::RelayEventQueue;

/// Interval at which statistics are stored and rates sampled.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum time between two writes of statistics, however many endpoints change.
const MIN_WRITE_PAUSE: Duration = Duration::from_secs(1);

/// Gives the shards the relay endpoints; their hooks do nothing.
pub(super) struct RelayHooks(pub(super) RelayService);

impl HooksFactory for RelayHooks {
    fn hooks_for(&self, _shard: u16) -> Box<dyn Hooks> {
        Box::new(NoHooks)
    }

    fn relay_service(&self) -> Option<Arc<dyn RelayServicePort>> {
        Some(Arc::new(self.0.clone()))
    }
}

/// The relay endpoints and where their statistics are stored.
#[derive(Clone)]
pub(super) struct NodeRelay {
    pub(super) service: RelayService,
    pub(super) statistics: StoredStatistics,
    pub(super) events: RelayEventQueue,
}

impl NodeRelay {
    /// Stores statistics periodically, and when those of many endpoints have changed; ends with the runtime.
    pub(super) async fn run(self) {
        store_repeatedly(self.service, self.statistics, STATISTICS_INTERVAL).await;
    }

    pub(super) fn store_statistics(&self) {
        store_changed(&self.service, &self.statistics);
    }
}

async fn store_repeatedly(service: RelayService, statistics: StoredStatistics, every: Duration) {
    let many_changed = Arc::new(Notify::new());
    let notified = many_changed.clone();
    service.when_many_changed(move || notified.notify_one());
    let mut interval = interval(every);
    loop {
        tokio::select! {
            _ = interval.tick() => service.sample_rates(),
            () = many_changed.notified() => {}
        }
        let (service, statistics) = (service.clone(), statistics.clone());
        // A panic is logged by the runtime's hook; the next interval tries again.
        let write = move || store_changed(&service, &statistics);
        let _ = tokio::task::spawn_blocking(write).await;
        sleep(MIN_WRITE_PAUSE).await;
    }
}

fn store_changed(service: &RelayService, statistics: &StoredStatistics) {
    if let Err(error) = statistics.write_changed(service) {
        tracing::error!(%error, "storing the statistics of relay endpoints failed");
    }
}

/// Converts the JSON of a request to the stored form.
pub(super) fn prepare(
    id: &str,
    input: Value,
    current: Option<&Value>,
) -> Result<Value, ObjectValidationError> {
    let invalid = |error: EndpointError| ObjectValidationError {
        field: error.field,
        detail: format!("{}.", error.detail),
    };
    EndpointDefinition::check_id(id).map_err(invalid)?;
    let endpoint = EndpointDefinition::read(input, current).map_err(invalid)?;
    serde_json::to_value(endpoint).map_err(|error| ObjectValidationError {
        field: String::new(),
        detail: format!("The object cannot be stored: {error}."),
    })
}

/// JSON schemas of the written and the shown object.
pub(super) fn schemas() -> (Value, Value) {
    let schema = inline_schema::<EndpointDefinition>();
    let with_field = |name: &str, field: Value| {
        let mut schema = schema.clone();
        schema["properties"][name] = field;
        schema
    };
    let written = with_field(
        "access_key",
        json!({
            "description": "If set, clients have to present it: query parameter `key`, or sub-protocol `key.` and the key. It \
                is stored as a hash and never shown. Omitted: unchanged; null: removed.",
            "type": ["string", "null"],
            "minLength": 16,
            "maxLength": 128,
            "pattern": "^[A-Za-z0-9._-]*$",
            "writeOnly": true,
        }),
    );
    let shown = with_field(
        "has_access_key",
        json!({
            "description": "Whether clients have to present an access key.",
            "type": "boolean",
            "readOnly": true,
        }),
    );
    (written, shown)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hooks::MessageView;
    use store::{ExpectedVersion, Store, StoreConfig};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn statistics_are_stored_at_once_when_a_hundred_endpoints_have_changed() {
        let directory = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(directory.path(), StoreConfig::default()).unwrap();
        for number in 0..100 {
            let put =
                |id: &str| (store.objects()).put(relay::KIND, id, json!({}), ExpectedVersion::Any);
            put(&format!("room-{number}")).unwrap();
        }
        let service = RelayService::new();
        let statistics = relay::open_endpoints(&service, store.objects(), &[]).unwrap();
        let running = tokio::spawn(store_repeatedly(service.clone(), statistics, HOUR));
        // Read from the store, as after a crash.
        let stored = || {
            let restored = RelayService::new();
            relay::open_endpoints(&restored, store.objects(), &[]).unwrap();
            let all = restored.all_statuses();
            all.iter()
                .map(|it| it.statistics.total_messages)
                .sum::<u64>()
        };
        let publish = |number: usize| {
            let (id, topic) = (format!("room-{number}"), format!("$relay/room-{number}"));
            service.published(&id, &MessageView::from_client("c", &topic, b"x", 1));
        };
        // The first write is that of the start.
        sleep(2 * MIN_WRITE_PAUSE).await;
        (0..99).for_each(publish);
        // Longer than a write takes; with fewer changes, nothing is stored before the hour is over.
        sleep(2 * MIN_WRITE_PAUSE).await;
        assert_eq!(stored(), 0);
        publish(99);
        let deadline = Instant::now() + Duration::from_secs(60);
        while stored() < 100 {
            assert!(Instant::now() < deadline, "{} are stored", stored());
            sleep(Duration::from_millis(10)).await;
        }
        running.abort();
    }
}
