//! One thread's way through the pipeline: its buffers, and what it remembers of products.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Cache};
use bumpalo::Bump;
use rules::{Scratch, Tools};
use series::{KeyId, Point};

use super::hearing::{About, Desk, Desks, Heard, HeardRow, Hearing, Room};
use super::metrics::Counters;
use super::outside::{Outside, StorageError, StorageErrorKind, StoredRow};
use super::pipeline::{Message, Shared};
use super::profile::{Mode, Profile, Voice};
use super::trouble::Book;
use crate::chain::{Effects, Passing};
use crate::dialect::{self, Said};

/// Memory kept between messages.
const KEPT_BYTES: usize = 256 << 10;
/// Between two looks at a store without room.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
/// Messages of which one is timed.
const TIMED_ONE_IN: u32 = 16;

pub(super) type Profiles = Vec<Option<Arc<Profile>>>;

/// Works messages off; each thread has its own.
pub struct Lane {
    shared: Arc<Shared>,
    profiles: Cache<Arc<ArcSwap<Profiles>>, Arc<Profiles>>,
    counters: Arc<Counters>,
    desks: Desks,
    arena: Bump,
    heard: Heard<'static>,
    stored: Vec<StoredRow>,
    /// Of each stored row, the message it is of.
    messages_of: Vec<u32>,
    /// What others are told of, where they want to know.
    told: Vec<Told>,
    /// Places of stored rows that were not taken.
    refused: Vec<u32>,
    scratch: Scratch,
    time_in: u32,
    is_last: bool,
    is_patient: bool,
    is_reporting: bool,
    waits_for_room: bool,
    /// Others have been left something, or rows have to be waited for.
    has_left: bool,
    /// Rows were not stored that the store may take later.
    had_no_room: bool,
}

