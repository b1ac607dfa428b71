//! Sends the telemetry of this node to its standby: what is queued, and what the copy lacks.
//!
//! One batch is under way at a time, and is repeated until it is answered. The owner calls [`CopySender::step`] again and again.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use series::{DeviceNo, PARTITION_COUNT, SeriesPositions, partition_of};
use xxhash_rust::xxh3::xxh3_64;

use crate::batch::{BatchWriter, RowTimes};
use crate::copied_series::QueuedEntry;
use crate::message::{
    BatchHead, CopyAnswer, CopyRequest, CopySource, OwnCopy, decode_answer, encode_batch,
    encode_request,
};
use crate::own_record::{ChosenCopy, OwnRecord};
use crate::product_watch::ProductWatch;
use crate::repair::{Repair, RepairPlan, add_deletion};
use crate::retries::Retries;
use crate::sender_parts::CopySenderParts;
use crate::status::{CopyState, OwnCopyStatus};

/// Time for which a standby that cannot be reached is waited for before another one gets a new copy.
pub(crate) const STANDBY_PATIENCE: Duration = Duration::from_secs(600);
/// Time after which the others hear that no copy is wanted.
const UNWANTED_TIME: Duration = Duration::from_secs(10);
/// Time without messages after which the standby gets an empty batch.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A copy counts as complete while nothing has been queued for longer.
const MAX_LAG: Duration = Duration::from_secs(10);
/// Pause while there is nothing to send.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);

enum Phase {
    /// The standby has not said what it has.
    Beginning,
    Repairing(Box<Repair>),
    /// Only what is queued is left to send.
    Following,
}

/// A batch that is not confirmed.
struct PendingBatch {
    message: Vec<u8>,
    devices: Vec<(DeviceNo, Option<RowTimes>)>,
    rows: u64,
    has_products: bool,
    is_complete: bool,
    ends_repair: bool,
}

pub(crate) struct CopySender {
    parts: CopySenderParts,
    record: OwnRecord,
    run: u64,
    phase: Phase,
    pending: Option<PendingBatch>,
    last_number: u64,
    /// Positions when this process had stored nothing. Numbers behind them may have been used by a former process for rows that a
    /// power failure has taken.
    start: SeriesPositions,
    is_start_confirmed: bool,
    /// What the standby has with the batches built so far.
    positions: SeriesPositions,
    deletion: u64,
    products: ProductWatch,
    /// Products of the present phase.
    copied_products: BTreeSet<String>,
    /// Devices of which the copy has all earlier rows.
    known: HashSet<DeviceNo, RandomState>,
    retries: Retries,
    is_turn_of_retries: bool,
    lost_since: Option<Instant>,
    last_sent: Option<Instant>,
    is_complete: bool,
    sent_rows: u64,
    sent_bytes: u64,
    last_error: Option<String>,
}

impl CopySender {
    /// # Errors
    /// If the record or the deletions cannot be read or written.
    pub(crate) fn open(parts: CopySenderParts) -> io::Result<Self> {
        disk::create_private_dir(&parts.directory)?;
        let start = parts.series.series().positions();
        let record = OwnRecord::read(&parts.directory)?;
        // Empty time series are new ones: the copy of the former ones must not be continued.
        let is_new = start == [0; PARTITION_COUNT];
        let record = match record {
            Some(record) if !is_new => record,
            _ => {
                let record = OwnRecord {
                    series: (parts.random)(),
                    copy: None,
                };
                record.write(&parts.directory)?;
                record
            }
        };
        if record.copy.is_some() {
            parts.series.open_journal(&parts.directory)?;
        }
        Ok(Self {
            run: (parts.random)(),
            record,
            phase: Phase::Beginning,
            pending: None,
            last_number: 0,
            start,
            is_start_confirmed: false,
            positions: start,
            deletion: 0,
            products: ProductWatch::default(),
            copied_products: BTreeSet::new(),
            known: HashSet::default(),
            retries: Retries::default(),
            is_turn_of_retries: false,
            lost_since: None,
            last_sent: None,
            is_complete: false,
            sent_rows: 0,
            sent_bytes: 0,
            last_error: None,
            parts,
        })
    }

