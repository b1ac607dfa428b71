//! Leaving: DISCONNECT on every connection, then a moment for the broker to close it.
//!
//! Who closes a connection first keeps its ports busy for a minute. If that were the generator, the next round's
//! connects would spend most of their time looking for a free port.

use std::ops::Range;
use std::time::Duration;

use super::Worker;
use super::client::ConnectionState;
use crate::packets;

/// How long the broker gets to close all connections.
const GRACE_NS: u64 = 2_000_000_000;

impl Worker<'_> {
    /// Ends all connections.
    pub(super) fn disconnect_all(&mut self) -> anyhow::Result<()> {
        self.disconnect_range(0..self.connections.len())?;
        self.connections.clear();
        Ok(())
    }

    /// Ends some connections, which may be dialled again.
    pub(super) fn disconnect_range(&mut self, which: Range<usize>) -> anyhow::Result<()> {
        let mut leaving = 0;
        for connection in &mut self.connections[which.clone()] {
            // The run is over: whether the goodbye arrives changes nothing.
            let has_said_goodbye = connection.state == ConnectionState::Ready
                && connection
                    .transport
                    .as_mut()
                    .is_some_and(|transport| transport.send(packets::DISCONNECT).is_ok());
            if has_said_goodbye {
                connection.state = ConnectionState::Leaving;
                leaving += 1;
            } else {
                connection.transport = None;
                connection.state = ConnectionState::Closed;
            }
        }
        self.unsettled = leaving;
        let until_ns = self.now_ns() + GRACE_NS;
        while self.unsettled > 0 && self.now_ns() < until_ns {
            self.poll_once(Duration::from_millis(10))?;
        }
        for connection in &mut self.connections[which] {
            connection.transport = None;
            connection.state = ConnectionState::Closed;
        }
        self.unsettled = 0;
        Ok(())
    }

    /// Something arrived on a connection that is being closed: its end, or a packet that is ignored.
    pub(super) fn on_disconnecting(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let Some(transport) = &mut connection.transport else {
            return;
        };
        let mut has_ended = transport.flush().is_err();
        while !has_ended {
            match transport.receive(&mut self.inbox, &mut self.raw) {
                Ok(received) if received.more => {}
                Ok(_) => return,
                Err(_) => has_ended = true,
            }
        }
        connection.transport = None;
        connection.state = ConnectionState::Closed;
        self.unsettled -= 1;
    }
}
