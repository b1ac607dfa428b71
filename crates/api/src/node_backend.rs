//! What the API asks of the rest of the process: the node it shows and the program around it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use broker::BrokerHandle;
pub use broker::NotReadyReason;
use broker::control::{
    BrokerEvent, ControlError, ListenerError, PublishRequest, PublishResult, QueuedMessage,
    RetainedInfo, RetainedQuery, StoredMessage, SubscriptionRequest,
};
use broker::info::{
    ClientInfo, ListQuery, ListenerInfo, MetricFamily, SubscriptionInfo, TopicInfo,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast;

/// What a question to the node is answered with, some time later.
pub type NodeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The node behind the API. Lists are sorted as [`ListQuery`] says and hold at most `limit` rows.
pub trait NodeBackend: Send + Sync + 'static {
    /// Why the node should get no traffic now; `None` if it is ready.
    fn not_ready(&self) -> Option<NotReadyReason>;
    fn clients(&self, query: ListQuery) -> NodeFuture<'_, Vec<ClientInfo>>;
    fn client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<ClientInfo>>;
    /// Sorted by client id, then topic filter; `after` is a client id. All of one client's are asked for with
    /// `client_id` and a `limit` of `usize::MAX`.
    fn subscriptions(&self, query: ListQuery) -> NodeFuture<'_, Vec<SubscriptionInfo>>;
    /// Sorted by topic filter; `after` is a topic filter.
    fn topics(&self, query: ListQuery) -> NodeFuture<'_, Vec<TopicInfo>>;
    /// Ends a client's connection and session; false if there is neither.
    fn terminate_client<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool>;
    /// Ends the session of a client that is away; false if there is none.
    fn discard_session<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, bool>;
    fn metrics(&self) -> NodeFuture<'_, Vec<MetricFamily>>;

    /// Publishes in the node's own name; with the store on, the answer comes when the message is safe.
    fn publish(
        &self,
        publication: PublishRequest,
    ) -> NodeFuture<'_, Result<PublishResult, ControlError>>;

    /// Subscribes on behalf of a client that has a session, connected or not: the granted QoS. `None`: no session.
    fn subscribe<'a>(
        &'a self,
        client_id: &'a str,
        subscription: SubscriptionRequest,
    ) -> NodeFuture<'a, Option<Result<u8, ControlError>>>;
    /// False if the session has no such subscription.
    fn unsubscribe<'a>(&'a self, client_id: &'a str, topic_filter: &'a str)
    -> NodeFuture<'a, bool>;

    fn retained(&self, query: RetainedQuery) -> NodeFuture<'_, Vec<RetainedInfo>>;
    fn retained_message<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Option<StoredMessage>>;
    /// False if nothing is retained there.
    fn delete_retained<'a>(&'a self, topic: &'a str) -> NodeFuture<'a, Result<bool, ControlError>>;

    /// What waits for a session, in order, behind the position `after`. `None`: no session.
    fn queued_messages<'a>(
        &'a self,
        client_id: &'a str,
        after: Option<u64>,
        limit: usize,
    ) -> NodeFuture<'a, Option<Vec<QueuedMessage>>>;
    /// Throws away one message that has not been sent; false if there is none at that position. `None`: no session.
    fn delete_queued<'a>(
        &'a self,
        client_id: &'a str,
        position: u64,
    ) -> NodeFuture<'a, Option<bool>>;
    /// Throws away what waits and has not been sent: how many. `None`: no session.
    fn clear_queue<'a>(&'a self, client_id: &'a str) -> NodeFuture<'a, Option<u64>>;

    /// Every listener of the configuration, whether it is open or not.
    fn listeners(&self) -> Vec<ListenerInfo>;
    fn start_listener<'a>(&'a self, name: &'a str) -> NodeFuture<'a, Result<(), ListenerError>>;
    /// No new connections there from now on; with `disconnect` its clients are sent away too.
    fn stop_listener<'a>(
        &'a self,
        name: &'a str,
        disconnect: bool,
    ) -> NodeFuture<'a, Result<(), ListenerError>>;

    /// What happens from now on. Costs the shards nothing while nobody listens.
    fn events(&self) -> broadcast::Receiver<Arc<BrokerEvent>>;
}

pub(crate) fn not_ready_reason(why: NotReadyReason) -> &'static str {
    match why {
        NotReadyReason::Starting => "starting: not every listener is open yet",
        NotReadyReason::Stopping => "stopping: clients are being sent away",
        NotReadyReason::Stalled => "stalled: a shard does not answer",
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

/// The program around the node.
pub trait ProgramBackend: Send + Sync + 'static {
    /// What is logged, in the words of `set_log_level`.
    fn log_level(&self) -> String;
    /// Changes what is logged: `debug`, or `info,broker=debug`. The error says what was expected.
    fn set_log_level(&self, level: &str) -> Result<(), String>;
    /// Every setting there is, sorted by key; secrets without their value.
    fn settings(&self) -> Vec<SettingInfo>;
    /// Changes a setting until the node stops.
    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingChangeError>;
    /// How the authenticators do, in the order in which they are asked.
    fn authenticators(&self) -> Vec<AuthenticatorInfo> {
        Vec::new()
    }
    /// Metrics of the process that only the program knows, such as the allocator's.
    fn metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }
    /// Metrics of rules, whose names have no prefix of the program.
    fn rule_metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }
}

/// How an authenticator does, since the node started or the authenticator was changed.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AuthenticatorInfo {
    pub id: String,
    /// Such as `jwt`.
    pub r#type: String,
    /// Lower ones are asked first; those of equal order as they are listed.
    pub order: i64,
    /// `ok`, or `failing` if its last answer was an error.
    pub state: AuthenticatorState,
    /// Clients it let in.
    pub accepted: u64,
    /// Clients it refused.
    pub rejected: u64,
    /// Clients it left to the next one.
    pub no_opinion: u64,
    /// Clients that were refused because it could not answer.
    pub errors: u64,
    /// `null`: it has not failed.
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

/// A setting as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SettingInfo {
    /// With its section: `limits.max_qos`, `listener.mqtt.bind`.
    pub key: String,
    /// As `tidegate.toml` would have it; `null` if it has none, `"***"` if it is a secret.
    pub value: Value,
    /// Where the value comes from: `default`, a place in a file, an environment variable, a flag, `api`.
    pub origin: String,
    /// Whether it can be changed while the node runs.
    pub changeable: bool,
    /// What a value has to be.
    pub expected: String,
    pub help: String,
}

/// Why a setting was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingChangeError {
    /// Only a restart changes it.
    Fixed,
    /// What was expected and what was found.
    Invalid(String),
}
