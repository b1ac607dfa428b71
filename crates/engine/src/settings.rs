//! Limits of rules for the whole node. A rule may set lower ones.

/// The settings `rules.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleEngineSettings {
    /// Name of the node in events.
    pub node_name: String,
    pub max_rules: usize,
    /// Steps of one evaluation.
    pub max_steps: u32,
    /// Bytes of all values that one evaluation creates.
    pub max_output_bytes: usize,
    /// Outputs of one FOREACH.
    pub max_outputs: usize,
    /// Steps of all jq programs in one evaluation together; 10,000 steps take about a millisecond.
    pub max_jq_steps: u64,
    /// Environment variables that `getenv` may read, separated by commas.
    pub environment_variables: String,
    /// Longest chain of messages in which a rule publishes each because of the one before.
    pub max_republish_depth: u8,
    /// Rules do not see messages to topics that begin with `$SYS/`.
    pub ignore_sys_messages: bool,
    /// Lines that `console` writes per shard and second.
    pub console_lines_per_s: u32,
    /// Entries that a rule may keep with `kv_store_put`.
    pub kv_max_entries: usize,
    pub kv_max_bytes: usize,
    pub window_lateness_ms: u64,
    /// How far an event's own timestamp may be ahead of the node's clock, in milliseconds.
    pub window_max_ahead_ms: u64,
    /// Time without events after which windows of events with timestamps close, in milliseconds.
    pub window_idle_ms: u64,
    pub window_max_groups: usize,
    pub window_max_bytes: usize,
    /// Bytes of rows queued for windows; above it publishers wait.
    pub window_queue_bytes: usize,
    /// Interval at which the state of windows is stored, in seconds.
    pub window_save_interval_s: u32,
    /// Rules with metrics of their own in Prometheus; other rules appear only in the sums.
    pub max_rules_with_metrics: usize,
}

impl RuleEngineSettings {
    /// The environment variables that `getenv` may read, with their values at the start of the node. A
    /// variable that is not set is empty.
    pub(crate) fn environment(&self) -> rules::Environment {
        let names = self.environment_variables.split(',').map(str::trim);
        let variable = |name: &str| -> (Box<str>, Box<str>) {
            (name.into(), std::env::var(name).unwrap_or_default().into())
        };
        let names = names.filter(|name| !name.is_empty());
        std::sync::Arc::new(names.map(variable).collect())
    }
}

impl Default for RuleEngineSettings {
    fn default() -> Self {
        Self {
            node_name: "tidegate".to_owned(),
            max_rules: 200_000,
            max_steps: 100_000,
            max_output_bytes: 1 << 20,
            max_outputs: 1000,
            max_jq_steps: 50_000,
            environment_variables: String::new(),
            max_republish_depth: 8,
            ignore_sys_messages: true,
            console_lines_per_s: 100,
            kv_max_entries: 10_000,
            kv_max_bytes: 1 << 20,
            window_lateness_ms: 250,
            window_max_ahead_ms: 10_000,
            window_idle_ms: 30_000,
            window_max_groups: 100_000,
            window_max_bytes: 64 << 20,
            window_queue_bytes: 16 << 20,
            window_save_interval_s: 10,
            max_rules_with_metrics: 1000,
        }
    }
}
