//! A view of one event, shared by all rules that evaluate it: what one rule has computed, the others reuse.

use std::cell::{Cell, RefCell, RefMut};

use crate::evaluation_error::EvaluationError;
use crate::evaluation_resources::EvaluationResources;
use crate::event::RuleEvent;
use crate::event_field::EventField;
use crate::function_context::{Dialect, MessagePart, MessageSource};
use crate::lazy_document::LazyDocument;
use crate::value::{Arena, Value};

/// Memory shared by the evaluations on one shard: the arena, and what functions keep between messages.
pub struct EvaluationScratch {
    arena: Arena,
    resources: RefCell<EvaluationResources>,
    shrink_above_bytes: usize,
}

impl EvaluationScratch {
    /// Retains at most about `keep_bytes` of memory between messages.
    #[must_use]
    pub fn new(resources: EvaluationResources, keep_bytes: usize) -> Self {
        Self {
            arena: Arena::new(),
            resources: RefCell::new(resources),
            shrink_above_bytes: keep_bytes,
        }
    }

    /// Releases everything about previous events. Called between events; a chain of rules counts as one
    /// event.
    #[inline]
    pub fn reset(&mut self) {
        if self.arena.allocated_bytes() > self.shrink_above_bytes {
            self.arena = Arena::new();
        } else {
            self.arena.reset();
        }
    }

    #[must_use]
    #[inline]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Random numbers, ids and compiled expressions. Panics while a rule is being evaluated.
    pub(crate) fn resources(&self) -> RefMut<'_, EvaluationResources> {
        self.resources.borrow_mut()
    }

    /// Creates the view of an event. `now_ms` is the time that functions see.
    #[must_use]
    #[inline]
    pub fn view<'a>(&'a self, event: &'a RuleEvent<'a>, now_ms: u64) -> EventView<'a> {
        EventView {
            event,
            now_ms,
            arena: &self.arena,
            resources: &self.resources,
            id: Cell::new(None),
            client_ip: Cell::new(None),
            payload: Cell::new(None),
            document: Cell::new(None),
            is_json: Cell::new(None),
            whole: Cell::new(None),
        }
    }
}

/// An event and what is already known about its payload.
pub struct EventView<'a> {
    pub(crate) event: &'a RuleEvent<'a>,
    pub(crate) now_ms: u64,
    pub(crate) arena: &'a Arena,
    pub(crate) resources: &'a RefCell<EvaluationResources>,
    id: Cell<Option<Value<'a>>>,
    client_ip: Cell<Option<Value<'a>>>,
    payload: Cell<Option<Value<'a>>>,
    document: Cell<Option<Option<&'a LazyDocument<'a>>>>,
    /// Whether the whole payload is valid JSON.
    is_json: Cell<Option<bool>>,
    whole: Cell<Option<Value<'a>>>,
}

impl<'a> EventView<'a> {
    #[must_use]
    #[inline]
    pub fn event(&self) -> &'a RuleEvent<'a> {
        self.event
    }

    /// The arena for values of this evaluation.
    #[must_use]
    #[inline]
    pub fn arena(&self) -> &'a Arena {
        self.arena
    }

    #[must_use]
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn field(&self, field: EventField) -> Value<'a> {
        let mut value = Value::Undefined;
        self.read_into(field, &mut value);
        value
    }

    /// Writes a field to its destination. A field that needs formatting is formatted once.
    #[inline]
    pub(crate) fn read_into(&self, field: EventField, out: &mut Value<'a>) {
        self.read_known_into(field, out);
    }

    /// Like `read_into` for a field known at compile time.
    #[inline(always)]
    pub(crate) fn read_known_into(&self, field: EventField, out: &mut Value<'a>) {
        let kept = match field {
            EventField::Payload => {
                *out = self.payload();
                return;
            }
            EventField::Id => &self.id,
            EventField::ClientIp => &self.client_ip,
            field => return field.read_known_into(self.event, self.arena, out),
        };
        *out = match kept.get() {
            Some(value) => value,
            None => {
                let value = field.read(self.event, self.arena);
                kept.set(Some(value));
                value
            }
        };
    }

    /// The payload: text if it is valid UTF-8, otherwise bytes.
    pub(crate) fn payload(&self) -> Value<'a> {
        if let Some(value) = self.payload.get() {
            return value;
        }
        let value = match self.event.payload {
            Some(bytes) => str::from_utf8(bytes).map_or(Value::Bytes(bytes), Value::Str),
            None => Value::Undefined,
        };
        self.payload.set(Some(value));
        value
    }

    /// The payload as JSON, parsed lazily.
    pub(crate) fn document(&self) -> Option<&'a LazyDocument<'a>> {
        if let Some(document) = self.document.get() {
            return document;
        }
        let document = match self.payload() {
            Value::Str(text) => LazyDocument::new(text, self.arena),
            _ => None,
        };
        self.document.set(Some(document));
        document
    }

    /// Whether the whole payload is valid JSON, of which paths may have read only a part.
    #[inline]
    pub(crate) fn is_json(&self) -> bool {
        match self.is_json.get() {
            Some(is_json) => is_json,
            None => self.validate_json(),
        }
    }

    fn validate_json(&self) -> bool {
        let is_json = match (self.document(), self.payload()) {
            (Some(document), _) => document.is_valid_to_end(),
            (None, Value::Str(text)) => crate::json::check(text).is_ok(),
            (None, Value::Bytes(_)) => false,
            // An event without payload has no invalid payload.
            (None, _) => true,
        };
        self.is_json.set(Some(is_json));
        is_json
    }

    /// The JSON error of the payload, if it is not JSON.
    #[must_use]
    pub fn payload_error(&self) -> Option<Box<str>> {
        match self.payload() {
            Value::Str(text) => Some(crate::json::check(text).err()?.to_string().into()),
            Value::Bytes(_) => Some("the payload is not UTF-8".into()),
            _ => None,
        }
    }

    /// The error of a rule that requires a JSON payload.
    #[cold]
    pub(crate) fn not_json_error(&self) -> EvaluationError {
        EvaluationError::PayloadNotJson {
            why: self.payload_error().unwrap_or_default(),
        }
    }

    /// The payload as an output column: FluxMQ embeds JSON as JSON, EMQX as text.
    pub(crate) fn payload_column(&self, dialect: Dialect) -> Value<'a> {
        let payload = self.payload();
        let Value::Str(text) = payload else {
            return payload;
        };
        if dialect == Dialect::Emqx {
            return payload;
        }
        if let Some(value) = self.whole.get() {
            return value;
        }
        let trimmed = match text.as_bytes() {
            // Most payloads have no whitespace around them.
            [b'{' | b'[', .., b'}' | b']'] => text,
            _ => text.trim_matches([' ', '\t', '\r', '\n']),
        };
        let is_structure = trimmed.starts_with(['{', '[']) && crate::json::check(trimmed).is_ok();
        let value = if is_structure {
            Value::Json(trimmed)
        } else {
            payload
        };
        self.whole.set(Some(value));
        value
    }
}

impl<'a> MessageSource<'a> for EventView<'a> {
    fn message_part(&self, message_part: MessagePart, _arena: &'a Arena) -> Value<'a> {
        self.field(match message_part {
            MessagePart::Topic => EventField::Topic,
            MessagePart::Payload => EventField::Payload,
            MessagePart::Qos => EventField::Qos,
            MessagePart::Flags => EventField::Flags,
            MessagePart::ClientId => EventField::ClientId,
            MessagePart::Username => EventField::Username,
            MessagePart::PeerHost => EventField::ClientIp,
            MessagePart::MessageId => EventField::Id,
        })
    }
}
