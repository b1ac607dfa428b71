//! The table of settings. A new setting is one row here and its field in the configuration; file,
//! environment, `--set`, validation and reference follow from it.

use std::path::PathBuf;

use api::{AnonymousRole, ForwardedHeader, HttpConfig, RouteOpenness};
use auth::{DenialPolicy, NoMatchPolicy};
use broker::config::{
    BindAddress, BrokerConfig, BrokerLimits, DEFAULT_STOP_TIMEOUT_S, ListenerConfig,
};

use super::alarm_settings::AlarmSettings;
use super::backup_settings::BackupSettings;
use super::cluster_draft::ClusterDraft;
use super::damage_policy::DamagePolicy;
use super::ingest_settings::IngestSettings;
use super::setting_kind::SettingKind::{
    Bytes, Count, Credential, Flag, Levels, Path, Seconds, Secret, Targets, Text,
};
use super::setting_kind::{
    BindSetting, NamedChoice, Setting, SettingField, SettingKind, choice, setting,
};
use super::simulation_settings::SimulationSettings;
use super::standby_use::StandbyUse;
use crate::logging::LogFormat;

const MAX_U16: u64 = u16::MAX as u64;
const MAX_U32: u64 = u32::MAX as u64;
/// A year in seconds is plausible; more is probably a mistake.
const MAX_PERIOD_S: u64 = MAX_U32;
/// The largest packet MQTT can express.
const MAX_PACKET: u64 = 268_435_460;
const MAX_MEMORY: u64 = 1 << 44;
const MAX_FILES: u64 = 1 << 50;

/// The sections in the order of the reference, each with a description.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("node", "The process as a whole."),
    (
        "limits",
        "Limits of every client of the node. A client that requests more gets the allowed maximum, or is \
         rejected with the reason code of MQTT for it.",
    ),
    (
        "store",
        "Persistent data: sessions with an expiry, their queues, retained and delayed messages. The store \
         is in `store` in `node.data_dir`.",
    ),
    (
        "auth",
        "Authentication and authorisation of MQTT clients. Authenticators, rules and rule sources are lists of tables, \
         `[[auth.authenticator]]`, `[[auth.rule]]` and `[[auth.rule_source]]`; they are described in \
         [Authentication](../guides/authentication.md) and [Authorisation](../guides/authorisation.md).",
    ),
    (
        "rules",
        "Limits of the rule engine. Rules are created over the API, or declared in `[[rule]]` with `name`, `sql`, `actions` and \
         the other fields of the API; see [The rule engine](../guides/rule-engine.md).",
    ),
    (
        "devices",
        "The registry of devices. Devices are created over the API. Products are created over the API, or declared in `[[product]]` with `id` and the \
         other fields of the API, the thing model also as `model_file`; see [Devices](../guides/devices.md). Likewise device groups in `[[device_group]]`, rule chains in \
         `[[rule_chain]]`, [namespaces](../guides/namespaces.md) in `[[namespace]]`, [relay endpoints](relay.md#fields) in `[[endpoint]]`, and [pull sources](../guides/pull.md) in `[[pull_source]]`.",
    ),
    (
        "telemetry",
        "Processing and storage of device data; see [Telemetry](../guides/telemetry.md) and [Telemetry storage](../operations/telemetry-storage.md).",
    ),
    (
        "alarms",
        "Alarms of devices and of the node itself; see [Alarms](../guides/alarms.md). Notifications may be declared in `[[notification]]` with \
         `name` and the other fields of the API.",
    ),
    (
        "commands",
        "Commands to devices; see [Commands](../guides/commands.md).",
    ),
    (
        "backup",
        "Backups that the node makes while it runs; see [Storage](../operations/storage.md#backups).",
    ),
    (
        "cluster",
        "Several nodes that act as one broker; see [Cluster](../guides/cluster.md). The node is alone without `cluster.managed` \
         and `cluster.urls`.",
    ),
    (
        "files",
        "Files that devices and people send to the node; see [Files](../guides/files.md). They are in `files` in `node.data_dir`.",
    ),
    (
        "link",
        "Links of listeners with protocol `link` or `links`; see [Transfer files over a link](../guides/link.md#6-send-files-and-messages-to-a-node). The windows are \
         the most memory that one link needs.",
    ),
    (
        "firmware",
        "Firmware of devices; see [Firmware](../guides/firmware.md).",
    ),
    (
        "simulations",
        "Simulated devices that the node lets connect to itself; see [Simulator](../guides/simulator.md#simulations-in-a-node).",
    ),
    (
        "outbound",
        "Restricts the addresses that the node connects to on behalf of connectors, web hooks, pull sources, authenticators and key sets; see \
         [Connectors](../guides/connectors.md#where-connectors-may-connect).",
    ),
    ("http", "The HTTP listener: API, metrics, health."),
    ("log", "Log output to standard error."),
    (
        "listener",
        "A listener, once per `[[listener]]`. If the file contains any, the default listeners \
         (`mqtt` on 127.0.0.1:1883, `ws` on 127.0.0.1:8083) are open only if they are listed too.",
    ),
    (
        "user",
        "A user who may log in with a password or by SCRAM-SHA-256, once per `[[user]]`.",
    ),
];

/// All settings outside repeated tables.
#[derive(Clone)]
pub(super) struct NodeSettings {
    pub(super) broker: BrokerConfig,
    pub(super) auth: auth::AuthLimits,
    pub(super) rules: engine::RuleEngineSettings,
    pub(super) devices: devices::RegistryConfig,
    pub(super) telemetry: IngestSettings,
    pub(super) alarms: AlarmSettings,
    pub(super) commands: devices::command::CommandConfig,
    pub(super) files: transfer::TransferSettings,
    pub(super) link: link_gateway::LinkSettings,
    pub(super) firmware: firmware::FirmwareSettings,
    pub(super) simulations: SimulationSettings,
    pub(super) outbound: OutboundSettings,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) store_enabled: bool,
    pub(super) store: store::StoreConfig,
    pub(super) on_damage: DamagePolicy,
    pub(super) backup: BackupSettings,
    pub(super) cluster: ClusterDraft,
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
            telemetry: IngestSettings::default(),
            alarms: AlarmSettings::default(),
            commands: devices::command::CommandConfig::default(),
            files: transfer::TransferSettings::default(),
            link: link_gateway::LinkSettings::default(),
            firmware: firmware::FirmwareSettings::default(),
            simulations: SimulationSettings::default(),
            outbound: OutboundSettings::default(),
            data_dir: None,
            store_enabled: true,
            store: store::StoreConfig::default(),
            on_damage: DamagePolicy::default(),
            backup: BackupSettings::default(),
            cluster: ClusterDraft::default(),
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

/// Restrictions on the addresses that the node connects to.
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

