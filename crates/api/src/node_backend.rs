//! The interface between the API and the rest of the process: the node and the program around it.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

pub use broker::NotReadyReason;
use broker::control::{
    BrokerEvent, ControlError, ListenerError, PublishRequest, PublishResult, QueuedMessage,
    RetainedInfo, RetainedQuery, StoredMessage, SubscriptionRequest,
};
use broker::info::{ClientInfo, ListQuery, ListenerInfo, SubscriptionInfo, TopicInfo};
use broker::{BrokerHandle, ClientPermissions};
use hooks::MetricFamily;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::broadcast;

use crate::cluster_backend::ClusterBackend;
use crate::simulation_backend::SimulationBackend;

/// The future answer of a query to the node.
pub type NodeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The node behind the API. A trait, because its only other implementation, [`BrokerHandle`], needs running shards. The
/// tests of the API use fixed lists of clients instead, whose order, failures and delays they choose. Lists are sorted
/// as [`ListQuery`] describes and contain at most `limit` rows.
pub trait NodeBackend: Send + Sync + 'static {
    /// Why the node should receive no traffic now; `None` if it is ready.
    fn not_ready(&self) -> Option<NotReadyReason>;
    fn clients(&self, query: ListQuery) -> NodeFuture<'_, Vec<ClientInfo>>;
    fn client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<ClientInfo>>;
    /// The permissions of a client; `None`: it has no session.
    fn client_permissions<'a>(
        &'a self,
        client_id: &'a str,
    ) -> NodeFuture<'a, Option<ClientPermissions>>;
    /// Sorted by client id, then topic filter; `after` is a client id. To get all subscriptions of
    /// one client, set `client_id` and a `limit` of `usize::MAX`.
    fn subscriptions(&self, query: ListQuery) -> NodeFuture<'_, Vec<SubscriptionInfo>>;
    /// Sorted by topic filter; `after` is a topic filter.
    fn topics(&self, query: ListQuery) -> NodeFuture<'_, Vec<TopicInfo>>;
    /// Ends a client's connection and session; false if it has neither.
    fn terminate_client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool>;
    /// Discards the session of a disconnected client; false if there is none.
    fn discard_session<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool>;
    fn metrics(&self) -> NodeFuture<'_, Vec<MetricFamily>>;
    /// The metrics that can be read without asking the shards.
    fn counters(&self) -> Vec<MetricFamily>;

    /// Publishes on behalf of the node; with the store enabled, the future resolves when the
    /// message is durable.
    fn publish(
        &self,
        publication: PublishRequest,
    ) -> NodeFuture<'_, Result<PublishResult, ControlError>>;

    /// Subscribes on behalf of a client that has a session, connected or not, and returns the
    /// granted QoS. `None`: no session.
    fn subscribe<'a>(
        &'a self,
        client_id: &'a str,
        subscription: SubscriptionRequest,
    ) -> NodeFuture<'a, Option<Result<u8, ControlError>>>;
    /// Unsubscribes on behalf of a client; false if the session has no such subscription.
    fn unsubscribe<'a>(&'a self, client_id: &'a str, topic_filter: &'a str)
    -> NodeFuture<'a, bool>;

    fn retained(&self, query: RetainedQuery) -> NodeFuture<'_, Vec<RetainedInfo>>;
    fn retained_message<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Option<StoredMessage>>;
    /// Deletes a retained message; false if the topic has none.
    fn delete_retained<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Result<bool, ControlError>>;

    /// The queued messages of a session in order, after position `after`. `None`: no session.
    fn queued_messages<'a>(
        &'a self,
        client_id: &'a str,
        after: Option<u64>,
        limit: usize,
    ) -> NodeFuture<'a, Option<Vec<QueuedMessage>>>;
    /// Deletes one queued message that has not been sent; false if there is none at that position.
    /// `None`: no session.
    fn delete_queued<'a>(
        &'a self,
        client_id: &'a str,
        position: u64,
    ) -> NodeFuture<'a, Option<bool>>;
    /// Deletes all queued messages that have not been sent and returns their number. `None`: no
    /// session.
    fn clear_queue<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<u64>>;

    /// Every configured listener, open or not.
    fn listeners(&self) -> Vec<ListenerInfo>;
    fn start_listener<'a>(&'a self, name: &'a str) -> NodeFuture<'a, Result<(), ListenerError>>;
    /// Stops accepting connections on a listener; with `disconnect` its clients are disconnected
    /// too.
    fn stop_listener<'a>(
        &'a self,
        name: &'a str,
        disconnect: bool,
    ) -> NodeFuture<'a, Result<(), ListenerError>>;

    /// The events from now on. Costs the shards nothing while there are no receivers.
    fn events(&self) -> broadcast::Receiver<Arc<BrokerEvent>>;
}

