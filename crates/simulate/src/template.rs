//! Texts with placeholders, compiled to segments. Rendering appends to a buffer and allocates nothing.
//!
//! A placeholder is a name in braces, `{index}` or `{state.temperature}`. Braces around anything else are text, so that
//! JSON needs no quoting. Double braces, `{{index}}`, write a name in braces literally.

use std::io::Write as _;
use std::ops::Range;

use jiff::Timestamp;
use load_client::payload_stamp::TEXT_BYTES;

use crate::random::RandomKey;
use crate::state::{Component, DeviceState, StateProgram, StateValue};
use crate::suggestion::unknown_name;

/// A longer text is refused.
const MAX_TEXT_BYTES: usize = 256 * 1024;
/// Purpose of a device's random key from which identifiers are drawn.
const UUID_PURPOSE: u64 = u64::MAX - 1;

/// The stamp of a message that is not verified.
pub(crate) const NO_STAMP: [u8; TEXT_BYTES] =
    *b"tg=000000000000000000000000000000000000000000000000";

/// A compiled text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Template {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq)]
enum Segment {
    Text(Range<usize>),
    /// Index of the device, with at least so many digits.
    Index(u8),
    /// Remainder of the index after a division by this number.
    IndexRemainder(u32),
    /// Index of the device's gateway, and its remainder.
    GatewayIndex(u8),
    GatewayIndexRemainder(u32),
    /// Milliseconds since 1970.
    Now,
    /// Seconds since 1970.
    NowSeconds,
    /// RFC 3339 in UTC.
    Time,
    Uuid,
    /// Number of the message of this device, beginning with 1.
    MessageNumber,
    /// By which a subscriber of the simulation recognises the message.
    Stamp,
    /// A value; texts are escaped for JSON, and quoted where the segment says so.
    State {
        value: u16,
        component: Component,
        is_quoted: bool,
    },
    Request(RequestField),
}

/// A part of the request that a response answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestField {
    Id,
    /// As in the request: JSON.
    Params,
    Method,
    /// Only digits and letters of the topic's last level, for topics of answers.
    TopicEnd,
}

const REQUEST_FIELDS: [(&str, RequestField); 4] = [
    ("request.id", RequestField::Id),
    ("request.params", RequestField::Params),
    ("request.method", RequestField::Method),
    ("request.topic_end", RequestField::TopicEnd),
];

/// What a message answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestView<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    /// JSON.
    pub(crate) params: &'a str,
    pub(crate) topic_end: &'a str,
}

/// Names that a text may contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateScope<'a> {
    pub(crate) fleet: &'a str,
    pub(crate) product: &'a str,
    /// Name of the event that the message reports; empty for other messages.
    pub(crate) event: &'a str,
    /// The template of the device id, which replaces `{id}`; none in the id itself.
    pub(crate) id: Option<&'a Template>,
    /// Values; none where no message is made.
    pub(crate) state: Option<&'a StateProgram>,
    /// Whether the text answers a request.
    pub(crate) is_response: bool,
    /// The gateway of the device, if it has one.
    pub(crate) gateway: Option<GatewayScope<'a>>,
    /// A random text of the run, for credentials; none elsewhere.
    pub(crate) secret: Option<&'a str>,
}

/// What replaces `{gateway}` and `{gateway_product}`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayScope<'a> {
    pub(crate) id: &'a Template,
    pub(crate) product: &'a str,
}

/// What one rendering depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RenderInput<'a> {
    pub(crate) index: u32,
    /// Index of the device's gateway; 0 if it has none.
    pub(crate) gateway_index: u32,
    pub(crate) device: DeviceState<'a>,
    pub(crate) program: &'a StateProgram,
    pub(crate) request: RequestView<'a>,
    pub(crate) stamp: &'a [u8; TEXT_BYTES],
}

