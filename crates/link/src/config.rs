//! Settings of one end of a link.

use std::time::Duration;

use crate::size_class::SizeClassTable;
use crate::wire::handshake::Limits;

/// When received messages are acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckPolicy {
    /// When the message is in memory. A crash of the receiver loses messages that the application has not taken.
    OnReceipt,
    /// When the application confirms that the message is durable
    /// ([`LinkCore::acknowledge`](crate::core::LinkCore::acknowledge)).
    OnConfirmation,
}

#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// The name under which a connecting end logs in; empty: the accepting end chooses one. At most 1,024 bytes.
    pub client_id: String,
    /// What this end permits the peer.
    pub limits: Limits,
    pub size_classes: SizeClassTable,
    pub ack_policy: AckPolicy,
    /// Limit of unacknowledged bytes of messages of one frame, and of bytes of larger messages that the peer has not received.
    /// Larger messages that the peer has received and not completed may hold four times as much. Beyond a limit, no message is
    /// accepted.
    pub max_queued_bytes: u64,
    /// Bytes of one outgoing stream that are not acknowledged; more are not accepted.
    pub max_retained_bytes: u64,
    /// Limits of the adaptive chunk size of streams and large messages.
    pub min_chunk_bytes: usize,
    pub max_chunk_bytes: usize,
    /// Pause after which the peer is asked whether it is there.
    pub ping_interval: Duration,
    /// Longest delay of an acknowledgement.
    pub ack_delay: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            client_id: String::new(),
            limits: Limits {
                max_frame_bytes: 1024 * 1024 + 64,
                message_window_bytes: 16 * 1024 * 1024,
                data_window_bytes: 64 * 1024 * 1024,
                stream_window_bytes: 8 * 1024 * 1024,
                max_streams: 1024,
                horizon: 1 << 20,
                idle_timeout_ms: 30_000,
            },
            size_classes: SizeClassTable::default(),
            ack_policy: AckPolicy::OnReceipt,
            max_queued_bytes: 16 * 1024 * 1024,
            max_retained_bytes: 16 * 1024 * 1024,
            min_chunk_bytes: 16 * 1024,
            max_chunk_bytes: 256 * 1024,
            ping_interval: Duration::from_secs(5),
            ack_delay: Duration::from_millis(2),
        }
    }
}
