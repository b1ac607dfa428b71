//! What is heard of messages becomes rows: keys to their numbers, values to what the thing model makes of them.

use std::sync::Arc;

use bumpalo::Bump;
use hashbrown::HashMap;
use series::{KeyId, Point};

use super::metrics::Counters;
use super::outside::{Family, Outside, Storage};
use super::pipeline::Message;
use super::profile::{KeyRule, ProductNo, Profile, Speaker, Voice, as_it_is, number_in};
use super::trouble::Book;
use crate::dialect::{Dialect, Ears, Raw, RowInfo, Said, Slot};

/// Keys that the devices of a product may have.
const MAX_KEYS: usize = 4096;
/// Keys of a message whose places are remembered, and how long one may be.
const MAX_PLACES: usize = 256;
const MAX_WRITTEN_BYTES: usize = 256;
/// After so many messages with another key at this place it is remembered instead.
const MISSES_UNTIL_RELEARNED: u8 = 16;

/// What one lane knows of a product.
pub(super) struct Desk {
    pub(super) profile: Arc<Profile>,
    /// The keys of the last message, in their order.
    places: Vec<Place>,
    slots: Vec<Fate>,
    names: HashMap<Box<str>, Slot, foldhash::fast::RandomState>,
    /// Numbers of the keys that the chain asks for.
    pub(super) chain_keys: Box<[KeyId]>,
    /// Names of the keys that have a slot.
    keys: HashMap<KeyId, Box<str>, foldhash::fast::RandomState>,
}

struct Place {
    written: Box<[u8]>,
    slot: Slot,
    misses: u8,
}

/// What is done with the values of a key.
enum Fate {
    Open(KeyId),
    /// Texts that are numbers become numbers.
    OpenNumbers(KeyId),
    Property(KeyId, u32),
    Ignored,
    Refused(Box<str>),
}

const TOO_MANY_KEYS: Slot = Slot::MAX;

impl Desk {
    pub(super) fn new(profile: Arc<Profile>, storage: &dyn Storage) -> Self {
        let keys = profile.chain.keys().iter();
        // A key that cannot be is never met.
        let number = |name: &str| storage.key(name).unwrap_or(KeyId(u32::MAX));
        let chain_keys = keys.map(|name| number(name)).collect();
        Self {
            profile,
            places: Vec::new(),
            slots: Vec::new(),
            names: HashMap::default(),
            keys: HashMap::default(),
            chain_keys,
        }
    }

    fn slot(&mut self, name: &str, storage: &dyn Storage) -> Slot {
        if let Some(slot) = self.names.get(name) {
            return *slot;
        }
        if self.slots.len() >= MAX_KEYS {
            return TOO_MANY_KEYS;
        }
        let fate = match (self.profile.model.key(name), storage.key(name)) {
            (KeyRule::Unknown, _) => Fate::Refused("the thing model has no such property".into()),
            (KeyRule::Ignored, _) => Fate::Ignored,
            (_, Err(error)) => Fate::Refused(error.reason),
            (KeyRule::Open, Ok(key)) => Fate::Open(key),
            (KeyRule::OpenNumbers, Ok(key)) => Fate::OpenNumbers(key),
            (KeyRule::Property(property), Ok(key)) => Fate::Property(key, property),
        };
        let slot = self.slots.len() as Slot;
        if let Fate::Open(key) | Fate::OpenNumbers(key) | Fate::Property(key, _) = &fate {
            self.keys.insert(*key, name.into());
        }
        self.slots.push(fate);
        self.names.insert(name.into(), slot);
        slot
    }

    pub(super) fn key_name(&self, key: KeyId) -> &str {
        self.keys.get(&key).map_or("", |name| name)
    }

    fn remember(&mut self, place: usize, written: &[u8], slot: Slot) {
        if written.len() > MAX_WRITTEN_BYTES || place >= MAX_PLACES {
            return;
        }
        let new = || Place {
            written: written.into(),
            slot,
            misses: 0,
        };
        let is_next = place == self.places.len();
        match self.places.get_mut(place) {
            Some(known) => {
                known.misses += 1;
                if known.misses >= MISSES_UNTIL_RELEARNED {
                    *known = new();
                }
            }
            None if is_next => self.places.push(new()),
            None => {}
        }
    }

    fn name_of(&self, slot: Slot) -> &str {
        let found = self.names.iter().find(|(_, known)| **known == slot);
        found.map_or("", |(name, _)| name)
    }
}

