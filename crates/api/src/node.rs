//! What the API asks of the rest of the process: the node it shows and the program around it.

use std::future::Future;

use broker::Handle;
pub use broker::NotReady;
use broker::info::{ClientInfo, ListenerInfo, MetricFamily, Query, SubscriptionInfo, TopicInfo};

/// The node behind the API. Lists are sorted as [`Query`] says and hold at most `limit` rows.
pub trait Node: Send + Sync + 'static {
    /// Why the node should get no traffic now; `None` if it is ready.
    fn not_ready(&self) -> Option<NotReady>;
    fn listeners(&self) -> Vec<ListenerInfo>;
    fn clients(&self, query: Query) -> impl Future<Output = Vec<ClientInfo>> + Send;
    fn client(&self, client_id: &str) -> impl Future<Output = Option<ClientInfo>> + Send;
    /// Sorted by client id, then topic filter; `after` is a client id. All of one client's are asked for with
    /// `client_id` and a `limit` of `usize::MAX`.
    fn subscriptions(&self, query: Query) -> impl Future<Output = Vec<SubscriptionInfo>> + Send;
    /// Sorted by topic filter; `after` is a topic filter.
    fn topics(&self, query: Query) -> impl Future<Output = Vec<TopicInfo>> + Send;
    /// Ends a client's connection and session; false if there is neither.
    fn kick(&self, client_id: &str) -> impl Future<Output = bool> + Send;
    /// Ends the session of a client that is away; false if there is none.
    fn discard_session(&self, client_id: &str) -> impl Future<Output = bool> + Send;
    fn metrics(&self) -> impl Future<Output = Vec<MetricFamily>> + Send;
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

    fn listeners(&self) -> Vec<ListenerInfo> {
        Handle::listeners(self)
    }

    async fn clients(&self, query: Query) -> Vec<ClientInfo> {
        Handle::clients(self, query).await
    }

    async fn client(&self, client_id: &str) -> Option<ClientInfo> {
        Handle::client(self, client_id).await
    }

    async fn subscriptions(&self, query: Query) -> Vec<SubscriptionInfo> {
        Handle::subscriptions(self, query).await
    }

    async fn topics(&self, query: Query) -> Vec<TopicInfo> {
        Handle::topics(self, query).await
    }

    async fn kick(&self, client_id: &str) -> bool {
        Handle::kick(self, client_id).await
    }

    async fn discard_session(&self, client_id: &str) -> bool {
        Handle::discard_session(self, client_id).await
    }

    async fn metrics(&self) -> Vec<MetricFamily> {
        Handle::metrics(self).await
    }
}

/// The program around the node.
pub trait Program: Send + Sync + 'static {
    /// What is logged, in the words of `set_log_level`.
    fn log_level(&self) -> String;
    /// Changes what is logged: `debug`, or `info,broker=debug`. The error says what was expected.
    fn set_log_level(&self, level: &str) -> Result<(), String>;
    /// Metrics of the process that only the program knows, such as the allocator's.
    fn metrics(&self) -> Vec<MetricFamily> {
        Vec::new()
    }
}