impl Template {
    /// Compiles `text`; the error says what is wrong with it.
    pub(crate) fn compile(text: &str, scope: &TemplateScope<'_>) -> Result<Self, String> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!(
                "{} bytes; at most {MAX_TEXT_BYTES} are allowed",
                text.len()
            ));
        }
        let mut template = Self::default();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, after) = rest.split_at(at);
            template.push_text(before);
            if let Some(name) = placeholder(&after[1..]) {
                template.push_placeholder(name, scope)?;
                rest = &after[name.len() + 2..];
            } else if after.starts_with("{{")
                && let Some(name) = placeholder(&after[2..])
                && after[name.len() + 3..].starts_with('}')
            {
                template.push_text(&after[1..name.len() + 3]);
                rest = &after[name.len() + 4..];
            } else {
                template.push_text("{");
                rest = &after[1..];
            }
        }
        template.push_text(rest);
        Ok(template)
    }

    /// Whether it contains `{stamp}`.
    pub(crate) fn has_stamp(&self) -> bool {
        self.segments.contains(&Segment::Stamp)
    }

    /// Appends text.
    pub(crate) fn push_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let start = self.text.len();
        self.text.push_str(text);
        let end = self.text.len();
        match self.segments.last_mut() {
            Some(Segment::Text(last)) if last.end == start => last.end = end,
            _ => self.segments.push(Segment::Text(start..end)),
        }
    }

    /// Appends a value as JSON, with quotes if it is a text.
    fn push_value(&mut self, value: usize) {
        self.segments.push(Segment::State {
            value: value as u16,
            component: Component::Whole,
            is_quoted: true,
        });
    }

    /// Appends an object with values.
    pub(crate) fn push_object(
        &mut self,
        state: &StateProgram,
        values: impl Iterator<Item = usize>,
    ) {
        let mut front = "{\"";
        for value in values {
            self.push_text(front);
            self.push_text(&state.names()[value]);
            self.push_text("\":");
            self.push_value(value);
            front = ",\"";
        }
        self.push_text(if front == "{\"" { "{}" } else { "}" });
    }

    fn push_template(&mut self, other: &Template) {
        for segment in &other.segments {
            match segment {
                Segment::Text(range) => self.push_text(&other.text[range.clone()]),
                segment => self.segments.push(segment.clone()),
            }
        }
    }

    /// Appends the id of the gateway.
    fn push_gateway(&mut self, id: &Template) {
        let from = self.segments.len();
        self.push_template(id);
        for segment in &mut self.segments[from..] {
            match *segment {
                Segment::Index(digits) => *segment = Segment::GatewayIndex(digits),
                Segment::IndexRemainder(divisor) => {
                    *segment = Segment::GatewayIndexRemainder(divisor);
                }
                _ => {}
            }
        }
    }

    fn push_placeholder(&mut self, name: &str, scope: &TemplateScope<'_>) -> Result<(), String> {
        let segment = match name {
            "fleet" => {
                self.push_text(scope.fleet);
                return Ok(());
            }
            "product" => {
                self.push_text(scope.product);
                return Ok(());
            }
            "event" if !scope.event.is_empty() => {
                self.push_text(scope.event);
                return Ok(());
            }
            "values" if let Some(state) = scope.state => {
                self.push_object(state, 0..state.names().len());
                return Ok(());
            }
            "id" if scope.id.is_some() => {
                if let Some(id) = scope.id {
                    self.push_template(id);
                }
                return Ok(());
            }
            "gateway" | "gateway_product" if let Some(gateway) = scope.gateway => {
                match name {
                    "gateway" => self.push_gateway(gateway.id),
                    _ => self.push_text(gateway.product),
                }
                return Ok(());
            }
            "index" => Segment::Index(1),
            _ if let Some(digits) = name.strip_prefix("index:") => match digits.parse() {
                Ok(digits @ 1..=9) => Segment::Index(digits),
                _ => {
                    return Err(format!(
                        "`{{{name}}}`: expected 1 to 9 digits, such as {{index:4}}"
                    ));
                }
            },
            _ if let Some(divisor) = name.strip_prefix("index%") => match divisor.parse() {
                Ok(divisor @ 1..) => Segment::IndexRemainder(divisor),
                _ => {
                    return Err(format!(
                        "`{{{name}}}`: expected a number above 0, such as {{index%4}}"
                    ));
                }
            },
            "secret" if let Some(secret) = scope.secret => {
                self.push_text(secret);
                return Ok(());
            }
            "now" => Segment::Now,
            "now_s" => Segment::NowSeconds,
            "time" => Segment::Time,
            "uuid" => Segment::Uuid,
            "message" => Segment::MessageNumber,
            "stamp" => Segment::Stamp,
            _ => {
                let request = REQUEST_FIELDS.iter().find(|(known, _)| *known == name);
                match (request, name.strip_prefix("state."), scope.state) {
                    (Some((_, field)), ..) if scope.is_response => Segment::Request(*field),
                    (_, Some(path), Some(state)) => state_segment(path, state)?,
                    _ => return Err(unknown_placeholder(name, scope)),
                }
            }
        };
        self.segments.push(segment);
        Ok(())
    }

    /// Appends the text for one message.
    #[inline]
    pub(crate) fn render(&self, input: &RenderInput<'_>, out: &mut Vec<u8>) {
        for segment in &self.segments {
            match segment {
                Segment::Text(range) => out.extend_from_slice(&self.text.as_bytes()[range.clone()]),
                Segment::State {
                    value,
                    component,
                    is_quoted,
                } => {
                    let value = input
                        .program
                        .value(usize::from(*value), *component, &input.device);
                    write_value(value, *is_quoted, out);
                }
                segment => render_other(segment, input, out),
            }
        }
    }
}

