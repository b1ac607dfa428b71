//! Turns decoded messages into rows: key names become key numbers, values take the form of the thing model.

use std::sync::Arc;

use bumpalo::Bump;
use hashbrown::HashMap;
use series::{KeyId, Point};

use super::message::DeviceMessage;
use super::metrics::ProcessorCounters;
use super::ports::{DeviceResolver, PipelineOutputs, SettleScope};
use super::product_keys::{KeyRegistrar, too_many_keys};
use super::profile::{
    DeviceHandle, DeviceRef, KeyRule, ProductNo, ProductProfile, parse_number, untyped_value,
};
use super::rejections::RejectionLog;
use crate::protocol::{ControlMessage, DeviceProtocol, KeySlot, MessageVisitor, RawValue, RowInfo};

/// Maximum number of keys of a message whose positions are remembered, and maximum length of such a key.
const MAX_POSITIONS: usize = 256;
const MAX_WRITTEN_BYTES: usize = 256;
/// After this many messages with another key at a position, that key is remembered instead.
const MISSES_UNTIL_RELEARNED: u8 = 16;

/// State of a product in one processor.
pub(super) struct ProductContext {
    pub(super) profile: Arc<ProductProfile>,
    /// The keys of the last message, in their order.
    places: Vec<KeyPosition>,
    slots: Vec<KeyDisposition>,
    names: HashMap<Box<str>, KeySlot, foldhash::fast::RandomState>,
    /// Numbers of the keys that the chain uses.
    pub(super) chain_keys: Box<[KeyId]>,
    /// Names of the keys that have a slot.
    keys: HashMap<KeyId, Box<str>, foldhash::fast::RandomState>,
}

struct KeyPosition {
    written: Box<[u8]>,
    slot: KeySlot,
    misses: u8,
}

/// How the values of a key are handled.
enum KeyDisposition {
    Open(KeyId),
    /// Texts that are numbers become numbers.
    OpenNumbers(KeyId),
    Property(KeyId, u32),
    Ignored,
    Rejected(Box<str>),
}

const TOO_MANY_KEYS: KeySlot = KeySlot::MAX;