pub(crate) fn not_ready_reason(why: NotReadyReason) -> &'static str {
    match why {
        NotReadyReason::Starting => "starting: not all listeners are open yet",
        NotReadyReason::Stopping => "stopping: clients are being disconnected",
        NotReadyReason::Stalled => "stalled: a shard does not respond",
        NotReadyReason::Draining => "draining: clients are referred to other nodes",
    }
}

impl NodeBackend for BrokerHandle {
    fn not_ready(&self) -> Option<NotReadyReason> {
        BrokerHandle::not_ready_reason(self)
    }

    fn clients(&self, query: ListQuery) -> NodeFuture<'_, Vec<ClientInfo>> {
        Box::pin(BrokerHandle::clients(self, query))
    }

    fn client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<ClientInfo>> {
        Box::pin(BrokerHandle::client(self, client_id))
    }

    fn client_permissions<'a>(
        &'a self,
        client_id: &'a str,
    ) -> NodeFuture<'a, Option<ClientPermissions>> {
        Box::pin(BrokerHandle::client_permissions(self, client_id))
    }

    fn subscriptions(&self, query: ListQuery) -> NodeFuture<'_, Vec<SubscriptionInfo>> {
        Box::pin(BrokerHandle::subscriptions(self, query))
    }

    fn topics(&self, query: ListQuery) -> NodeFuture<'_, Vec<TopicInfo>> {
        Box::pin(BrokerHandle::topics(self, query))
    }

    fn terminate_client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool> {
        Box::pin(BrokerHandle::terminate_client(self, client_id))
    }

    fn discard_session<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool> {
        Box::pin(BrokerHandle::discard_session(self, client_id))
    }

    fn metrics(&self) -> NodeFuture<'_, Vec<MetricFamily>> {
        Box::pin(BrokerHandle::metrics(self))
    }

    fn counters(&self) -> Vec<MetricFamily> {
        BrokerHandle::counters(self)
    }

    fn publish(
        &self,
        publication: PublishRequest,
    ) -> NodeFuture<'_, Result<PublishResult, ControlError>> {
        Box::pin(BrokerHandle::publish(self, publication))
    }

    fn subscribe<'a>(
        &'a self,
        client_id: &'a str,
        subscription: SubscriptionRequest,
    ) -> NodeFuture<'a, Option<Result<u8, ControlError>>> {
        Box::pin(BrokerHandle::subscribe(self, client_id, subscription))
    }

    fn unsubscribe<'a>(
        &'a self,
        client_id: &'a str,
        topic_filter: &'a str,
    ) -> NodeFuture<'a, bool> {
        Box::pin(BrokerHandle::unsubscribe(self, client_id, topic_filter))
    }

    fn retained(&self, query: RetainedQuery) -> NodeFuture<'_, Vec<RetainedInfo>> {
        Box::pin(BrokerHandle::retained(self, query))
    }

    fn retained_message<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Option<StoredMessage>> {
        Box::pin(async { BrokerHandle::retained_message(self, topic) })
    }

    fn delete_retained<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Result<bool, ControlError>> {
        Box::pin(BrokerHandle::delete_retained(self, topic))
    }

    fn queued_messages<'a>(
        &'a self,
        client_id: &'a str,
        after: Option<u64>,
        limit: usize,
    ) -> NodeFuture<'a, Option<Vec<QueuedMessage>>> {
        Box::pin(BrokerHandle::queued_messages(self, client_id, after, limit))
    }

    fn delete_queued<'a>(
        &'a self,
        client_id: &'a str,
        position: u64,
    ) -> NodeFuture<'a, Option<bool>> {
        Box::pin(BrokerHandle::delete_queued_message(
            self, client_id, position,
        ))
    }

    fn clear_queue<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<u64>> {
        Box::pin(BrokerHandle::clear_queue(self, client_id))
    }

    fn listeners(&self) -> Vec<ListenerInfo> {
        BrokerHandle::listeners(self)
    }

    fn start_listener<'a>(&'a self, name: &'a str) -> NodeFuture<'a, Result<(), ListenerError>> {
        Box::pin(BrokerHandle::start_listener(self, name))
    }

    fn stop_listener<'a>(
        &'a self,
        name: &'a str,
        disconnect: bool,
    ) -> NodeFuture<'a, Result<(), ListenerError>> {
        Box::pin(BrokerHandle::stop_listener(self, name, disconnect))
    }

    fn events(&self) -> broadcast::Receiver<Arc<BrokerEvent>> {
        BrokerHandle::subscribe_events(self)
    }
}

