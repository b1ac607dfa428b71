//! One thread's path through the pipeline: its buffers and its cache of products.

mod rule_chain;

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Cache};
use bumpalo::Bump;
use rules::{EvaluationResources, EvaluationScratch};
use series::Point;

use super::decoder::{
    DecodeContext, DecodedMessages, DecodedRow, MessageDecoder, ProductContexts, RowSubject,
};
use super::message::DeviceMessage;
use super::metrics::ProcessorCounters;
use super::pipeline_shared::{PipelineShared, ProfileTable};
use super::ports::{SettleScope, StorageError, StorageErrorKind, StoredRow};
use super::product_keys::KeyRegistrar;
use super::profile::{DeviceRef, ProductProfile};
use super::rejections::RejectionLog;
use crate::protocol::{self, ControlMessage};
use rule_chain::{DeviceRow, run_chain};

/// Memory kept between messages.
const MAX_RETAINED_BYTES: usize = 256 << 10;
/// Interval between two checks of a store without room.
const SPACE_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// One of this many messages is timed.
const TIMED_ONE_IN: u32 = 16;

/// Processes messages; each thread has its own.
pub struct TelemetryProcessor {
    shared: Arc<PipelineShared>,
    profiles: Cache<Arc<ArcSwap<ProfileTable>>, Arc<ProfileTable>>,
    counters: Arc<ProcessorCounters>,
    products: ProductContexts,
    arena: Bump,
    decoded: DecodedMessages<'static>,
    stored_rows: Vec<StoredRow>,
    /// For each stored row, the index of its message.
    messages_of: Vec<u32>,
    /// Rows to publish, if an output uses them.
    saved_rows: Vec<SavedRow>,
    /// Indexes of rows that the store rejected.
    rejected: Vec<u32>,
    scratch: EvaluationScratch,
    messages_until_timed: u32,
    is_retry: bool,
    waits_when_busy: bool,
    is_reporting: bool,
    waits_when_full: bool,
    /// Decoded messages use keys that are only reserved.
    has_reserved_keys: Cell<bool>,
    /// An output or the store holds something that is not durable yet.
    unsettled: Option<SettleScope>,
    /// The store rejected rows that it may accept later.
    was_storage_full: bool,
}

/// A row to be published.
struct SavedRow {
    /// Its index among the decoded rows.
    decoded_index: u32,
    ts_ms: i64,
    first: u32,
    count: u32,
    /// Its index among the stored rows.
    stored_index: Option<u32>,
}

impl TelemetryProcessor {
    pub(super) fn new(shared: Arc<PipelineShared>) -> Self {
        let counters = Arc::<ProcessorCounters>::default();
        let number = shared.add_processor(counters.clone());
        Self {
            profiles: Cache::new(shared.profiles.clone()),
            counters,
            products: ProductContexts::default(),
            arena: Bump::new(),
            decoded: DecodedMessages::default(),
            stored_rows: Vec::new(),
            messages_of: Vec::new(),
            saved_rows: Vec::new(),
            rejected: Vec::new(),
            scratch: EvaluationScratch::new(
                EvaluationResources::new(shared.seed(number), number),
                MAX_RETAINED_BYTES,
            ),
            // The first message is timed, so that there is a measurement even with few messages.
            messages_until_timed: 1,
            is_retry: false,
            waits_when_busy: false,
            is_reporting: false,
            waits_when_full: false,
            has_reserved_keys: Cell::new(false),
            unsettled: None,
            was_storage_full: false,
            shared,
        }
    }

    /// Makes this a retry processor: devices that it does not find are not deferred again.
    pub(super) fn for_retries(mut self) -> Self {
        self.is_retry = true;
        self
    }

    /// Makes this a processor for reported rows: they are not sent by the devices themselves and use Tidegate's
    /// own protocol.
    pub(super) fn for_reports(mut self) -> Self {
        self.is_reporting = true;
        self
    }

    /// Makes the processor wait for a store that is behind.
    pub(super) fn wait_when_busy(mut self) -> Self {
        self.waits_when_busy = true;
        self
    }

    /// Makes the processor also wait for a store without room, until the pipeline stops.
    pub(super) fn wait_when_full(mut self) -> Self {
        self.waits_when_full = true;
        self
    }