impl ProductContext {
    fn new(product: ProductNo, profile: Arc<ProductProfile>, registrar: KeyRegistrar<'_>) -> Self {
        let keys = profile.chain.keys().iter();
        // No message has a key with an invalid name.
        let number = |name: &str| registrar.reserve(product, name).unwrap_or(KeyId(u32::MAX));
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

    fn slot(&mut self, product: ProductNo, name: &str, registrar: KeyRegistrar<'_>) -> KeySlot {
        if let Some(slot) = self.names.get(name) {
            return *slot;
        }
        if self.slots.len() >= registrar.counts.max_per_product() {
            return TOO_MANY_KEYS;
        }
        // Only a key that is stored is registered: keys are limited for the whole node and never removed,
        // so a device must not be able to use them up with names that its product does not accept.
        let register = |disposition_of: &dyn Fn(KeyId) -> KeyDisposition| {
            let key = registrar.reserve(product, name);
            key.map_or_else(KeyDisposition::Rejected, disposition_of)
        };
        let disposition = match self.profile.model.key_rule(name) {
            KeyRule::Unknown => {
                KeyDisposition::Rejected("the thing model has no such property".into())
            }
            KeyRule::Ignored => KeyDisposition::Ignored,
            KeyRule::Open => register(&KeyDisposition::Open),
            KeyRule::OpenNumbers => register(&KeyDisposition::OpenNumbers),
            KeyRule::Property(property) => register(&|key| KeyDisposition::Property(key, property)),
        };
        let slot = self.slots.len() as KeySlot;
        if let KeyDisposition::Open(key)
        | KeyDisposition::OpenNumbers(key)
        | KeyDisposition::Property(key, _) = &disposition
        {
            self.keys.insert(*key, name.into());
        }
        self.slots.push(disposition);
        self.names.insert(name.into(), slot);
        slot
    }

    pub(super) fn key_name(&self, key: KeyId) -> &str {
        self.keys.get(&key).map_or("", |name| name)
    }

    fn remember_position(&mut self, place: usize, written: &[u8], slot: KeySlot) {
        if written.len() > MAX_WRITTEN_BYTES || place >= MAX_POSITIONS {
            return;
        }
        let new = || KeyPosition {
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

    fn name_of(&self, slot: KeySlot) -> &str {
        let found = self.names.iter().find(|(_, known)| **known == slot);
        found.map_or("", |(name, _)| name)
    }
}

/// Like `starts_with`, which calls a function: these names are too short for a call to pay off.
#[inline]
fn starts_with_bytes(text: &[u8], start: &[u8]) -> bool {
    let Some(text) = text.get(..start.len()) else {
        return false;
    };
    let (Some(text_end), Some(end)) = (text.last_chunk::<8>(), start.last_chunk::<8>()) else {
        return text.iter().zip(start).all(|(one, other)| one == other);
    };
    let (words, _) = start.as_chunks::<8>();
    let (text_words, _) = text.as_chunks::<8>();
    let mut pairs = text_words.iter().zip(words);
    // The last eight bytes may overlap bytes that were compared before.
    pairs.all(|(one, other)| one == other) && text_end == end
}

/// The device a row belongs to.
#[derive(Clone, Copy)]
pub(super) enum RowSubject {
    /// The sender of the message with this index.
    Sender,
    /// The device with this index among the children of gateways.
    Child(u32),
}

#[derive(Clone, Copy)]
pub(super) struct DecodedRow {
    pub(super) message: u32,
    pub(super) about: RowSubject,
    pub(super) ts_ms: i64,
    pub(super) first: u32,
    pub(super) count: u32,
}

#[derive(Clone, Copy)]
pub(super) struct DecodedControlMessage<'a> {
    pub(super) message: u32,
    pub(super) about: RowSubject,
    pub(super) protocol: DeviceProtocol,
    pub(super) control_message: ControlMessage<'a>,
}

/// Decoded content of a batch of messages.
#[derive(Default)]
pub(super) struct DecodedMessages<'a> {
    pub(super) points: Vec<Point<'a>>,
    pub(super) rows: Vec<DecodedRow>,
    pub(super) control_messages: Vec<DecodedControlMessage<'a>>,
    pub(super) children: Vec<Arc<DeviceHandle>>,
}

impl<'a> DecodedMessages<'a> {
    /// Empties the value and keeps its memory.
    pub(super) fn into_empty<'b>(mut self) -> DecodedMessages<'b> {
        self.points.clear();
        self.rows.clear();
        self.control_messages.clear();
        self.children.clear();
        DecodedMessages {
            // Collecting nothing into the same layout keeps the memory.
            points: self.points.into_iter().map(|_| unreachable!()).collect(),
            control_messages: self
                .control_messages
                .into_iter()
                .map(|_| unreachable!())
                .collect(),
            rows: self.rows,
            children: self.children,
        }
    }

    fn lengths(&self) -> [usize; 3] {
        [
            self.points.len(),
            self.rows.len(),
            self.control_messages.len(),
        ]
    }

    pub(super) fn truncate(&mut self, marks: [usize; 3]) {
        self.points.truncate(marks[0]);
        self.rows.truncate(marks[1]);
        self.control_messages.truncate(marks[2]);
    }
}

/// The parts of the processor that decoding needs.
pub(super) struct DecodeContext<'l> {
    pub(super) products: &'l mut ProductContexts,
    pub(super) registrar: KeyRegistrar<'l>,
    pub(super) resolver: &'l dyn DeviceResolver,
    pub(super) outputs: &'l dyn PipelineOutputs,
    pub(super) counters: &'l ProcessorCounters,
    pub(super) rejections: &'l RejectionLog,
    /// Devices that are not in memory are not looked up again.
    pub(super) is_retry: bool,
    /// Set when an output received something that is not durable yet.
    pub(super) unsettled: &'l mut Option<SettleScope>,
    /// The message was not sent by the device itself: the product's protocols do not matter.
    pub(super) is_reporting: bool,
}