/// A row that others are told of.
struct Told {
    /// Its place among what was heard.
    heard: u32,
    ts_ms: i64,
    first: u32,
    count: u32,
    /// Its place among the stored ones.
    stored: Option<u32>,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let counters = Arc::<Counters>::default();
        let number = shared.add_lane(counters.clone());
        Self {
            profiles: Cache::new(shared.profiles.clone()),
            counters,
            desks: Desks::default(),
            arena: Bump::new(),
            heard: Heard::default(),
            stored: Vec::new(),
            messages_of: Vec::new(),
            told: Vec::new(),
            refused: Vec::new(),
            scratch: Scratch::new(Tools::new(shared.seed(number), number), KEPT_BYTES),
            // The first one, so that there is a time where there are few messages.
            time_in: 1,
            is_last: false,
            is_patient: false,
            is_reporting: false,
            waits_for_room: false,
            has_left: false,
            had_no_room: false,
            shared,
        }
    }

    /// What it does not find is not to be found.
    pub(super) fn last(mut self) -> Self {
        self.is_last = true;
        self
    }

    /// Whose messages it has are not those of the devices themselves, and speak Tidegate's own dialect.
    pub(super) fn reporting(mut self) -> Self {
        self.is_reporting = true;
        self
    }

    /// It waits for a store that is behind.
    pub(super) fn patient(mut self) -> Self {
        self.is_patient = true;
        self
    }

    /// It waits for a store without room, too, until the pipeline ends.
    pub(super) fn waiting_for_room(mut self) -> Self {
        self.waits_for_room = true;
        self
    }

    /// Waits a moment while the store has no room. `false`: the pipeline ends.
    pub(super) fn wait_for_room(&self) -> bool {
        while self.shared.storage.is_full() {
            if self.shared.is_stopping.load(Ordering::Relaxed) {
                return false;
            }
            thread::sleep(ROOM_PAUSE);
        }
        !self.shared.is_stopping.load(Ordering::Relaxed)
    }

    /// Whether rows were refused since this was asked last that the store may take later.
    #[inline]
    pub fn take_no_room(&mut self) -> bool {
        std::mem::take(&mut self.had_no_room)
    }

    /// Whether rows of a device are stored.
    pub(super) fn stores(&mut self, voice: Voice<'_>) -> bool {
        let profiles = self.profiles.load();
        let profile = profiles.get(voice.product.0 as usize);
        (profile.and_then(Option::as_ref)).is_some_and(|profile| profile.is_stored)
    }

    /// Counts a message that is not taken, since there is no room for its rows.
    #[cold]
    pub(super) fn discard(&mut self, message: &Message<'_>) {
        self.counters.unstored.add(1);
        let (book, now_ms) = (&self.shared.book, message.received_ms);
        let reason = "the telemetry store has no room";
        book.note(message.by.no, now_ms, "telemetry", reason);
    }

    #[inline]
    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether something came of what was worked off since this was asked last that is not safe yet: [`Pipeline::settle`] says when
    /// it is.
    ///
    /// [`Pipeline::settle`]: super::Pipeline::settle
    #[inline]
    pub fn take_left(&mut self) -> bool {
        std::mem::take(&mut self.has_left)
    }

    pub(super) fn wait_until_settled(&self) {
        self.shared.wait_until_settled();
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// When the messages of a product are worked off; `None`: there is no such product any more.
    #[inline]
    pub(super) fn mode_of(&mut self, voice: Voice<'_>) -> Option<Mode> {
        let profiles = self.profiles.load();
        let profile = profiles.get(voice.product.0 as usize)?.as_ref()?;
        Some(profile.mode)
    }

    /// Whether the next message is one of those that are timed: looking at the clock takes as long as a good part of the work.
    #[inline]
    pub(super) fn is_timed(&mut self) -> bool {
        self.time_in -= 1;
        let is_timed = self.time_in == 0;
        if is_timed {
            self.time_in = TIMED_ONE_IN;
        }
        is_timed
    }

    /// Works one message off, now.
    #[inline]
    pub(super) fn work_one(&mut self, message: &Message<'_>) {
        if !self.is_timed() {
            self.work_safely(std::slice::from_ref(message));
            return;
        }
        let start = Instant::now();
        self.work_safely(std::slice::from_ref(message));
        let took = start.elapsed().as_nanos() as u64;
        self.counters.latency.record(took);
    }

    /// As [`Lane::work`], and goes on when a message makes it panic: that one is left out.
    pub(super) fn work_safely(&mut self, messages: &[Message<'_>]) {
        let whole = panic::catch_unwind(AssertUnwindSafe(|| self.work(messages)));
        if whole.is_ok() {
            return;
        }
        for message in messages {
            let one = std::slice::from_ref(message);
            // What was stored already is stored again, to the same effect.
            if panic::catch_unwind(AssertUnwindSafe(|| self.work(one))).is_err() {
                self.counters.malformed.add(1);
                let (device, topic) = (message.by.id, message.topic);
                tracing::error!(
                    device,
                    topic,
                    "a message of a device caused a panic; this is a bug"
                );
            }
        }
    }

    /// Works messages off, in their order: reads all, then stores all, then tells of all.
    pub(super) fn work(&mut self, messages: &[Message<'_>]) {
        self.stored.clear();
        self.messages_of.clear();
        self.told.clear();
        self.refused.clear();
        let mut heard = std::mem::take(&mut self.heard).emptied();
        let profiles: &Profiles = self.profiles.load();
        let shared = &*self.shared;
        let wants_rows = shared.outside.wants_rows();
        self.counters.messages.add(messages.len() as u64);
        for (number, message) in messages.iter().enumerate() {
            let room = Room {
                desks: &mut self.desks,
                storage: &*shared.storage,
                family: &*shared.family,
                outside: &*shared.outside,
                counters: &self.counters,
                book: &shared.book,
                is_last: self.is_last,
                has_left: &mut self.has_left,
                is_reporting: self.is_reporting,
            };
            read(
                number as u32,
                message,
                profiles,
                room,
                &self.arena,
                &mut heard,
            );
        }
        let mut has_effects = false;
        for at in 0..heard.rows.len() {
            let row = heard.rows[at];
            let voice = voice_of(messages, &heard, row.message, row.about);
            let desk = self.desks.open(voice.product, profiles, &*shared.storage);
            let Some(desk) = desk else { continue };
            let is_stored = desk.profile.is_stored;
            let mut save = |row: StoredRow, of: &HeardRow| {
                if is_stored {
                    self.stored.push(row);
                    self.messages_of.push(of.message);
                }
                if wants_rows {
                    self.told.push(Told {
                        heard: at as u32,
                        ts_ms: row.ts_ms,
                        first: row.first,
                        count: row.count,
                        stored: is_stored.then(|| self.stored.len() as u32 - 1),
                    });
                }
            };
            if desk.profile.chain.only_saves() {
                save(stored(voice, &row), &row);
                continue;
            }
            has_effects = true;
            self.scratch.reset();
            let passed = pass(
                desk,
                &self.scratch,
                &self.arena,
                Row { voice, row },
                shared,
                &heard.points,
            );
            if passed.saved.is_empty() {
                self.counters.filtered.add(1);
            }
            let whole = stored(voice, &row);
            for points in passed.saved {
                let mut saved = whole;
                if let Some(points) = points {
                    saved.first = heard.points.len() as u32;
                    saved.count = points.len() as u32;
                    heard.points.extend_from_slice(&points);
                }
                save(saved, &row);
            }
        }
        let mut refused = std::mem::take(&mut self.refused);
        self.had_no_room |= self.keep(messages, &heard.points, &mut refused);
        self.refused = refused;
        self.has_left |= !self.stored.is_empty() && shared.storage.has_to_settle();
        has_effects |= !self.told.is_empty();
        let profiles: &Profiles = self.profiles.load();
        tell(
            messages,
            &heard,
            (&self.told, &self.refused),
            profiles,
            shared,
        );
        count_ignored(messages, &heard, &self.counters, &shared.book);
        self.has_left |= !heard.saids.is_empty() || has_effects && shared.outside.is_unsettled();
        self.heard = heard.emptied();
        match self.arena.allocated_bytes() > KEPT_BYTES {
            true => self.arena = Bump::new(),
            false => self.arena.reset(),
        }
    }

    /// Stores rows; whether some were not stored that the store may take later.
    #[inline]
    fn keep(&self, messages: &[Message<'_>], points: &[Point<'_>], refused: &mut Vec<u32>) -> bool {
        let shared = &*self.shared;
        let mut had_no_room = false;
        let mut refuse = |at: usize, row: &StoredRow, error: &StorageError| {
            refused.push(at as u32);
            had_no_room |= error.kind != StorageErrorKind::Invalid;
            let message = &messages[self.messages_of[at] as usize];
            let (book, now_ms) = (&shared.book, message.received_ms);
            book.note(row.device, now_ms, "telemetry", &error.reason);
        };
        let take = |row: &StoredRow| loop {
            let (first, count) = (row.first as usize, row.count as usize);
            let points = &points[first..first + count];
            match shared.storage.append(row.device, row.ts_ms, points) {
                // What was accepted is not given up because the disk is slow or full.
                Err(error) if self.waits_for(&error) => continue,
                result => return result,
            }
        };
        match &*self.stored {
            [] => return false,
            [row] => {
                if let Err(error) = take(row) {
                    refuse(0, row, &error);
                }
            }
            rows => shared.storage.append_all(rows, points, &mut |at, error| {
                let again = match self.waits_for(&error) {
                    true => take(&rows[at]),
                    false => Err(error),
                };
                if let Err(error) = again {
                    refuse(at, &rows[at], &error);
                }
            }),
        }
        let (all, count) = (self.stored.len() as u64, refused.len() as u64);
        let refused = refused.iter().map(|at| &self.stored[*at as usize]);
        let refused_points: u64 = refused.map(|row| u64::from(row.count)).sum();
        let points: u64 = self.stored.iter().map(|row| u64::from(row.count)).sum();
        self.counters.rows.add(all - count);
        self.counters.points.add(points - refused_points);
        self.counters.unstored.add(count);
        had_no_room
    }

    /// Whether a row is tried again, having waited for what is in its way.
    #[cold]
    fn waits_for(&self, error: &StorageError) -> bool {
        match error.kind {
            StorageErrorKind::Invalid => false,
            StorageErrorKind::Busy => self.is_patient,
            StorageErrorKind::NoRoom if self.waits_for_room => {
                thread::sleep(ROOM_PAUSE);
                self.wait_for_room()
            }
            StorageErrorKind::NoRoom => false,
        }
    }
}

fn stored(voice: Voice<'_>, row: &HeardRow) -> StoredRow {
    StoredRow {
        device: voice.no,
        ts_ms: row.ts_ms,
        first: row.first,
        count: row.count,
    }
}

fn voice_of<'v>(
    messages: &[Message<'v>],
    heard: &'v Heard<'_>,
    message: u32,
    about: About,
) -> Voice<'v> {
    match about {
        About::Sender => messages[message as usize].by,
        About::Child(at) => heard.children[at as usize].voice(),
    }
}

#[inline]
fn read<'a>(
    number: u32,
    message: &Message<'a>,
    profiles: &Profiles,
    room: Room<'_>,
    arena: &'a Bump,
    heard: &mut Heard<'a>,
) {
    let by = message.by;
    let (counters, book) = (room.counters, room.book);
    let Some(route) = dialect::route(message.topic) else {
        return;
    };
    let desk = room.desks.open(by.product, profiles, room.storage);
    let Some(desk) = desk else {
        counters.unknown.add(1);
        return;
    };
    if !room.is_reporting && !desk.profile.dialects.contains(route.dialect) {
        counters.malformed.add(1);
        let reason = "the product's devices speak another dialect";
        book.note(by.no, message.received_ms, message.topic, reason);
        return;
    }
    let logged = (desk.profile.is_logged).then(|| Arc::clone(&desk.profile));
    let row_start = heard.points.len();
    let mut hearing = Hearing {
        room,
        profiles,
        arena,
        by,
        whole: *message,
        is_put_off: false,
        product: by.product,
        about: About::Sender,
        message: number,
        received_ms: message.received_ms,
        dialect: route.dialect,
        row_start,
        heard,
    };
    let marks = hearing.marks();
    let is_begun = hearing.begin(route.device, route.child);
    let outcome = is_begun.then(|| dialect::read(&route, message.payload, arena, &mut hearing));
    // One that is worked off again is logged then.
    if let Some(profile) = logged
        && !hearing.is_put_off
    {
        let (outside, now_ms) = (hearing.room.outside, message.received_ms);
        outside.logged(by, &profile, message.topic, message.payload, now_ms);
    }
    if let Some(Err(error)) = outcome {
        heard.cut(marks);
        counters.malformed.add(1);
        let reason = error.to_string();
        book.note(by.no, message.received_ms, message.topic, &reason);
    }
}

