//! The table of settings. A new setting is one line here (and its field in the broker's configuration);
//! the file, the environment, `--set`, the checks and the reference follow from it.

use std::path::PathBuf;

use api::{AnonymousRole, ForwardedHeader, HttpConfig, RouteOpenness};
use auth::{DenialPolicy, NoMatchPolicy};
use broker::config::{
    BindAddress, BrokerConfig, BrokerLimits, DEFAULT_STOP_TIMEOUT_S, ListenerConfig,
};

use super::setting_kind::SettingKind::{
    Bytes, Count, Credential, Flag, Levels, Path, Seconds, Secret, Targets, Text,
};
use super::setting_kind::{BindSetting, Field, NamedChoice, Setting, SettingKind, choice, setting};
use crate::logging::LogFormat;
use crate::serve::{alarms, node_ingest};

const MAX_U16: u64 = u16::MAX as u64;
const MAX_U32: u64 = u32::MAX as u64;
/// A year in seconds is still something one may mean; more is a slip.
const MAX_PERIOD_S: u64 = MAX_U32;
/// The largest packet MQTT can express.
const MAX_PACKET: u64 = 268_435_460;
const MAX_MEMORY: u64 = 1 << 44;

/// The sections in the order of the reference, each with a sentence about it.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("node", "The process as a whole."),
    (
        "limits",
        "Bounds that hold for every client of the node. A client that wants more gets what is allowed, or is \
         refused with the reason code MQTT has for it.",
    ),
    (
        "store",
        "What outlives the node: sessions with an expiry, what is queued for them, retained and delayed messages. It \
         lies in `store` below `node.data_dir`.",
    ),
    (
        "auth",
        "Who may come in and what they may do. Authenticators, rules and sources of rules are lists of tables, \
         `[[auth.authenticator]]`, `[[auth.rule]]` and `[[auth.rule_source]]`; they are described in \
         [Authentication](authentication.md) and [Authorisation](authorisation.md).",
    ),
    (
        "rules",
        "Bounds of the rule engine. Rules themselves are objects of the API, or stand in `[[rule]]` with `name`, `sql`, `actions` and \
         what else the API takes; see [The rule engine](rule-engine.md).",
    ),
    (
        "devices",
        "The registry of devices. Devices are made over the API, and so are products, or these stand in `[[product]]` with `id` and what else \
         the API takes, the thing model also as `model_file`; see [Devices](devices.md). So do groups, `[[group]]`, rule chains, `[[chain]]`, and \
         [pull sources](pull.md), `[[pull_source]]`.",
    ),
    (
        "telemetry",
        "What devices report: how it is taken and where it is kept; see [Telemetry](telemetry.md) and [Telemetry storage](telemetry-storage.md).",
    ),
    (
        "alarms",
        "What is wrong with devices and with the node itself; see [Alarms](alarms.md). Notifications may stand in `[[notification]]` with \
         `name` and what else the API takes.",
    ),
    (
        "commands",
        "What devices are told to do; see [Commands](commands.md).",
    ),
    (
        "outbound",
        "Which addresses the node connects to on behalf of connectors, web hooks, pull sources, authenticators and key sets; see \
         [Connectors](connectors.md#where-connectors-may-connect).",
    ),
    ("http", "The HTTP listener: API, metrics, health."),
    ("log", "What is written to standard error."),
    (
        "listener",
        "A place to listen, once per `[[listener]]`. As soon as the file has one, the listeners open by \
         default (`mqtt` on 127.0.0.1:1883, `ws` on 127.0.0.1:8083) are open only if they are listed too.",
    ),
    (
        "user",
        "A user who may log in with a password or by SCRAM-SHA-256, once per `[[user]]`.",
    ),
];

/// Everything that exists once.
#[derive(Clone)]
pub(super) struct NodeSettings {
    pub(super) broker: BrokerConfig,
    pub(super) auth: auth::AuthLimits,
    pub(super) rules: engine::RuleEngineSettings,
    pub(super) devices: devices::RegistryConfig,
    pub(super) telemetry: node_ingest::IngestSettings,
    pub(super) alarms: alarms::AlarmSettings,
    pub(super) commands: devices::command::CommandConfig,
    pub(super) outbound: OutboundSettings,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) store_enabled: bool,
    pub(super) store: store::StoreConfig,
    pub(super) queue: QueueStoreSettings,
    pub(super) http_bind: Option<BindSetting>,
    pub(super) http_certificate: Option<PathBuf>,
    pub(super) http_private_key: Option<PathBuf>,
    /// Its `bind` is filled in at the end.
    pub(super) http: HttpConfig,
    pub(super) log_level: String,
    pub(super) log_format: LogFormat,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            broker: BrokerConfig {
                stop_timeout_s: DEFAULT_STOP_TIMEOUT_S,
                sys_interval_s: 10,
                limits: BrokerLimits::default(),
                ..BrokerConfig::default()
            },
            auth: auth::AuthLimits::default(),
            rules: engine::RuleEngineSettings::default(),
            devices: devices::RegistryConfig::default(),
            telemetry: node_ingest::IngestSettings::default(),
            alarms: alarms::AlarmSettings::default(),
            commands: devices::command::CommandConfig::default(),
            outbound: OutboundSettings::default(),
            data_dir: None,
            store_enabled: true,
            store: store::StoreConfig::default(),
            queue: QueueStoreSettings::default(),
            http_bind: Some(tcp_bind(8080)),
            http_certificate: None,
            http_private_key: None,
            http: HttpConfig::new(([127, 0, 0, 1], 8080).into()),
            log_level: "info".into(),
            log_format: LogFormat::Text,
        }
    }
}