    fn source(&self) -> CopySource {
        CopySource {
            node: self.parts.node.clone(),
            series: self.record.series,
        }
    }

    /// What other nodes are told; `None`: nothing yet.
    pub(crate) fn own_copy(&self) -> Option<OwnCopy> {
        let (series, is_complete) = (self.record.series, self.is_complete);
        let copy = self.record.copy.as_ref().map(|chosen| chosen.copy);
        let own = OwnCopy {
            series,
            copy,
            is_complete,
        };
        let age = |since| (self.parts.now)().saturating_duration_since(since);
        // An announcement may arrive after the first batch of a copy that was begun meanwhile.
        let is_unwanted =
            || (self.products.empty_since()).is_some_and(|at| age(at) >= UNWANTED_TIME);
        (copy.is_some() || is_unwanted()).then_some(own)
    }

    pub(crate) fn status(&self) -> OwnCopyStatus {
        let load = self.parts.series.queue_load();
        let now = (self.parts.now)();
        OwnCopyStatus {
            state: match (&self.record.copy, &self.phase) {
                (None, _) if self.products.current().is_empty() => CopyState::NotWanted,
                (None, _) => CopyState::NoStandby,
                (Some(_), _) if self.lost_since.is_some() => CopyState::Interrupted,
                (Some(_), _) if self.is_complete => CopyState::Complete,
                (Some(_), _) => CopyState::Completing,
            },
            standby: self
                .record
                .copy
                .as_ref()
                .map(|chosen| chosen.standby.clone()),
            queued_bytes: load.bytes as u64,
            lag_ms: load.since.map_or(0, |since| {
                now.saturating_duration_since(since).as_millis() as u64
            }),
            sent_rows: self.sent_rows,
            sent_bytes: self.sent_bytes,
            last_error: self.last_error.clone(),
        }
    }

    /// Does one thing, and returns the pause before the next one.
    pub(crate) fn step(&mut self) -> Duration {
        match self.try_step() {
            Ok(pause) => pause,
            Err(reason) => {
                self.is_complete = false;
                if self.pending.is_none() {
                    // What was to be sent is read from the time series.
                    self.phase = Phase::Beginning;
                }
                if self.last_error.as_ref() != Some(&reason) {
                    tracing::warn!(
                        reason,
                        "telemetry is not copied to another node; tried again"
                    );
                }
                self.last_error = Some(reason);
                PAUSE_AFTER_ERROR
            }
        }
    }

    fn try_step(&mut self) -> Result<Duration, String> {
        let now = (self.parts.now)();
        self.products.look(&*self.parts.devices, now);
        if self.products.current().is_empty() {
            if self.record.copy.is_some() {
                self.end_copy()?;
            }
            return Ok(PAUSE_AFTER_ERROR);
        }
        let Some(chosen) = self.choose_standby()? else {
            return Ok(PAUSE_AFTER_ERROR);
        };
        if let Some(pending) = self.pending.take() {
            return self.send(&chosen, pending);
        }
        if self.parts.series.queue_load().has_overflowed {
            self.phase = Phase::Beginning;
        }
        match &mut self.phase {
            Phase::Beginning => self.begin(&chosen),
            Phase::Repairing(_) => self.send_repair(&chosen),
            Phase::Following => self.follow(&chosen),
        }
    }

    fn write_record(&mut self, copy: Option<ChosenCopy>) -> Result<(), String> {
        let record = OwnRecord {
            copy,
            ..self.record.clone()
        };
        let written = record.write(&self.parts.directory);
        written.map_err(|error| format!("the record of the copy cannot be written: {error}"))?;
        self.record = record;
        Ok(())
    }

    /// No product is copied any more. The standby removes the copy when it is told.
    fn end_copy(&mut self) -> Result<(), String> {
        self.parts.series.close_queue();
        self.write_record(None)?;
        (self.phase, self.pending) = (Phase::Beginning, None);
        (self.is_complete, self.lost_since) = (false, None);
        self.forget_progress();
        tracing::info!(
            "no product has telemetry that is copied; the copy at the standby is given up"
        );
        Ok(())
    }

