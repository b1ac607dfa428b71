//! The settings that all sinks have in common.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{SettingsError, check_range, parse_settings};

/// Fields of a sink that are common; all others belong to the connector's kind.
const COMMON_FIELDS: [&str; 9] = [
    "connector",
    "description",
    "enabled",
    "batch",
    "queue",
    "order",
    "batches_in_flight",
    "retry",
    "dead_letters",
];
const WRITE_TIMEOUT: &str = "write_timeout_ms";

/// The part of a sink's settings that is the same for all kinds of connectors.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkSettings {
    /// Name of the connector it writes to.
    #[schemars(length(min = 1, max = 256))]
    pub connector: String,
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub description: String,
    /// A disabled sink rejects rows.
    #[serde(default = "default_enabled")]
    pub enabled: bool,
    #[serde(default)]
    pub batch: BatchSettings,
    #[serde(default)]
    pub queue: QueueSettings,
    #[serde(default)]
    pub order: DeliveryOrder,
    /// Maximum number of batches written concurrently.
    #[serde(default = "default_batches_in_flight")]
    #[schemars(range(min = 1, max = 256))]
    pub batches_in_flight: u32,
    #[serde(default)]
    pub retry: RetrySettings,
    #[serde(default)]
    pub dead_letters: DeadLetterSettings,
    /// Time-out of a batch; it is then retried.
    #[serde(default = "default_write_timeout_ms")]
    #[schemars(range(min = 10, max = 3_600_000))]
    pub write_timeout_ms: u64,
}

/// Batch limits: a batch is written as soon as one of them is reached. Defaults depend on the connector's kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchSettings {
    #[schemars(range(min = 1, max = 100_000))]
    pub max_rows: Option<usize>,
    #[schemars(range(min = 1, max = 268_435_456))]
    pub max_bytes: Option<usize>,
    /// How long the first row of a batch waits for others.
    #[schemars(range(max = 600_000))]
    pub max_wait_ms: Option<u64>,
}

/// Queue of waiting rows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    #[schemars(range(min = 1, max = 100_000_000))]
    pub max_rows: usize,
    #[schemars(range(min = 1024))]
    pub max_bytes: usize,
    pub on_full: OnFull,
    /// Keeps waiting rows in files, so they survive a restart and the end of the process.
    pub disk: Option<DiskQueueSettings>,
}

/// Policy for a row that finds the queue full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The row is queued, and its publisher is paused until there is room. Messages already sent by publishers may fill the
    /// queue up to twice its size; further rows are dropped.
    #[default]
    Block,
    DropOldest,
    DropNewest,
}

/// Disk queue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DiskQueueSettings {
    #[schemars(range(min = 1_048_576))]
    pub max_bytes: u64,
    pub sync: DiskQueueSync,
}

/// When a disk queue is synced to disk. This matters in a power failure, not when the process ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskQueueSync {
    /// After each round of writes.
    Always,
    /// Once a second.
    #[default]
    EverySecond,
    Never,
}

/// Order in which rows are written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryOrder {
    /// No order: batches are written concurrently, and a retried one may follow a later one.
    #[default]
    None,
    /// Rows for which this template gives the same text keep their order: `{"by": "${clientid}"}`.
    By(String),
    /// All rows keep their order: one batch at a time.
    All,
}

/// Retries after a transient error, such as a server that is down.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySettings {
    /// First pause; each further pause is about twice as long.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub initial_delay_ms: u64,
    #[schemars(range(min = 1, max = 3_600_000))]
    pub max_delay_ms: u64,
    /// Number of attempts after which rows become dead letters. Default: unlimited.
    #[schemars(range(min = 1))]
    pub max_attempts: Option<u32>,
    /// Number of consecutive attempts, failing because of an invalid statement or a missing table or column, after which rows
    /// become dead letters.
    #[schemars(range(min = 1))]
    pub max_permanent_attempts: u32,
}

/// Rows that cannot be written. New ones replace the oldest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetterSettings {
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_rows: usize,
    #[schemars(range(min = 0, max = 1_073_741_824))]
    pub max_bytes: usize,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            max_rows: 100_000,
            max_bytes: 64 << 20,
            on_full: OnFull::Block,
            disk: None,
        }
    }
}

impl Default for DiskQueueSettings {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 30,
            sync: DiskQueueSync::EverySecond,
        }
    }
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            initial_delay_ms: 100,
            max_delay_ms: 30_000,
            max_attempts: None,
            max_permanent_attempts: 8,
        }
    }
}

impl Default for DeadLetterSettings {
    fn default() -> Self {
        Self {
            max_rows: 10_000,
            max_bytes: 16 << 20,
        }
    }
}

fn default_enabled() -> bool {
    true
}

fn default_batches_in_flight() -> u32 {
    4
}

fn default_write_timeout_ms() -> u64 {
    30_000
}

