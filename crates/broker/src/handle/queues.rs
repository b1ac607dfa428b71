//! Inspects and deletes the messages that wait for a session. Messages of a durable session may be in the store only,
//! which is read one page at a time.

use store::QueueEntry;

use super::BrokerHandle;
use crate::control::QueuedMessage;
use crate::core::message_info::{MAX_SHOWN_PAYLOAD_BYTES, stored_message};
use crate::core::queue_control::{QueueListing, StoredQueueRange};
use crate::core::records::{read_attributes, read_message};
use crate::core::session::SessionMessage;

fn listed_message(entry: &QueueEntry) -> Option<QueuedMessage> {
    if entry.released {
        return None;
    }
    let message = read_message(&entry.body)?;
    let attributes = read_attributes(&entry.attributes)?;
    Some(QueuedMessage {
        position: entry.seq,
        packet_id: (entry.packet_id != 0).then_some(entry.packet_id),
        message: stored_message(
            &message.view(),
            attributes.qos,
            attributes.retain,
            MAX_SHOWN_PAYLOAD_BYTES,
        ),
    })
}

/// Its number and its share of the queue's byte limit, if it has not been sent.
fn unsent_entry(entry: &QueueEntry) -> Option<(u64, usize)> {
    if entry.released || entry.packet_id != 0 {
        return None;
    }
    let size = read_message(&entry.body).map_or(0, |message| message.size());
    Some((entry.seq, size + size_of::<SessionMessage>()))
}

impl BrokerHandle {
    /// The messages that wait for a session, sent or not, in order, after the position `after`. A long payload is
    /// truncated. `None`: no session.
    pub async fn queued_messages(
        &self,
        client_id: &str,
        after: Option<u64>,
        limit: usize,
    ) -> Option<Vec<QueuedMessage>> {
        let shard = self.shared.node.directory.shard_of(client_id)?;
        let id = client_id.to_owned();
        let look = self.query_shard(shard, move |shard| shard.list_queue(&id, after, limit));
        let QueueListing { mut rows, stored } = look.await.flatten()?;
        if let (Some(stored), Some(store_reader)) = (stored, &self.shared.store_reader) {
            let mut from_seq = stored.from_seq.max(after.map_or(0, |after| after + 1));
            while rows.len() < limit
                && let Some(page) = store_reader
                    .read_piece(&self.shared.pending_store_read, stored.session, from_seq)
                    .await
            {
                let room = limit - rows.len();
                rows.extend(page.entries.iter().filter_map(listed_message).take(room));
                match page.entries.last() {
                    Some(last) if !page.is_last => from_seq = last.seq + 1,
                    _ => break,
                }
            }
        }
        Some(rows)
    }

    /// Deletes the waiting messages of a session that have not been sent, and returns their number. `None`: no session.
    pub async fn clear_queue(&self, client_id: &str) -> Option<u64> {
        let shard = self.shared.node.directory.shard_of(client_id)?;
        let id = client_id.to_owned();
        let discard = move |shard: &mut crate::core::shard::Shard| (shard.clear_queue(&id), 0);
        let (mut count, stored) = self.query_shard_durably(shard, discard).await.flatten()?;
        let (Some(stored), Some(store_reader)) = (stored, &self.shared.store_reader) else {
            return Some(count);
        };
        let mut from_seq = stored.from_seq;
        // Messages that arrive meanwhile stay.
        while from_seq <= stored.last_seq
            && let Some(page) = store_reader
                .read_piece(&self.shared.pending_store_read, stored.session, from_seq)
                .await
        {
            let unsent: Vec<(u64, usize)> = (page.entries.iter())
                .filter(|entry| entry.seq <= stored.last_seq)
                .filter_map(unsent_entry)
                .collect();
            count += self
                .discard_stored_messages(shard, client_id, &stored, unsent)
                .await;
            match page.entries.last() {
                Some(last) if !page.is_last => from_seq = last.seq + 1,
                _ => break,
            }
        }
        Some(count)
    }

    /// Deletes one unsent message from a durable session's queue; false if there is none at this position. `None`: no
    /// session.
    pub async fn delete_queued_message(&self, client_id: &str, position: u64) -> Option<bool> {
        let shard = self.shared.node.directory.shard_of(client_id)?;
        let id = client_id.to_owned();
        let discard = move |shard: &mut crate::core::shard::Shard| {
            (shard.delete_queued_message(&id, position), 0)
        };
        let (is_done, stored) = self.query_shard_durably(shard, discard).await.flatten()?;
        let (false, Some(stored), Some(store_reader)) =
            (is_done, stored, &self.shared.store_reader)
        else {
            return Some(is_done);
        };
        if position < stored.from_seq {
            return Some(false);
        }
        let pending_read = &self.shared.pending_store_read;
        let page = store_reader
            .read_piece(pending_read, stored.session, position)
            .await;
        let entries = page.map_or(Vec::new(), |page| page.entries);
        let found = entries.iter().find(|entry| entry.seq == position);
        let unsent = found.and_then(unsent_entry).into_iter().collect();
        Some(
            self.discard_stored_messages(shard, client_id, &stored, unsent)
                .await
                > 0,
        )
    }

    async fn discard_stored_messages(
        &self,
        shard: u16,
        client_id: &str,
        stored: &StoredQueueRange,
        unsent: Vec<(u64, usize)>,
    ) -> u64 {
        let (id, session) = (client_id.to_owned(), stored.session);
        let discard = move |shard: &mut crate::core::shard::Shard| {
            (shard.discard_stored_messages(&id, session, &unsent), 0)
        };
        self.query_shard_durably(shard, discard).await.unwrap_or(0)
    }
}