    fn forget_progress(&mut self) {
        self.known.clear();
        self.retries = Retries::default();
    }

    /// The copy, if its standby can be reached.
    fn choose_standby(&mut self) -> Result<Option<ChosenCopy>, String> {
        let reachable = self.parts.peers.reachable();
        let now = (self.parts.now)();
        let is_incomplete = self
            .parts
            .series
            .with_journal(|journal| journal.is_incomplete())
            .unwrap_or_default();
        if let Some(chosen) = self.record.copy.clone() {
            if reachable.contains(&chosen.standby) {
                self.lost_since = None;
                if !is_incomplete {
                    return Ok(Some(chosen));
                }
                // Deletions are missing.
                return self.begin_copy(chosen.standby).map(Some);
            }
            let since = *self.lost_since.get_or_insert(now);
            self.is_complete = false;
            if now.saturating_duration_since(since) < STANDBY_PATIENCE {
                return Ok(None);
            }
        }
        // Nodes choose independently, and nevertheless different standbys.
        let own = &self.parts.node;
        let weight = |node: &String| xxh3_64(format!("{own} {node}").as_bytes());
        match reachable.into_iter().max_by_key(weight) {
            Some(standby) => self.begin_copy(standby).map(Some),
            None => Ok(None),
        }
    }

    /// Begins a new copy.
    fn begin_copy(&mut self, standby: String) -> Result<ChosenCopy, String> {
        tracing::info!(standby, "telemetry of this node is copied to another one");
        let chosen = ChosenCopy {
            standby,
            copy: (self.parts.random)(),
        };
        // In this order: deletions are recorded before the copy has anything.
        let directory = &self.parts.directory;
        let is_open = self.parts.series.with_journal(|_| ()).is_some();
        let opened = match is_open {
            true => Ok(()),
            false => self.parts.series.open_journal(directory),
        };
        let failed = |error| format!("the list of deletions cannot be written: {error}");
        opened.map_err(failed)?;
        self.write_record(Some(chosen.clone()))?;
        let cleared = self.parts.series.with_journal(|journal| journal.clear());
        cleared.unwrap_or(Ok(())).map_err(failed)?;
        (self.phase, self.pending) = (Phase::Beginning, None);
        (self.lost_since, self.is_complete) = (None, false);
        Ok(chosen)
    }

    fn ask(&mut self, standby: &str, request: &[u8]) -> Result<CopyAnswer, String> {
        let answer = self.parts.peers.request(standby, request);
        let answer = answer.map_err(|reason| format!("node {standby}: {reason}"))?;
        self.sent_bytes += request.len() as u64;
        decode_answer(&answer)
    }

    /// Asks what the copy has, and plans what is to be sent.
    fn begin(&mut self, chosen: &ChosenCopy) -> Result<Duration, String> {
        self.is_complete = false;
        let request = CopyRequest::Begin {
            source: self.source(),
            copy: chosen.copy,
            run: self.run,
        };
        let answer = self.ask(&chosen.standby, &encode_request(&request))?;
        let CopyAnswer::Position {
            mut positions,
            deletion,
            products,
        } = answer
        else {
            return Err(format!(
                "node {}: its answer has another form",
                chosen.standby
            ));
        };
        if !self.is_start_confirmed {
            let start = self.start.iter();
            positions
                .iter_mut()
                .zip(start)
                .for_each(|(position, start)| {
                    *position = (*position).min(*start);
                });
        }
        let before: BTreeSet<String> = products.into_iter().collect();
        self.forget_progress();
        let (until, last_deletion) = self.parts.series.open_queue();
        let deletions = self
            .parts
            .series
            .with_journal(|journal| journal.after(deletion, last_deletion));
        let products = self.products.current().clone();
        let plan = RepairPlan {
            since: positions,
            added: products.difference(&before).cloned().collect(),
            removed: before.difference(&products).cloned().collect(),
            products: products.clone(),
            deletions: deletions.unwrap_or_default(),
        };
        self.copied_products = products;
        self.positions = until;
        self.deletion = last_deletion;
        let repair = Repair::begin(plan, self.parts.series.series())?;
        self.phase = Phase::Repairing(Box::new(repair));
        Ok(Duration::ZERO)
    }

