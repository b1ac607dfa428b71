//! Limits on incomplete packets: how many bytes a shard keeps of them, for all of its connections and for each
//! listener. Other limits are how many all shards keep together, and for how long.
//!
//! It orchestrates: the bytes are counted in `PartialPacketBudget`, the times in `ConnectionDeadlines`.

use mqtt::ReasonCode;

use super::connection::{CloseReason, ConnectionPhase};
use super::shard::{ConnectionAction, Shard};
use super::tables::ConnectionIx;
use crate::metrics::Metric;

impl Shard {
    /// Updates the bytes that a connection keeps. A connection whose bytes have grown beyond the room available is
    /// closed.
    #[inline]
    pub(crate) fn count_partial(&mut self, at: ConnectionIx) -> ConnectionAction {
        let connection = &self.delivery.connections[at];
        let mut now = connection.partial_packets.len() + usize::from(connection.layer_bytes);
        if connection.is_relay() {
            now += connection.relay_partial_bytes();
        }
        match now == connection.partial_bytes_counted as usize {
            true => ConnectionAction::Continue,
            false => self.recount_partial(at, now),
        }
    }

    fn recount_partial(&mut self, at: ConnectionIx, now: usize) -> ConnectionAction {
        let connection = &mut self.delivery.connections[at];
        let before = std::mem::replace(&mut connection.partial_bytes_counted, now as u32) as usize;
        let (listener, phase) = (connection.listener, connection.phase);
        self.packet_budget.replace_bytes(listener, before, now);
        // The bytes of all shards are added only then, not for each read.
        let is_published = self.publish_partial_step();
        if now < before || phase == ConnectionPhase::Closing {
            return ConnectionAction::Continue;
        }
        let of_shard = self.limits.max_partial_packet_bytes_per_shard as usize;
        let of_listener = match self.node.listeners[usize::from(listener)]
            .config()
            .max_partial_packet_bytes_per_shard
        {
            0 => of_shard.div_ceil(2),
            own => own as usize,
        };
        let budget = &self.packet_budget;
        let fits_shard = budget.total() <= of_shard && budget.of_listener(listener) <= of_listener;
        let detail = if !fits_shard {
            "too many bytes of incomplete packets; see limits.max_partial_packet_bytes_per_shard"
        } else if is_published
            && self.partial_bytes_of_node() > self.limits.max_partial_packet_bytes
        {
            "too many bytes of incomplete packets; see limits.max_partial_packet_bytes"
        } else {
            return ConnectionAction::Continue;
        };
        self.metrics().inc(Metric::PartialPacketsOverBudget);
        let closing =
            CloseReason::new(ReasonCode::QUOTA_EXCEEDED, "quota_exceeded").with_detail(detail);
        self.close(at, closing);
        ConnectionAction::Close
    }

    /// Shows the bytes to other shards, if they have changed much; whether it has.
    fn publish_partial_step(&mut self) -> bool {
        let Some(total) = self.packet_budget.publish_step() else {
            return false;
        };
        self.metrics().set(Metric::PartialPacketBytes, total as u64);
        true
    }

    /// The bytes that all shards keep, as far as they have shown them.
    fn partial_bytes_of_node(&self) -> u64 {
        let shards = self.node.metrics.iter();
        shards
            .map(|shard| shard.get(Metric::PartialPacketBytes))
            .sum()
    }

    /// Sets the bytes that the layers below MQTT keep of an incomplete handshake or frame.
    pub(crate) fn set_layer_bytes(&mut self, at: ConnectionIx, bytes: usize) -> ConnectionAction {
        let connection = &mut self.delivery.connections[at];
        connection.layer_bytes = u16::try_from(bytes).unwrap_or(u16::MAX);
        self.count_partial(at)
    }

    /// Releases the bytes counted for a connection.
    pub(crate) fn release_partial(&mut self, at: ConnectionIx) {
        let connection = &mut self.delivery.connections[at];
        connection.partial_packets = Vec::new();
        connection.layer_bytes = 0;
        self.count_partial(at);
    }

    /// Tracks the deadline of an incomplete packet (`is_fragment`), possibly another one than before (`is_new`).
    pub(crate) fn track_partial_deadline(
        &mut self,
        at: ConnectionIx,
        is_fragment: bool,
        is_new: bool,
    ) {
        let now_ms = self.now_ms();
        let connection = &mut self.delivery.connections[at];
        if !is_fragment {
            return connection.deadlines.record_no_fragment();
        }
        connection.deadlines.record_fragment(now_ms, is_new);
        if connection.phase != ConnectionPhase::Connected {
            // The time-out for CONNECT runs already.
            return;
        }
        // Its bytes so far only make the deadline later.
        let deadlines = &connection.deadlines;
        let deadline_ms = deadlines
            .fragment_deadline_ms(self.limits.packet_timeout_s, 1)
            .unwrap_or(u64::MAX);
        if deadlines.needs_check_before(deadline_ms, now_ms) {
            self.schedule_check(at, deadline_ms);
        }
    }
}