/// As `starts_with`, which calls a function: names are too short for that to be worth it.
#[inline]
fn begins_with(text: &[u8], start: &[u8]) -> bool {
    let Some(text) = text.get(..start.len()) else {
        return false;
    };
    let (Some(text_end), Some(end)) = (text.last_chunk::<8>(), start.last_chunk::<8>()) else {
        return text.iter().zip(start).all(|(one, other)| one == other);
    };
    let (words, _) = start.as_chunks::<8>();
    let (text_words, _) = text.as_chunks::<8>();
    let mut pairs = text_words.iter().zip(words);
    // The last eight bytes may have been compared in part.
    pairs.all(|(one, other)| one == other) && text_end == end
}

/// Whom a row is about.
#[derive(Clone, Copy)]
pub(super) enum About {
    /// Who has sent the message of this number.
    Sender,
    /// This one of the devices behind gateways.
    Child(u32),
}

#[derive(Clone, Copy)]
pub(super) struct HeardRow {
    pub(super) message: u32,
    pub(super) about: About,
    pub(super) ts_ms: i64,
    pub(super) first: u32,
    pub(super) count: u32,
}

#[derive(Clone, Copy)]
pub(super) struct HeardSaid<'a> {
    pub(super) message: u32,
    pub(super) about: About,
    pub(super) dialect: Dialect,
    pub(super) said: Said<'a>,
}

/// All that was heard of some messages.
#[derive(Default)]
pub(super) struct Heard<'a> {
    pub(super) points: Vec<Point<'a>>,
    pub(super) rows: Vec<HeardRow>,
    pub(super) saids: Vec<HeardSaid<'a>>,
    pub(super) children: Vec<Arc<Speaker>>,
}

impl<'a> Heard<'a> {
    /// Empty, with the memory of this one.
    pub(super) fn emptied<'b>(mut self) -> Heard<'b> {
        self.points.clear();
        self.rows.clear();
        self.saids.clear();
        self.children.clear();
        Heard {
            // Collecting nothing of the same layout keeps the memory.
            points: self.points.into_iter().map(|_| unreachable!()).collect(),
            saids: self.saids.into_iter().map(|_| unreachable!()).collect(),
            rows: self.rows,
            children: self.children,
        }
    }

    fn marks(&self) -> [usize; 3] {
        [self.points.len(), self.rows.len(), self.saids.len()]
    }

    pub(super) fn cut(&mut self, marks: [usize; 3]) {
        self.points.truncate(marks[0]);
        self.rows.truncate(marks[1]);
        self.saids.truncate(marks[2]);
    }
}

/// What hearing needs of the lane.
pub(super) struct Room<'l> {
    pub(super) desks: &'l mut Desks,
    pub(super) storage: &'l dyn Storage,
    pub(super) family: &'l dyn Family,
    pub(super) outside: &'l dyn Outside,
    pub(super) counters: &'l Counters,
    pub(super) book: &'l Book,
    /// Nobody looks again for devices that are not at hand.
    pub(super) is_last: bool,
    /// Set when others were left something.
    pub(super) has_left: &'l mut bool,
    /// The message is not the device's own: the product's dialects do not matter.
    pub(super) is_reporting: bool,
}

/// The products that a lane has met, by their numbers.
#[derive(Default)]
pub(super) struct Desks(Vec<Option<Box<Desk>>>);

impl Desks {
    /// The desk of a product, as the product is now. `None`: there is no such product any more.
    #[inline]
    pub(super) fn open(
        &mut self,
        product: ProductNo,
        profiles: &[Option<Arc<Profile>>],
        storage: &dyn Storage,
    ) -> Option<&mut Desk> {
        let at = product.0 as usize;
        let profile = profiles.get(at)?.as_ref()?;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        let place = &mut self.0[at];
        match place {
            Some(desk) if Arc::ptr_eq(&desk.profile, profile) => {}
            _ => *place = Some(Box::new(Desk::new(profile.clone(), storage))),
        }
        place.as_deref_mut()
    }
}

/// Hears one message.
pub(super) struct Hearing<'l, 'a> {
    pub(super) room: Room<'l>,
    pub(super) profiles: &'l [Option<Arc<Profile>>],
    pub(super) heard: &'l mut Heard<'a>,
    pub(super) arena: &'a Bump,
    pub(super) by: Voice<'a>,
    pub(super) whole: Message<'a>,
    /// It will be worked off again.
    pub(super) is_put_off: bool,
    pub(super) product: ProductNo,
    pub(super) about: About,
    pub(super) message: u32,
    pub(super) received_ms: i64,
    pub(super) dialect: Dialect,
    /// Where the points of the row begin.
    pub(super) row_start: usize,
}

impl<'l, 'a> Hearing<'l, 'a> {
    #[inline]
    fn desk(&mut self) -> Option<&mut Desk> {
        self.room
            .desks
            .0
            .get_mut(self.product.0 as usize)?
            .as_deref_mut()
    }