fn render_other(segment: &Segment, input: &RenderInput<'_>, out: &mut Vec<u8>) {
    let device = &input.device;
    match segment {
        Segment::Index(digits) => write_index(input.index, *digits, out),
        Segment::IndexRemainder(divisor) => {
            write_integer(i64::from(input.index % divisor), out);
        }
        Segment::GatewayIndexRemainder(divisor) => {
            write_integer(i64::from(input.gateway_index % divisor), out);
        }
        Segment::GatewayIndex(digits) => write_index(input.gateway_index, *digits, out),
        Segment::Now => write_integer(device.wall_ms as i64, out),
        Segment::NowSeconds => write_integer((device.wall_ms / 1000) as i64, out),
        Segment::Stamp => out.extend_from_slice(input.stamp),
        Segment::MessageNumber => write_integer(i64::from(device.step) + 1, out),
        Segment::Time => {
            let time = Timestamp::from_millisecond(device.wall_ms as i64).unwrap_or_default();
            write!(out, "{time:.3}").expect("a vector takes all bytes");
        }
        Segment::Uuid => write_uuid(device.key, device.step, out),
        Segment::Request(field) => out.extend_from_slice(
            match field {
                RequestField::Id => input.request.id,
                RequestField::Params => input.request.params,
                RequestField::Method => input.request.method,
                RequestField::TopicEnd => input.request.topic_end,
            }
            .as_bytes(),
        ),
        Segment::Text(_) | Segment::State { .. } => {}
    }
}

/// The name at the start of `text`, if `}` follows it.
fn placeholder(text: &str) -> Option<&str> {
    let end = text
        .find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == '.'))?;
    let end = match text[..end] == *"index" && text[end..].starts_with([':', '%']) {
        true => end + 1 + text[end + 1..].find(|letter: char| !letter.is_ascii_digit())?,
        false => end,
    };
    let name = &text[..end];
    (text[end..].starts_with('}') && name.starts_with(|first: char| first.is_ascii_alphabetic()))
        .then_some(name)
}

fn state_segment(path: &str, state: &StateProgram) -> Result<Segment, String> {
    let (name, component) = path.split_once('.').unwrap_or((path, ""));
    let Some(value) = state.find(name) else {
        let known = state.names().iter().map(String::as_str);
        return Err(match state.names().is_empty() {
            true => format!("`{{state.{path}}}`: the fleet has no table `state`"),
            false => format!("`{{state.{path}}}`: {}", unknown_name("value", name, known)),
        });
    };
    let component = match component {
        "" => Component::Whole,
        component => {
            let known = Component::NAMES.iter().find(|(name, _)| *name == component);
            let Some((_, component)) = known.filter(|_| state.is_position(value)) else {
                return Err(format!(
                    "`{{state.{path}}}`: only values of `route` have parts: lon, lat, heading, speed"
                ));
            };
            *component
        }
    };
    Ok(Segment::State {
        value: value as u16,
        component,
        is_quoted: false,
    })
}

