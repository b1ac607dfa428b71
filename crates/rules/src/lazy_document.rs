//! Lazy JSON: members are read in order up to the requested one, and what was read is kept for later
//! requests.
//!
//! The rest of the text is not checked, so a text that is invalid further on still yields values. Of several
//! members with the same name the first one counts.

use std::cell::Cell;

use crate::json::{JsonError, Reader};
use crate::list_positions::slice;
use crate::value::{Arena, Value};

/// A partly read array or object.
pub(crate) struct LazyDocument<'a> {
    text: &'a str,
    arena: &'a Arena,
    is_object: bool,
    /// Number of bytes read so far. At 0 the opening bracket is still unread.
    read_bytes: Cell<usize>,
    first: Cell<Option<&'a LazyMember<'a>>>,
    last: Cell<Option<&'a LazyMember<'a>>>,
    /// Read to the end, or up to the first syntax error.
    is_complete: Cell<bool>,
    /// A syntax error was found.
    is_broken: Cell<bool>,
}

/// One value in an array or object.
pub(crate) struct LazyMember<'a> {
    key: &'a str,
    value: Value<'a>,
    /// Its own members, once one of them was requested.
    inner: Cell<Option<Option<&'a LazyDocument<'a>>>>,
    next: Cell<Option<&'a LazyMember<'a>>>,
}

impl<'a> LazyDocument<'a> {
    /// Creates a document from text that may be an array or object. Reads nothing yet.
    pub(crate) fn new(text: &'a str, arena: &'a Arena) -> Option<&'a Self> {
        let text = text.trim_start_matches([' ', '\t', '\r', '\n']);
        if !text.starts_with(['{', '[']) {
            return None;
        }
        Some(arena.alloc(Self {
            text,
            arena,
            is_object: text.starts_with('{'),
            read_bytes: Cell::new(0),
            first: Cell::new(None),
            last: Cell::new(None),
            is_complete: Cell::new(false),
            is_broken: Cell::new(false),
        }))
    }

    /// Whether a member was not found because of a syntax error in the text before it.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// Whether the unread rest is valid JSON, too, without trailing text. Reads the rest without keeping it.
    pub(crate) fn is_valid_to_end(&self) -> bool {
        if self.is_complete.get() && self.is_broken.get() {
            return false;
        }
        let mut reader = Reader::at(self.text, self.read_bytes.get());
        let rest = match (self.is_complete.get(), self.read_bytes.get()) {
            // An empty container does not advance the reader.
            (_, 0) => reader.skip(crate::json::MAX_DEPTH),
            _ => reader.skip_members(self.is_object, crate::json::MAX_DEPTH - 1),
        };
        rest.and_then(|()| reader.end()).is_ok()
    }

    pub(crate) fn member_by_key(&self, key: &str) -> Option<&'a LazyMember<'a>> {
        if !self.is_object {
            return None;
        }
        let mut at = self.first.get();
        while let Some(member) = at {
            if member.key == key {
                return Some(member);
            }
            at = member.next.get();
        }
        while let Some(member) = self.read_member() {
            if member.key == key {
                return Some(member);
            }
        }
        None
    }

    /// An item of an array: 1 is the first, -1 the last.
    pub(crate) fn member_by_index(&self, index: i64) -> Option<&'a LazyMember<'a>> {
        if self.is_object || index == 0 {
            return None;
        }
        let index = if index > 0 {
            index as usize
        } else {
            while self.read_member().is_some() {}
            let count = std::iter::successors(self.first.get(), |member| member.next.get()).count();
            (count + 1)
                .checked_sub(index.unsigned_abs() as usize)
                .filter(|&index| index > 0)?
        };
        let mut at = self.first.get();
        for _ in 1..index {
            at = match at {
                Some(member) => member.next.get().or_else(|| self.read_member()),
                None => return self.read_up_to(index),
            };
            at?;
        }
        at.or_else(|| self.read_member())
    }

    /// Items between two positions, both inclusive, counted as in [`LazyDocument::member_by_index`].
    pub(crate) fn items(&self, from: i64, to: i64) -> Option<&'a [Value<'a>]> {
        if self.is_object {
            return None;
        }
        while self.read_member().is_some() {}
        let members = std::iter::successors(self.first.get(), |member| member.next.get());
        let mut items = bumpalo::collections::Vec::new_in(self.arena);
        items.extend(members.map(LazyMember::value));
        Some(slice(items.into_bump_slice(), from, to))
    }

    /// Reads the first items of an unread array.
    fn read_up_to(&self, index: usize) -> Option<&'a LazyMember<'a>> {
        let mut member = None;
        for _ in 0..index {
            member = Some(self.read_member()?);
        }
        member
    }

    fn read_member(&self) -> Option<&'a LazyMember<'a>> {
        if self.is_complete.get() {
            return None;
        }
        let (key, value, read_bytes) = match self.read_next() {
            Ok(Some(member)) => member,
            end => {
                self.is_complete.set(true);
                self.is_broken.set(end.is_err());
                return None;
            }
        };
        self.read_bytes.set(read_bytes);
        let member = &*self.arena.alloc(LazyMember {
            key,
            value,
            inner: Cell::new(None),
            next: Cell::new(None),
        });
        match self.last.replace(Some(member)) {
            Some(last) => last.next.set(Some(member)),
            None => self.first.set(Some(member)),
        }
        Some(member)
    }

    /// The next member and its end offset; `None` at the closing bracket.
    fn read_next(&self) -> Result<Option<(&'a str, Value<'a>, usize)>, JsonError> {
        let mut reader = Reader::at(self.text, self.read_bytes.get());
        let close = if self.is_object { b'}' } else { b']' };
        if self.read_bytes.get() == 0 {
            reader.step();
            reader.skip_whitespace();
            if reader.peek() == Some(close) {
                return Ok(None);
            }
        } else if reader.has_next_member(close, "")? {
            return Ok(None);
        } else {
            reader.skip_whitespace();
        }
        let key = if self.is_object {
            let key = reader.string(self.arena)?;
            reader.colon()?;
            key
        } else {
            ""
        };
        let value = reader.lazy_value(self.arena, crate::json::MAX_DEPTH)?;
        Ok(Some((key, value, reader.offset())))
    }
}

