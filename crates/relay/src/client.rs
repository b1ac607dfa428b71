//! The service's state for one connection.

use std::sync::Arc;

use hooks::relay::{RelayClient, RelayPayloadKind, RelayVerdict};

use crate::endpoint::Endpoint;
use crate::system_message::system_message;

pub(crate) struct EndpointClient {
    endpoint: Arc<Endpoint>,
    connection_id: String,
    /// The sender of its messages in the history.
    sender: String,
}

impl EndpointClient {
    pub(crate) fn new(endpoint: Arc<Endpoint>, connection_id: String) -> Self {
        Self {
            endpoint,
            sender: format!("connection {connection_id}"),
            connection_id,
        }
    }
}

impl RelayClient for EndpointClient {
    fn received(
        &mut self,
        kind: RelayPayloadKind,
        payload: &[u8],
        now_ms: u64,
        _replies: &mut Vec<String>,
    ) -> RelayVerdict {
        self.endpoint
            .record_message(kind, payload, &self.sender, now_ms);
        RelayVerdict::Publish
    }

    fn caught_up(&mut self, dropped: u64, now_ms: u64) -> Option<String> {
        let message = format!(
            "This client reads too slowly: {dropped} messages to it were dropped, the oldest ones first."
        );
        Some(system_message(
            "warning",
            "RATE_LIMIT_WARNING",
            &message,
            now_ms,
        ))
    }

    fn closed(&mut self, _reason: &'static str) {
        self.endpoint.remove_connection(&self.connection_id);
    }
}
