//! What the API asks of the rest of the process: the node it shows and the program around it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use broker::Handle;
pub use broker::NotReady;
use broker::control::{
    Event, ListenerRefusal, NewSubscription, Publication, Published, QueuedMessage, Refusal,
    RetainedInfo, RetainedQuery, StoredMessage,
};
use broker::info::{ClientInfo, ListenerInfo, MetricFamily, Query, SubscriptionInfo, TopicInfo};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::broadcast;

/// What a question to the node is answered with, some time later.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The node behind the API. Lists are sorted as [`Query`] says and hold at most `limit` rows.
pub trait Node: Send + Sync + 'static {
    /// Why the node should get no traffic now; `None` if it is ready.
    fn not_ready(&self) -> Option<NotReady>;
    fn clients(&self, query: Query) -> Answer<'_, Vec<ClientInfo>>;
    fn client<'a>(&'a self, client_id: &'a str) -> Answer<'a, Option<ClientInfo>>;
    /// Sorted by client id, then topic filter; `after` is a client id. All of one client's are asked for with
    /// `client_id` and a `limit` of `usize::MAX`.
    fn subscriptions(&self, query: Query) -> Answer<'_, Vec<SubscriptionInfo>>;
    /// Sorted by topic filter; `after` is a topic filter.
    fn topics(&self, query: Query) -> Answer<'_, Vec<TopicInfo>>;
    /// Ends a client's connection and session; false if there is neither.
    fn kick<'a>(&'a self, client_id: &'a str) -> Answer<'a, bool>;
    /// Ends the session of a client that is away; false if there is none.
    fn discard_session<'a>(&'a self, client_id: &'a str) -> Answer<'a, bool>;
    fn metrics(&self) -> Answer<'_, Vec<MetricFamily>>;

    /// Publishes in the node's own name; with the store on, the answer comes when the message is safe.
    fn publish(&self, publication: Publication) -> Answer<'_, Result<Published, Refusal>>;

    /// Subscribes on behalf of a client that has a session, connected or not: the granted QoS. `None`: no session.
    fn subscribe<'a>(
        &'a self,
        client_id: &'a str,
        subscription: NewSubscription,
    ) -> Answer<'a, Option<Result<u8, Refusal>>>;
    /// False if the session has no such subscription.
    fn unsubscribe<'a>(&'a self, client_id: &'a str, topic_filter: &'a str) -> Answer<'a, bool>;

    fn retained(&self, query: RetainedQuery) -> Answer<'_, Vec<RetainedInfo>>;
    fn retained_message<'a>(&'a self, topic: &'a str) -> Answer<'a, Option<StoredMessage>>;
    /// False if nothing is retained there.
    fn delete_retained<'a>(&'a self, topic: &'a str) -> Answer<'a, Result<bool, Refusal>>;

    /// What waits for a session, in order, behind the position `after`. `None`: no session.
    fn queue<'a>(
        &'a self,
        client_id: &'a str,
        after: Option<u64>,
        limit: usize,
    ) -> Answer<'a, Option<Vec<QueuedMessage>>>;
    /// Throws away one message that has not been sent; false if there is none at that position. `None`: no session.
    fn delete_queued<'a>(&'a self, client_id: &'a str, position: u64) -> Answer<'a, Option<bool>>;
    /// Throws away what waits and has not been sent: how many. `None`: no session.
    fn clear_queue<'a>(&'a self, client_id: &'a str) -> Answer<'a, Option<u64>>;

    /// Every listener of the configuration, whether it is open or not.
    fn listeners(&self) -> Vec<ListenerInfo>;
    fn start_listener<'a>(&'a self, name: &'a str) -> Answer<'a, Result<(), ListenerRefusal>>;
    /// No new connections there from now on; with `disconnect` its clients are sent away too.
    fn stop_listener<'a>(
        &'a self,
        name: &'a str,
        disconnect: bool,
    ) -> Answer<'a, Result<(), ListenerRefusal>>;

    /// What happens from now on. Costs the shards nothing while nobody listens.
    fn events(&self) -> broadcast::Receiver<Arc<Event>>;
}

pub(crate) fn reason(why: NotReady) -> &'static str {
    match why {
        NotReady::Starting => "starting: not every listener is open yet",
        NotReady::Stopping => "stopping: clients are being sent away",
        NotReady::Stalled => "stalled: a shard does not answer",
    }
}