impl SinkSettings {
    /// Splits the settings of a sink into the common ones and those of the connector's kind.
    pub fn split(sink: &Value) -> Result<(Self, Map<String, Value>), SettingsError> {
        let fields = sink
            .as_object()
            .ok_or_else(|| SettingsError::new("", "expected an object"))?;
        let is_common = |name: &str| COMMON_FIELDS.contains(&name) || name == WRITE_TIMEOUT;
        let (common, own): (Map<_, _>, Map<_, _>) = fields
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .partition(|(name, _)| is_common(name));
        let settings: Self = parse_settings(common)?;
        settings.check()?;
        if settings.queue.disk.is_some() && crate::content::exports_files(&own) {
            let detail = "not for format = \"content\": exports are recorded with their files and continue after a restart";
            return Err(SettingsError::new("queue.disk", detail));
        }
        Ok((settings, own))
    }

    /// Extends an error about an unknown field with a similar common field.
    pub fn suggest_common_field(sink: &Value, error: SettingsError) -> SettingsError {
        let is_unknown = error.detail.starts_with("unknown field")
            && sink.get(error.field.as_str()).is_some()
            && !error.detail.contains("did you mean");
        let common = COMMON_FIELDS.iter().copied().chain([WRITE_TIMEOUT]);
        match rules::nearest_name(&error.field, common).filter(|_| is_unknown) {
            Some(near) => {
                let detail = format!("{}; did you mean `{near}`?", error.detail);
                SettingsError { detail, ..error }
            }
            None => error,
        }
    }

    fn check(&self) -> Result<(), SettingsError> {
        if self.connector.is_empty() {
            return Err(SettingsError::new("connector", "expected the name of one"));
        }
        let BatchSettings {
            max_rows,
            max_bytes,
            max_wait_ms,
        } = self.batch;
        check_range("batch.max_rows", max_rows.unwrap_or(1), 1..=100_000)?;
        check_range("batch.max_bytes", max_bytes.unwrap_or(1), 1..=256 << 20)?;
        check_range("batch.max_wait_ms", max_wait_ms.unwrap_or(0), 0..=600_000)?;
        check_range("queue.max_rows", self.queue.max_rows, 1..=100_000_000)?;
        check_range("queue.max_bytes", self.queue.max_bytes, 1024..=1 << 40)?;
        if let Some(disk) = &self.queue.disk {
            let range = 1 << 20..=1 << 50;
            check_range("queue.disk.max_bytes", disk.max_bytes, range)?;
        }
        check_range("batches_in_flight", self.batches_in_flight, 1..=256)?;
        check_range(
            "retry.initial_delay_ms",
            self.retry.initial_delay_ms,
            1..=3_600_000,
        )?;
        let max_delay_ms = self.retry.initial_delay_ms..=3_600_000;
        check_range("retry.max_delay_ms", self.retry.max_delay_ms, max_delay_ms)?;
        let attempts = self.retry.max_attempts.unwrap_or(1);
        check_range("retry.max_attempts", attempts, 1..=u32::MAX)?;
        let attempts = self.retry.max_permanent_attempts;
        check_range("retry.max_permanent_attempts", attempts, 1..=u32::MAX)?;
        let letters = &self.dead_letters;
        check_range("dead_letters.max_rows", letters.max_rows, 0..=1_000_000)?;
        check_range("dead_letters.max_bytes", letters.max_bytes, 0..=1 << 30)?;
        check_range("write_timeout_ms", self.write_timeout_ms, 10..=3_600_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn own_fields_are_split_off() {
        let sink = json!({"connector": "db", "sql": "INSERT", "order": {"by": "${k}"}, "queue": {"on_full": "drop_oldest"}});
        let (settings, own) = SinkSettings::split(&sink).unwrap();
        assert_eq!(settings.order, DeliveryOrder::By("${k}".into()));
        assert_eq!(settings.queue.on_full, OnFull::DropOldest);
        assert_eq!(settings.queue.max_rows, 100_000);
        assert_eq!(Value::Object(own), json!({"sql": "INSERT"}));
        let all = json!({"connector": "db", "order": "all"});
        assert_eq!(
            SinkSettings::split(&all).unwrap().0.order,
            DeliveryOrder::All
        );
    }

    #[test]
    fn errors_name_the_field() {
        let field = |more: Value| {
            let mut sink = json!({"connector": "db"});
            let fields = sink.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            SinkSettings::split(&sink).unwrap_err().field
        };
        assert_eq!(field(json!({"batch": {"max_rows": 0}})), "batch.max_rows");
        assert_eq!(field(json!({"queue": {"on_full": "x"}})), "queue.on_full");
        assert_eq!(
            field(json!({"retry": {"initial_delay_ms": 10, "max_delay_ms": 5}})),
            "retry.max_delay_ms"
        );
        assert_eq!(field(json!({"batch": {"rows": 5}})), "batch.rows");
        assert_eq!(field(json!({"connector": ""})), "connector");
    }

    #[test]
    fn errors_suggest_what_may_be_meant() {
        let detail = |sink: Value| SinkSettings::split(&sink).unwrap_err().detail;
        let field = detail(json!({"connector": "db", "queue": {"max_row": 5}}));
        assert!(field.ends_with("did you mean `max_rows`?"), "{field}");
        let variant = detail(json!({"connector": "db", "queue": {"on_full": "drop_old"}}));
        assert!(variant.contains("drop_oldest"), "{variant}");
        let variant = detail(json!({"connector": "db", "queue": {"on_full": "blok"}}));
        assert!(variant.ends_with("did you mean `block`?"), "{variant}");
    }
}
