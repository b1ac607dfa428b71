//! Observation of a running node for people who look for the cause of something: live messages, the
//! tree of published topics, the trace of messages, rejected connections, and the
//! node's own metrics over the last days.
//!
//! [`Observer`] is one link of the hook chain. It requests no message of the broker while nobody
//! observes any, so that it then costs a message nothing but the check of its interest.

mod live_messages;
mod message_copy;
mod message_trace;
mod node_history;
mod observer;
mod observer_hooks;
mod rejected_connections;
mod topic_rate;
mod topic_tree;

pub use live_messages::{
    LiveMessage, LiveMessageItem, LiveMessages, MessageDirection, MessageSelection,
    TooManyStreamsError,
};
pub use message_copy::MessageCopy;
pub use message_trace::{
    MAX_RECORDING_S, MessageId, MessageStep, MessageTraceEntry, MessageTraceQuery,
    RecordingSelection, RecordingStatus, RuleLookup,
};
pub use node_history::{
    HistoryColumn, HistoryError, HistoryMetric, HistoryRange, HistoryTable, MAX_HISTORY_INTERVALS,
    NodeHistory,
};
pub use observer::Observer;
pub use rejected_connections::{RejectedConnection, RejectedConnectionQuery, RejectedConnections};
pub use topic_tree::{TopicNode, TopicPage, TopicQuery, TopicTree, TopicTreeStatus};
