//! Encoder for the line protocol: `measurement,tag=value field=1i,other="text" 1700000000000`.

use std::io::Write as _;

use crate::row::SinkValue;

/// Type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum FieldType {
    Integer,
    /// Unsigned integer; version 2 and later.
    Unsigned,
    Float,
    String,
    Boolean,
}

/// Appends a name or a tag value. A line break cannot be represented and becomes a space. A trailing backslash would
/// escape the following character and is left out.
fn put_escaped(out: &mut Vec<u8>, text: &str, special: &[char]) {
    for c in text.trim_end_matches('\\').chars() {
        match c {
            '\n' | '\r' => out.extend_from_slice(b"\\ "),
            c => {
                if special.contains(&c) {
                    out.push(b'\\');
                }
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}

pub(super) fn put_measurement(out: &mut Vec<u8>, name: &str) {
    put_escaped(out, name, &[',', ' ']);
}

/// Appends `,key=value`; nothing if the value is empty, which the protocol does not allow.
pub(super) fn put_tag(out: &mut Vec<u8>, key: &str, value: &str) {
    if value.trim_end_matches('\\').is_empty() {
        return;
    }
    out.push(b',');
    put_escaped(out, key, &[',', '=', ' ']);
    out.push(b'=');
    put_escaped(out, value, &[',', '=', ' ']);
}

/// Appends `key=value` after a space or, if it is not the first, a comma. Returns whether it appended something: null, infinite
/// numbers and values of the wrong type are left out.
pub(super) fn put_field(
    out: &mut Vec<u8>,
    key: &str,
    value: SinkValue<'_>,
    wanted: Option<FieldType>,
    is_first: bool,
) -> bool {
    let start = out.len();
    out.push(if is_first { b' ' } else { b',' });
    put_escaped(out, key, &[',', '=', ' ']);
    out.push(b'=');
    let is_there = put_value(out, value, wanted);
    if !is_there {
        out.truncate(start);
    }
    is_there
}

fn put_value(out: &mut Vec<u8>, value: SinkValue<'_>, wanted: Option<FieldType>) -> bool {
    // Writing to memory cannot fail.
    let _ = match (wanted, value) {
        (_, SinkValue::Null) => return false,
        (None | Some(FieldType::Boolean), SinkValue::Bool(value)) => write!(out, "{value}"),
        (None, SinkValue::Int(value)) => write!(out, "{value}i"),
        (None, SinkValue::Float(value)) if value.is_finite() => write!(out, "{value:?}"),
        (None, SinkValue::Float(_)) => return false,
        (Some(FieldType::Integer), value) => match integer(value) {
            Some(value) => write!(out, "{value}i"),
            None => return false,
        },
        (Some(FieldType::Unsigned), value) => match integer(value) {
            Some(value @ 0..) => write!(out, "{value}u"),
            _ => return false,
        },
        (Some(FieldType::Float), value) => match float(value) {
            Some(value) => write!(out, "{value:?}"),
            None => return false,
        },
        (Some(FieldType::Boolean), value) => match boolean(value) {
            Some(value) => write!(out, "{value}"),
            None => return false,
        },
        (None | Some(FieldType::String), value) => {
            let mut text = Vec::new();
            value.write_text(&mut text);
            out.push(b'"');
            for byte in String::from_utf8_lossy(&text).bytes() {
                if matches!(byte, b'"' | b'\\') {
                    out.push(b'\\');
                }
                out.push(byte);
            }
            out.push(b'"');
            Ok(())
        }
    };
    true
}

fn integer(value: SinkValue<'_>) -> Option<i64> {
    match value {
        SinkValue::Int(value) => Some(value),
        SinkValue::Bool(value) => Some(value.into()),
        SinkValue::Float(value) if value.fract() == 0.0 && value.abs() < 9.2e18 => {
            Some(value as i64)
        }
        SinkValue::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn float(value: SinkValue<'_>) -> Option<f64> {
    let value = match value {
        SinkValue::Int(value) => value as f64,
        SinkValue::Float(value) => value,
        SinkValue::Text(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    value.is_finite().then_some(value)
}

fn boolean(value: SinkValue<'_>) -> Option<bool> {
    match value {
        SinkValue::Int(value) => Some(value != 0),
        SinkValue::Text(text) => match text.trim() {
            "true" | "t" | "T" | "True" | "TRUE" | "1" => Some(true),
            "false" | "f" | "F" | "False" | "FALSE" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(value: SinkValue<'_>, wanted: Option<FieldType>) -> Option<String> {
        let mut out = Vec::new();
        put_field(&mut out, "f", value, wanted, true)
            .then(|| String::from_utf8(out).unwrap().split_off(3))
    }

    #[test]
    fn names_and_tags_are_escaped() {
        let mut out = Vec::new();
        put_measurement(&mut out, "my, data=x");
        put_tag(&mut out, "a b", "c,d=e f\\g\\");
        put_tag(&mut out, "none", "");
        put_tag(&mut out, "line", "1\n2");
        put_field(&mut out, "f=,1", SinkValue::Int(1), None, true);
        put_field(
            &mut out,
            "g",
            SinkValue::Text("say \"\\\" 1\n2, 3"),
            None,
            false,
        );
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "my\\,\\ data=x,a\\ b=c\\,d\\=e\\ f\\g,line=1\\ 2 f\\=\\,1=1i,g=\"say \\\"\\\\\\\" 1\n2, 3\""
        );
    }

    #[test]
    fn values_have_their_types() {
        use FieldType::*;
        let is = |value, wanted, expected: &str| {
            assert_eq!(field(value, wanted).as_deref(), Some(expected), "{value:?}");
        };
        is(SinkValue::Int(i64::MIN), None, "-9223372036854775808i");
        is(SinkValue::Float(2.0), None, "2.0");
        is(SinkValue::Float(1e300), None, "1e300");
        is(SinkValue::Bool(true), None, "true");
        is(SinkValue::Json("[1]"), None, "\"[1]\"");
        is(SinkValue::Int(5), Some(Float), "5.0");
        is(SinkValue::Text(" 5.5 "), Some(Float), "5.5");
        is(SinkValue::Float(5.0), Some(Integer), "5i");
        is(SinkValue::Int(5), Some(Unsigned), "5u");
        is(SinkValue::Int(5), Some(String), "\"5\"");
        is(SinkValue::Text("T"), Some(Boolean), "true");
        for (value, wanted) in [
            (SinkValue::Null, None),
            (SinkValue::Float(f64::NAN), None),
            (SinkValue::Float(5.5), Some(Integer)),
            (SinkValue::Int(-5), Some(Unsigned)),
            (SinkValue::Text("x"), Some(Float)),
            (SinkValue::Text("inf"), Some(Float)),
            (SinkValue::Text("x"), Some(Boolean)),
        ] {
            assert_eq!(field(value, wanted), None, "{value:?}");
        }
    }
}
