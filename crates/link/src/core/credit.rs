//! Flow control: what this end may send, and what it permits the peer. Both are running totals of one carrier.

use crate::error_code::{ErrorCode, ProtocolError};

/// Credit that the peer has granted.
#[derive(Debug, Default)]
pub(crate) struct SendCredit {
    granted: u64,
    used: u64,
}

impl SendCredit {
    pub(crate) fn new(granted: u64) -> Self {
        Self { granted, used: 0 }
    }

    pub(crate) fn available(&self) -> u64 {
        self.granted.saturating_sub(self.used)
    }

    pub(crate) fn spend(&mut self, bytes: u64) {
        self.used += bytes;
    }

    /// A total that is lower than before is ignored.
    pub(crate) fn raise(&mut self, granted: u64) {
        self.granted = self.granted.max(granted);
    }
}

/// Credit that this end has granted.
#[derive(Debug, Default)]
pub(crate) struct ReceiveCredit {
    window: u64,
    initial: u64,
    granted: u64,
    received: u64,
    released: u64,
}

impl ReceiveCredit {
    /// `occupied` bytes of the window are still in use.
    pub(crate) fn new(window: u64, occupied: u64) -> Self {
        let initial = window.saturating_sub(occupied);
        Self {
            window,
            initial,
            granted: initial,
            received: 0,
            released: 0,
        }
    }

    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    pub(crate) fn receive(&mut self, bytes: u64) -> Result<(), ProtocolError> {
        self.received += bytes;
        if self.received > self.granted {
            return Err(ProtocolError {
                code: ErrorCode::LIMIT_EXCEEDED,
                detail: "the peer sent more than its credit",
            });
        }
        Ok(())
    }

    /// The application has taken bytes of this or a former carrier.
    pub(crate) fn release(&mut self, bytes: u64) {
        self.released += bytes;
    }

    /// The total to announce, when a sixteenth of the window is free again: with a long round trip, the peer uses the rest
    /// of the window on average.
    pub(crate) fn announcement(&mut self) -> Option<u64> {
        let total = self.initial + self.released;
        if total - self.granted < self.window / 16 {
            return None;
        }
        self.granted = total;
        Some(total)
    }
}