/// A row and whose it is.
struct Row<'v> {
    voice: Voice<'v>,
    row: HeardRow,
}

/// What a chain wants saved of a row: its points, or others.
struct Passed<'a> {
    saved: Vec<Option<Vec<Point<'a>>>>,
}

fn pass<'a>(
    desk: &Desk,
    scratch: &Scratch,
    arena: &'a Bump,
    row: Row<'_>,
    shared: &Shared,
    points: &[Point<'a>],
) -> Passed<'a> {
    let (first, count) = (row.row.first as usize, row.row.count as usize);
    let points = &points[first..first + count];
    let mut stops = Stops {
        desk,
        arena,
        shared,
        voice: row.voice,
        own: points.as_ptr(),
        saved: Vec::new(),
    };
    let passing = Passing {
        device: row.voice.id,
        product: desk.profile.product.as_str(),
        ts_ms: row.row.ts_ms,
        points,
        names: &[],
    };
    let chain = &desk.profile.chain;
    if let Err(error) = chain.run(&passing, &desk.chain_keys, scratch, &mut stops) {
        let now_ms = row.row.ts_ms;
        let subject = format!("rule chain, node {}", error.node);
        shared
            .book
            .note(row.voice.no, now_ms, &subject, &error.reason);
    }
    Passed { saved: stops.saved }
}