fn unknown_placeholder(name: &str, scope: &TemplateScope<'_>) -> String {
    let mut known = vec![
        "fleet", "product", "index", "now", "now_s", "time", "uuid", "message", "stamp",
    ];
    if scope.id.is_some() {
        known.push("id");
    }
    if scope.secret.is_some() {
        known.push("secret");
    }
    if scope.gateway.is_some() {
        known.extend(["gateway", "gateway_product"]);
    }
    if scope.state.is_some() {
        known.extend(["values", "state.NAME"]);
    }
    if scope.is_response {
        known.extend(REQUEST_FIELDS.iter().map(|(name, _)| *name));
    }
    if let Some(near) = rules::nearest_name(name, known.iter().copied()) {
        return format!("unknown placeholder `{{{name}}}`; did you mean `{{{near}}}`?");
    }
    format!(
        "unknown placeholder `{{{name}}}`; expected one of {}, or `{{{{{name}}}}}` for this text itself",
        known.join(", ")
    )
}

fn write_index(index: u32, digits: u8, out: &mut Vec<u8>) {
    let mut buffer = itoa::Buffer::new();
    let text = buffer.format(index);
    let zeros = usize::from(digits).saturating_sub(text.len());
    out.resize(out.len() + zeros, b'0');
    out.extend_from_slice(text.as_bytes());
}

#[inline]
fn write_integer(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[inline]
fn write_value(value: StateValue<'_>, is_quoted: bool, out: &mut Vec<u8>) {
    match value {
        StateValue::Integer(value) => write_integer(value, out),
        StateValue::Number { value, decimals } => write_number(value, decimals, out),
        StateValue::Boolean(true) => out.extend_from_slice(b"true"),
        StateValue::Boolean(false) => out.extend_from_slice(b"false"),
        StateValue::Text(text) => {
            if is_quoted {
                out.push(b'"');
            }
            write_json_text(text, out);
            if is_quoted {
                out.push(b'"');
            }
        }
        StateValue::Position {
            longitude,
            latitude,
        } => {
            out.extend_from_slice(b"{\"lon\":");
            write_number(longitude, 7, out);
            out.extend_from_slice(b",\"lat\":");
            write_number(latitude, 7, out);
            out.push(b'}');
        }
    }
}

const POWERS: [f64; 10] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];

/// Writes a number with up to so many digits after the point; more than nine: as many as it has.
#[inline]
fn write_number(value: f64, decimals: u8, out: &mut Vec<u8>) {
    let power = POWERS.get(usize::from(decimals)).copied();
    let scaled = power.map(|power| (value * power).round());
    // Whole numbers up to here are exact, and fit.
    let Some((power, scaled)) = power.zip(scaled).filter(|(_, scaled)| scaled.abs() < 9e15) else {
        if value.is_finite() {
            out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
        } else {
            out.extend_from_slice(b"null");
        }
        return;
    };
    let (scaled, power) = (scaled as i64, power as i64);
    if scaled < 0 {
        out.push(b'-');
    }
    let scaled = scaled.unsigned_abs();
    let whole = scaled / power as u64;
    out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    let mut part = scaled % power as u64;
    if decimals == 0 {
        return;
    }
    let mut digits = [b'0'; 10];
    digits[0] = b'.';
    for digit in digits[1..=usize::from(decimals)].iter_mut().rev() {
        *digit = b'0' + (part % 10) as u8;
        part /= 10;
    }
    out.extend_from_slice(&digits[..=usize::from(decimals)]);
}

fn write_json_text(text: &str, out: &mut Vec<u8>) {
    for &byte in text.as_bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..0x20 => write!(out, "\\u{byte:04x}").expect("a vector takes all bytes"),
            byte => out.push(byte),
        }
    }
}

