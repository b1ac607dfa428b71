//! What bounds rules, unless a rule says that it needs less.

/// The settings `rules.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleEngineSettings {
    /// How the node is called in events.
    pub node_name: String,
    pub max_rules: usize,
    /// Steps of one evaluation.
    pub max_steps: u32,
    /// Bytes of what one evaluation brings forth.
    pub max_output_bytes: usize,
    /// Outputs of one FOREACH.
    pub max_outputs: usize,
    /// What all programs of jq in one evaluation may do together; 10,000 steps take about a millisecond.
    pub max_jq_steps: u64,
    /// Names of environment variables that `getenv` may read, with commas between them.
    pub getenv: String,
    /// Messages that come of messages that come of rules: how deep.
    pub max_republish_depth: u8,
    /// Rules hear nothing of messages to topics that begin with `$SYS_PREFIX/`.
    pub ignore_sys_messages: bool,
    /// Lines that `console` writes for each shard and second.
    pub console_lines_per_s: u32,
    /// What a rule keeps with kv_store_put.
    pub kv_max_entries: usize,
    pub kv_max_bytes: usize,
    pub window_lateness_ms: u64,
    /// How far an event that says when it happened may be ahead of the node.
    pub window_max_ahead_ms: u64,
    /// How long nothing comes until windows of events that say when they happened close without events.
    pub window_idle_ms: u64,
    pub window_max_groups: usize,
    pub window_max_bytes: usize,
    /// Rows on their way to windows; beyond it publishers wait.
    pub window_queue_bytes: usize,
    /// How often the state of windows is stored.
    pub window_save_interval_s: u32,
    /// Rules with metrics of their own in Prometheus; the others are in the sums.
    pub max_metric_rules: usize,
}

impl RuleEngineSettings {
    /// What `getenv` may read, as it is when the node starts; a variable that is not set is empty.
    pub(crate) fn environment(&self) -> rules::Environment {
        let names = self.getenv.split(',').map(str::trim);
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
            getenv: String::new(),
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
            max_metric_rules: 1000,
        }
    }
}
