//! Packets of a turn, written with one call for each connection.
//!
//! A device has a buffer only while it has packets to write; buffers are taken from a pool of the thread.

use load_client::client_error::ClientError;

use super::Worker;

/// An outbox with more is written before the end of the turn.
const MAX_OUTBOX_BYTES: usize = 64 * 1024;
/// Buffers that are kept for later turns, and the capacity beyond which one is not kept.
const MAX_FREE_OUTBOXES: usize = 4096;
const MAX_FREE_BYTES: usize = 4096;

impl Worker<'_> {
    /// Lets `encode` append a packet to the outbox of a connected device.
    #[inline]
    pub(super) fn append(
        &mut self,
        device: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), ClientError> {
        let entry = &mut self.devices[device];
        if entry.transport.is_none() {
            return Ok(());
        }
        if entry.outbox.is_empty() {
            entry.outbox = self.free_outboxes.pop().unwrap_or_default();
            self.unwritten.push(device as u32);
        }
        encode(&mut entry.outbox);
        if entry.outbox.len() > MAX_OUTBOX_BYTES {
            return self.write_outbox(device);
        }
        Ok(())
    }

    /// Writes the packets of all devices.
    pub(super) fn write_outboxes(&mut self) {
        let mut unwritten = std::mem::take(&mut self.unwritten);
        for device in unwritten.drain(..) {
            if let Err(failure) = self.write_outbox(device as usize) {
                self.fail(device as usize, &failure);
            }
        }
        self.unwritten = unwritten;
    }

    /// Writes the packets of a device; what the socket does not take waits in its connection.
    pub(super) fn write_outbox(&mut self, device: usize) -> Result<(), ClientError> {
        let entry = &mut self.devices[device];
        if entry.outbox.is_empty() {
            return Ok(());
        }
        let mut outbox = std::mem::take(&mut entry.outbox);
        let written = entry
            .transport
            .as_mut()
            .map_or(Ok(()), |transport| transport.send(&outbox));
        outbox.clear();
        let is_kept =
            outbox.capacity() <= MAX_FREE_BYTES && self.free_outboxes.len() < MAX_FREE_OUTBOXES;
        if is_kept {
            self.free_outboxes.push(outbox);
        }
        Ok(written?)
    }
}