    /// Whether the device that the topic names is known.
    pub(super) fn begin(&mut self, device: Option<&'a str>, child: Option<&'a str>) -> bool {
        match (child, device) {
            (Some(child), _) => self.about(Some(child)),
            (None, Some(device)) if device != self.by.id => self.about(Some(device)),
            _ => true,
        }
    }

    pub(super) fn marks(&self) -> [usize; 3] {
        self.heard.marks()
    }

    #[cold]
    fn refuse(&mut self, slot: Slot, reason: Option<Box<str>>) {
        self.room.counters.refused.add(1);
        let device = match self.about {
            About::Sender => self.by.no,
            About::Child(at) => self.heard.children[at as usize].no,
        };
        let (book, now_ms) = (self.room.book, self.received_ms);
        let Some(desk) = self.desk() else { return };
        let name = desk.name_of(slot);
        let reason = match (&reason, desk.slots.get(slot as usize)) {
            (Some(reason), _) | (None, Some(Fate::Refused(reason))) => reason,
            _ => "the product has too many keys, 4096 at most",
        };
        book.note(device, now_ms, name, reason);
    }
}

impl<'a> Ears<'a> for Hearing<'_, 'a> {
    fn about(&mut self, child: Option<&'a str>) -> bool {
        let Some(name) = child else {
            (self.about, self.product) = (About::Sender, self.by.product);
            return true;
        };
        let Some(speaker) = self.room.family.child(self.by, name) else {
            // Once for all devices of a message.
            if !self.room.is_last && !self.is_put_off {
                self.is_put_off = self.room.outside.later(&self.whole);
                *self.room.has_left |= self.is_put_off;
            }
            if !self.is_put_off {
                self.room.counters.unknown.add(1);
                let reason = "it is not behind this gateway";
                let book = self.room.book;
                book.note(self.by.no, self.received_ms, name, reason);
            }
            return false;
        };
        let product = speaker.product;
        let storage = self.room.storage;
        let desk = self.room.desks.open(product, self.profiles, storage);
        if desk.is_none() {
            return false;
        }
        self.heard.children.push(speaker);
        self.about = About::Child(self.heard.children.len() as u32 - 1);
        self.product = product;
        true
    }

    #[inline]
    fn guess(&mut self, place: usize, rest: &[u8]) -> Option<(usize, Slot)> {
        let known = self.desk()?.places.get_mut(place)?;
        if begins_with(rest, &known.written) {
            known.misses = 0;
            return Some((known.written.len(), known.slot));
        }
        None
    }

    #[cold]
    fn key(&mut self, place: usize, written: &[u8], name: &str) -> Slot {
        let storage = self.room.storage;
        let Some(desk) = self.desk() else {
            return TOO_MANY_KEYS;
        };
        let slot = desk.slot(name, storage);
        desk.remember(place, written, slot);
        slot
    }

    #[inline]
    fn value(&mut self, slot: Slot, value: Raw<'a>) {
        let arena = self.arena;
        let Some(desk) = self.desk() else { return };
        match desk.slots.get(slot as usize) {
            Some(&Fate::Open(key)) => {
                // Null says that there is nothing to say.
                if let Some(value) = as_it_is(value) {
                    self.heard.points.push(Point { key, value });
                }
            }
            Some(&Fate::Property(key, property)) => {
                if value == Raw::Null {
                    return;
                }
                match desk.profile.model.convert(property, value, arena) {
                    Ok(value) => self.heard.points.push(Point { key, value }),
                    Err(reason) => self.refuse(slot, Some(reason)),
                }
            }
            Some(&Fate::OpenNumbers(key)) => {
                let number = match value {
                    Raw::Text(text) => number_in(text),
                    _ => None,
                };
                if let Some(value) = as_it_is(number.unwrap_or(value)) {
                    self.heard.points.push(Point { key, value });
                }
            }
            Some(Fate::Ignored) => {}
            Some(Fate::Refused(_)) | None => self.refuse(slot, None),
        }
    }

    #[inline]
    fn row(&mut self, info: RowInfo) {
        let first = std::mem::replace(&mut self.row_start, self.heard.points.len());
        if !info.is_stored {
            self.heard.points.truncate(first);
            self.row_start = first;
            return;
        }
        let count = self.heard.points.len() - first;
        if count == 0 {
            return;
        }
        self.heard.rows.push(HeardRow {
            message: self.message,
            about: self.about,
            ts_ms: info.ts_ms.unwrap_or(self.received_ms),
            first: first as u32,
            count: count as u32,
        });
    }

    fn discard(&mut self) {
        self.heard.points.truncate(self.row_start);
    }

    fn said(&mut self, said: Said<'a>) {
        self.heard.saids.push(HeardSaid {
            message: self.message,
            about: self.about,
            dialect: self.dialect,
            said,
        });
    }
}
