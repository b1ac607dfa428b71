//! Batches with the records of another store.

use crate::batch::{MAX_BATCH_BYTES, StoreBatch};
use crate::log::record::{LogRecord, LogRecords};

/// Bytes that are not the records of a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the records of a batch are invalid at byte {offset}: {detail}")]
pub struct InvalidRecords {
    /// Offset of the first invalid record.
    pub offset: usize,
    pub detail: &'static str,
}

impl StoreBatch {
    /// A batch with the records of a frame of another store, as [`LogTail::read`](crate::LogTail::read) returns them.
    ///
    /// # Errors
    ///
    /// If the bytes are not the records of a batch, or are 1 GiB or more.
    pub fn from_records(number: u64, records: &[u8]) -> Result<Self, InvalidRecords> {
        let mut batch = Self {
            number,
            ..Self::default()
        };
        let refuse = |offset, detail| Err(InvalidRecords { offset, detail });
        if records.len() >= MAX_BATCH_BYTES {
            return refuse(0, "there are 1 GiB or more");
        }
        let mut decoded = LogRecords::new(records);
        loop {
            let offset = decoded.offset();
            let Some(record) = decoded.next() else { break };
            match record {
                None => return refuse(offset, "no record begins here, or it is incomplete"),
                Some(LogRecord::Message { .. }) => batch.has_message = true,
                Some(LogRecord::Entry { attributes, .. }) if attributes.len() >= 1 << 16 => {
                    return refuse(offset, "the attributes have more than 65,535 bytes");
                }
                Some(LogRecord::Entry { released, .. }) if !released && !batch.has_message => {
                    return refuse(offset, "an entry has no message before it");
                }
                Some(LogRecord::Put { key, .. } | LogRecord::Delete { key, .. }) => {
                    if key.is_empty() || key.len() >= 1 << 16 {
                        return refuse(offset, "the key is empty or has more than 65,535 bytes");
                    }
                    batch.is_keyed = true;
                }
                Some(_) => {}
            }
        }
        batch.bytes.extend_from_slice(records);
        Ok(batch)
    }
}