/// The program around the node. A trait, because settings, log levels and the allocator belong to the program, which depends
/// on this crate.
pub trait ProgramBackend: Send + Sync + 'static {
    /// The log filter in the syntax of `set_log_level`.
    fn log_level(&self) -> String;
    /// Changes the log filter: `debug`, or `info,broker=debug`. The error names the accepted
    /// values.
    fn set_log_level(&self, level: &str) -> Result<(), String>;
    /// Every setting, sorted by key; secrets without their value.
    fn settings(&self) -> Vec<SettingInfo>;
    /// Changes a setting of the running node.
    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingChangeError>;
    /// Gives a setting the value that it has without changes over the API.
    fn reset_setting(&self, key: &str) -> Result<(), SettingChangeError>;
    /// The state of the authenticators in the order of evaluation.
    fn authenticators(&self) -> Vec<AuthenticatorInfo> {
        Vec::new()
    }
    /// Damaged files that the node was started without, oldest first. May block.
    fn quarantine(&self) -> std::io::Result<Vec<QuarantinedPart>> {
        Ok(Vec::new())
    }
    /// Deletes damaged files from the quarantine; `false` if there is nothing with this id. May block.
    fn delete_quarantined(&self, _id: &str) -> std::io::Result<bool> {
        Ok(false)
    }
    /// Complete backups, newest first. May block.
    fn backups(&self) -> std::io::Result<Vec<BackupInfo>> {
        Ok(Vec::new())
    }
    /// The file of a backup; `None` if there is none with this id. May block.
    fn backup_file(&self, _id: &str) -> Option<PathBuf> {
        None
    }
    /// Makes a backup with this id, `backup-` and a number. Blocks until it is complete.
    fn create_backup(&self, _id: &str, _progress: &dyn JobProgress) -> Result<(), String> {
        Err("the program makes no backups".to_owned())
    }
    /// Reads and checks a whole backup. Blocks until that is done.
    fn verify_backup(&self, _id: &str, _progress: &dyn JobProgress) -> Result<(), String> {
        Err("the program makes no backups".to_owned())
    }
    /// Deletes a backup; `false` if there is none with this id. May block.
    fn delete_backup(&self, _id: &str) -> std::io::Result<bool> {
        Ok(false)
    }
    /// Where jobs put their files.
    fn job_directory(&self) -> PathBuf {
        std::env::temp_dir()
    }
    /// Whether files of jobs may take more space. May block.
    fn has_room_for_jobs(&self) -> bool {
        true
    }
    /// Listeners and certificates that are created while the node runs; `None`: the program has none.
    fn listener_backend(&self) -> Option<&dyn ListenerBackend> {
        None
    }
    /// The cluster that the node is a member of; `None`: it is alone.
    fn cluster_backend(&self) -> Option<&dyn ClusterBackend> {
        None
    }
    /// What works only in part although the node accepts clients, such as `cluster: ...`.
    fn degradation(&self) -> Option<&'static str> {
        None
    }
    /// Simulations of device fleets; `None`: the program has none.
    fn simulation_backend(&self) -> Option<&dyn SimulationBackend> {
        None
    }
    /// Metrics of the process that only the program can read, such as those of the allocator.
    fn metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }
    /// Metrics of rules, whose names do not carry the prefix of the program.
    fn rule_metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }
}

/// Stores and opens listeners that are created while the node runs, and their certificates. Methods may block.
pub trait ListenerBackend: Send + Sync {
    /// All stored listeners, sorted by name.
    fn stored_listeners(&self) -> Result<Vec<StoredListener>, ListenerChangeError>;
    /// Creates or replaces a listener. Returns whether it is new.
    fn put_listener(&self, name: &str, definition: &Value) -> Result<bool, ListenerChangeError>;
    /// Opens a stored listener that could not be opened before.
    fn open_listener(&self, name: &str) -> Result<(), ListenerChangeError>;
    fn remove_listener(&self, name: &str) -> Result<(), ListenerChangeError>;
    /// All stored certificates, sorted by id.
    fn certificates(&self) -> Result<Vec<StoredCertificate>, ListenerChangeError>;
    /// Creates or replaces a certificate, which listeners use for their next connections. Returns whether it is new.
    fn put_certificate(
        &self,
        id: &str,
        certificate: &str,
        private_key: Option<&str>,
    ) -> Result<bool, ListenerChangeError>;
    fn remove_certificate(&self, id: &str) -> Result<(), ListenerChangeError>;
}

