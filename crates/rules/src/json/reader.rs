//! JSON parser. Strings without escapes are borrowed from the text, everything else is allocated in the arena.

use bumpalo::collections::Vec;

use super::error::{JsonError, JsonResult};
use super::skipping;
use crate::value::{Arena, Value};

/// Maximum nesting of arrays and objects.
pub const MAX_DEPTH: usize = 128;

/// Parses a whole text into the arena.
///
/// # Errors
/// If it is not exactly one JSON value, or nests deeper than [`MAX_DEPTH`].
pub fn parse<'a>(text: &'a str, arena: &'a Arena) -> Result<Value<'a>, JsonError> {
    let mut reader = Reader::new(text);
    reader.skip_whitespace();
    let value = reader.value(arena, MAX_DEPTH)?;
    reader.end()?;
    Ok(value)
}

/// Validates a whole text. Parses only a single string or number; an array or object stays text, as
/// [`Value::Json`].
///
/// # Errors
/// As [`parse`].
pub fn parse_lazy<'a>(text: &'a str, arena: &'a Arena) -> Result<Value<'a>, JsonError> {
    let mut reader = Reader::new(text);
    reader.skip_whitespace();
    let value = reader.lazy_value(arena, MAX_DEPTH)?;
    reader.end()?;
    Ok(value)
}

/// Validates a whole text without parsing it.
///
/// # Errors
/// As [`parse`].
pub fn check(text: &str) -> Result<(), JsonError> {
    let mut reader = Reader::new(text);
    reader.skip_whitespace();
    reader.skip(MAX_DEPTH)?;
    reader.end()
}

/// Parses one level of a validated array or object. Text that was not validated and is not JSON yields
/// undefined.
#[must_use]
pub fn parse_one_level<'a>(text: &'a str, arena: &'a Arena) -> Value<'a> {
    let mut reader = Reader::new(text);
    reader.skip_whitespace();
    match reader.peek() {
        Some(b'[') => reader.array(arena, MAX_DEPTH, Reader::lazy_value),
        Some(b'{') => reader.object(arena, MAX_DEPTH, Reader::lazy_value),
        _ => Ok(Value::Undefined),
    }
    .unwrap_or(Value::Undefined)
}

/// A position in a text.
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
}

