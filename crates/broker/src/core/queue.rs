//! A session's queue: in memory as far as the client is about to take it, else in the store, within its bounds and by
//! its policy. A session that is not durable has all of it in memory.

use mqtt::{QoS, ReasonCode};
use std::rc::Rc;

use super::connection::Closing;
use super::deliver::{Delivery, Dispatch, client_of, shared_message, with_publisher};
use super::message::MessageView;
use super::session::{Parcel, QueueLimits, QueueSize, Room, Session};
use super::stored;
use super::sublist::{GroupId, NO_GROUP};
use crate::config::Limits;
use crate::hooks::{DropReason, Interest};
use crate::metrics::Metric;
use store::Page;

fn queue_limits(limits: &Limits) -> QueueLimits {
    QueueLimits {
        max_messages: limits.max_queued_messages as usize,
        max_bytes: limits.max_queued_bytes as usize,
        policy: limits.queue_policy,
    }
}

impl Session {
    /// A number for the next message that is stored for it; 0 if none is.
    #[inline]
    pub(crate) fn next_seq(&mut self) -> u64 {
        if self.number == 0 {
            return 0;
        }
        self.last_seq += 1;
        self.last_seq
    }

    /// Whether one more message is left to the store: it is durable, and either nobody is there to take it or enough
    /// waits for the client already. Members of groups keep theirs at hand, since others may have to take them over.
    fn leaves_to_store(&self, group: GroupId) -> bool {
        let has_room = self.outbound.as_ref().is_none_or(|o| o.has_room_here());
        self.number != 0 && (!has_room || self.connection.is_none() && group == NO_GROUP)
    }
}