/// The products seen by a processor, by their numbers.
#[derive(Default)]
pub(super) struct ProductContexts(Vec<Option<Box<ProductContext>>>);

impl ProductContexts {
    /// The context of a product in its present version. `None`: the product does not exist any more.
    #[inline]
    pub(super) fn context_of(
        &mut self,
        product: ProductNo,
        profiles: &[Option<Arc<ProductProfile>>],
        registrar: KeyRegistrar<'_>,
    ) -> Option<&mut ProductContext> {
        let at = product.0 as usize;
        let profile = profiles.get(at)?.as_ref()?;
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        let place = &mut self.0[at];
        match place {
            Some(product_context) if Arc::ptr_eq(&product_context.profile, profile) => {}
            _ => {
                *place = Some(Box::new(ProductContext::new(
                    product,
                    profile.clone(),
                    registrar,
                )))
            }
        }
        place.as_deref_mut()
    }
}

/// Decodes one message.
pub(super) struct MessageDecoder<'l, 'a> {
    pub(super) context: DecodeContext<'l>,
    pub(super) profiles: &'l [Option<Arc<ProductProfile>>],
    pub(super) decoded: &'l mut DecodedMessages<'a>,
    pub(super) arena: &'a Bump,
    pub(super) sender: DeviceRef<'a>,
    pub(super) source_message: DeviceMessage<'a>,
    /// The message will be processed again.
    pub(super) is_deferred: bool,
    pub(super) product: ProductNo,
    pub(super) about: RowSubject,
    pub(super) message: u32,
    pub(super) received_ms: i64,
    pub(super) protocol: DeviceProtocol,
    /// Index of the row's first point.
    pub(super) row_start: usize,
}

impl<'l, 'a> MessageDecoder<'l, 'a> {
    #[inline]
    fn product_context(&mut self) -> Option<&mut ProductContext> {
        self.context
            .products
            .0
            .get_mut(self.product.0 as usize)?
            .as_deref_mut()
    }

    /// Whether the device named by the topic is known.
    pub(super) fn begin(&mut self, device: Option<&'a str>, child: Option<&'a str>) -> bool {
        match (child, device) {
            (Some(child), _) => self.enter_device(Some(child)),
            (None, Some(device)) if device != self.sender.id => self.enter_device(Some(device)),
            _ => true,
        }
    }

    pub(super) fn lengths(&self) -> [usize; 3] {
        self.decoded.lengths()
    }

    #[cold]
    fn reject_value(&mut self, slot: KeySlot, reason: Option<Box<str>>) {
        self.context.counters.rejected.add(1);
        let device = match self.about {
            RowSubject::Sender => self.sender.no,
            RowSubject::Child(at) => self.decoded.children[at as usize].no,
        };
        let (rejections, now_ms) = (self.context.rejections, self.received_ms);
        let max_keys = self.context.registrar.counts.max_per_product();
        let Some(product) = self.product_context() else {
            return;
        };
        let name = product.name_of(slot);
        let too_many;
        let reason = match (&reason, product.slots.get(slot as usize)) {
            (Some(reason), _) | (None, Some(KeyDisposition::Rejected(reason))) => reason,
            _ => {
                too_many = too_many_keys(max_keys);
                &too_many
            }
        };
        rejections.record(device, now_ms, name, reason);
    }
}