/// The store of session queues.
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
    setting!("node.data_dir", data_dir, Path, "Data directory. Only one node can use it at a time."),
    setting!("node.stop_timeout_s", broker.stop_timeout_s, Seconds(1, 3600), "Time limit of a graceful stop; then remaining connections are closed."),
    setting!("node.server_reference", broker.server_reference, Text, "Another server (`host:port`) that MQTT 5 clients are referred to when this one stops."),
    setting!("node.sys_interval_s", broker.sys_interval_s, Seconds(0, 86_400), "Time between two publications of the `$SYS` topics; 0 turns them off."),

    setting!(at run time "limits.max_connections", broker.limits.max_connections, Count(1, 100_000_000), "Maximum number of connections of the node."),
    setting!(at run time "limits.max_sessions", broker.limits.max_sessions, Count(1, 100_000_000), "Maximum number of sessions of the node, connected or not."),
    setting!("limits.max_packet_size", broker.limits.max_packet_size, Bytes(128, MAX_PACKET), "Largest packet accepted, fixed header included. A listener may set a smaller one."),
    setting!(at run time "limits.max_connect_bytes", broker.limits.max_connect_bytes, Bytes(128, MAX_PACKET), "Largest CONNECT accepted, will and password included; never larger than `max_packet_size`. It limits the memory that a client without credentials can occupy."),
    setting!(at run time "limits.max_partial_packet_bytes_per_shard", broker.limits.max_partial_packet_bytes_per_shard, Bytes(65536, MAX_MEMORY), "Maximum bytes of incompletely received packets, over all connections of a shard. A connection that exceeds it is closed (0x97)."),
    setting!(at run time "limits.max_partial_packet_bytes", broker.limits.max_partial_packet_bytes, Bytes(65536, MAX_MEMORY), "The same over all shards. A shard counts in steps of 64 KiB, so that up to this much more may be kept for each shard."),
    setting!(at run time "limits.packet_timeout_s", broker.limits.packet_timeout_s, Seconds(1, MAX_U32), "Time limit for receiving a packet completely, if its bytes arrive at less than 1024 per second: each received byte extends it, and the keep-alive, by the time it takes at that rate. For CONNECT, the listener's `connect_timeout_s` applies."),
    setting!("limits.max_topic_bytes", broker.limits.max_topic_bytes, Bytes(1, MAX_U16), "Longest topic name or filter, in bytes."),
    setting!("limits.max_topic_levels", broker.limits.max_topic_levels, Count(1, MAX_U16), "Maximum number of levels of a topic name or filter."),
    setting!(at run time "limits.max_client_id_bytes", broker.limits.max_client_id_bytes, Bytes(23, MAX_U16), "Longest client id, in bytes."),
    setting!(at run time "limits.max_username_bytes", broker.limits.max_username_bytes, Bytes(23, MAX_U16), "Longest user name, in bytes."),
    setting!("limits.max_qos", broker.limits.max_qos, Count(0, 2), "Highest QoS granted to subscribers and accepted from publishers."),
    setting!("limits.retain_available", broker.limits.retain_available, Flag, "Whether messages may be retained."),
    setting!("limits.wildcard_subscription_available", broker.limits.wildcard_subscription_available, Flag, "Whether filters may contain wildcards."),
    setting!("limits.shared_subscription_available", broker.limits.shared_subscription_available, Flag, "Whether `$share/` and `$queue/` subscriptions are allowed."),
    setting!("limits.exclusive_subscription_available", broker.limits.exclusive_subscription_available, Flag, "Whether `$exclusive/` subscriptions are allowed."),
    setting!(at run time "limits.max_subscriptions_per_session", broker.limits.max_subscriptions_per_session, Count(1, MAX_U32), "Maximum number of subscriptions of one session."),
    setting!(at run time "limits.max_subscription_bytes_per_session", broker.limits.max_subscription_bytes_per_session, Bytes(128, MAX_MEMORY), "Maximum bytes of the topic filters of one session, plus 64 for each subscription; further subscriptions are rejected (0x97)."),
    setting!(at run time "limits.max_subscription_bytes_per_shard", broker.limits.max_subscription_bytes_per_shard, Bytes(65536, MAX_MEMORY), "The same limit for all sessions of a shard."),
    setting!(at run time "limits.max_session_expiry_s", broker.limits.max_session_expiry_s, Seconds(0, MAX_PERIOD_S), "Longest session expiry. A client that requests more gets this value."),
    setting!("limits.receive_maximum", broker.limits.receive_maximum, Count(1, MAX_U16), "Maximum number of QoS 1 and 2 messages in flight from a client to the node."),
    setting!(at run time "limits.max_inflight", broker.limits.max_inflight, Count(1, MAX_U16), "Maximum number of QoS 1 and 2 messages in flight from the node to a client; a client may set a lower one."),
    setting!("limits.topic_alias_maximum", broker.limits.topic_alias_maximum, Count(0, MAX_U16), "Maximum number of topic aliases a client may use."),
    setting!(at run time "limits.max_outgoing_topic_aliases", broker.limits.max_outgoing_topic_aliases, Count(0, MAX_U16), "Maximum number of topic aliases the node uses towards a client; a client may set a lower one. 0 turns them off."),
    setting!(at run time "limits.max_queued_messages", broker.limits.max_queued_messages, Count(0, MAX_U32), "Maximum number of messages in the queue of one session."),
    setting!(at run time "limits.max_queued_bytes", broker.limits.max_queued_bytes, Bytes(0, MAX_U32), "Maximum bytes in the queue of one session."),
    setting!(at run time "limits.client_id_prefix", broker.limits.client_id_prefix, Text, "Required prefix of the client id of clients with a user name, such as `${username}-`; others are rejected with 0x85. `${username}` stands for the user name, which is `device:ID` for a device of the registry. Empty: no restriction."),
    setting!(at run time "limits.session_owner_conflict", broker.limits.session_owner_conflict, choice::<broker::config::SessionOwnerConflict>(), "How to handle a client that connects with the client id of another user's session: reject it with 0x85, or end that session with its connection and queue."),
    setting!(at run time "limits.queue_policy", broker.limits.queue_policy, choice::<broker::config::QueuePolicy>(), "How to handle a message for a session with a full queue: drop the oldest message, drop the new one, or disconnect the client (0x97)."),
    setting!(at run time "limits.queue_qos0_messages", broker.limits.queue_qos0_messages, Flag, "Whether QoS 0 messages are queued for disconnected sessions."),
    setting!(at run time "limits.max_outbox_bytes", broker.limits.max_outbox_bytes, Bytes(1024, MAX_U32), "Maximum bytes waiting for one socket. Beyond it, QoS 0 messages are dropped, and QoS 1 and 2 messages wait in the session queue."),
    setting!(at run time "limits.max_derived_messages", broker.limits.max_derived_messages, Count(1, MAX_U32), "Maximum number of messages derived from one message by rules that republish, directly or through other rules. Beyond it, they are dropped and counted (derived_budget), and the log names the rule."),
    setting!(at run time "limits.max_derived_processing_ms", broker.limits.max_derived_processing_ms, Count(1, 3_600_000), "Maximum time in milliseconds spent on the messages derived from one message, after the first of them. Beyond it, they are dropped and counted."),
    setting!(at run time "limits.max_buffered_bytes_per_shard", broker.limits.max_buffered_bytes_per_shard, Bytes(1 << 20, MAX_MEMORY), "Maximum bytes waiting for all sockets of one shard. Beyond it, publishers are paused."),
    setting!(at run time "limits.max_relay_backlog_bytes_per_shard", broker.limits.max_relay_backlog_bytes_per_shard, Bytes(1 << 20, MAX_MEMORY), "Maximum memory of the messages that wait for slow receivers of relay endpoints, per shard. A message counts once, however many receivers it waits for. Beyond half of it, receivers with more than an equal part lose their oldest messages; beyond all of it, senders at relay endpoints are paused."),
    setting!(at run time "limits.max_queued_bytes_per_shard", broker.limits.max_queued_bytes_per_shard, Bytes(1 << 20, MAX_MEMORY), "Maximum memory of all session queues of one shard, without messages that are only in the store. Beyond it, messages to be queued are dropped and counted."),
    setting!(at run time "limits.max_queued_age_s", broker.limits.max_queued_age_s, Seconds(0, MAX_PERIOD_S), "Time after which a queued message is dropped as expired. 0: only the expiry of the message and of the session apply."),
    setting!(at run time "limits.max_cross_shard_bytes", broker.limits.max_cross_shard_bytes, Bytes(65_536, MAX_U32), "Maximum bytes waiting between two shards. Beyond it, publishers of the sending shard are paused."),
    setting!(at run time "limits.max_retained_messages", broker.limits.max_retained_messages, Count(0, MAX_U32), "Maximum number of retained messages of the node."),
    setting!(at run time "limits.max_retained_bytes", broker.limits.max_retained_bytes, Bytes(0, MAX_MEMORY), "Maximum bytes of all retained messages."),
    setting!(at run time "limits.max_retained_payload_bytes", broker.limits.max_retained_payload_bytes, Bytes(0, MAX_PACKET), "Largest payload of a retained message."),
    setting!(at run time "limits.retained_expiry_s", broker.limits.retained_expiry_s, Seconds(0, MAX_PERIOD_S), "Expiry of retained messages without an expiry of their own; 0 means never."),
    setting!(at run time "limits.max_delayed_messages", broker.limits.max_delayed_messages, Count(0, MAX_U32), "Maximum number of messages waiting under `$delayed/`."),
    setting!(at run time "limits.max_delayed_bytes", broker.limits.max_delayed_bytes, Bytes(0, MAX_MEMORY), "Maximum bytes of messages waiting under `$delayed/`."),
    setting!(at run time "limits.max_publish_delay_s", broker.limits.max_publish_delay_s, Seconds(0, MAX_PERIOD_S), "Longest delay under `$delayed/`."),
    setting!(at run time "limits.max_keep_alive_s", broker.limits.max_keep_alive_s, Seconds(0, MAX_U16), "Longest keep-alive. A client that requests a longer one, or none, gets this value; 0 means no limit."),
    setting!(at run time "limits.validate_payload_format", broker.limits.validate_payload_format, Flag, "Whether a payload marked as UTF-8 is checked (0x99 if it is not)."),
    setting!(at run time "limits.send_reason_strings", broker.limits.send_reason_strings, Flag, "Whether responses contain a reason string, for clients that allow it."),
    setting!(at run time "limits.shared_subscription_strategy", broker.limits.shared_subscription_strategy, choice::<broker::config::SharedSubscriptionStrategy>(), "How the member of a shared subscription that gets a message is chosen."),

    setting!("store.enabled", store_enabled, Flag, "Whether sessions and messages are stored on disk. Otherwise they are in memory only."),
    setting!("store.fsync", store.fsync, SettingKind::Fsync, "When the log is synced to disk. A crash of the node never loses acknowledged data; a crash of the machine loses at most this interval."),
    setting!("store.segment_bytes", store.segment_bytes, Bytes(1 << 20, 1 << 30), "Size of one segment of the message log, allocated ahead. A message can take at most a quarter of it."),
    setting!("store.min_free_bytes", store.min_free_bytes, Bytes(0, MAX_MEMORY), "With less free space than this on the file system, QoS 1 and 2 messages are rejected (0x97)."),
    setting!("store.max_log_bytes", store.max_log_bytes, Bytes(1 << 24, 1 << 50), "Maximum size of the message log. With more than this waiting in it, QoS 1 and 2 messages are rejected (0x97)."),
    setting!("store.max_pending_bytes", store.max_pending_bytes, Bytes(1 << 16, MAX_MEMORY), "Maximum bytes waiting to be written to the log. Beyond it, publishers are paused."),
    setting!("store.cache_bytes", store.cache_bytes, Bytes(1 << 20, MAX_MEMORY), "Memory of the read cache for sessions, retained messages and objects."),
    setting!("store.on_damage", on_damage, choice::<DamagePolicy>(), "What a start does with damaged files of messages, journals and telemetry: refuse them, or continue without what cannot be read and keep the damaged files in `quarantine/`, with an error in the log and an alarm. Damage that hides users, permissions, devices or deletions is refused in both cases."),
    setting!("store.queue_backend", queue.kind, choice::<QueueStoreKind>(), "Where session queues are stored: in the log of this node, in Redis, or in MySQL or MariaDB. Everything else stays in the store of the node."),
    setting!("store.queue_url", queue.url, Secret, "The server of `store.queue_backend`: `redis://USER:PASSWORD@HOST:PORT/NUMBER` (`rediss://` for TLS) or `mysql://USER:PASSWORD@HOST:PORT/DATABASE` (`?require_ssl=true` for TLS). Preferably set in the environment."),
    setting!("store.queue_prefix", queue.prefix, Text, "Prefix of key and table names in that server: up to 32 letters, digits and `_`. Each node needs its own."),
    setting!("store.queue_tls_ca", queue.tls_ca, Path, "PEM file with the authorities to trust for that server instead of the system's."),
    setting!("store.queue_connect_timeout_s", queue.connect_timeout_s, Seconds(1, 300), "Time limit for connecting to that server."),
    setting!("store.queue_command_timeout_s", queue.command_timeout_s, Seconds(1, 300), "Time limit for its responses; then the node reconnects and retries."),

    setting!(at run time "auth.default_permission", auth.default_permission, choice::<NoMatchPolicy>(), "The decision if no rule matches. `auto`: deny if this file contains a rule or a rule source, otherwise allow."),
    setting!(at run time "auth.deny_action", auth.deny_action, choice::<DenialPolicy>(), "How to handle a denied publication or subscription: drop the message or reject the subscription, also disconnect the client, or allow and record what ACL rules would deny (see `GET /api/v1/denied-actions`). `observe` extends neither the permissions of devices nor those at relay endpoints."),
    setting!(at run time "auth.timeout_ms", auth.timeout_ms, Count(100, 600_000), "Time limit in milliseconds for all authenticators together; then the client is rejected."),
    setting!(at run time "auth.max_pending_logins", auth.max_pending_logins, Count(1, 1_000_000), "Maximum number of clients waiting for authenticators. Further clients are rejected with server busy (0x89)."),
    setting!("auth.password_threads", auth.password_threads, Count(0, 1024), "Maximum number of concurrent password checks; 0 means one per core."),
    setting!(at run time "auth.rules_refresh_s", auth.rules_refresh_s, Seconds(1, 86_400), "Time after which rules from external sources are queried again for a connected client."),
    setting!(at run time "auth.rules_max_age_s", auth.rules_max_age_s, Seconds(1, 604_800), "Time after which rules that could not be refreshed become invalid; then the client is denied everything."),
    setting!(at run time "auth.max_logins_per_s", auth.max_logins_per_s, Count(0, MAX_U32), "Maximum logins per second of the node, with a burst of one second; further ones are rejected with 0x9F. 0 means no limit."),
    setting!(at run time "auth.max_failed_logins_per_user", auth.max_failed_logins_per_user, Count(0, MAX_U32), "Number of failed logins of a user, from any address, within `failed_login_window_s` that lock the user out; 0 disables this. With it, anyone who knows the name of a user can lock that user out."),
    setting!(at run time "auth.max_failed_logins_per_address", auth.max_failed_logins_per_address, Count(0, MAX_U32), "Number of failed logins of one user from one IPv4 address, or IPv6 /64, within `failed_login_window_s` that lock this user out there; 0 disables this. Ten times as many for any users lock out the address, except for users who logged in from there before and for clients that send a token instead of a password."),
    setting!(at run time "auth.failed_login_window_s", auth.failed_login_window_s, Seconds(1, 86_400), "Period in which failed logins are counted."),
    setting!(at run time "auth.lockout_s", auth.lockout_s, Seconds(1, 604_800), "Duration of the lockout of a user or an address."),
    setting!(at run time "auth.flapping_disconnects", auth.flapping_disconnects, Count(0, MAX_U32), "Number of disconnects within `flapping_window_s` that ban a client id; 0 disables this."),
    setting!(at run time "auth.flapping_window_s", auth.flapping_window_s, Seconds(1, 86_400), "Period in which disconnects are counted."),
    setting!(at run time "auth.flapping_ban_s", auth.flapping_ban_s, Seconds(1, 604_800), "Duration of the ban of a flapping client."),
    setting!("rules.node_name", rules.node_name, Text, "Value of the field `node` of events."),
    setting!("rules.max_rules", rules.max_rules, Count(0, 10_000_000), "Maximum number of rules."),
    setting!("rules.max_steps", rules.max_steps, Count(1, MAX_U32), "Maximum number of steps of one evaluation of a rule; a rule may set a lower limit."),
    setting!("rules.max_output_bytes", rules.max_output_bytes, Bytes(1, MAX_MEMORY), "Maximum bytes of the outputs of one evaluation."),
    setting!("rules.max_outputs", rules.max_outputs, Count(1, 1_000_000), "Maximum number of outputs of one FOREACH."),
    setting!("rules.max_jq_steps", rules.max_jq_steps, Count(1, 10_000_000_000), "Maximum number of steps of all jq programs in one evaluation of a rule. 10,000 steps take about a millisecond, during which the shard serves nothing else. The rule fails at the limit."),
    setting!("rules.environment_variables", rules.environment_variables, Text, "Names of environment variables that rules may read with `getenv`, separated by commas. They are read when the node starts."),
    setting!("rules.max_republish_depth", rules.max_republish_depth, Count(1, 64), "Maximum depth of republishing by rules; deeper messages are not published."),
    setting!("rules.ignore_sys_messages", rules.ignore_sys_messages, Flag, "Whether rules ignore messages to topics that begin with `$SYS/`."),
    setting!("rules.console_lines_per_s", rules.console_lines_per_s, Count(0, MAX_U32), "Maximum number of lines per second and shard that the action `console` writes to the log."),
    setting!("rules.kv_max_entries", rules.kv_max_entries, Count(0, 100_000_000), "Maximum number of values that rules store with `kv_store_put`."),
    setting!("rules.kv_max_bytes", rules.kv_max_bytes, Bytes(0, MAX_MEMORY), "Maximum memory of these values."),
    setting!("rules.window_lateness_ms", rules.window_lateness_ms, Count(0, 86_400_000), "Time in milliseconds that a window stays open after its end for late events; a rule may override it."),
    setting!("rules.window_max_ahead_ms", rules.window_max_ahead_ms, Count(0, 2_678_400_000), "Maximum time in milliseconds that an event's own timestamp may be ahead of the node's clock; events further ahead are not counted."),
    setting!("rules.window_idle_ms", rules.window_idle_ms, Count(1, 2_678_400_000), "Time in milliseconds without events after which windows over event timestamps close by the node's clock."),
    setting!("rules.window_max_groups", rules.window_max_groups, Count(1, 100_000_000), "Maximum number of groups in all open windows of a rule."),
    setting!("rules.window_max_bytes", rules.window_max_bytes, Bytes(1024, MAX_MEMORY), "Maximum memory of all open windows of a rule."),
    setting!("rules.window_queue_bytes", rules.window_queue_bytes, Bytes(1024, MAX_MEMORY), "Maximum bytes of events queued for windows; beyond it, publishers are paused."),
    setting!("rules.window_save_interval_s", rules.window_save_interval_s, Seconds(1, 86_400), "Interval at which open windows are stored. A killed node continues with the last stored state."),
    setting!("rules.max_rules_with_metrics", rules.max_rules_with_metrics, Count(0, 1_000_000), "Maximum number of rules with metrics of their own; the others are only part of the sums."),
    setting!("devices.max_cached_devices", devices.max_cached_devices, Count(16, 100_000_000), "Maximum number of recently used devices in memory; each takes about 500 bytes."),
    setting!("devices.max_devices", devices.max_devices, Count(0, 60_000_000), "Maximum number of devices."),
    setting!("devices.max_products", devices.max_products, Count(0, 1_000_000), "Maximum number of products."),
    setting!("devices.min_provisioned_secret_bytes", devices.min_provisioned_secret_bytes, Count(1, 512), "Minimum length of a token or password that a device chooses itself when it registers."),
    setting!("devices.max_events_per_device", devices.max_events_per_device, Count(0, 1_000_000), "Number of most recent events stored per device; 0: none."),
    setting!("devices.downlink_topic_publishers", telemetry.downlink_topic_publishers, Text, "User names, separated by commas, of clients that may publish to downlink topics of devices, if access rules allow it; `*` stands for everybody, including rules, connectors and the API. Without it only the platform may."),
    setting!("devices.allow_registration_by_gateways", telemetry.allow_registration_by_gateways, Flag, "Whether a gateway may register devices by reporting data of them."),
    setting!("devices.max_gateway_products", telemetry.max_gateway_products, Count(0, 1_000_000), "Maximum number of products created for device types that gateways report and that have no product; 0: none, and the devices get the product of their gateway."),

    setting!("telemetry.directory", telemetry.directory, Path, "Directory of the telemetry; default: `telemetry` in `node.data_dir`."),
    setting!("telemetry.fsync", telemetry.fsync, SettingKind::Fsync, "When telemetry is synced to disk: before a message is acknowledged (`always`), at this interval, or when the system does it (`never`). A killed process loses nothing with any of them."),
    setting!("telemetry.retention_days", telemetry.retention_days, Count(0, 36_500), "Retention of telemetry in days; 0 means unlimited."),
    setting!("telemetry.memtable_bytes", telemetry.memtable_bytes, Bytes(1 << 20, MAX_MEMORY), "Memory for rows that are not in a segment yet."),
    setting!("telemetry.flush_after_s", telemetry.flush_after_s, Seconds(1, 86_400), "Maximum time until rows are written to a segment."),
    setting!("telemetry.max_wal_bytes", telemetry.max_wal_bytes, Bytes(64 << 20, MAX_MEMORY), "Size of the write-ahead log from which rows are written to segments early."),
    setting!("telemetry.min_free_bytes", telemetry.min_free_bytes, Bytes(0, MAX_MEMORY), "With less free space than this on the file system, telemetry is rejected."),
    setting!("telemetry.max_keys", telemetry.max_keys, Count(1, 16_777_216), "Maximum number of keys of all devices together."),
    setting!("telemetry.max_keys_per_product", telemetry.max_keys_per_product, Count(1, 65_536), "Maximum number of keys of the devices of a product. In addition, a product creates at most half of the keys of `telemetry.max_keys` that are free when the node starts."),
    setting!("telemetry.max_future_s", telemetry.max_future_s, Seconds(0, 315_360_000), "Maximum time that a row may be ahead of the node's clock."),
    setting!("telemetry.latest_cache_bytes", telemetry.latest_cache_bytes, Bytes(0, MAX_MEMORY), "Memory of the cache for latest values of devices."),
    setting!("telemetry.verify_bytes_per_s", telemetry.verify_bytes_per_s, Bytes(0, MAX_MEMORY), "Bytes of telemetry files verified per second, once after a start, to report damaged ones; 0 disables this."),
    setting!("telemetry.mailboxes", telemetry.mailboxes, Count(0, 1024), "Number of mailboxes for products in `actor` mode, each with a worker thread; 0 means one per core."),
    setting!("telemetry.mailbox_bytes", telemetry.mailbox_bytes, Bytes(64 << 10, 1 << 30), "Size of a mailbox: two memory-mapped files of half this size."),
    setting!("telemetry.max_mailbox_batch_messages", telemetry.max_mailbox_batch_messages, Count(1, 65_536), "Maximum number of messages of a mailbox processed in one batch."),
    setting!("commands.timeout_ms", commands.timeout_ms, Count(1, 86_400_000), "Default time limit in milliseconds for the response of a device to a command."),
    setting!("commands.max_timeout_ms", commands.max_timeout_ms, Count(1, 86_400_000), "Largest time limit in milliseconds that a command may set."),
    setting!("commands.expiry_s", commands.expiry_s, Seconds(0, 31_536_000), "Default time that a command waits for a disconnected device; 0: no waiting."),
    setting!("commands.max_expiry_s", commands.max_expiry_s, Seconds(0, 31_536_000), "Longest waiting time that a command may set."),
    setting!("commands.max_open_per_device", commands.max_open_per_device, Count(1, 100_000), "Maximum number of open commands per device; further ones are rejected."),
    setting!("commands.max_open", commands.max_open, Count(1, 10_000_000), "Maximum number of open commands of all devices. Each takes about 150 bytes of memory."),
    setting!("commands.max_params_bytes", commands.max_params_bytes, Bytes(64, 16 << 20), "Maximum bytes of the parameters of a command, as JSON."),
    setting!("commands.max_result_bytes", commands.max_result_bytes, Bytes(64, 16 << 20), "Maximum bytes of a response; of a longer one only its arrival is stored."),
    setting!("commands.max_finished", commands.max_finished, Count(0, 100_000_000), "Maximum number of ended commands that are stored; the oldest are deleted."),
    setting!("commands.finished_retention_days", commands.finished_retention_days, Count(1, 36_500), "Retention of ended commands in days."),
    setting!("commands.max_waiting_requests", commands.max_waiting_requests, Count(0, 100_000), "Maximum number of waiting callers and of devices that poll for commands over HTTP."),
    setting!("commands.response_without_id_window_ms", commands.response_without_id_window_ms, Count(0, 86_400_000), "Time in milliseconds after sending a command within which a response without a command id is assigned to it."),
    setting!("commands.max_queued_responses", commands.max_queued_responses, Count(16, 10_000_000), "Maximum number of responses waiting to be processed; beyond it, devices are paused."),


    setting!("alarms.max_alarms", alarms.alarms.max_alarms, Count(1000, 1_000_000_000), "Maximum number of stored alarms, in a cluster those of all nodes. Beyond it, those that were cleared first are deleted; others are always kept."),
    setting!("alarms.cleared_retention_days", alarms.alarms.cleared_retention_days, Count(0, 36_500), "Retention of cleared alarms in days."),
    setting!("alarms.max_queued_changes", alarms.alarms.max_queued_changes, Count(16, 10_000_000), "Maximum number of alarm changes waiting to be written; beyond it, devices are paused."),
    setting!("alarms.max_watched_devices", alarms.alarms.max_watched_devices, Count(32, 100_000_000), "Maximum number of devices with conditions in memory."),
    setting!("alarms.node_alarms_enabled", alarms.node_alarms_enabled, Flag, "Whether the node raises alarms about itself."),
    setting!("alarms.node_alarm_interval_s", alarms.node_alarm_interval_s, Seconds(1, 3600), "Interval at which the node alarm rules are evaluated."),

    setting!("backup.directory", backup.directory, Path, "Directory for backups; default: `backups` in the data directory."),
    setting!("backup.max_bytes_per_s", backup.max_bytes_per_s, Bytes(0, MAX_MEMORY), "Maximum rate at which a backup is written, in bytes per second, to limit the load on the disk; 0: no limit."),

    setting!("cluster.node", cluster.node, Text, "Name of this node, different for each node of the cluster: 1 to 64 of the characters a-z, 0-9 and -."),
    setting!("cluster.name", cluster.name, Text, "Name of the cluster, with which subjects and buckets of NATS begin, so that clusters with different names can share servers: 1 to 32 of the characters a-z, A-Z, 0-9, - and _."),
    setting!("cluster.start_timeout_s", cluster.start_timeout_s, Seconds(0, 3600), "How long a start waits for the subscriptions of the other nodes before listeners open."),
    setting!("cluster.away_timeout_s", cluster.away_timeout_s, Seconds(0, 20), "How long QoS 1 and 2 messages to another node wait for its return after it was reported as unreachable, and with them the answers to their publishers. If it returns in time, it gets them; otherwise they are lost for the sessions of that node."),
    setting!("cluster.standby", cluster.standby, choice::<StandbyUse>(), "Whether another node keeps a copy of the durable sessions of this one, with their queues, and adopts them when this node fails. Answers to clients then wait until the copy has what they acknowledge. `auto`: if there are three or more NATS servers. Without effect with another `store.queue_backend` than `embedded`, whose server has the queues."),
    setting!("cluster.drain_rate", cluster.drain_rate, Count(1, 100_000), "Clients that a drain or a rebalancing of this node disconnects per second."),
    setting!("cluster.api_url", cluster.api_url, Text, "Where people reach the HTTP API of this node, shown with the members of the cluster."),
    setting!("cluster.urls", cluster.urls, Text, "External NATS servers with JetStream that connect the nodes: `nats://HOST:4222` or `tls://HOST:4222`, separated by commas."),
    setting!("cluster.user", cluster.user, Text, "User at the external servers."),
    setting!("cluster.password_file", cluster.password_file, Path, "File with the password of `cluster.user`."),
    setting!("cluster.token_file", cluster.token_file, Path, "File with a token for the external servers, instead of a user."),
    setting!("cluster.credentials_file", cluster.credentials_file, Path, "Credentials file (`.creds`) for the external servers, instead of a user."),
    setting!("cluster.tls", cluster.tls, Flag, "Whether connections to external servers without TLS are rejected."),
    setting!("cluster.authorities", cluster.authorities, Path, "Certificate authorities (PEM) of the servers; default for external servers: those of the system."),
    setting!("cluster.certificate", cluster.certificate, Path, "Certificate (PEM) that this node presents to the servers; for managed servers, with which they authenticate each other."),
    setting!("cluster.private_key", cluster.private_key, Path, "Key (PEM) of `cluster.certificate`."),
    setting!("cluster.managed", cluster.managed, Flag, "Whether the node runs a NATS server itself, as a child process. The program `nats-server` must be installed."),
    setting!("cluster.program", cluster.program, Path, "The program `nats-server`; default: beside this program, or on `PATH`."),
    setting!("cluster.listen", cluster.listen, Text, "Where the managed server listens for those of the other nodes (`HOST:PORT`)."),
    setting!("cluster.advertise", cluster.advertise, Text, "Where the other nodes reach `cluster.listen`, if it is no address that they can use (`HOST:PORT`)."),
    setting!("cluster.peers", cluster.peers, Text, "The managed servers of all nodes, and of the witness if there is one (`HOST:PORT`), separated by commas, this one included. An odd number; with three, one may fail."),
    setting!("cluster.secret_file", cluster.secret_file, Path, "File with the secret by which the managed servers authenticate each other; the same on all nodes."),
    setting!("cluster.max_memory", cluster.max_memory, Bytes(64 << 20, MAX_MEMORY), "Memory that the managed server should not exceed."),
    setting!("cluster.max_disk", cluster.max_disk, Bytes(64 << 20, MAX_FILES), "Space that the managed server may use on disk, in `nats` in `node.data_dir`."),

    setting!("files.enabled", files.enabled, Flag, "Whether files can be transferred. Otherwise `$file/` topics are ordinary topics, and uploads over HTTP are rejected."),
    setting!("files.max_file_bytes", files.max_file_bytes, Bytes(1, MAX_FILES), "Maximum size of a file."),
    setting!("files.max_files", files.max_files, Count(0, 10_000_000), "Maximum number of files on the node, including transfers that are not complete."),
    setting!("files.max_bytes", files.max_bytes, Bytes(0, MAX_FILES), "Maximum bytes of these files, as announced by their senders."),
    setting!("files.max_transfers", files.max_transfers, Count(1, 100_000), "Maximum number of transfers that are not complete. Each active one uses two open files."),
    setting!("files.max_bytes_per_s", files.max_bytes_per_s, Bytes(0, MAX_MEMORY), "Maximum bytes per second that the node receives; beyond it, senders are paused. 0 means no limit."),
    setting!("files.max_files_per_owner", files.max_files_per_owner, Count(0, 10_000_000), "Maximum number of files of one device, client or operator, including transfers that are not complete."),
    setting!("files.max_bytes_per_owner", files.max_bytes_per_owner, Bytes(0, MAX_FILES), "Maximum bytes of these files."),
    setting!("files.max_transfers_per_owner", files.max_transfers_per_owner, Count(1, 100_000), "Maximum number of transfers of one device, client or operator that are not complete."),
    setting!("files.max_bytes_per_s_per_owner", files.max_bytes_per_s_per_owner, Bytes(0, MAX_MEMORY), "Maximum bytes per second from one device, client or operator; beyond it, the sender is paused. 0 means no limit."),
    setting!("files.max_files_per_product", files.max_files_per_product, Count(0, 10_000_000), "Maximum number of files of all devices of one product. Quotas of namespaces are set in the namespace."),
    setting!("files.max_bytes_per_product", files.max_bytes_per_product, Bytes(0, MAX_FILES), "Maximum bytes of these files."),
    setting!("files.max_transfers_per_product", files.max_transfers_per_product, Count(1, 100_000), "Maximum number of transfers of all devices of one product that are not complete."),
    setting!("files.max_bytes_per_s_per_product", files.max_bytes_per_s_per_product, Bytes(0, MAX_MEMORY), "Maximum bytes per second from all devices of one product together; beyond it, they are paused. 0 means no limit."),
    setting!("files.max_transfers_per_namespace", files.max_transfers_per_namespace, Count(1, 100_000), "Maximum number of transfers of one namespace that are not complete."),
    setting!("files.max_bytes_per_s_per_namespace", files.max_bytes_per_s_per_namespace, Bytes(0, MAX_MEMORY), "Maximum bytes per second from all senders of one namespace together; beyond it, they are paused. 0 means no limit."),
    setting!("files.min_free_bytes", files.min_free_bytes, Bytes(0, MAX_MEMORY), "A transfer that would leave less free space than this on the file system is rejected when it begins."),
    setting!("files.min_segments_ttl_s", files.min_segments_ttl_s, Seconds(1, 31_536_000), "Shortest time without a new segment that a sender may set for the expiry of its transfer."),
    setting!("files.max_segments_ttl_s", files.max_segments_ttl_s, Seconds(1, 31_536_000), "Time without a new segment after which a transfer that is not complete is removed; a sender may set a shorter one."),
    setting!("files.retention_s", files.retention_s, Seconds(0, MAX_PERIOD_S), "Time after which complete files are removed if their sender gave no expiry; 0: they are kept until they are deleted."),
    setting!("files.max_queued_bytes", files.max_queued_bytes, Bytes(1 << 20, MAX_MEMORY), "Maximum memory of segments that wait to be written. At half of it, MQTT clients that send files are paused; at all of it, segments are rejected (0x97)."),
    setting!("files.threads", files.threads, Count(1, 64), "Number of threads that write files of MQTT clients."),

    setting!("link.max_links", link.max_links, Count(1, 1_000_000), "Maximum number of links of one listener, with and without a connection."),
    setting!("link.expiry_s", link.expiry_s, Seconds(1, 86_400), "How long a link without a connection is kept. A peer that reconnects later begins a new link: messages without an acknowledgement are published again, unless the peer names its client id, and files continue."),
    setting!("link.message_window_bytes", link.message_window_bytes, Bytes(512 << 10, 1 << 30), "Maximum bytes of messages of one link that wait to be published. A message of several frames (128 KiB or more) may use one eighth of them."),
    setting!("link.stream_window_bytes", link.stream_window_bytes, Bytes(64 << 10, 1 << 30), "Maximum bytes of one file that wait to be stored."),
    setting!("link.data_window_bytes", link.data_window_bytes, Bytes(64 << 10, 1 << 30), "Maximum bytes of all files of one link that wait to be stored."),
    setting!("link.tiny_limit_bytes", link.tiny_limit_bytes, Bytes(0, 128 << 10), "Messages smaller than this are of the class tiny: several of them share a frame. Metrics count messages by size class."),
    setting!("link.small_limit_bytes", link.small_limit_bytes, Bytes(0, 128 << 10), "First size of messages of the class medium; at least `tiny_limit_bytes`."),
    setting!("link.medium_limit_bytes", link.medium_limit_bytes, Bytes(0, 128 << 10), "Messages of this size or more are of the class large. They are sent in several frames, so that they do not delay others. At least `small_limit_bytes`."),
    setting!("link.large_limit_bytes", link.large_limit_bytes, Bytes(1 << 20, 16 << 20), "First size of the class huge, which is transferred as a stream, such as a file."),
    setting!("link.session_expiry_s", link.session_expiry_s, Seconds(0, 31_536_000), "How long the session of a peer that names its client id is kept without a connection: its subscriptions, QoS 1 messages for it, and which of its messages have been published; 0: not at all. Sessions of peers without a client id of their own end with each connection, and their links restore the subscriptions."),
    setting!("link.max_deliveries", link.max_deliveries, Count(1, 65_535), "Maximum number of messages that one peer has not acknowledged; further ones wait in its session."),
    setting!("link.max_transfers", link.max_transfers, Count(1, 1000), "Maximum number of files that one link receives, and of requests for files that it answers, at the same time; further ones wait."),
    setting!("link.idle_timeout_s", link.idle_timeout_s, Seconds(1, 3600), "Time without received data after which a connection of a link is considered lost."),
    setting!("link.threads", link.threads, Count(0, 64), "Number of threads of all link listeners; 0: one per core."),

    setting!("firmware.minisign_keys", firmware.trust.minisign_keys, Text, "Public keys of minisign whose signatures are accepted: the second lines of `minisign.pub` files, separated by commas."),
    setting!("firmware.ca_file", firmware.trust.ca_file, Path, "PEM file with the authorities of the signers' certificates."),
    setting!("firmware.require_signature", firmware.trust.require_signature, Flag, "Whether firmware packages without a signature are rejected."),
    setting!("firmware.public_url", firmware.public_url, Text, "Address of the HTTP API as devices reach it, such as `https://node.example:8080`. The URLs of images in JetLinks' messages begin with it; without it they are paths."),
    setting!("firmware.cache_bytes", firmware.cache_bytes, Bytes(0, MAX_MEMORY), "Memory of the cache for chunks of images, which serves devices that download the same image."),

    setting!("simulations.max_devices", simulations.max_devices, Count(0, 10_000), "Maximum number of devices of a simulation that the node runs. Larger fleets shrink to it; 0: the node runs none."),
    setting!("simulations.max_running", simulations.max_running, Count(0, 10), "Maximum number of simulations that the node runs at a time; 0: none."),

    setting!("outbound.deny", outbound.deny, Targets, "Addresses that the node does not connect to, whatever name resolves to them. `link-local` includes the metadata services of clouds; `loopback` is the node's own machine; `private` is RFC 1918, RFC 6598 and RFC 4193. Empty: none."),
    setting!("outbound.allow", outbound.allow, Targets, "Exceptions from `deny`."),

    setting!("http.bind", http_bind, SettingKind::Bind, "Address of the HTTP listener; `unix:/path` for a Unix socket."),
    setting!("http.proxy_protocol", http.proxy_protocol, Flag, "Whether each connection begins with a PROXY protocol header (version 1 or 2), which names the client."),
    setting!("http.trusted_proxies", http.trusted_proxies, SettingKind::Proxies, "Proxies whose `forwarded_header` names the client: addresses and networks separated by commas, and `unix` for connections to a Unix socket."),
    setting!("http.forwarded_header", http.forwarded_header, choice::<ForwardedHeader>(), "The header in which trusted proxies name the client. The other one is ignored, because a proxy passes it on unchanged."),
    setting!("http.tls.certificate", http_certificate, Path, "PEM file with the certificate and its chain. If set, HTTP is served over TLS only. Read again when it changes and on SIGHUP; open connections stay."),
    setting!("http.tls.private_key", http_private_key, Path, "PEM file with the certificate's key."),
    setting!("http.anonymous_role", http.anonymous_role, choice::<AnonymousRole>(), "Role of API requests without credentials. Only with `bind` on a loopback address."),
    setting!(at run time "http.metrics_access", http.metrics_access, choice::<RouteOpenness>(), "Whether `/metrics` needs credentials: never, only beyond loopback addresses, or always (those of a viewer)."),
    setting!(at run time "http.docs_access", http.docs_access, choice::<RouteOpenness>(), "The same for the API documentation, `/api/docs` and `/api/v1/openapi.json`."),
    setting!(at run time "http.registration_enabled", http.registration_enabled, Flag, "Whether people may register themselves as operators with the code of an [invite](../guides/namespaces.md#invites)."),
    setting!(at run time "http.token_ttl_s", http.token_ttl_s, Seconds(60, 604_800), "Validity of login tokens."),
    setting!(at run time "http.refresh_token_ttl_s", http.refresh_token_ttl_s, Seconds(60, 2_592_000), "Time after which an unused session of the web console ends, and validity of refresh tokens of ThingsBoard's login."),
    setting!(at run time "http.max_failed_logins", http.max_failed_logins, Count(1, 1_000_000), "Maximum number of failed logins for one name from one address within `failed_login_window_s`; then further attempts are rejected (429). Ten times as many are allowed for any names from one address, and for one name from any addresses; clients that logged in from there before are exempt."),
    setting!(at run time "http.failed_login_window_s", http.failed_login_window_s, Seconds(1, 86_400), "Period in which failed logins are counted, and duration of the rejection."),
    setting!("http.history_days", http.history_days, Count(0, 400), "Days for which the node keeps its own metrics for charts, in `history` in `node.data_dir`, about 2 MB per day; 0: it records none."),
    setting!(at run time "http.max_audit_entries", http.max_audit_entries, Count(100, 100_000_000), "Maximum number of audit log entries; the oldest are deleted."),
    setting!("http.max_connections", http.max_connections, Count(1, 100_000), "Maximum number of connections, without event streams and long polls. One more closes the connection that has been idle for the longest time, or is closed itself."),
    setting!("http.max_connections_per_address", http.max_connections_per_address, Count(1, 100_000), "The same per address or IPv6 /64 network. Trusted proxies and Unix sockets are exempt."),
    setting!("http.max_health_requests", http.max_health_requests, Count(1, 100_000), "Maximum number of concurrent requests for health, metrics and documentation; further ones are rejected (503)."),
    setting!("http.max_login_requests", http.max_login_requests, Count(1, 100_000), "The same for logins."),
    setting!("http.max_operator_requests", http.max_operator_requests, Count(1, 100_000), "The same for requests of operators and API keys."),
    setting!("http.max_device_requests", http.max_device_requests, Count(1, 100_000), "The same for requests of devices and of sources that push."),
    setting!("http.max_requests_per_address", http.max_requests_per_address, Count(1, 100_000), "Maximum number of concurrent requests of one class from one address; never more than half of the class. Further ones are rejected (429)."),
    setting!("http.max_event_streams", http.max_event_streams, Count(0, 10_000), "Maximum number of concurrent event streams; further ones are rejected (429)."),
    setting!("http.max_event_streams_per_identity", http.max_event_streams_per_identity, Count(0, 10_000), "The same per operator or API key."),
    setting!("http.max_long_polls", http.max_long_polls, Count(0, 1_000_000), "Maximum number of concurrent device requests that wait for a command; further ones are rejected (429)."),
    setting!("http.max_long_polls_per_device", http.max_long_polls_per_device, Count(1, 1000), "The same per device."),
    setting!(at run time "http.max_body_bytes", http.max_body_bytes, Bytes(1024, 1 << 30), "Largest request body."),
    setting!(at run time "http.max_restore_bytes", http.max_restore_bytes, Bytes(1024, 1 << 34), "Largest backup that can be restored."),
    setting!(at run time "http.request_timeout_s", http.request_timeout_s, Seconds(1, 3600), "Time limit for answering a request, including its body, and for requests in progress when the node stops."),
    setting!(at run time "http.header_timeout_s", http.header_timeout_s, Seconds(1, 3600), "Time limit for a request head, a TLS handshake and a PROXY header. An idle connection is closed after the same time."),
    setting!(at run time "http.body_timeout_s", http.body_timeout_s, Seconds(1, 3600), "Time limit for receiving a request body."),
    setting!(at run time "http.write_timeout_s", http.write_timeout_s, Seconds(1, 3600), "Time that a client may leave sent data unread; then its connection is closed."),

    setting!(at run time "log.level", log_level, Levels, "Log filter."),
    setting!("log.format", log_format, choice::<LogFormat>(), "Text lines for humans or JSON objects for programs."),
];