impl Node for Handle {
    fn not_ready(&self) -> Option<NotReady> {
        Handle::not_ready(self)
    }

    fn clients(&self, query: Query) -> Answer<'_, Vec<ClientInfo>> {
        Box::pin(Handle::clients(self, query))
    }

    fn client<'a>(&'a self, client_id: &'a str) -> Answer<'a, Option<ClientInfo>> {
        Box::pin(Handle::client(self, client_id))
    }

    fn subscriptions(&self, query: Query) -> Answer<'_, Vec<SubscriptionInfo>> {
        Box::pin(Handle::subscriptions(self, query))
    }

    fn topics(&self, query: Query) -> Answer<'_, Vec<TopicInfo>> {
        Box::pin(Handle::topics(self, query))
    }

    fn kick<'a>(&'a self, client_id: &'a str) -> Answer<'a, bool> {
        Box::pin(Handle::kick(self, client_id))
    }

    fn discard_session<'a>(&'a self, client_id: &'a str) -> Answer<'a, bool> {
        Box::pin(Handle::discard_session(self, client_id))
    }

    fn metrics(&self) -> Answer<'_, Vec<MetricFamily>> {
        Box::pin(Handle::metrics(self))
    }

    fn publish(&self, publication: Publication) -> Answer<'_, Result<Published, Refusal>> {
        Box::pin(Handle::publish(self, publication))
    }

    fn subscribe<'a>(
        &'a self,
        client_id: &'a str,
        subscription: NewSubscription,
    ) -> Answer<'a, Option<Result<u8, Refusal>>> {
        Box::pin(Handle::subscribe(self, client_id, subscription))
    }

    fn unsubscribe<'a>(&'a self, client_id: &'a str, topic_filter: &'a str) -> Answer<'a, bool> {
        Box::pin(Handle::unsubscribe(self, client_id, topic_filter))
    }

    fn retained(&self, query: RetainedQuery) -> Answer<'_, Vec<RetainedInfo>> {
        Box::pin(Handle::retained(self, query))
    }

    fn retained_message<'a>(&'a self, topic: &'a str) -> Answer<'a, Option<StoredMessage>> {
        Box::pin(async { Handle::retained_message(self, topic) })
    }

    fn delete_retained<'a>(&'a self, topic: &'a str) -> Answer<'a, Result<bool, Refusal>> {
        Box::pin(Handle::delete_retained(self, topic))
    }

    fn queue<'a>(
        &'a self,
        client_id: &'a str,
        after: Option<u64>,
        limit: usize,
    ) -> Answer<'a, Option<Vec<QueuedMessage>>> {
        Box::pin(Handle::queue(self, client_id, after, limit))
    }

    fn delete_queued<'a>(&'a self, client_id: &'a str, position: u64) -> Answer<'a, Option<bool>> {
        Box::pin(Handle::delete_queued(self, client_id, position))
    }

    fn clear_queue<'a>(&'a self, client_id: &'a str) -> Answer<'a, Option<u64>> {
        Box::pin(Handle::clear_queue(self, client_id))
    }

    fn listeners(&self) -> Vec<ListenerInfo> {
        Handle::listeners(self)
    }

    fn start_listener<'a>(&'a self, name: &'a str) -> Answer<'a, Result<(), ListenerRefusal>> {
        Box::pin(Handle::start_listener(self, name))
    }

    fn stop_listener<'a>(
        &'a self,
        name: &'a str,
        disconnect: bool,
    ) -> Answer<'a, Result<(), ListenerRefusal>> {
        Box::pin(Handle::stop_listener(self, name, disconnect))
    }

    fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        Handle::events(self)
    }
}

/// The program around the node.
pub trait Program: Send + Sync + 'static {
    /// What is logged, in the words of `set_log_level`.
    fn log_level(&self) -> String;
    /// Changes what is logged: `debug`, or `info,broker=debug`. The error says what was expected.
    fn set_log_level(&self, level: &str) -> Result<(), String>;
    /// Every setting there is, sorted by key; secrets without their value.
    fn settings(&self) -> Vec<SettingInfo>;
    /// Changes a setting until the node stops.
    fn set_setting(&self, key: &str, value: &Value) -> Result<(), SettingError>;
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
pub enum SettingError {
    /// Only a restart changes it.
    Fixed,
    /// What was expected and what was found.
    Invalid(String),
}