/// A listener that was created over the API.
#[derive(Debug, Clone)]
pub struct StoredListener {
    pub name: String,
    pub definition: Value,
    /// Why it could not be opened; `None` if it is open, or was stopped.
    pub problem: Option<String>,
}

/// A certificate that was uploaded over the API, without its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StoredCertificate {
    pub id: String,
    /// Distinguished name of its owner; `null` if it cannot be read.
    pub subject: Option<String>,
    /// Distinguished name of the authority.
    pub issuer: Option<String>,
    /// Host names and addresses that it is valid for.
    pub names: Vec<String>,
    pub not_before_ms: Option<u64>,
    /// When it expires.
    pub not_after_ms: Option<u64>,
    /// Whether it has a private key, so that a listener can present it. Without one it can be the authority of clients.
    pub has_private_key: bool,
    /// Names of the listeners that use it.
    pub used_by: Vec<String>,
}

/// Why a listener or a certificate was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenerChangeError {
    /// A field is invalid: its name, and what is wrong with it.
    Invalid { field: String, message: String },
    /// There is none with this name; contains a sentence.
    NotFound(String),
    /// The state of the node does not permit it; contains the reason as a sentence.
    Conflict(String),
    /// It cannot be stored or read; contains the reason as a sentence.
    Unavailable(String),
}

/// Progress of a job, and whether it was cancelled.
pub trait JobProgress: Sync {
    fn set_total(&self, total: u64);
    fn set_done(&self, done: u64);
    /// Whether the work is to end now.
    fn is_cancelled(&self) -> bool;
}

/// A backup of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BackupInfo {
    pub id: String,
    pub created_at_ms: u64,
    pub bytes: u64,
}

/// Damaged files of one part of the stored data, found by one start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuarantinedPart {
    pub id: String,
    /// When the node started without these files.
    pub at_ms: u64,
    /// `store`, `telemetry`, `mailboxes` or `sinks`.
    pub part: String,
    /// The damage that was found first.
    pub reason: String,
    /// Descriptions of the lost data, at most 1000.
    pub lost: Vec<String>,
    /// The damaged files. Empty if files were missing.
    pub files: Vec<QuarantinedFile>,
}

/// A damaged file in quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuarantinedFile {
    /// Name in the directory `quarantine/ID` of the data directory.
    pub name: String,
    /// Path of the file when it was found damaged.
    pub original: String,
    pub bytes: u64,
}

/// State of an authenticator since the node started or the authenticator was changed.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AuthenticatorInfo {
    pub id: String,
    /// Type, such as `jwt`.
    pub r#type: String,
    /// Position in the order of evaluation, lowest first; equal values are evaluated in list order.
    pub order: i64,
    /// `ok`, or `failing` if its last answer was an error.
    pub state: AuthenticatorState,
    /// Number of clients it accepted.
    pub accepted: u64,
    /// Number of clients it rejected.
    pub rejected: u64,
    /// Number of clients it passed to the next authenticator.
    pub ignored: u64,
    /// Number of clients rejected because it could not answer.
    pub errors: u64,
    /// Most recent failure; `null` if there was none.
    pub last_error: Option<AuthenticatorFailure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthenticatorState {
    Ok,
    Failing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AuthenticatorFailure {
    pub at_ms: u64,
    pub text: String,
}

/// A setting and its current value.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SettingInfo {
    /// Key with its section: `limits.max_qos`, `listener.mqtt.bind`.
    pub key: String,
    /// Value as in `tidegate.toml`; `null` if it has none, `"***"` if it is a secret.
    pub value: Value,
    /// Origin of the value: `default`, a place in a file, an environment variable, a flag, or
    /// `api`.
    pub origin: String,
    /// The value and origin without the change over the API; `null` if the setting was not changed.
    pub configured: Option<ConfiguredValue>,
    /// Whether the setting can be changed while the node runs.
    pub changeable: bool,
    /// Accepted values.
    pub expected: String,
    pub help: String,
}

/// A value of the configuration that a change over the API overrides.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ConfiguredValue {
    /// As in `tidegate.toml`.
    pub value: Value,
    pub origin: String,
}

/// Why a setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingChangeError {
    /// The setting can be changed only by a restart.
    Fixed,
    /// The value is invalid; the text names the accepted values and the value received.
    Invalid(String),
}