/// A UUID of version 4.
fn write_uuid(key: RandomKey, step: u32, out: &mut Vec<u8>) {
    let key = key.purpose(UUID_PURPOSE);
    let (high, low) = (
        key.bits(u64::from(step) * 2),
        key.bits(u64::from(step) * 2 + 1),
    );
    let (high, low) = (high & !0xf000 | 0x4000, low & !(3 << 62) | 2 << 62);
    write!(
        out,
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
    .expect("a vector takes all bytes");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::definition::{Scalar, StateDefinition};

    fn program() -> StateProgram {
        let values = [
            ("mode", Scalar::Text("a \"b\"".to_owned())),
            ("on", Scalar::Boolean(true)),
            ("power", Scalar::Number(1.5)),
        ];
        let values =
            values.map(|(name, value)| (name.to_owned(), StateDefinition::Constant(value)));
        let mut errors = Vec::new();
        let program = StateProgram::compile(
            values.iter().map(|(a, b)| (a, b)),
            "state",
            &crate::state::ReplaySources {
                folder: Path::new(""),
                target: &Default::default(),
            },
            &mut errors,
        );
        assert!(errors.is_empty(), "{errors:?}");
        program
    }

    fn compile(text: &str) -> Result<Template, String> {
        let scope = TemplateScope {
            fleet: "meters",
            product: "meter",
            event: "",
            id: None,
            state: None,
            is_response: false,
            gateway: None,
            secret: None,
        };
        let id = Template::compile("m-{index}", &scope)?;
        let program = program();
        Template::compile(
            text,
            &TemplateScope {
                id: Some(&id),
                state: Some(&program),
                ..scope
            },
        )
    }

    fn render(text: &str) -> String {
        let template = compile(text).expect("well-formed");
        let program = program();
        let mut out = Vec::new();
        let device = DeviceState {
            key: RandomKey::of_device(1, 0, 7),
            step: 4,
            elapsed_ns: 0,
            wall_ms: 1_795_291_200_123,
            cells: &[],
        };
        let input = RenderInput {
            index: 7,
            gateway_index: 0,
            device,
            program: &program,
            request: RequestView::default(),
            stamp: &NO_STAMP,
        };
        template.render(&input, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn placeholders_are_replaced_and_json_is_kept() {
        assert_eq!(
            render("{fleet}/{product}/{id}/{index}"),
            "meters/meter/m-7/7"
        );
        assert_eq!(
            render(r#"{"a":{"b":{state.power},"c":"{state.mode}"},"n":{message},"on":{state.on}}"#),
            r#"{"a":{"b":1.5,"c":"a \"b\""},"n":5,"on":true}"#
        );
        assert_eq!(render("{{index}} {} { index} {"), "{index} {} { index} {");
        assert_eq!(render("{index:1} {index:3} {{index:3}}"), "7 007 {index:3}");
        assert_eq!(
            render(r#"{"index":5} {index:x}"#),
            r#"{"index":5} {index:x}"#
        );
        assert_eq!(
            render("{now} {now_s} {time}"),
            "1795291200123 1795291200 2026-11-21T20:00:00.123Z"
        );
        let uuid = render("{uuid}");
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
    }

    #[test]
    fn unknown_names_are_errors() {
        let error = |text: &str| compile(text).unwrap_err();
        assert!(error("{indx}").contains("did you mean `{index}`?"));
        assert!(error("{index:0}").contains("1 to 9 digits"));
        assert!(error("{zzz}").contains("expected one of fleet, product, index"));
        assert!(error("{state.x}").contains("unknown value `x`; expected one of mode, on, power"));
        assert!(error("{state.on.lat}").contains("lon, lat"));
        assert!(error("{request.id}").contains("unknown placeholder"));
    }

    #[test]
    fn numbers_have_the_digits_that_are_asked_for() {
        let number = |value, decimals| {
            let mut out = Vec::new();
            write_number(value, decimals, &mut out);
            String::from_utf8(out).expect("text")
        };
        assert_eq!(number(20.0049, 2), "20.00");
        assert_eq!(number(-0.125, 1), "-0.1");
        assert_eq!(number(-0.04, 1), "0.0");
        assert_eq!(number(1234.5, 0), "1235");
        assert_eq!(number(0.1, u8::MAX), "0.1");
        assert_eq!(number(1e300, 2), "1e+300");
        assert_eq!(number(f64::NAN, 2), "null");
    }

    proptest::proptest! {
        #[test]
        fn every_number_is_json_and_near_the_value(value in -1e12..1e12f64, decimals in 0..=9u8) {
            let mut out = Vec::new();
            write_number(value, decimals, &mut out);
            let read: f64 = serde_json::from_slice(&out).expect("JSON");
            let error = 0.5 / POWERS[usize::from(decimals)] + value.abs() * 1e-12;
            assert!((read - value).abs() <= error, "{value} {decimals} {read}");
        }

        #[test]
        fn every_text_is_json_text(text in ".*") {
            let mut out = vec![b'"'];
            write_json_text(&text, &mut out);
            out.push(b'"');
            let read: String = serde_json::from_slice(&out).expect("JSON");
            assert_eq!(read, text);
        }

        #[test]
        fn no_text_panics(text in "[{}a-z. \"]{0,40}") {
            let _ = compile(&text);
        }
    }
}