type ReadValue<'a> = fn(&mut Reader<'a>, &'a Arena, usize) -> JsonResult<Value<'a>>;

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Reader { text, at: 0 }
    }

    /// A reader at a position inside the text.
    pub(crate) fn at(text: &'a str, at: usize) -> Self {
        Reader { text, at }
    }

    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// Advances past one byte that the caller has examined.
    pub(crate) fn step(&mut self) {
        self.at += 1;
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes().get(self.at).copied()
    }

    fn syntax_error<T>(&self, expected: &'static str) -> JsonResult<T> {
        Err(JsonError {
            offset: self.at,
            expected,
        })
    }

    pub(crate) fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    pub(crate) fn end(&mut self) -> JsonResult<()> {
        self.skip_whitespace();
        if self.at == self.text.len() {
            Ok(())
        } else {
            self.syntax_error("expected the end of the text")
        }
    }

    fn value(&mut self, arena: &'a Arena, depth: usize) -> JsonResult<Value<'a>> {
        match self.peek() {
            Some(b'{') => self.object(arena, depth, Reader::value),
            Some(b'[') => self.array(arena, depth, Reader::value),
            _ => self.scalar(arena),
        }
    }

    /// Parses a value; arrays and objects in it are only validated.
    pub(crate) fn lazy_value(&mut self, arena: &'a Arena, depth: usize) -> JsonResult<Value<'a>> {
        if !matches!(self.peek(), Some(b'{' | b'[')) {
            return self.scalar(arena);
        }
        let start = self.at;
        self.skip(depth)?;
        Ok(Value::Json(&self.text[start..self.at]))
    }

    fn scalar(&mut self, arena: &'a Arena) -> JsonResult<Value<'a>> {
        match self.peek() {
            Some(b'"') => Ok(Value::Str(self.string(arena)?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            _ => self.syntax_error("expected a value"),
        }
    }

    fn word(&mut self, word: &'static str, value: Value<'a>) -> JsonResult<Value<'a>> {
        if self.bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(value)
        } else {
            self.syntax_error("expected true, false or null")
        }
    }

    fn array(
        &mut self,
        arena: &'a Arena,
        depth: usize,
        read: ReadValue<'a>,
    ) -> JsonResult<Value<'a>> {
        let depth = self.nested_depth(depth)?;
        let mut items = Vec::new_in(arena);
        self.skip_whitespace();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(&[]));
        }
        loop {
            self.skip_whitespace();
            items.push(read(self, arena, depth)?);
            if self.has_next_member(b']', "expected , or ]")? {
                return Ok(Value::Array(items.into_bump_slice()));
            }
        }
    }

    fn object(
        &mut self,
        arena: &'a Arena,
        depth: usize,
        read: ReadValue<'a>,
    ) -> JsonResult<Value<'a>> {
        let depth = self.nested_depth(depth)?;
        let mut fields = Vec::new_in(arena);
        self.skip_whitespace();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Map(&[]));
        }
        loop {
            self.skip_whitespace();
            let name = self.string(arena)?;
            self.colon()?;
            fields.push((name, read(self, arena, depth)?));
            if self.has_next_member(b'}', "expected , or }")? {
                return Ok(Value::Map(fields.into_bump_slice()));
            }
        }
    }

    fn nested_depth(&mut self, depth: usize) -> JsonResult<usize> {
        match depth.checked_sub(1) {
            Some(depth) => {
                self.at += 1;
                Ok(depth)
            }
            None => self.syntax_error("nested deeper than 128 levels"),
        }
    }

    pub(crate) fn colon(&mut self) -> JsonResult<()> {
        self.skip_whitespace();
        if self.peek() != Some(b':') {
            return self.syntax_error("expected :");
        }
        self.at += 1;
        self.skip_whitespace();
        Ok(())
    }

    /// Called after a member: whether another one follows, or the array or object ends.
    pub(crate) fn has_next_member(
        &mut self,
        close: u8,
        expected: &'static str,
    ) -> JsonResult<bool> {
        self.skip_whitespace();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(false)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(true)
            }
            _ => self.syntax_error(expected),
        }
    }

    fn number(&mut self) -> JsonResult<Value<'a>> {
        let start = self.at;
        let (end, whole) = skipping::number_end(self.bytes(), start)?;
        self.at = end;
        let text = &self.text[start..self.at];
        if whole && let Ok(number) = text.parse() {
            return Ok(Value::Int(number));
        }
        match text.parse::<f64>() {
            // Rounded to floats, two different ids could become equal.
            Ok(number) if number.is_finite() && whole => Ok(Value::Big(text)),
            Ok(number) if number.is_finite() => Ok(Value::Float(number)),
            _ => Err(JsonError {
                offset: start,
                expected: "the number is too large",
            }),
        }
    }

    pub(crate) fn string(&mut self, arena: &'a Arena) -> JsonResult<&'a str> {
        let start = self.at;
        let (end, escaped) = skipping::string_end(self.bytes(), start)?;
        self.at = end;
        let inner = &self.text[start + 1..self.at - 1];
        Ok(if escaped {
            unescape(inner, arena)
        } else {
            inner
        })
    }

    /// Validates a value and moves past it.
    pub(crate) fn skip(&mut self, depth: usize) -> JsonResult<()> {
        self.at = skipping::value_end(self.bytes(), self.at, depth)?;
        Ok(())
    }

    /// Validates the remaining members of an array or object and moves past its closing bracket.
    pub(crate) fn skip_members(&mut self, is_object: bool, depth: usize) -> JsonResult<()> {
        let close = if is_object { b'}' } else { b']' };
        while !self.has_next_member(close, "expected , or a bracket")? {
            self.skip_whitespace();
            if is_object {
                self.at = skipping::string_end(self.bytes(), self.at)?.0;
                self.colon()?;
            }
            self.skip(depth)?;
        }
        Ok(())
    }
}

/// Resolves the escapes of a validated string. An unpaired surrogate becomes the replacement character.
pub fn unescape<'a>(text: &str, arena: &'a Arena) -> &'a str {
    let mut out = bumpalo::collections::String::with_capacity_in(text.len(), arena);
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        let escape = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        match escape {
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'n' => out.push('\n'),
            b'r' => out.push('\r'),
            b't' => out.push('\t'),
            b'u' => {
                let (character, behind) = code_point(rest);
                out.push(character);
                rest = behind;
            }
            other => out.push(char::from(other)),
        }
    }
    out.push_str(rest);
    out.into_bump_str()
}