impl NamedChoice for NoMatchPolicy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("allow", Self::Allow),
        ("deny", Self::Deny),
    ];
}

impl NamedChoice for DenialPolicy {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("ignore", Self::Ignore),
        ("disconnect", Self::Disconnect),
        ("observe", Self::Observe),
    ];
}

impl NamedChoice for DamagePolicy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("refuse", Self::Refuse), ("quarantine", Self::Quarantine)];
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

/// The protocol of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListenerProtocol {
    Mqtt,
    Mqtts,
    Ws,
    Wss,
    Unix,
    Quic,
    Link,
    Links,
}

impl NamedChoice for ListenerProtocol {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("mqtt", Self::Mqtt),
        ("mqtts", Self::Mqtts),
        ("ws", Self::Ws),
        ("wss", Self::Wss),
        ("unix", Self::Unix),
        ("quic", Self::Quic),
        ("link", Self::Link),
        ("links", Self::Links),
    ];
}

impl ListenerProtocol {
    /// The protocol with this name, if there is one.
    pub(super) fn protocol_by_name(name: &str) -> Option<Self> {
        let named = Self::NAMES.iter().find(|(known, _)| *known == name);
        named.map(|(_, protocol)| *protocol)
    }

    pub(super) fn has_tls(self) -> bool {
        matches!(self, Self::Mqtts | Self::Wss | Self::Quic | Self::Links)
    }

