//! The journal of a link, and the messages in it that wait for the application.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use crate::config::{AckPolicy, LinkConfig};
use crate::core::LinkCore;
use crate::durable::{FileJournal, Journal as _};
use crate::error_code::ErrorCode;
use crate::message::{MessageBatch, ReceivedMessage};
use crate::priority::Priority;

/// What becomes of a journal whose link has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalRemoval {
    File,
    /// The directory belongs to the link, too.
    Directory,
}

/// Records of one link. It is locked after the state of the link.
#[derive(Debug)]
pub(crate) struct LinkJournal {
    file: FileJournal,
    /// Messages that are recorded and acknowledged, in the order of their arrival.
    inbox: VecDeque<ReceivedMessage>,
    removal: JournalRemoval,
    is_removed: bool,
}

impl LinkJournal {
    /// Restores a link. Messages that the application has not processed are received first.
    pub(crate) fn restore(
        file: FileJournal,
        mut config: LinkConfig,
        removal: JournalRemoval,
    ) -> (LinkCore, Self) {
        // A message is acknowledged when it is recorded.
        config.ack_policy = AckPolicy::OnConfirmation;
        let content = file.content();
        let table = config.size_classes;
        let mut core = LinkCore::new(content.link_id, config);
        core.restore(content.state);
        if file.is_ended() {
            core.shut_down(ErrorCode::NONE, "");
        }
        let inbox = content.unprocessed.into_iter();
        let inbox = inbox.map(|(id, payload)| ReceivedMessage::restored(id, payload, &table));
        let journal = Self {
            inbox: inbox.collect(),
            file,
            removal,
            is_removed: false,
        };
        (core, journal)
    }

    pub(crate) fn has_unprocessed_messages(&self) -> bool {
        self.file.has_unprocessed_messages()
    }

    /// Whether the link has ended regularly. Its messages are still received.
    pub(crate) fn is_ended(&self) -> bool {
        self.file.is_ended()
    }

    /// Applies a change and syncs it.
    pub(crate) fn record(
        &mut self,
        change: impl FnOnce(&mut FileJournal) -> io::Result<()>,
    ) -> io::Result<()> {
        change(&mut self.file)?;
        self.file.sync()?;
        self.remove_if_finished()
    }

    /// Applies a change that need not be durable before another one is.
    pub(crate) fn record_unsynced(
        &mut self,
        change: impl FnOnce(&mut FileJournal) -> io::Result<()>,
    ) -> io::Result<()> {
        change(&mut self.file)
    }

    /// The next message. What has arrived is recorded together, and acknowledged to the peer.
    pub(crate) fn next_message(
        &mut self,
        core: &mut LinkCore,
        now: Instant,
    ) -> io::Result<Option<ReceivedMessage>> {
        if self.inbox.is_empty() {
            let arrived: Vec<_> = std::iter::from_fn(|| core.next_message()).collect();
            if arrived.is_empty() {
                return Ok(None);
            }
            for message in &arrived {
                let payload = message.payload.clone().into_bytes();
                self.file.record_received(message.id, &payload)?;
            }
            self.file.sync()?;
            for message in &arrived {
                core.acknowledge(message.id, now);
            }
            self.inbox.extend(arrived);
        }
        Ok(self.inbox.pop_front())
    }

    /// All messages that wait, as [`next_message`](Self::next_message) returns them.
    pub(crate) fn take_batches(
        &mut self,
        core: &mut LinkCore,
        batches: &mut Vec<MessageBatch>,
        now: Instant,
    ) -> io::Result<()> {
        while let Some(message) = self.next_message(core, now)? {
            batches.push(MessageBatch::large(message.id, message.payload));
        }
        Ok(())
    }

    /// The peer has lost its state: numbers that it used before mean other messages now.
    pub(crate) fn record_peer_state_loss(&mut self, core: &LinkCore) -> io::Result<()> {
        for priority in Priority::ALL {
            let received = core.acknowledged_messages(priority);
            self.file.reset_received(priority, received);
        }
        self.file.sync()
    }

    /// The link has ended regularly, and will not be continued. The journal is removed when the application has processed its
    /// messages.
    pub(crate) fn set_ended(&mut self) -> io::Result<()> {
        if self.is_removed {
            return Ok(());
        }
        self.record(FileJournal::record_ended)
    }

    fn remove_if_finished(&mut self) -> io::Result<()> {
        if self.is_removed || !self.file.is_finished() {
            return Ok(());
        }
        self.is_removed = true;
        match self.removal {
            JournalRemoval::File => self.file.remove(),
            JournalRemoval::Directory => self.file.remove_directory(),
        }
    }
}
