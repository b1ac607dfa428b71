//! A simulated device: its connection, and what it remembers between messages.
//!
//! An idle device has no buffers. Its id, topics and credentials are rendered from its index when they are needed.

use super::super::device_connection::DeviceConnection;
use super::device_update::DeviceUpdates;

/// How far the connection of a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionStage {
    /// Not wanted in this phase, or waiting for its turn.
    Offline,
    /// TCP is being set up.
    Dialing,
    /// CONNECT is sent (below it, TLS and WebSocket handshakes).
    Greeting,
    /// SUBSCRIBE is sent.
    Subscribing,
    Ready,
}

/// A message that is not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlightMessage {
    pub(super) packet_id: u16,
    /// When it was due.
    pub(super) due_ns: u64,
}

#[derive(Debug)]
pub(super) struct SimulatedDevice {
    pub(super) transport: Option<DeviceConnection>,
    /// The front of an incomplete packet.
    pub(super) partial: Vec<u8>,
    /// Packets of this turn that are not yet written.
    pub(super) outbox: Vec<u8>,
    pub(super) in_flight: Vec<InFlightMessage>,
    /// Images that it installs or has installed.
    pub(super) updates: Option<Box<DeviceUpdates>>,
    /// When the current connection was begun.
    pub(super) started_ns: u64,
    /// When the last connection ended unexpectedly, or when the outage ends that ended it; 0: it did not.
    pub(super) lost_ns: u64,
    /// When the current fault ends.
    pub(super) fault_until_ns: u64,
    /// Verified messages sent.
    pub(super) verified: u32,
    /// Messages made.
    pub(super) step: u32,
    /// Position in its fleet.
    pub(super) number: u32,
    pub(super) fleet: u16,
    pub(super) next_packet_id: u16,
    /// Attempts to connect that failed in a row.
    pub(super) attempts: u16,
    /// Number of the current fault in the phase, plus 1; 0: none.
    pub(super) fault: u16,
    pub(super) stage: ConnectionStage,
    /// Whether its messages are in the schedule.
    pub(super) is_scheduled: bool,
    /// Whether the timer of its script has begun.
    pub(super) has_timer: bool,
    /// Whether the first attempt of this phase has ended.
    pub(super) is_settled: bool,
    /// Whether it is to be connected in this phase.
    pub(super) is_wanted: bool,
    /// Whether it has lost its connection and does not connect again.
    pub(super) is_gone: bool,
}

impl SimulatedDevice {
    pub(super) fn new(fleet: u16, number: u32) -> Self {
        Self {
            transport: None,
            partial: Vec::new(),
            outbox: Vec::new(),
            in_flight: Vec::new(),
            updates: None,
            started_ns: 0,
            lost_ns: 0,
            fault_until_ns: 0,
            verified: 0,
            step: 0,
            number,
            fleet,
            next_packet_id: 1,
            attempts: 0,
            fault: 0,
            stage: ConnectionStage::Offline,
            is_scheduled: false,
            has_timer: false,
            is_settled: true,
            is_wanted: false,
            is_gone: false,
        }
    }

    pub(super) fn is_connecting(&self) -> bool {
        !matches!(
            self.stage,
            ConnectionStage::Offline | ConnectionStage::Ready
        )
    }

    /// An identifier that no message in flight has.
    pub(super) fn take_packet_id(&mut self) -> u16 {
        let id = self.next_packet_id;
        self.next_packet_id = match id {
            u16::MAX => 1,
            id => id + 1,
        };
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_device_takes_less_than_300_bytes() {
        assert!(
            size_of::<SimulatedDevice>() <= 300,
            "{}",
            size_of::<SimulatedDevice>()
        );
        assert!(size_of::<crate::schedule::DueSend>() == 16);
    }
}
