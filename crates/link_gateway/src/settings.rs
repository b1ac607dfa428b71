//! Limits of links.

use std::time::Duration;

use link::config::{AckPolicy, LinkConfig};
use link::size_class::SizeClassTable;
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
    /// Limits of the size classes of messages: each is the first size of the next class.
    pub tiny_limit_bytes: u64,
    pub small_limit_bytes: u64,
    pub medium_limit_bytes: u64,
    pub large_limit_bytes: u64,
    /// How long the session of a peer with a client id is kept without a connection.
    pub session_expiry_s: u32,
    /// Messages for one peer that it has not acknowledged.
    pub max_deliveries: u16,
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
            tiny_limit_bytes: 1 << 10,
            small_limit_bytes: 16 << 10,
            medium_limit_bytes: 128 << 10,
            large_limit_bytes: 1 << 20,
            session_expiry_s: 3600,
            max_deliveries: 64,
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

    /// The table of size classes.
    #[must_use]
    pub fn size_classes(&self) -> SizeClassTable {
        SizeClassTable {
            tiny_limit_bytes: self.tiny_limit_bytes as usize,
            small_limit_bytes: self.small_limit_bytes as usize,
            medium_limit_bytes: self.medium_limit_bytes as usize,
            large_limit_bytes: self.large_limit_bytes as usize,
        }
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
            size_classes: self.size_classes(),
            ack_policy: AckPolicy::OnConfirmation,
            max_queued_bytes: self.message_window_bytes,
            max_retained_bytes: self.stream_window_bytes,
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_size_classes_are_those_of_all_links() {
        let settings = LinkSettings::default();
        assert_eq!(settings.size_classes(), SizeClassTable::default());
        assert_eq!(
            settings.link_config().size_classes,
            SizeClassTable::default()
        );
    }
}