/// Where the node may connect to.
#[derive(Clone)]
pub(super) struct OutboundSettings {
    pub(super) deny: String,
    pub(super) allow: String,
}

impl Default for OutboundSettings {
    fn default() -> Self {
        Self {
            deny: "link-local".into(),
            allow: String::new(),
        }
    }
}

/// Where queued messages are.
#[derive(Clone)]
pub(super) struct QueueStoreSettings {
    pub(super) kind: QueueStoreKind,
    pub(super) url: Option<String>,
    pub(super) prefix: String,
    pub(super) tls_ca: Option<PathBuf>,
    pub(super) connect_timeout_s: u32,
    pub(super) command_timeout_s: u32,
}

impl Default for QueueStoreSettings {
    fn default() -> Self {
        Self {
            kind: QueueStoreKind::Embedded,
            url: None,
            prefix: "tidegate".into(),
            tls_ca: None,
            connect_timeout_s: 5,
            command_timeout_s: 10,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueStoreKind {
    Embedded,
    Redis,
    MySql,
}

impl NamedChoice for QueueStoreKind {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("embedded", Self::Embedded),
        ("redis", Self::Redis),
        ("mysql", Self::MySql),
    ];
}

#[rustfmt::skip]
pub(super) const NODE: &[Setting<NodeSettings>] = &[
    setting!("node.shards", broker.shards, Count(0, 64), "Threads that route messages; 0 means one per core the process may use."),
    setting!("node.data_dir", data_dir, Path, "Where the node keeps its data. One node at a time."),
    setting!("node.stop_timeout_s", broker.stop_timeout_s, Seconds(1, 3600), "How long a graceful stop may take before what is left is cut."),
    setting!("node.server_reference", broker.server_reference, Text, "Another server (`host:port`) that MQTT 5 clients are told to use when this one stops."),
    setting!("node.sys_interval_s", broker.sys_interval_s, Seconds(0, 86_400), "Time between two publications of the `$SYS` topics; 0 turns them off."),

    setting!(at run time "limits.max_connections", broker.limits.max_connections, Count(1, 100_000_000), "Connections of the whole node."),
    setting!(at run time "limits.max_sessions", broker.limits.max_sessions, Count(1, 100_000_000), "Sessions of the whole node, connected or not."),
    setting!("limits.max_packet_size", broker.limits.max_packet_size, Bytes(128, MAX_PACKET), "Largest packet accepted, fixed header included. A listener may set a smaller one."),
    setting!(at run time "limits.max_connect_bytes", broker.limits.max_connect_bytes, Bytes(128, MAX_PACKET), "Largest CONNECT accepted, will and password included; never larger than `max_packet_size`. It is what a client without credentials can make the node keep."),
    setting!(at run time "limits.max_partial_bytes_per_shard", broker.limits.max_partial_bytes_per_shard, Bytes(65536, MAX_MEMORY), "Bytes of packets that have begun and are not whole, of all connections of a shard. A connection that exceeds it is closed (0x97)."),
    setting!(at run time "limits.packet_timeout_s", broker.limits.packet_timeout_s, Seconds(1, MAX_U32), "Time in which a packet that has begun has to become whole. Until CONNECT is whole `connect_timeout_s` of the listener counts."),
    setting!("limits.max_topic_bytes", broker.limits.max_topic_bytes, Bytes(1, MAX_U16), "Longest topic name or filter."),
    setting!("limits.max_topic_levels", broker.limits.max_topic_levels, Count(1, MAX_U16), "Most levels of a topic name or filter."),
    setting!(at run time "limits.max_client_id_bytes", broker.limits.max_client_id_bytes, Bytes(23, MAX_U16), "Longest client id."),
    setting!(at run time "limits.max_username_bytes", broker.limits.max_username_bytes, Bytes(23, MAX_U16), "Longest user name, in bytes."),
    setting!("limits.max_qos", broker.limits.max_qos, Count(0, 2), "Highest QoS granted to subscribers and accepted from publishers."),
    setting!("limits.retain_available", broker.limits.retain_available, Flag, "Whether messages may be retained."),
    setting!("limits.wildcard_available", broker.limits.wildcard_available, Flag, "Whether filters may have wildcards."),
    setting!("limits.shared_available", broker.limits.shared_available, Flag, "Whether `$share/` and `$queue/` subscriptions are allowed."),
    setting!("limits.exclusive_available", broker.limits.exclusive_available, Flag, "Whether `$exclusive/` subscriptions are allowed."),
    setting!(at run time "limits.max_subscriptions_per_session", broker.limits.max_subscriptions_per_session, Count(1, MAX_U32), "Subscriptions of one session."),
    setting!(at run time "limits.max_subscription_bytes_per_session", broker.limits.max_subscription_bytes_per_session, Bytes(128, MAX_MEMORY), "Bytes of the topic filters of one session, with 64 for each subscription; more are refused (0x97)."),
    setting!(at run time "limits.max_subscription_bytes_per_shard", broker.limits.max_subscription_bytes_per_shard, Bytes(65536, MAX_MEMORY), "The same of all sessions of a shard."),
    setting!(at run time "limits.max_session_expiry_s", broker.limits.max_session_expiry_s, Seconds(0, MAX_PERIOD_S), "How long a session may outlive its connection. A client that asks for more gets this."),
    setting!("limits.receive_maximum", broker.limits.receive_maximum, Count(1, MAX_U16), "QoS 1 and 2 messages a client may have in flight towards the node."),
    setting!(at run time "limits.max_inflight", broker.limits.max_inflight, Count(1, MAX_U16), "QoS 1 and 2 messages the node has in flight towards a client, if the client allows that many."),
    setting!("limits.topic_alias_maximum", broker.limits.topic_alias_maximum, Count(0, MAX_U16), "Topic aliases a client may use towards the node."),
    setting!(at run time "limits.max_outgoing_topic_aliases", broker.limits.max_outgoing_topic_aliases, Count(0, MAX_U16), "Topic aliases the node uses towards a client, if the client allows that many; 0 turns them off."),
    setting!(at run time "limits.max_queued_messages", broker.limits.max_queued_messages, Count(0, MAX_U32), "Messages waiting for one session."),
    setting!(at run time "limits.max_queued_bytes", broker.limits.max_queued_bytes, Bytes(0, MAX_U32), "Bytes waiting for one session."),
    setting!(at run time "limits.client_id_prefix", broker.limits.client_id_prefix, Text, "What the client id of a client with a user name has to begin with, such as `${username}-`; others are refused with 0x85. `${username}` stands for the user name, which is `device:ID` for a device of the registry. Empty: anything."),
    setting!(at run time "limits.other_users_session", broker.limits.other_users_session, choice::<broker::config::SessionOwnerConflict>(), "What becomes of a client that connects with the client id of a session another user made: it is refused with 0x85, or that session ends, connection and queue included."),
    setting!(at run time "limits.queue_policy", broker.limits.queue_policy, choice::<broker::config::QueuePolicy>(), "What happens to one more message for a session whose queue is full: the oldest goes, the new one goes, or the client is disconnected (0x97)."),
    setting!(at run time "limits.queue_qos0", broker.limits.queue_qos0, Flag, "Whether QoS 0 messages wait for a session that is away."),
    setting!(at run time "limits.max_outbox_bytes", broker.limits.max_outbox_bytes, Bytes(1024, MAX_U32), "Bytes waiting for one socket. Beyond, QoS 0 messages are dropped, QoS 1 and 2 wait in the session."),
    setting!(at run time "limits.max_derived_messages", broker.limits.max_derived_messages, Count(1, MAX_U32), "Messages that may come of one message, by rules that republish and by rules that answer those. Beyond, they are dropped and counted (derived_budget), and the rule is named in the log."),
    setting!(at run time "limits.max_derived_ms", broker.limits.max_derived_ms, Count(1, 3_600_000), "Milliseconds that may be spent on the messages that come of one message, besides the first of them. Beyond, they are dropped and counted."),
    setting!(at run time "limits.max_buffered_bytes_per_shard", broker.limits.max_buffered_bytes_per_shard, Bytes(1 << 20, MAX_MEMORY), "Bytes waiting for all sockets of one shard. Beyond, publishers are not read."),
    setting!(at run time "limits.max_queued_bytes_per_shard", broker.limits.max_queued_bytes_per_shard, Bytes(1 << 20, MAX_MEMORY), "Bytes of memory for all session queues of one shard; what is only in the store does not count. Beyond, what would be queued is dropped and counted."),
    setting!(at run time "limits.max_queued_age_s", broker.limits.max_queued_age_s, Seconds(0, MAX_PERIOD_S), "Seconds a message may wait for a session before it is dropped as expired. 0: as long as its own expiry and the session last."),
    setting!(at run time "limits.max_cross_shard_bytes", broker.limits.max_cross_shard_bytes, Bytes(65_536, MAX_U32), "Bytes waiting between two shards. Beyond, publishers of the sending shard are not read."),
    setting!(at run time "limits.max_retained_messages", broker.limits.max_retained_messages, Count(0, MAX_U32), "Retained messages of the whole node."),
    setting!(at run time "limits.max_retained_bytes", broker.limits.max_retained_bytes, Bytes(0, MAX_MEMORY), "Bytes of all retained messages."),
    setting!(at run time "limits.max_retained_payload", broker.limits.max_retained_payload, Bytes(0, MAX_PACKET), "Largest payload that may be retained."),
    setting!(at run time "limits.retained_expiry_s", broker.limits.retained_expiry_s, Seconds(0, MAX_PERIOD_S), "When a retained message without an expiry of its own goes; 0 means never."),
    setting!(at run time "limits.max_delayed_messages", broker.limits.max_delayed_messages, Count(0, MAX_U32), "Messages waiting under `$delayed/`."),
    setting!(at run time "limits.max_delayed_bytes", broker.limits.max_delayed_bytes, Bytes(0, MAX_MEMORY), "Bytes of messages waiting under `$delayed/`."),
    setting!(at run time "limits.max_delay_s", broker.limits.max_delay_s, Seconds(0, MAX_PERIOD_S), "Longest delay under `$delayed/`."),
    setting!(at run time "limits.max_keep_alive_s", broker.limits.max_keep_alive_s, Seconds(0, MAX_U16), "A client that asks for a longer keep-alive, or for none, gets this; 0 means no bound."),
    setting!(at run time "limits.validate_payload_format", broker.limits.validate_payload_format, Flag, "Whether a payload marked as UTF-8 is checked (0x99 if it is not)."),
    setting!(at run time "limits.reason_strings", broker.limits.reason_strings, Flag, "Whether answers explain themselves with a reason string to clients that allow it."),
    setting!(at run time "limits.shared_strategy", broker.limits.shared_strategy, choice::<broker::config::SharedSubscriptionStrategy>(), "Which member of a shared subscription gets a message."),

    setting!("store.enabled", store_enabled, Flag, "Whether sessions and messages outlive the node. Without, everything is in memory only."),
    setting!("store.fsync", store.fsync, SettingKind::Fsync, "When the log is forced to disk. A crash of the node loses nothing acknowledged whatever stands here; a crash of the machine loses at most this much time."),
    setting!("store.segment_bytes", store.segment_bytes, Bytes(1 << 20, 1 << 30), "Size of one file of the message log, allocated ahead. A message may have a quarter of it."),
    setting!("store.min_free_bytes", store.min_free_bytes, Bytes(0, MAX_MEMORY), "With less room than this on the file system, QoS 1 and 2 messages are refused (0x97) until there is more again."),
    setting!("store.max_log_bytes", store.max_log_bytes, Bytes(1 << 24, 1 << 50), "Size of the message log. With more than this waiting in it, QoS 1 and 2 messages are refused (0x97)."),
    setting!("store.max_pending_bytes", store.max_pending_bytes, Bytes(1 << 16, MAX_MEMORY), "Bytes that may wait to be written to the log. Beyond, publishers are not read for a while."),
    setting!("store.cache_bytes", store.cache_bytes, Bytes(1 << 20, MAX_MEMORY), "Memory for what was read of sessions, retained messages and objects."),
    setting!("store.queue", queue.kind, choice::<QueueStoreKind>(), "Where messages wait that are queued for sessions: in the log of this node, in Redis, or in MySQL or MariaDB. Everything else stays here."),
    setting!("store.queue_url", queue.url, Secret, "The server of `store.queue`: `redis://USER:PASSWORD@HOST:PORT/NUMBER` (`rediss://` for TLS) or `mysql://USER:PASSWORD@HOST:PORT/DATABASE` (`?require_ssl=true` for TLS). Best from the environment."),
    setting!("store.queue_prefix", queue.prefix, Text, "Begins the names of keys and tables there: up to 32 letters, digits and `_`. Every node has its own."),
    setting!("store.queue_tls_ca", queue.tls_ca, Path, "PEM file with the authorities to trust there instead of the system's."),
    setting!("store.queue_connect_timeout_s", queue.connect_timeout_s, Seconds(1, 300), "How long connecting to that server may take."),
    setting!("store.queue_command_timeout_s", queue.command_timeout_s, Seconds(1, 300), "How long it may take to answer; then the connection is given up and it is tried again."),

    setting!(at run time "auth.no_match", auth.no_match, choice::<NoMatchPolicy>(), "What holds for what no rule speaks of. `auto`: it is denied as soon as this file has a rule or a source of rules."),
    setting!(at run time "auth.on_denial", auth.on_denial, choice::<DenialPolicy>(), "What becomes of a client that does what it may not: the message is dropped or the subscription refused, or the client is disconnected as well."),
    setting!(at run time "auth.timeout_ms", auth.timeout_ms, Count(100, 600_000), "Milliseconds a client waits for the answer of all authenticators together; then it is not let in."),
    setting!(at run time "auth.max_checks", auth.max_checks, Count(1, 1_000_000), "Clients that may wait for an authenticator at once. More are told that the server is busy (0x89)."),
    setting!("auth.password_threads", auth.password_threads, Count(0, 1024), "Passwords checked at once; 0 means one per core."),
    setting!(at run time "auth.rules_refresh_s", auth.rules_refresh_s, Seconds(1, 86_400), "After this time the rules of a connected client are asked for again where they come from outside."),
    setting!(at run time "auth.rules_max_age_s", auth.rules_max_age_s, Seconds(1, 604_800), "Rules that could not be asked for again within this time do not hold any more, and the client may do nothing."),
    setting!(at run time "auth.max_logins_per_s", auth.max_logins_per_s, Count(0, MAX_U32), "Logins per second of the whole node, with a burst of one second; more are told to come back later (0x9F). 0 means no limit."),
    setting!(at run time "auth.max_failed_logins_per_user", auth.max_failed_logins_per_user, Count(0, MAX_U32), "Failed logins within `failed_login_window_s` that lock a user out, from wherever; 0 means none do. Whoever knows a user's name can then lock that user out."),
    setting!(at run time "auth.max_failed_logins_per_address", auth.max_failed_logins_per_address, Count(0, MAX_U32), "Failed logins of one user from one IPv4 address, or /64 of IPv6, within `failed_login_window_s` that lock this user out there; 0 means none do. Ten times as many for any users lock out the address, but for users who have logged in from there before and for clients that show a token instead of a password."),
    setting!(at run time "auth.failed_login_window_s", auth.failed_login_window_s, Seconds(1, 86_400), "The time in which failed logins are counted."),
    setting!(at run time "auth.lockout_s", auth.lockout_s, Seconds(1, 604_800), "How long a user or an address is locked out."),
    setting!(at run time "auth.flapping_disconnects", auth.flapping_disconnects, Count(0, MAX_U32), "Disconnects within `flapping_window_s` that get a client id banned; 0 means none do."),
    setting!(at run time "auth.flapping_window_s", auth.flapping_window_s, Seconds(1, 86_400), "The time in which disconnects are counted."),
    setting!(at run time "auth.flapping_ban_s", auth.flapping_ban_s, Seconds(1, 604_800), "How long a client that comes and goes too often is banned."),
    setting!("rules.node_name", rules.node_name, Text, "What the field `node` of events says."),
    setting!("rules.max_rules", rules.max_rules, Count(0, 10_000_000), "Rules there may be."),
    setting!("rules.max_steps", rules.max_steps, Count(1, MAX_U32), "Steps one evaluation of a rule may take; a rule may say that it needs fewer."),
    setting!("rules.max_output_bytes", rules.max_output_bytes, Bytes(1, MAX_MEMORY), "Bytes of what one evaluation brings forth."),
    setting!("rules.max_outputs", rules.max_outputs, Count(1, 1_000_000), "Outputs of one FOREACH."),
    setting!("rules.max_jq_steps", rules.max_jq_steps, Count(1, 10_000_000_000), "What all programs of jq in one evaluation of a rule may do together, in steps; 10,000 take about a millisecond, in which the shard serves nobody else. A program that needs more makes the rule fail."),
    setting!("rules.getenv", rules.getenv, Text, "Names of environment variables that rules may read with `getenv`, with commas between them. They are read when the node starts; no others can be read."),
    setting!("rules.max_republish_depth", rules.max_republish_depth, Count(1, 64), "How deep messages may come of messages that come of rules; what would be deeper is not published."),
    setting!("rules.ignore_sys_messages", rules.ignore_sys_messages, Flag, "Whether rules hear nothing of messages to topics that begin with `$SYS/`."),
    setting!("rules.console_lines_per_s", rules.console_lines_per_s, Count(0, MAX_U32), "Lines the action `console` writes into the log in a second, for each shard."),
    setting!("rules.kv_max_entries", rules.kv_max_entries, Count(0, 100_000_000), "Values a rule may keep with `kv_store_put`."),
    setting!("rules.kv_max_bytes", rules.kv_max_bytes, Bytes(0, MAX_MEMORY), "Memory of these values."),
    setting!("rules.window_lateness_ms", rules.window_lateness_ms, Count(0, 86_400_000), "Milliseconds a window stays open after its end for events that come late; a rule may say otherwise."),
    setting!("rules.window_max_ahead_ms", rules.window_max_ahead_ms, Count(0, 2_678_400_000), "Milliseconds that an event which says itself when it happened may be ahead of the node's clock; beyond, its clock is taken to be wrong and it is not counted."),
    setting!("rules.window_idle_ms", rules.window_idle_ms, Count(1, 2_678_400_000), "Milliseconds without any event after which windows of events that say themselves when they happened close by the node's clock."),
    setting!("rules.window_max_groups", rules.window_max_groups, Count(1, 100_000_000), "Groups in all open windows of a rule."),
    setting!("rules.window_max_bytes", rules.window_max_bytes, Bytes(1024, MAX_MEMORY), "Memory of all open windows of a rule."),
    setting!("rules.window_queue_bytes", rules.window_queue_bytes, Bytes(1024, MAX_MEMORY), "Bytes of events on their way to windows; beyond, publishers are not read."),
    setting!("rules.window_save_interval_s", rules.window_save_interval_s, Seconds(1, 86_400), "How often open windows are stored. A node that is killed goes on with what was stored last."),
    setting!("rules.max_metric_rules", rules.max_metric_rules, Count(0, 1_000_000), "Rules with metrics of their own; the others are only in the sums."),
    setting!("devices.cached_devices", devices.cached_devices, Count(16, 100_000_000), "Devices kept in memory, those used lately; each takes about 500 bytes."),
    setting!("devices.max_devices", devices.max_devices, Count(0, 60_000_000), "Devices there may be."),
    setting!("devices.max_products", devices.max_products, Count(0, 1_000_000), "Products there may be."),
    setting!("devices.min_provisioned_secret_bytes", devices.min_provisioned_secret_bytes, Count(1, 512), "The least length of a token or password that a device chooses itself when it registers."),
    setting!("devices.max_events_per_device", devices.max_events_per_device, Count(0, 1_000_000), "Events kept of each device, the last ones; 0: none."),
    setting!("devices.down_topic_publishers", telemetry.down_topic_publishers, Text, "User names, with commas between them, of clients that may publish on the topics of messages to devices, where access rules allow it; `*` stands for everybody, rules, connectors and the API included. Without it only the platform does."),
    setting!("devices.gateways_register", telemetry.gateways_register, Flag, "Whether a gateway may register devices by speaking of them."),
    setting!("devices.max_gateway_products", telemetry.max_gateway_products, Count(0, 1_000_000), "Products that are created because a gateway says that a device is of a type there is no product for; 0: none, and its devices get the product of their gateway."),

    setting!("telemetry.directory", telemetry.directory, Path, "Where telemetry is kept; `telemetry` below `node.data_dir` without it."),
    setting!("telemetry.fsync", telemetry.fsync, SettingKind::Fsync, "When telemetry is forced to disk: before a message is acknowledged (`always`), at this interval, or when the system does it (`never`). A killed process loses nothing with any of them."),
    setting!("telemetry.retention_d", telemetry.retention_d, Count(0, 36_500), "Days that telemetry is kept; 0 means for ever."),
    setting!("telemetry.memory_bytes", telemetry.memory_bytes, Bytes(1 << 20, MAX_MEMORY), "Memory for rows that are in no file of columns yet."),
    setting!("telemetry.flush_after_s", telemetry.flush_after_s, Seconds(1, 86_400), "Rows are in a file of columns after this time at the latest."),
    setting!("telemetry.max_wal_bytes", telemetry.max_wal_bytes, Bytes(64 << 20, MAX_MEMORY), "Size of the write-ahead log from which on rows are written to files of columns early."),
    setting!("telemetry.min_free_bytes", telemetry.min_free_bytes, Bytes(0, MAX_MEMORY), "No telemetry is taken while the file system has less room than this."),
    setting!("telemetry.max_keys", telemetry.max_keys, Count(1, 16_777_216), "Names of keys there may be, of all devices together."),
    setting!("telemetry.max_future_s", telemetry.max_future_s, Seconds(0, 315_360_000), "How far ahead of the node's clock the time of a row may be."),
    setting!("telemetry.latest_cache_bytes", telemetry.latest_cache_bytes, Bytes(0, MAX_MEMORY), "Memory for the latest values of devices that were asked for."),
    setting!("telemetry.verify_bytes_per_s", telemetry.verify_bytes_per_s, Bytes(0, MAX_MEMORY), "How many bytes of telemetry files are read per second after a start, once, to report damaged ones; 0 means none."),
    setting!("telemetry.mailboxes", telemetry.mailboxes, Count(0, 1024), "Mailboxes of products in `actor` mode, each with a thread that empties it; 0 means one per core."),
    setting!("telemetry.mailbox_bytes", telemetry.mailbox_bytes, Bytes(64 << 10, 1 << 30), "Bytes of messages that a mailbox holds. It is two files of half this size, mapped into memory."),
    setting!("telemetry.max_batch", telemetry.max_batch, Count(1, 65_536), "Messages of a mailbox that are worked off together."),
    setting!("commands.timeout_ms", commands.timeout_ms, Count(1, 86_400_000), "Milliseconds a device may take to answer a command that does not say."),
    setting!("commands.max_timeout_ms", commands.max_timeout_ms, Count(1, 86_400_000), "The most milliseconds that a command may say."),
    setting!("commands.expiry_s", commands.expiry_s, Seconds(0, 31_536_000), "How long a command that does not say waits for a device that is not here; 0: it goes at once or never."),
    setting!("commands.max_expiry_s", commands.max_expiry_s, Seconds(0, 31_536_000), "The most seconds that a command may say."),
    setting!("commands.max_open_per_device", commands.max_open_per_device, Count(1, 100_000), "Commands to one device that have not ended; more are refused."),
    setting!("commands.max_open", commands.max_open, Count(1, 10_000_000), "The same for all devices. Each takes some 150 bytes of memory."),
    setting!("commands.max_params_bytes", commands.max_params_bytes, Bytes(64, 16 << 20), "Bytes of what goes with a command, as JSON."),
    setting!("commands.max_result_bytes", commands.max_result_bytes, Bytes(64, 16 << 20), "Bytes of an answer; of a longer one it is kept that there was one."),
    setting!("commands.max_finished", commands.max_finished, Count(0, 100_000_000), "Commands that are kept after their end; the oldest go."),
    setting!("commands.finished_retention_d", commands.finished_retention_d, Count(1, 36_500), "Days for which they are kept."),
    setting!("commands.max_waiting", commands.max_waiting, Count(0, 100_000), "Callers, and devices that ask for commands over HTTP, that may wait at once."),
    setting!("commands.unnamed_within_ms", commands.unnamed_within_ms, Count(0, 86_400_000), "Milliseconds after a command was sent within which an answer that names none is taken for it."),
    setting!("commands.max_queued", commands.max_queued, Count(16, 10_000_000), "Answers that may wait to be worked off; beyond, devices are not read."),


    setting!("alarms.max_alarms", alarms.alarms.max_alarms, Count(1000, 1_000_000_000), "Alarms that are kept. Over it, the oldest that are cleared go; those that are not stay in any case."),
    setting!("alarms.cleared_retention_d", alarms.alarms.cleared_retention_d, Count(0, 36_500), "Days that alarms are kept after they were cleared."),
    setting!("alarms.max_queued", alarms.alarms.max_queued, Count(16, 10_000_000), "What may wait to be written of alarms; beyond, publishers of devices are not read."),
    setting!("alarms.max_devices", alarms.alarms.max_devices, Count(32, 100_000_000), "Devices whose conditions are in memory at a time."),
    setting!("alarms.platform", alarms.platform, Flag, "Whether the node raises alarms about itself."),
    setting!("alarms.platform_interval_s", alarms.platform_interval_s, Seconds(1, 3600), "How often the node looks at its own figures."),

    setting!("outbound.deny", outbound.deny, Targets, "Addresses that are not connected to, whatever name leads there. `link-local` has the metadata services of clouds in it; `loopback` is the node's own machine; `private` is RFC 1918, RFC 6598 and RFC 4193. Empty: none."),
    setting!("outbound.allow", outbound.allow, Targets, "Exceptions from `deny`."),

    setting!("http.bind", http_bind, SettingKind::Bind, "Where HTTP is served; `unix:/path` for a Unix socket."),
    setting!("http.proxy_protocol", http.proxy_protocol, Flag, "Whether each connection begins with a PROXY protocol header (version 1 or 2), which names the client."),
    setting!("http.trusted_proxies", http.trusted_proxies, SettingKind::Proxies, "Proxies whose `forwarded_header` says where a request comes from: addresses and networks separated by commas, and `unix` for whoever connects to a Unix socket."),
    setting!("http.forwarded_header", http.forwarded_header, choice::<ForwardedHeader>(), "The header in which trusted proxies name the client. The other one is ignored, since a proxy passes it on as the client sent it."),
    setting!("http.tls.certificate", http_certificate, Path, "PEM file with the certificate and its chain: HTTP is then served over TLS only. Read again when it changes and on SIGHUP; open connections stay."),
    setting!("http.tls.private_key", http_private_key, Path, "PEM file with the certificate's key."),
    setting!("http.anonymous", http.anonymous, choice::<AnonymousRole>(), "What those may do in the API who show no credentials. Only with `bind` on a loopback address."),
    setting!(at run time "http.metrics_access", http.metrics_access, choice::<RouteOpenness>(), "Whether `/metrics` needs credentials: never, only beyond loopback addresses, or always (those of a viewer)."),
    setting!(at run time "http.docs_access", http.docs_access, choice::<RouteOpenness>(), "The same for the API's description, `/api/docs` and `/api/v1/openapi.json`."),
    setting!(at run time "http.token_ttl_s", http.token_ttl_s, Seconds(60, 604_800), "How long the token of a login is good for."),
    setting!(at run time "http.refresh_token_ttl_s", http.refresh_token_ttl_s, Seconds(60, 2_592_000), "How long a refresh token of a login on ThingsBoard's paths is good for."),
    setting!(at run time "http.max_failed_logins", http.max_failed_logins, Count(1, 1_000_000), "Failed logins for one name from one address within `failed_login_window_s`; then these have to wait (429). Ten times as many for any names from one address, and for one name from any addresses, but for who has logged in from there before."),
    setting!(at run time "http.failed_login_window_s", http.failed_login_window_s, Seconds(1, 86_400), "Time in which failed logins are counted, and how long one has to wait."),
    setting!(at run time "http.max_audit_entries", http.max_audit_entries, Count(100, 100_000_000), "Entries of the audit log; the oldest go."),
    setting!("http.max_connections", http.max_connections, Count(1, 100_000), "Connections at once, those of streams and long polls aside. One more closes the one that has been idle for the longest time, or is closed itself."),
    setting!("http.max_connections_per_address", http.max_connections_per_address, Count(1, 100_000), "The same from one address or IPv6 network of 64 bits. Trusted proxies and Unix sockets have no bound of their own."),
    setting!("http.max_health_requests", http.max_health_requests, Count(1, 100_000), "Requests for health, metrics and documentation that are answered at once; more are refused (503)."),
    setting!("http.max_login_requests", http.max_login_requests, Count(1, 100_000), "The same for logins."),
    setting!("http.max_operator_requests", http.max_operator_requests, Count(1, 100_000), "The same for requests of operators and API keys."),
    setting!("http.max_device_requests", http.max_device_requests, Count(1, 100_000), "The same for requests of devices and of sources that push."),
    setting!("http.max_requests_per_address", http.max_requests_per_address, Count(1, 100_000), "Requests of one class from one address that are answered at once; never more than half of the class. More are refused (429)."),
    setting!("http.max_event_streams", http.max_event_streams, Count(0, 10_000), "Streams of events at once; more are refused (429)."),
    setting!("http.max_event_streams_per_holder", http.max_event_streams_per_holder, Count(0, 10_000), "The same of one operator or API key."),
    setting!("http.max_long_polls", http.max_long_polls, Count(0, 1_000_000), "Requests of devices that wait for a command at once; more are refused (429)."),
    setting!("http.max_long_polls_per_device", http.max_long_polls_per_device, Count(1, 1000), "The same of one device."),
    setting!(at run time "http.max_body_bytes", http.max_body_bytes, Bytes(1024, 1 << 30), "Largest body of a request."),
    setting!(at run time "http.max_restore_bytes", http.max_restore_bytes, Bytes(1024, 1 << 34), "Largest backup that can be restored."),
    setting!(at run time "http.request_timeout_s", http.request_timeout_s, Seconds(1, 3600), "Time for a request to be answered, its body included, and for those under way when the node stops."),
    setting!(at run time "http.header_timeout_s", http.header_timeout_s, Seconds(1, 3600), "Time for the head of a request to arrive, for a TLS handshake and for a PROXY header. A connection is closed when it has been idle for so long."),
    setting!(at run time "http.body_timeout_s", http.body_timeout_s, Seconds(1, 3600), "Time for the body of a request to arrive."),
    setting!(at run time "http.write_timeout_s", http.write_timeout_s, Seconds(1, 3600), "How long a client may leave what is sent to it unread; its connection is closed then."),

    setting!(at run time "log.level", log_level, Levels, "How much is logged."),
    setting!("log.format", log_format, choice::<LogFormat>(), "Lines for people or JSON objects for machines."),
];

impl NamedChoice for NoMatchPolicy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("allow", Self::Allow),
        ("deny", Self::Deny),
    ];
}

