//! Limits of links.

use std::time::Duration;

use link::config::{AckPolicy, LinkConfig};
use link::wire::handshake::Limits;

/// Settings of the section `[link]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSettings {
    /// Links of one listener, with and without a connection.
    pub max_links: u32,
    /// How long a link without a connection is kept.
    pub expiry_s: u32,
    /// Bytes of messages of one link that wait to be published.
    pub message_window_bytes: u64,
    /// Bytes of one file that wait to be stored.
    pub stream_window_bytes: u64,
    /// The same of all files of one link.
    pub data_window_bytes: u64,
    /// Files that are sent and received at a time on one link.
    pub max_transfers: u32,
    /// Silence after which a connection is regarded as lost.
    pub idle_timeout_s: u32,
    /// Threads of all link listeners; 0: one per core.
    pub threads: u32,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            max_links: 10_000,
            expiry_s: 60,
            message_window_bytes: 2 << 20,
            stream_window_bytes: 4 << 20,
            data_window_bytes: 8 << 20,
            max_transfers: 16,
            idle_timeout_s: 30,
            threads: 0,
        }
    }
}

impl LinkSettings {
    pub(crate) fn expiry(&self) -> Duration {
        Duration::from_secs(self.expiry_s.into())
    }

    pub(crate) fn link_config(&self) -> LinkConfig {
        let defaults = LinkConfig::default();
        LinkConfig {
            limits: Limits {
                message_window_bytes: self.message_window_bytes,
                data_window_bytes: self.data_window_bytes,
                stream_window_bytes: self.stream_window_bytes,
                // Those beyond `max_transfers` wait for their ACCEPT.
                max_streams: self.max_transfers.saturating_mul(4),
                idle_timeout_ms: self.idle_timeout_s.saturating_mul(1000),
                ..defaults.limits
            },
            ack_policy: AckPolicy::OnConfirmation,
            max_queued_bytes: self.message_window_bytes,
            max_retained_bytes: self.stream_window_bytes,
            ..defaults
        }
    }
}