impl<'a> MessageVisitor<'a> for MessageDecoder<'_, 'a> {
    fn enter_device(&mut self, child: Option<&'a str>) -> bool {
        let Some(name) = child else {
            (self.about, self.product) = (RowSubject::Sender, self.sender.product);
            return true;
        };
        let Some(child_device) = self.context.resolver.resolve_child(self.sender, name) else {
            // Once for all devices of a message.
            if !self.context.is_retry && !self.is_deferred {
                self.is_deferred = self.context.outputs.defer_message(&self.source_message);
                if self.is_deferred {
                    // What its rows will pass is not known yet.
                    *self.context.unsettled = Some(SettleScope::Published);
                }
            }
            if !self.is_deferred {
                self.context.counters.unknown.add(1);
                let reason = "the device is not behind this gateway";
                let rejections = self.context.rejections;
                rejections.record(self.sender.no, self.received_ms, name, reason);
            }
            return false;
        };
        let product = child_device.product;
        let registrar = self.context.registrar;
        let product_context = self
            .context
            .products
            .context_of(product, self.profiles, registrar);
        if product_context.is_none() {
            return false;
        }
        self.decoded.children.push(child_device);
        self.about = RowSubject::Child(self.decoded.children.len() as u32 - 1);
        self.product = product;
        true
    }

    #[inline]
    fn predict_key(&mut self, place: usize, rest: &[u8]) -> Option<(usize, KeySlot)> {
        let known = self.product_context()?.places.get_mut(place)?;
        if starts_with_bytes(rest, &known.written) {
            known.misses = 0;
            return Some((known.written.len(), known.slot));
        }
        None
    }

    #[cold]
    fn resolve_key(&mut self, place: usize, written: &[u8], name: &str) -> KeySlot {
        let (registrar, number) = (self.context.registrar, self.product);
        let Some(product) = self.product_context() else {
            return TOO_MANY_KEYS;
        };
        let slot = product.slot(number, name, registrar);
        product.remember_position(place, written, slot);
        slot
    }

    /// Always inlined, so that the value stays in registers; see [`JsonCursor::value`](crate::json_scanner::JsonCursor::value).
    #[inline(always)]
    fn visit_value(&mut self, slot: KeySlot, value: RawValue<'a>) {
        let arena = self.arena;
        let Some(product) = self.product_context() else {
            return;
        };
        match product.slots.get(slot as usize) {
            Some(&KeyDisposition::Open(key)) => {
                // Null means that there is no value.
                if let Some(value) = untyped_value(value) {
                    self.decoded.points.push(Point { key, value });
                }
            }
            Some(&KeyDisposition::Property(key, property)) => {
                if value == RawValue::Null {
                    return;
                }
                match product.profile.model.convert(property, value, arena) {
                    Ok(value) => self.decoded.points.push(Point { key, value }),
                    Err(reason) => self.reject_value(slot, Some(reason)),
                }
            }
            Some(&KeyDisposition::OpenNumbers(key)) => {
                let number = match value {
                    RawValue::Text(text) => parse_number(text),
                    _ => None,
                };
                if let Some(value) = untyped_value(number.unwrap_or(value)) {
                    self.decoded.points.push(Point { key, value });
                }
            }
            Some(KeyDisposition::Ignored) => {}
            Some(KeyDisposition::Rejected(_)) | None => self.reject_value(slot, None),
        }
    }

    #[inline]
    fn finish_row(&mut self, info: RowInfo) {
        let first = std::mem::replace(&mut self.row_start, self.decoded.points.len());
        if !info.is_stored {
            self.decoded.points.truncate(first);
            self.row_start = first;
            return;
        }
        let count = self.decoded.points.len() - first;
        if count == 0 {
            return;
        }
        self.decoded.rows.push(DecodedRow {
            message: self.message,
            about: self.about,
            ts_ms: info.ts_ms.unwrap_or(self.received_ms),
            first: first as u32,
            count: count as u32,
        });
    }

    fn discard_row(&mut self) {
        self.decoded.points.truncate(self.row_start);
    }

    fn visit_control_message(&mut self, message: ControlMessage<'a>) {
        self.decoded.control_messages.push(DecodedControlMessage {
            message: self.message,
            about: self.about,
            protocol: self.protocol,
            control_message: message,
        });
    }
}