impl Delivery {
    /// Writes a message of a durable session down; `journaled`: the message itself is, for another session.
    pub(super) fn write_down(
        &mut self,
        session: u32,
        packet_id: u16,
        parcel: &Parcel,
        journaled: &mut bool,
    ) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if !std::mem::replace(journaled, true) {
            journal.message(&parcel.message.view());
        }
        let number = self.sessions[session as usize].number;
        let identifiers = parcel.identifiers.as_deref().unwrap_or(&[]);
        journal.entry(
            (number, parcel.seq),
            packet_id,
            parcel.qos,
            parcel.retain,
            identifiers,
        );
    }

    /// Writes down that a message waits for a durable session, and the message itself if it is the first.
    #[inline]
    pub(super) fn write_dispatch(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        place: (u64, u64),
        packet_id: u16,
        qos: QoS,
        retain: bool,
        identifiers: &[u32],
    ) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if !std::mem::replace(&mut dispatch.journaled, true) {
            // Not a copy made for the window: that would have to be checked to be UTF-8 once more.
            journal.message(&with_publisher(
                &self.sessions,
                dispatch.origin,
                &dispatch.view,
            ));
        }
        journal.entry(place, packet_id, qos, retain, identifiers);
    }

    /// A message is nothing to the store any more.
    #[inline]
    pub(crate) fn forget_stored(&mut self, session: u32, seq: u64) {
        if seq != 0
            && let Some(journal) = &mut self.journal
        {
            journal.done(self.sessions[session as usize].number, seq);
        }
    }

    /// What is appended to a connection's outbox from now on waits until this turn is in the log.
    #[inline]
    pub(crate) fn hold(&mut self, at: u32) {
        if let Some(journal) = &mut self.journal
            && journal.is_touched()
            && self.connections[at as usize].outbox.hold(journal.turn())
        {
            journal.hold(at);
        }
    }

    /// Puts a message into a session's queue.
    pub(super) fn keep(
        &mut self,
        dispatch: &mut Dispatch<'_>,
        session: u32,
        qos: QoS,
        retain: bool,
        identifiers: Option<Rc<[u32]>>,
        group: GroupId,
    ) {
        if self.interest.contains(Interest::KEEP) && qos != QoS::AtMostOnce {
            let state = &self.sessions[session as usize];
            if state.connection.is_none() {
                let view = with_publisher(&self.sessions, dispatch.origin, &dispatch.view);
                let client = client_of(state, &self.connections);
                self.hooks.kept(&client, &view);
            }
        }
        if self.sessions[session as usize].leaves_to_store(group) {
            let view = with_publisher(&self.sessions, dispatch.origin, &dispatch.view);
            let size = view.size() + size_of::<Parcel>();
            if !self.make_room(session, size, &dispatch.view) {
                return;
            }
            let seq = self.push_stored(session, size);
            let place = (self.sessions[session as usize].number, seq);
            let identifiers = identifiers.as_deref().unwrap_or(&[]);
            self.write_dispatch(dispatch, place, 0, qos, retain, identifiers);
            return;
        }
        let parcel = Parcel {
            message: shared_message(dispatch, &self.sessions),
            qos,
            retain,
            identifiers,
            group,
            seq: 0,
        };
        self.keep_here(session, parcel, &mut dispatch.journaled);
    }

    /// Puts a message into a session's queue that did not come by a dispatch.
    pub(crate) fn keep_parcel(&mut self, at: u32, mut parcel: Parcel) {
        let mut journaled = false;
        if !self.sessions[at as usize].leaves_to_store(parcel.group) {
            return self.keep_here(at, parcel, &mut journaled);
        }
        let size = parcel.size();
        if self.make_room(at, size, &parcel.message.view()) {
            parcel.seq = self.push_stored(at, size);
            self.write_down(at, 0, &parcel, &mut journaled);
        }
    }

    fn keep_here(&mut self, at: u32, mut parcel: Parcel, journaled: &mut bool) {
        let size = parcel.size();
        if self.queued_bytes + size > self.limits.max_queued_bytes_per_shard as usize {
            let view = parcel.message.view();
            return self.dropped(Some(at), &view, DropReason::QueueFull);
        }
        if !self.make_room(at, size, &parcel.message.view()) {
            return;
        }
        let session = &mut self.sessions[at as usize];
        parcel.seq = session.next_seq();
        let outbound = session.outbound.get_or_insert_default();
        let before = outbound.size();
        outbound.push(parcel.clone());
        let after = outbound.size();
        if let Some(connection) = session.connection {
            self.connections[connection as usize].wants_pump = true;
        }
        self.count_queue(before, after);
        if parcel.seq != 0 {
            self.write_down(at, 0, &parcel, journaled);
        }
    }

    fn push_stored(&mut self, at: u32, size: usize) -> u64 {
        let session = &mut self.sessions[at as usize];
        let seq = session.next_seq();
        let outbound = session.outbound.get_or_insert_default();
        let before = outbound.size();
        outbound.push_stored(seq, size, self.now_ms);
        let after = outbound.size();
        if let Some(connection) = session.connection {
            self.connections[connection as usize].wants_pump = true;
        }
        self.count_queue(before, after);
        seq
    }

    /// Makes room in a session's queue by its policy; false if the message has to go.
    fn make_room(&mut self, at: u32, size: usize, view: &MessageView<'_>) -> bool {
        let session = &mut self.sessions[at as usize];
        let outbound = session.outbound.get_or_insert_default();
        let before = outbound.size();
        let room = outbound.make_room(size, &queue_limits(&self.limits));
        let after = outbound.size();
        match room {
            Room::Free => return true,
            Room::Made { parcels, stored } => {
                self.count_queue(before, after);
                for parcel in parcels {
                    self.forget_stored(at, parcel.seq);
                    self.dropped(Some(at), &parcel.message.view(), DropReason::QueueFull);
                }
                for seq in stored {
                    self.forget_stored(at, seq);
                    // What it was is only known to the store.
                    self.dropped(Some(at), &MessageView::unknown(), DropReason::QueueFull);
                }
                return true;
            }
            Room::Refused => {}
            Room::Disconnect => {
                if let Some(connection) = session.connection {
                    let why = Closing::new(ReasonCode::QUOTA_EXCEEDED, "queue_full")
                        .with_detail("more messages wait for this client than its queue may hold");
                    self.doomed.push((connection, why));
                }
            }
        }
        self.dropped(Some(at), view, DropReason::QueueFull);
        false
    }

    pub(crate) fn count_queue(&mut self, before: QueueSize, after: QueueSize) {
        self.queued_bytes = self.queued_bytes + after.memory_bytes - before.memory_bytes;
        self.metrics.add(
            Metric::QueuedMessages,
            (after.messages as u64).wrapping_sub(before.messages as u64),
        );
        self.metrics.add(
            Metric::QueuedBytes,
            (after.bytes as u64).wrapping_sub(before.bytes as u64),
        );
    }

    /// A durable session without a connection keeps no message in memory.
    pub(crate) fn unload(&mut self, at: u32) {
        let session = &mut self.sessions[at as usize];
        let Some(outbound) = &mut session.outbound else {
            return;
        };
        if session.number != 0 && outbound.may_unload() {
            let before = outbound.size();
            outbound.unload();
            let after = outbound.size();
            if outbound.is_idle() {
                session.outbound = None;
            }
            self.count_queue(before, after);
        }
    }

    /// Reads on in the store for a connected session, if it is time to.
    pub(super) fn load_more(&mut self, at: u32) {
        let session = &self.sessions[at as usize];
        if session.outbound.as_ref().is_some_and(|o| o.wants_load())
            && let Some(journal) = &mut self.journal
        {
            journal.fetch(session.number);
            self.start_loading();
        }
    }

    /// Starts as many reads as may be under way.
    fn start_loading(&mut self) {
        // What was read waits in memory: not too much of it.
        let most = self.limits.max_queued_bytes_per_shard as usize / 2;
        while self.queued_bytes <= most
            && let Some(journal) = &mut self.journal
            && let Some(number) = journal.next_fetch()
        {
            let Some(session) = journal.session(number) else {
                continue;
            };
            let session = &mut self.sessions[session as usize];
            if let Some(outbound) = &mut session.outbound
                && session.connection.is_some()
                && outbound.wants_load()
            {
                journal.start_fetch(number, outbound.start_load());
            }
        }
    }

    /// A piece of a session's stored messages.
    pub(crate) fn take_page(&mut self, page: Page) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        journal.fetched();
        if let Some(at) = journal.session(page.session) {
            self.load(at, &page);
        }
        self.start_loading();
    }

    fn load(&mut self, at: u32, page: &Page) {
        let session = &mut self.sessions[at as usize];
        let is_connected = session.connection.is_some();
        let Some(outbound) = &mut session.outbound else {
            return;
        };
        let belongs = outbound.end_load();
        if !is_connected {
            return;
        }
        if belongs {
            let before = outbound.size();
            let mut unreadable = 0_u64;
            for entry in &page.entries {
                if !outbound.is_stored(entry.seq) {
                    continue;
                }
                let message = match entry.released {
                    true => None,
                    false => stored::read_message(&entry.body),
                };
                let attributes = stored::read_attributes(&entry.attributes);
                let (true, Some(attributes)) = (entry.released || message.is_some(), attributes)
                else {
                    unreadable += 1;
                    continue;
                };
                let identifiers = (!attributes.identifiers.is_empty())
                    .then(|| attributes.identifiers.as_slice().into());
                let parcel = message.map(|message| Parcel {
                    message: Rc::new(message),
                    qos: attributes.qos,
                    retain: attributes.retain,
                    identifiers,
                    group: NO_GROUP,
                    seq: entry.seq,
                });
                outbound.load(entry.seq, entry.packet_id, parcel);
            }
            outbound.loaded(page.is_last);
            let after = outbound.size();
            self.count_queue(before, after);
            if unreadable > 0 {
                tracing::error!(
                    unreadable,
                    "stored messages could not be read; this is a bug"
                );
            }
        }
        self.pump(at);
    }
}