    /// Sends a part of what the copy lacks, after what is queued.
    fn send_repair(&mut self, chosen: &ChosenCopy) -> Result<Duration, String> {
        if let Some(batch) = self.queued_batch()? {
            let pending = self.finish_batch(chosen, batch, false);
            return self.send(chosen, pending);
        }
        let Phase::Repairing(repair) = &mut self.phase else {
            return Ok(Duration::ZERO);
        };
        let mut batch = BatchWriter::default();
        let (series, devices) = (self.parts.series.series(), &*self.parts.devices);
        let known = &mut self.known;
        let is_done = repair.fill(&mut batch, series, devices, &mut |device| {
            known.insert(device);
        })?;
        if batch.is_empty() && !is_done {
            return Ok(Duration::ZERO);
        }
        // The list of products may be as large as a batch.
        let ends_repair = is_done && batch.is_empty();
        let pending = self.finish_batch(chosen, batch, ends_repair);
        self.send(chosen, pending)
    }

    /// Sends what is queued.
    fn follow(&mut self, chosen: &ChosenCopy) -> Result<Duration, String> {
        if *self.products.current() != self.copied_products {
            self.phase = Phase::Beginning;
            return Ok(Duration::ZERO);
        }
        let now = (self.parts.now)();
        // In turn, so that neither waits for the other.
        self.is_turn_of_retries = !self.is_turn_of_retries;
        for is_retry in [self.is_turn_of_retries, !self.is_turn_of_retries] {
            let batch = match is_retry {
                true => self.retry_batch(now)?,
                false => self.queued_batch()?,
            };
            if let Some(batch) = batch {
                let pending = self.finish_batch(chosen, batch, false);
                return self.send(chosen, pending);
            }
        }
        let is_silent = self
            .last_sent
            .is_none_or(|at| now.saturating_duration_since(at) >= HEARTBEAT);
        if is_silent {
            let pending = self.finish_batch(chosen, BatchWriter::default(), false);
            self.send(chosen, pending)?;
        }
        Ok(PAUSE)
    }

    /// A batch of the next queued entries; `None`: nothing is queued.
    fn queued_batch(&mut self) -> Result<Option<BatchWriter>, String> {
        let mut batch = BatchWriter::default();
        let (mut has_entries, mut failure) = (false, None);
        while !batch.is_full()
            && let Some(chunk) = self.parts.series.take_chunk()
        {
            has_entries = true;
            chunk.for_each(&mut |entry, points| {
                let added = self.add_entry(&mut batch, entry, points);
                failure = failure.take().or(added.err());
            });
        }
        match failure {
            Some(reason) => Err(reason),
            None => Ok(has_entries.then_some(batch)),
        }
    }