impl NamedChoice for DenialPolicy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("ignore", Self::Ignore), ("disconnect", Self::Disconnect)];
}

impl NamedChoice for LogFormat {
    const NAMES: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}

impl NamedChoice for AnonymousRole {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("viewer", Self::Viewer),
        ("admin", Self::Admin),
    ];
}

impl NamedChoice for ForwardedHeader {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("x-forwarded-for", Self::XForwardedFor),
        ("forwarded", Self::Forwarded),
    ];
}

impl NamedChoice for RouteOpenness {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("open", Self::Open),
        ("open_on_loopback", Self::OpenOnLoopback),
        ("viewers", Self::Viewers),
    ];
}

/// What clients speak on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenerProtocol {
    Mqtt,
    Mqtts,
    Ws,
    Wss,
    Unix,
}

impl NamedChoice for ListenerProtocol {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("mqtt", Self::Mqtt),
        ("mqtts", Self::Mqtts),
        ("ws", Self::Ws),
        ("wss", Self::Wss),
        ("unix", Self::Unix),
    ];
}

impl ListenerProtocol {
    /// The protocol of that name, if there is one.
    pub(super) fn protocol_by_name(name: &str) -> Option<Self> {
        let named = Self::NAMES.iter().find(|(known, _)| *known == name);
        named.map(|(_, protocol)| *protocol)
    }