impl<'a> LazyMember<'a> {
    pub(crate) fn value(&self) -> Value<'a> {
        self.value
    }

    /// The member as a document, if it is an array or object, or the text of one.
    pub(crate) fn nested_document(&self, arena: &'a Arena) -> Option<&'a LazyDocument<'a>> {
        if let Some(inner) = self.inner.get() {
            return inner;
        }
        let inner = match self.value {
            Value::Json(text) | Value::Str(text) => LazyDocument::new(text, arena),
            _ => None,
        };
        self.inner.set(Some(inner));
        inner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get<'a>(document: &'a LazyDocument<'a>, path: &str, arena: &'a Arena) -> Option<String> {
        let mut document = document;
        let mut steps = path.split('.').peekable();
        while let Some(step) = steps.next() {
            let member = match step.parse() {
                Ok(index) => document.member_by_index(index),
                Err(_) => document.member_by_key(step),
            }?;
            if steps.peek().is_none() {
                let mut out = Vec::new();
                member.value().write_json(&mut out);
                return String::from_utf8(out).ok();
            }
            document = member.nested_document(arena)?;
        }
        None
    }

    #[test]
    fn only_the_requested_path_is_read() {
        let arena = Arena::new();
        let text = r#" {"a": {"b": [10, 20, {"c": "\u00e4"}]}, "d": 1.5, "e": oops"#;
        let document = LazyDocument::new(text, &arena).expect("an object");
        assert_eq!(get(document, "a.b.1", &arena).as_deref(), Some("10"));
        assert_eq!(get(document, "a.b.3.c", &arena).as_deref(), Some("\"ä\""));
        assert_eq!(get(document, "a.b.-1.c", &arena).as_deref(), Some("\"ä\""));
        assert_eq!(get(document, "a.b.-3", &arena).as_deref(), Some("10"));
        assert_eq!(get(document, "a.b.-4", &arena), None);
        assert_eq!(get(document, "a.b.4", &arena), None);
        assert_eq!(get(document, "a.b.0", &arena), None);
        assert!(document.read_bytes.get() < text.find("\"d\"").expect("there"));
        assert_eq!(get(document, "d", &arena).as_deref(), Some("1.5"));
        assert_eq!(get(document, "a.b.2", &arena).as_deref(), Some("20"));
        assert_eq!(get(document, "e", &arena), None);
        assert_eq!(get(document, "f", &arena), None);
        assert_eq!(get(document, "d", &arena).as_deref(), Some("1.5"));
    }

    #[test]
    fn validity_is_independent_of_what_was_read() {
        for (text, is_json) in [
            ("{}", true),
            ("[ ]  ", true),
            ("{\"a\": 1, \"b\": [2, {\"c\": 3}] } ", true),
            ("[1, [2], {}]", true),
            ("{\"a\": 1, \"b\": [2, {\"c\": 3}]", false),
            ("{\"a\": 1, \"b\": 2,}", false),
            ("{\"a\": 1, \"b\": oops}", false),
            ("{\"a\": 1} x", false),
            ("[1, 2", false),
            ("[1 2]", false),
            ("{", false),
        ] {
            for read in 0..4 {
                let arena = Arena::new();
                let document = LazyDocument::new(text, &arena).expect(text);
                for _ in 0..read {
                    document.read_member();
                }
                assert_eq!(document.is_valid_to_end(), is_json, "{text} after {read}");
                // The check changes nothing.
                assert_eq!(document.is_valid_to_end(), is_json, "{text} after {read}");
            }
        }
    }

    #[test]
    fn text_that_is_not_json_has_no_members() {
        let arena = Arena::new();
        for text in ["", "5", "\"a\"", "hello"] {
            assert!(LazyDocument::new(text, &arena).is_none(), "{text}");
        }
        for text in ["{", "[", "{}", "[]", "{a:1}", "[,1]", "{\"a\" 1}"] {
            let document = LazyDocument::new(text, &arena).expect(text);
            assert!(
                document.member_by_key("a").is_none() && document.member_by_index(1).is_none(),
                "{text}"
            );
        }
    }
}