    /// Waits briefly while the store has no room. Returns `false` if the pipeline stops.
    pub(super) fn wait_for_space(&self) -> bool {
        while self.shared.storage.is_full() {
            if self.shared.is_stopping.load(Ordering::Relaxed) {
                return false;
            }
            thread::sleep(SPACE_POLL_INTERVAL);
        }
        !self.shared.is_stopping.load(Ordering::Relaxed)
    }

    /// Whether the store rejected rows since the last call that it may accept later.
    #[inline]
    pub fn take_storage_full(&mut self) -> bool {
        std::mem::take(&mut self.was_storage_full)
    }

    /// The profile of a device's product.
    #[inline]
    pub(super) fn profile_of(&mut self, device_ref: DeviceRef<'_>) -> Option<&ProductProfile> {
        let profiles = self.profiles.load();
        let profile = profiles.get(device_ref.product.0 as usize);
        profile.and_then(Option::as_deref)
    }

    /// Counts a message that is rejected for this reason.
    #[cold]
    pub(super) fn discard(&mut self, message: &DeviceMessage<'_>, reason: &str) {
        self.counters.unstored.add(1);
        let (rejections, now_ms) = (&self.shared.rejections, message.received_ms);
        rejections.record(message.sender.no, now_ms, "telemetry", reason);
    }