    pub(super) fn has_links(self) -> bool {
        matches!(self, Self::Link | Self::Links)
    }

    pub(super) fn has_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

/// A listener under construction.
pub(super) struct ListenerDraft {
    pub(super) protocol: ListenerProtocol,
    pub(super) bind: Option<BindSetting>,
    pub(super) tls: TlsDraft,
    pub(super) websocket_path: Option<String>,
    pub(super) relay_path: Option<String>,
    /// Separated by commas.
    pub(super) allowed_origins: Option<String>,
    /// The remaining settings; `bind`, `tls` and `websocket_path` are filled in at the end.
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
    /// A listener without an address. If the name is that of a protocol (`mqtts`), it selects the
    /// protocol.
    pub(super) fn new(name: &str) -> Self {
        let nowhere = BindAddress::Unix(PathBuf::new());
        Self {
            protocol: ListenerProtocol::protocol_by_name(name).unwrap_or(ListenerProtocol::Mqtt),
            bind: None,
            tls: TlsDraft::default(),
            websocket_path: None,
            relay_path: None,
            allowed_origins: None,
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
    setting!("name", rest.name, Text, "Unique name, shown in metrics and the API. Lower-case letters, digits, `-` and `_`. Default: the protocol's name."),
    setting!("protocol", protocol, choice::<ListenerProtocol>(), "Protocol; with `s` over TLS, `quic` over UDP, and `link` for [links](../guides/link.md#6-send-files-and-messages-to-a-node). Default: the protocol that the listener is named after, else `mqtt`."),
    setting!("bind", bind, SettingKind::Bind, "Address to listen on. With port 0 the system chooses a port."),
    setting!("tls.certificate", tls.certificate, Path, "PEM file with the certificate and its chain. Read again when it changes and on SIGHUP; open connections stay."),
    setting!("tls.private_key", tls.private_key, Path, "PEM file with the certificate's key."),
    setting!("tls.client_ca", tls.client_ca, Path, "PEM file with the authorities that sign client certificates. Without it no client certificate is requested."),
    setting!("tls.require_client_certificate", tls.require_client_certificate, Flag, "Whether clients without a certificate are rejected."),
    setting!("tls.common_name_as_username", tls.common_name_as_username, Flag, "Whether the common name of the client's certificate is its user name."),
    setting!("websocket_path", websocket_path, Text, "Path at which WebSocket clients connect; default `/mqtt`."),
    setting!("relay_path", relay_path, Text, "Prefix of the paths at which clients of [relay endpoints](relay.md) connect, followed by the endpoint's id; default `/ws/`. `off`: not on this listener."),
    setting!("allowed_origins", allowed_origins, Text, "Origins of the web pages that may connect by WebSocket, such as `https://example.org`, separated by commas. Default: all."),
    setting!("compression", rest.compression, Flag, "Whether WebSocket messages are compressed for clients that offer permessage-deflate."),
    setting!("proxy_protocol", rest.proxy_protocol, Flag, "Whether each connection begins with a PROXY protocol header (version 1 or 2)."),
    setting!("allow_anonymous", rest.allow_anonymous, Flag, "Whether clients without a user name may connect. Default: only on loopback addresses and Unix sockets, and not behind a proxy."),
    setting!("max_connections", rest.max_connections, Count(1, 100_000_000), "Maximum number of connections of this listener."),
    setting!("max_new_connections_per_s", rest.max_new_connections_per_s, Count(0, MAX_U32), "Maximum number of new connections per second, with a burst of one second; 0 means no limit."),
    setting!("max_client_messages_per_s", rest.max_client_messages_per_s, Count(0, MAX_U32), "Maximum number of PUBLISH packets per second and client; 0 means no limit."),
    setting!("max_client_bytes_per_s", rest.max_client_bytes_per_s, Bytes(0, MAX_U32), "Maximum bytes per second and client; 0 means no limit."),
    setting!("max_packet_size", rest.max_packet_size, Bytes(0, MAX_PACKET), "Largest packet accepted here; 0 means `limits.max_packet_size`."),
    setting!("max_partial_packet_bytes_per_shard", rest.max_partial_packet_bytes_per_shard, Bytes(0, MAX_MEMORY), "Maximum bytes of incompletely received packets, over all connections of this listener on a shard; 0 means half of `limits.max_partial_packet_bytes_per_shard`."),
    setting!("min_keep_alive_s", rest.min_keep_alive_s, Seconds(0, MAX_U16), "Shortest keep-alive. A client that requests a shorter one gets this value; 0 means no limit."),
    setting!("max_keep_alive_s", rest.max_keep_alive_s, Seconds(0, MAX_U16), "Longest keep-alive. A client that requests a longer one, or none, gets this value; 0 means no limit."),
    setting!("connect_timeout_s", rest.connect_timeout_s, Seconds(1, 3600), "Time limit from accepting a connection to a complete CONNECT, including TLS and WebSocket handshakes. For QUIC it applies to the handshake and to CONNECT separately."),
    setting!("backlog", rest.backlog, Count(1, MAX_U16), "Maximum number of connections waiting in the kernel to be accepted; for QUIC, of those whose handshake is incomplete."),
];

/// A user under construction.
pub(super) struct UserDraft {
    pub(super) username: String,
    pub(super) credential: String,
}

#[rustfmt::skip]
pub(super) const USER: &[Setting<UserDraft>] = &[
    setting!("username", username, Text, "Unique."),
    setting!("credential", credential, Credential, "Credential as printed by `tidegate password`. Contains no password."),
];