/// Where a chain's nodes put what they do.
struct Stops<'s, 'a> {
    desk: &'s Desk,
    arena: &'a Bump,
    shared: &'s Shared,
    voice: Voice<'s>,
    /// Where the points of the row itself are.
    own: *const Point<'a>,
    saved: Vec<Option<Vec<Point<'a>>>>,
}

impl<'a> Effects<'a> for Stops<'_, 'a> {
    fn arena(&self) -> &'a Bump {
        self.arena
    }

    fn name(&self, key: KeyId) -> &str {
        self.desk.key_name(key)
    }

    fn key(&self, name: &str) -> Option<KeyId> {
        self.shared.storage.key(name).ok()
    }

    fn save(&mut self, points: &[Point<'a>]) {
        let is_own = points.as_ptr() == self.own;
        self.saved.push((!is_own).then(|| points.to_vec()));
    }

    fn alarm(&mut self, ts_ms: i64, points: &[Point<'a>]) {
        let (outside, profile) = (&self.shared.outside, &self.desk.profile);
        outside.alarm(self.voice, profile, ts_ms, points);
    }

    fn outside(&self) -> &dyn Outside {
        &*self.shared.outside
    }
}

/// Counts what nothing becomes of, and notes it of its device.
fn count_ignored(messages: &[Message<'_>], heard: &Heard<'_>, counters: &Counters, book: &Book) {
    for heard_said in &heard.saids {
        let what = match heard_said.said {
            Said::Log { .. } => "log",
            Said::DerivedModel { .. } => "metadata/derived",
            Said::Firmware { step, .. } => step,
            Said::Ignored { what } => what,
            _ => continue,
        };
        counters.ignored.add(1);
        // One that comes with each report would fill the book.
        if what != "propertySourceTimes" {
            let about = voice_of(messages, heard, heard_said.message, heard_said.about);
            let now_ms = messages[heard_said.message as usize].received_ms;
            book.note(about.no, now_ms, what, "the node does not evaluate this");
        }
    }
}

/// Tells everybody of what is saved now, and of what else was said.
fn tell(
    messages: &[Message<'_>],
    heard: &Heard<'_>,
    (told, refused): (&[Told], &[u32]),
    profiles: &Profiles,
    shared: &Shared,
) {
    let outside = &*shared.outside;
    for told in told {
        if (told.stored).is_some_and(|at| refused.binary_search(&at).is_ok()) {
            continue;
        }
        let row = &heard.rows[told.heard as usize];
        let voice = voice_of(messages, heard, row.message, row.about);
        let profile = profiles.get(voice.product.0 as usize);
        if let Some(profile) = profile.and_then(Option::as_ref) {
            let (first, count) = (told.first as usize, told.count as usize);
            let points = &heard.points[first..first + count];
            outside.stored(voice, profile, told.ts_ms, points);
        }
    }
    for said in &heard.saids {
        let message = &messages[said.message as usize];
        let about = voice_of(messages, heard, said.message, said.about);
        let now_ms = message.received_ms;
        outside.said(message.by, about, said.dialect, &said.said, now_ms);
    }
}