    #[inline]
    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.is_some()
    }

    /// The scope of the results that are not safe yet, of messages processed since the last call:
    /// [`Pipeline::settle`] reports when they are.
    ///
    /// [`Pipeline::settle`]: super::Pipeline::settle
    #[inline]
    pub fn take_unsettled(&mut self) -> Option<SettleScope> {
        self.unsettled.take()
    }

    #[inline]
    pub(super) fn mark_unsettled(&mut self, scope: SettleScope) {
        self.unsettled = self.unsettled.max(Some(scope));
    }

    pub(super) fn counters(&self) -> &ProcessorCounters {
        &self.counters
    }

    /// Whether the next message is timed: reading the clock takes about as long as a good part of the
    /// processing.
    #[inline]
    pub(super) fn is_timed(&mut self) -> bool {
        self.messages_until_timed -= 1;
        let is_timed = self.messages_until_timed == 0;
        if is_timed {
            self.messages_until_timed = TIMED_ONE_IN;
        }
        is_timed
    }

    /// Processes one message immediately.
    #[inline]
    pub(super) fn process_one(&mut self, message: &DeviceMessage<'_>) {
        if !self.is_timed() {
            self.process_catching_panics(std::slice::from_ref(message));
            return;
        }
        let start = Instant::now();
        self.process_catching_panics(std::slice::from_ref(message));
        let took = start.elapsed().as_nanos() as u64;
        self.counters.latency.record(took);
    }

    /// Like [`TelemetryProcessor::process`], but skips a message that causes a panic and continues.
    pub(super) fn process_catching_panics(&mut self, messages: &[DeviceMessage<'_>]) {
        let whole = panic::catch_unwind(AssertUnwindSafe(|| self.process(messages)));
        if whole.is_ok() {
            return;
        }
        for message in messages {
            let one = std::slice::from_ref(message);
            // Rows that are stored already are stored again, with the same effect.
            if panic::catch_unwind(AssertUnwindSafe(|| self.process(one))).is_err() {
                self.counters.malformed.add(1);
                let (device, topic) = (message.sender.id, message.topic);
                tracing::error!(
                    device,
                    topic,
                    "device message caused a panic; message skipped; this is a bug"
                );
            }
        }
    }

    /// Processes messages in order: decodes all, then stores all, then publishes all.
    pub(super) fn process(&mut self, messages: &[DeviceMessage<'_>]) {
        self.stored_rows.clear();
        self.messages_of.clear();
        self.saved_rows.clear();
        self.rejected.clear();
        let mut decoded = std::mem::take(&mut self.decoded).into_empty();
        let profiles: &ProfileTable = self.profiles.load();
        let shared = &*self.shared;
        let wants_rows = shared.outputs.wants_rows();
        let registrar = KeyRegistrar {
            storage: &*shared.storage,
            counts: &shared.key_counts,
            has_reserved_keys: &self.has_reserved_keys,
        };
        self.counters.messages.add(messages.len() as u64);
        for (number, message) in messages.iter().enumerate() {
            let room = DecodeContext {
                products: &mut self.products,
                registrar,
                resolver: &*shared.resolver,
                outputs: &*shared.outputs,
                counters: &self.counters,
                rejections: &shared.rejections,
                is_retry: self.is_retry,
                unsettled: &mut self.unsettled,
                is_reporting: self.is_reporting,
            };
            decode(
                number as u32,
                message,
                profiles,
                room,
                &self.arena,
                &mut decoded,
            );
        }
        // All new keys of the batch with one sync: before rows with them are stored, and before outputs look up their
        // names.
        if self.has_reserved_keys.get()
            && let Err(error) = self.commit_keys()
        {
            let has_discarded =
                self.discard_rows_with_reserved_keys(messages, &mut decoded, &error);
            self.was_storage_full |= has_discarded && error.kind != StorageErrorKind::Invalid;
        }
        let profiles: &ProfileTable = self.profiles.load();
        let mut has_effects = false;
        for at in 0..decoded.rows.len() {
            let row = decoded.rows[at];
            let device_ref = subject_of(messages, &decoded, row.message, row.about);
            let product_context = self
                .products
                .context_of(device_ref.product, profiles, registrar);
            let Some(product_context) = product_context else {
                continue;
            };
            let is_stored = product_context.profile.is_stored;
            let is_copied = product_context.profile.is_copied;
            let mut save = |row: StoredRow, of: &DecodedRow| {
                let row = StoredRow { is_copied, ..row };
                if is_stored {
                    self.stored_rows.push(row);
                    self.messages_of.push(of.message);
                }
                if wants_rows {
                    self.saved_rows.push(SavedRow {
                        decoded_index: at as u32,
                        ts_ms: row.ts_ms,
                        first: row.first,
                        count: row.count,
                        stored_index: is_stored.then(|| self.stored_rows.len() as u32 - 1),
                    });
                }
            };
            if product_context.profile.chain.only_saves() {
                save(stored_row(device_ref, &row), &row);
                continue;
            }
            has_effects = true;
            self.scratch.reset();
            let passed = run_chain(
                product_context,
                &self.scratch,
                &self.arena,
                DeviceRow { device_ref, row },
                shared,
                &decoded.points,
            );
            if passed.has_republished {
                self.unsettled = Some(SettleScope::Published);
            }
            if passed.saved.is_empty() {
                self.counters.filtered.add(1);
            }
            let whole = stored_row(device_ref, &row);
            for points in passed.saved {
                let mut saved = whole;
                if let Some(points) = points {
                    saved.first = decoded.points.len() as u32;
                    saved.count = points.len() as u32;
                    decoded.points.extend_from_slice(&points);
                }
                save(saved, &row);
            }
        }
        let mut rejected = std::mem::take(&mut self.rejected);
        self.was_storage_full |= self.store_rows(messages, &decoded.points, &mut rejected);
        self.rejected = rejected;
        let needs_sync = !self.stored_rows.is_empty() && shared.storage.needs_settle();
        has_effects |= !self.saved_rows.is_empty();
        let profiles: &ProfileTable = self.profiles.load();
        publish_results(
            messages,
            &decoded,
            (&self.saved_rows, &self.rejected),
            profiles,
            shared,
        );
        count_ignored(messages, &decoded, &self.counters, &shared.rejections);
        if needs_sync
            || !decoded.control_messages.is_empty()
            || has_effects && shared.outputs.is_unsettled()
        {
            self.unsettled = self.unsettled.max(Some(SettleScope::Stored));
        }
        self.decoded = decoded.into_empty();
        match self.arena.allocated_bytes() > MAX_RETAINED_BYTES {
            true => self.arena = Bump::new(),
            false => self.arena.reset(),
        }
    }

    /// Creates the keys that decoded messages have reserved.
    #[cold]
    fn commit_keys(&self) -> Result<(), StorageError> {
        loop {
            match self.shared.storage.commit_keys() {
                Ok(()) => {
                    self.has_reserved_keys.set(false);
                    return Ok(());
                }
                Err(error) if self.should_retry(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Rejects the rows whose keys could not be created. Returns whether there were any.
    #[cold]
    fn discard_rows_with_reserved_keys(
        &self,
        messages: &[DeviceMessage<'_>],
        decoded: &mut DecodedMessages<'_>,
        error: &StorageError,
    ) -> bool {
        let mut has_discarded = false;
        for row in std::mem::take(&mut decoded.rows) {
            let (first, count) = (row.first as usize, row.count as usize);
            let mut points = decoded.points[first..first + count].iter();
            if points.all(|point| self.shared.storage.has_key(point.key)) {
                decoded.rows.push(row);
                continue;
            }
            has_discarded = true;
            self.counters.unstored.add(1);
            let device = subject_of(messages, decoded, row.message, row.about).no;
            let now_ms = messages[row.message as usize].received_ms;
            let rejections = &self.shared.rejections;
            rejections.record(device, now_ms, "telemetry", &error.reason);
        }
        has_discarded
    }

    /// Stores rows. Returns whether the store rejected some that it may accept later.
    #[inline]
    fn store_rows(
        &self,
        messages: &[DeviceMessage<'_>],
        points: &[Point<'_>],
        rejected: &mut Vec<u32>,
    ) -> bool {
        let shared = &*self.shared;
        let mut had_no_room = false;
        let mut reject = |at: usize, row: &StoredRow, error: &StorageError| {
            rejected.push(at as u32);
            had_no_room |= error.kind != StorageErrorKind::Invalid;
            let message = &messages[self.messages_of[at] as usize];
            let (rejections, now_ms) = (&shared.rejections, message.received_ms);
            rejections.record(row.device, now_ms, "telemetry", &error.reason);
        };
        let take = |row: &StoredRow| loop {
            let (first, count) = (row.first as usize, row.count as usize);
            let points = &points[first..first + count];
            match shared.storage.append_row(row, points) {
                // Accepted messages are not discarded because the disk is slow or full.
                Err(error) if self.should_retry(&error) => continue,
                result => return result,
            }
        };
        match &*self.stored_rows {
            [] => return false,
            [row] => {
                if let Err(error) = take(row) {
                    reject(0, row, &error);
                }
            }
            rows => shared.storage.append_all(rows, points, &mut |at, error| {
                let again = match self.should_retry(&error) {
                    true => take(&rows[at]),
                    false => Err(error),
                };
                if let Err(error) = again {
                    reject(at, &rows[at], &error);
                }
            }),
        }
        let (all, count) = (self.stored_rows.len() as u64, rejected.len() as u64);
        let rejected = rejected.iter().map(|at| &self.stored_rows[*at as usize]);
        let rejected_points: u64 = rejected.map(|row| u64::from(row.count)).sum();
        let points: u64 = self
            .stored_rows
            .iter()
            .map(|row| u64::from(row.count))
            .sum();
        self.counters.rows.add(all - count);
        self.counters.points.add(points - rejected_points);
        self.counters.unstored.add(count);
        had_no_room
    }

    /// Whether to retry a row; waits for the obstacle to go.
    #[cold]
    fn should_retry(&self, error: &StorageError) -> bool {
        match error.kind {
            StorageErrorKind::Invalid => false,
            StorageErrorKind::Busy => self.waits_when_busy,
            StorageErrorKind::NoRoom if self.waits_when_full => {
                thread::sleep(SPACE_POLL_INTERVAL);
                self.wait_for_space()
            }
            StorageErrorKind::NoRoom => false,
        }
    }
}

fn stored_row(device_ref: DeviceRef<'_>, row: &DecodedRow) -> StoredRow {
    StoredRow {
        device: device_ref.no,
        ts_ms: row.ts_ms,
        first: row.first,
        count: row.count,
        is_copied: false,
    }
}

fn subject_of<'v>(
    messages: &[DeviceMessage<'v>],
    decoded: &'v DecodedMessages<'_>,
    message: u32,
    about: RowSubject,
) -> DeviceRef<'v> {
    match about {
        RowSubject::Sender => messages[message as usize].sender,
        RowSubject::Child(at) => decoded.children[at as usize].as_device_ref(),
    }
}

#[inline]
fn decode<'a>(
    number: u32,
    message: &DeviceMessage<'a>,
    profiles: &ProfileTable,
    room: DecodeContext<'_>,
    arena: &'a Bump,
    decoded: &mut DecodedMessages<'a>,
) {
    let by = message.sender;
    let (counters, rejections) = (room.counters, room.rejections);
    let Some(route) = protocol::parse_device_topic(message.topic) else {
        return;
    };
    let product_context = room
        .products
        .context_of(by.product, profiles, room.registrar);
    let Some(product_context) = product_context else {
        counters.unknown.add(1);
        return;
    };
    if !room.is_reporting && !product_context.profile.protocols.contains(route.protocol) {
        counters.malformed.add(1);
        let reason = "the product does not allow this protocol";
        rejections.record(by.no, message.received_ms, message.topic, reason);
        return;
    }
    let logged = (product_context.profile.is_logged).then(|| Arc::clone(&product_context.profile));
    let row_start = decoded.points.len();
    let mut decoder = MessageDecoder {
        context: room,
        profiles,
        arena,
        sender: by,
        source_message: *message,
        is_deferred: false,
        product: by.product,
        about: RowSubject::Sender,
        message: number,
        received_ms: message.received_ms,
        protocol: route.protocol,
        row_start,
        decoded,
    };
    let marks = decoder.lengths();
    let is_begun = decoder.begin(route.device, route.child);
    let outcome =
        is_begun.then(|| protocol::decode_message(&route, message.payload, arena, &mut decoder));
    // A deferred message is logged when it is processed again.
    if let Some(profile) = logged
        && !decoder.is_deferred
    {
        let (outside, now_ms) = (decoder.context.outputs, message.received_ms);
        outside.log_message(by, &profile, message.topic, message.payload, now_ms);
    }
    if let Some(Err(error)) = outcome {
        decoded.truncate(marks);
        counters.malformed.add(1);
        let reason = error.to_string();
        rejections.record(by.no, message.received_ms, message.topic, &reason);
    }
}

/// Counts a message without effect and records it for its device.
fn count_ignored(
    messages: &[DeviceMessage<'_>],
    decoded: &DecodedMessages<'_>,
    counters: &ProcessorCounters,
    rejections: &RejectionLog,
) {
    for control in &decoded.control_messages {
        let what = match control.control_message {
            ControlMessage::Log { .. } => "log",
            ControlMessage::DerivedModel { .. } => "metadata/derived",
            ControlMessage::Ignored { what } => what,
            _ => continue,
        };
        counters.ignored.add(1);
        // A message type that accompanies every report would fill the list of rejections.
        if what != "propertySourceTimes" {
            let about = subject_of(messages, decoded, control.message, control.about);
            let now_ms = messages[control.message as usize].received_ms;
            rejections.record(about.no, now_ms, what, "the node does not evaluate this");
        }
    }
}

/// Publishes the saved rows and the control messages.
fn publish_results(
    messages: &[DeviceMessage<'_>],
    decoded: &DecodedMessages<'_>,
    (saved_rows, rejected): (&[SavedRow], &[u32]),
    profiles: &ProfileTable,
    shared: &PipelineShared,
) {
    let outside = &*shared.outputs;
    for saved in saved_rows {
        if (saved.stored_index).is_some_and(|at| rejected.binary_search(&at).is_ok()) {
            continue;
        }
        let row = &decoded.rows[saved.decoded_index as usize];
        let device_ref = subject_of(messages, decoded, row.message, row.about);
        let profile = profiles.get(device_ref.product.0 as usize);
        if let Some(profile) = profile.and_then(Option::as_ref) {
            let (first, count) = (saved.first as usize, saved.count as usize);
            let points = &decoded.points[first..first + count];
            outside.publish_row(device_ref, profile, saved.ts_ms, points);
        }
    }
    for control in &decoded.control_messages {
        let message = &messages[control.message as usize];
        let about = subject_of(messages, decoded, control.message, control.about);
        let now_ms = message.received_ms;
        outside.handle_control_message(
            message.sender,
            about,
            control.protocol,
            &control.control_message,
            now_ms,
        );
    }
}