/// The character of the four digits at the start of `rest`, combined with the second surrogate if there is
/// one.
fn code_point(rest: &str) -> (char, &str) {
    let unit = |text: &str| {
        text.get(..4)
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
    };
    let first = unit(rest).unwrap_or(0xfffd);
    let rest = rest.get(4..).unwrap_or_default();
    if (0xd800..0xdc00).contains(&first)
        && let Some(second) = rest.strip_prefix("\\u").and_then(unit)
        && (0xdc00..0xe000).contains(&second)
    {
        let point = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (
            char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER),
            &rest[6..],
        );
    }
    (
        char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER),
        rest,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        let arena = Arena::new();
        let value = parse(text, &arena).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut out = std::vec::Vec::new();
        value.write_json(&mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn numbers_keep_64_bits_and_their_kind() {
        for text in [
            "0",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
            "1.5",
            "2.0",
            "1e+30",
        ] {
            assert_eq!(round(text), text);
        }
        for text in ["18446744073709551616", "-9223372036854775809"] {
            assert_eq!(round(text), text);
        }
        assert_eq!(round("-0"), "0");
    }

    #[test]
    fn field_order_is_preserved_and_the_last_duplicate_wins() {
        assert_eq!(
            round(r#" { "z" : 1 , "a" : [ ] , "m":{}} "#),
            r#"{"z":1,"a":[],"m":{}}"#
        );
        let arena = Arena::new();
        let twice = parse(r#"{"a":1,"a":2}"#, &arena).expect("valid");
        assert!(twice.field("a", &arena).equals(&Value::Int(2)));
    }

    #[test]
    fn escapes_are_resolved() {
        assert_eq!(round(r#""a\"\\\/\b\f\n\r\tz""#), r#""a\"\\/\b\f\n\r\tz""#);
        assert_eq!(round(r#""\u0041\u00e9\ud83d\ude00""#), "\"Aé😀\"");
        assert_eq!(round(r#""\ud83d x""#), "\"\u{fffd} x\"");
        assert_eq!(round(r#""\u0000""#), r#""\u0000""#);
    }

    #[test]
    fn invalid_json_is_rejected_with_its_position() {
        for (text, offset) in [
            ("", 0),
            ("{", 1),
            ("[1,]", 3),
            ("[1", 2),
            ("[1}", 2),
            ("{\"a\":1]", 6),
            ("{\"a\":[1,{}],}", 12),
            ("[[],[1 2]]", 7),
            ("{\"a\" 1}", 5),
            ("01", 1),
            ("1.", 2),
            ("tru", 0),
            ("[1] x", 4),
            ("\"a", 2),
            ("\"\u{1}\"", 1),
            ("\"\\x\"", 2),
            ("\"\\u12g4\"", 2),
            ("{a:1}", 1),
            ("1e", 2),
            ("-", 1),
            ("1e999", 0),
        ] {
            let arena = Arena::new();
            let error = parse(text, &arena).expect_err(text);
            assert_eq!(error.offset, offset, "{text}: {error}");
            assert_eq!(check(text).is_err(), text != "1e999", "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |levels| "[".repeat(levels) + &"]".repeat(levels);
        assert!(check(&deep(MAX_DEPTH)).is_ok());
        assert!(check(&deep(MAX_DEPTH + 1)).is_err());
        assert!(parse(&deep(100_000), &Arena::new()).is_err());
    }

    #[test]
    fn an_opened_object_leaves_its_members_as_text() {
        let arena = Arena::new();
        let value = parse_one_level(r#"{"a": {"b" : [1, 2]}, "c":[3]}"#, &arena);
        let Value::Json(inner) = value.field("a", &arena) else {
            panic!("{value:?}")
        };
        assert_eq!(inner, r#"{"b" : [1, 2]}"#);
        let item = value.field("a", &arena).field("b", &arena).item(-1, &arena);
        assert!(item.equals(&Value::Int(2)));
    }
}
