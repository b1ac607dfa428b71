//! The relay endpoints of the node: validation of their objects, and their statistics in the store.

use std::sync::Arc;
use std::time::Duration;

use api::ObjectValidationError;
use hooks::relay::RelayService as RelayServicePort;
use hooks::{Hooks, HooksFactory, NoHooks};
use relay::{EndpointDefinition, EndpointError, RelayService, StoredStatistics};
use serde_json::{Value, json};

use super::node_devices::inline_schema;
use super::relay_events::RelayEventQueue;

/// Interval at which statistics are stored and rates sampled.
const STATISTICS_INTERVAL: Duration = Duration::from_secs(5);

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
    /// Stores statistics periodically; ends with the runtime.
    pub(super) async fn run(self) {
        let mut interval = tokio::time::interval(STATISTICS_INTERVAL);
        loop {
            interval.tick().await;
            self.service.sample_rates();
            let this = self.clone();
            // A panic is logged by the runtime's hook; the next interval tries again.
            let _ = tokio::task::spawn_blocking(move || this.store_statistics()).await;
        }
    }

    pub(super) fn store_statistics(&self) {
        if let Err(error) = self.statistics.write_changed(&self.service) {
            tracing::error!(%error, "storing the statistics of relay endpoints failed");
        }
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