    pub(super) fn has_tls(self) -> bool {
        matches!(self, Self::Mqtts | Self::Wss)
    }

    pub(super) fn has_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

/// A listener on its way to being complete.
pub(super) struct ListenerDraft {
    pub(super) protocol: ListenerProtocol,
    pub(super) bind: Option<BindSetting>,
    pub(super) tls: TlsDraft,
    pub(super) websocket_path: Option<String>,
    /// Everything else; its `bind`, `tls` and `websocket_path` are filled in at the end.
    pub(super) rest: ListenerConfig,
}

#[derive(Default)]
pub(super) struct TlsDraft {
    pub(super) certificate: Option<PathBuf>,
    pub(super) private_key: Option<PathBuf>,
    pub(super) client_ca: Option<PathBuf>,
    pub(super) require_client_certificate: bool,
    pub(super) common_name_as_username: bool,
}

impl ListenerDraft {
    /// A listener without an address. A name that is a protocol's (`mqtts`) chooses it.
    pub(super) fn new(name: &str) -> Self {
        let nowhere = BindAddress::Unix(PathBuf::new());
        Self {
            protocol: ListenerProtocol::protocol_by_name(name).unwrap_or(ListenerProtocol::Mqtt),
            bind: None,
            tls: TlsDraft::default(),
            websocket_path: None,
            rest: ListenerConfig::new(name, nowhere),
        }
    }