    fn add_entry(
        &mut self,
        batch: &mut BatchWriter,
        entry: QueuedEntry,
        points: &[series::Point<'_>],
    ) -> Result<(), String> {
        let series = self.parts.series.series();
        match entry {
            QueuedEntry::Row {
                device,
                position,
                ts_ms,
            } => {
                let of_partition = &mut self.positions[partition_of(device)];
                *of_partition = position.max(*of_partition);
                let name_of = |key| series.key_name(key);
                if batch.has_device(device) {
                    batch.add_row((device, ""), ts_ms, points, name_of);
                } else if let Some((id, _)) = self.parts.devices.device(device)? {
                    batch.add_row((device, &id), ts_ms, points, name_of);
                    let is_following = matches!(self.phase, Phase::Following);
                    if is_following && self.known.insert(device) {
                        // It is new, or has rows of a time in which its product was not copied.
                        self.retries.add_all(device, id);
                    }
                }
            }
            QueuedEntry::Deletion(deletion) => {
                self.deletion = deletion.number;
                add_deletion(batch, &deletion, series, &*self.parts.devices)?;
            }
        }
        Ok(())
    }

    fn retry_batch(&mut self, now: Instant) -> Result<Option<BatchWriter>, String> {
        let series = self.parts.series.series();
        self.retries.batch(series, &*self.parts.devices, now)
    }

    fn finish_batch(
        &mut self,
        chosen: &ChosenCopy,
        batch: BatchWriter,
        ends_repair: bool,
    ) -> PendingBatch {
        let deletion = match &self.phase {
            // The queued ones are later than all that are to be sent.
            Phase::Repairing(repair) if !ends_repair && !repair.plan.deletions.is_empty() => {
                repair.last_deletion
            }
            _ => self.deletion,
        };
        let is_following = ends_repair || matches!(self.phase, Phase::Following);
        let has_all = is_following && self.retries.is_empty();
        let load = self.parts.series.queue_load();
        let now = (self.parts.now)();
        let is_behind = load
            .since
            .is_some_and(|since| now.saturating_duration_since(since) > MAX_LAG);
        let is_complete = has_all && !is_behind && !load.has_overflowed;
        self.last_number += 1;
        let products = ends_repair.then(|| self.copied_products.iter().cloned().collect());
        let head = BatchHead {
            source: self.source(),
            copy: chosen.copy,
            run: self.run,
            number: self.last_number,
            positions: has_all.then_some(self.positions),
            deletion,
            products,
            is_complete,
            sent_ms: wall_clock::now_ms(),
        };
        let rows = batch.rows;
        let (entries, devices) = batch.finish();
        PendingBatch {
            message: encode_batch(&head, &entries),
            devices,
            rows,
            has_products: ends_repair,
            is_complete,
            ends_repair,
        }
    }

    /// Sends a batch. If there is no answer, it is sent again by the next step.
    fn send(&mut self, chosen: &ChosenCopy, pending: PendingBatch) -> Result<Duration, String> {
        let answer = match self.ask(&chosen.standby, &pending.message) {
            Ok(answer) => answer,
            Err(reason) => {
                self.pending = Some(pending);
                return Err(reason);
            }
        };
        self.last_sent = Some((self.parts.now)());
        match answer {
            CopyAnswer::Stored {
                unknown_devices,
                deletion,
            } => {
                self.last_error = None;
                self.confirm(&pending, &unknown_devices, deletion)
            }
            CopyAnswer::NotBegun => {
                self.phase = Phase::Beginning;
                self.is_complete = false;
                Ok(PAUSE)
            }
            CopyAnswer::Position { .. } | CopyAnswer::Done => {
                self.phase = Phase::Beginning;
                Err(format!(
                    "node {}: its answer has another form",
                    chosen.standby
                ))
            }
        }
    }

    fn confirm(
        &mut self,
        pending: &PendingBatch,
        unknown_devices: &[u64],
        deletion: u64,
    ) -> Result<Duration, String> {
        self.sent_rows += pending.rows;
        for number in unknown_devices {
            let device = pending.devices.get(*number as usize);
            if let Some((device, Some(times))) = device {
                self.retries.add_refused(*device, *times)?;
            }
        }
        if pending.ends_repair {
            self.phase = Phase::Following;
            // Rows of unknown devices are left out: after a restart, they would be read again.
            self.is_start_confirmed |= unknown_devices.is_empty();
        }
        let is_complete = pending.is_complete && unknown_devices.is_empty();
        if is_complete && !self.is_complete && pending.has_products {
            tracing::info!("another node has a complete copy of the telemetry");
        }
        self.is_complete = is_complete;
        let confirmed = self
            .parts
            .series
            .with_journal(|journal| journal.confirm(deletion));
        if let Some(Err(error)) = confirmed {
            tracing::warn!(%error, "the list of deletions for the copy cannot be shortened; tried again");
        }
        Ok(Duration::ZERO)
    }
}