    /// The listeners that are open if the file lists none.
    pub(super) fn default_listeners() -> Vec<Self> {
        let open = |name, port| Self {
            bind: Some(tcp_bind(port)),
            ..Self::new(name)
        };
        vec![open("mqtt", 1883), open("ws", 8083)]
    }
}

fn tcp_bind(port: u16) -> BindSetting {
    BindSetting::At(BindAddress::Tcp(([127, 0, 0, 1], port).into()))
}

#[rustfmt::skip]
pub(super) const LISTENER: &[Setting<ListenerDraft>] = &[
    setting!("name", rest.name, Text, "Unique; shown in metrics and the API. Lower-case letters, digits, `-` and `_`. Left out, it is the protocol's name."),
    setting!("protocol", protocol, choice::<ListenerProtocol>(), "What is spoken here; with `s` under TLS. Left out, it is the one the listener is named after, else `mqtt`."),
    setting!("bind", bind, SettingKind::Bind, "Where to listen. Port 0 lets the system choose."),
    setting!("tls.certificate", tls.certificate, Path, "PEM file with the certificate and its chain. Read again when it changes and on SIGHUP; open connections stay."),
    setting!("tls.private_key", tls.private_key, Path, "PEM file with the certificate's key."),
    setting!("tls.client_ca", tls.client_ca, Path, "PEM file with the authorities that sign client certificates. Without it none is asked for."),
    setting!("tls.require_client_certificate", tls.require_client_certificate, Flag, "Whether clients without a certificate are refused."),
    setting!("tls.common_name_as_username", tls.common_name_as_username, Flag, "Whether the common name of the client's certificate is its user name."),
    setting!("websocket_path", websocket_path, Text, "Path at which WebSocket clients connect; `/mqtt` if left out."),
    setting!("proxy_protocol", rest.proxy_protocol, Flag, "Whether each connection begins with a PROXY protocol header (version 1 or 2)."),
    setting!("allow_anonymous", rest.allow_anonymous, Flag, "Whether clients without a user name are let in. Left out: only on loopback addresses and Unix sockets, and not behind a proxy."),
    setting!("max_connections", rest.max_connections, Count(1, 100_000_000), "Connections of this listener."),
    setting!("max_accept_rate", rest.max_accept_rate, Count(0, MAX_U32), "New connections per second, with a burst of one second; 0 means no limit."),
    setting!("max_message_rate", rest.max_message_rate, Count(0, MAX_U32), "PUBLISH packets per second and client; 0 means no limit."),
    setting!("max_byte_rate", rest.max_byte_rate, Bytes(0, MAX_U32), "Bytes per second and client; 0 means no limit."),
    setting!("max_packet_size", rest.max_packet_size, Bytes(0, MAX_PACKET), "Largest packet accepted here; 0 means `limits.max_packet_size`."),
    setting!("max_partial_bytes_per_shard", rest.max_partial_bytes_per_shard, Bytes(0, MAX_MEMORY), "Bytes of packets that have begun and are not whole, of all connections of this listener on a shard; 0 means half of `limits.max_partial_bytes_per_shard`."),
    setting!("min_keep_alive_s", rest.min_keep_alive_s, Seconds(0, MAX_U16), "A client that asks for a shorter keep-alive gets this; 0 means no bound."),
    setting!("max_keep_alive_s", rest.max_keep_alive_s, Seconds(0, MAX_U16), "A client that asks for a longer keep-alive, or for none, gets this; 0 means no bound."),
    setting!("connect_timeout_s", rest.connect_timeout_s, Seconds(1, 3600), "Time from accepting a connection to a complete CONNECT, TLS and WebSocket handshakes included."),
    setting!("backlog", rest.backlog, Count(1, MAX_U16), "Connections that may wait in the kernel to be accepted."),
];

/// A user on its way to being complete.
pub(super) struct UserDraft {
    pub(super) username: String,
    pub(super) credential: String,
}

#[rustfmt::skip]
pub(super) const USER: &[Setting<UserDraft>] = &[
    setting!("username", username, Text, "Unique."),
    setting!("credential", credential, Credential, "What proves the user, as `tidegate password` prints it. Holds no password."),
];
