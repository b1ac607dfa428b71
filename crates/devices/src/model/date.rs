//! Dates of thing models: parses Java date patterns, and converts dates to milliseconds since 1970.

use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use rules::value::Value;
use series::PointValue as Stored;

use super::value_error::{ValueError, wrong_kind};

/// The date format of a device. Numbers are milliseconds since 1970 with any format.
#[derive(Debug, Clone, PartialEq)]
pub struct DateFormat {
    /// As in the model.
    pub pattern: Box<str>,
    /// The equivalent `strptime` pattern; `None`: only numbers are accepted.
    strptime: Option<Box<str>>,
    zone: TimeZone,
}

/// Patterns that denote a number.
const NUMBERS: [&str; 3] = ["timestamp", "number", "long"];

impl DateFormat {
    pub fn new(pattern: &str, zone: Option<&str>) -> Result<Self, String> {
        let strptime = match NUMBERS.contains(&pattern) {
            true => None,
            false => Some(strptime_of(pattern)?.into()),
        };
        let zone = match zone {
            None => TimeZone::UTC,
            Some(name) => zone_of(name).ok_or_else(|| {
                format!(
                    "expected a time zone such as \"Asia/Shanghai\" or \"+08:00\", not {name:?}"
                )
            })?,
        };
        Ok(Self {
            pattern: pattern.into(),
            strptime,
            zone,
        })
    }

    pub(super) fn check<'a, 'm>(&'m self, value: Value<'a>) -> Result<Stored<'a>, ValueError<'m>> {
        match value {
            Value::Int(ms) => Ok(Stored::Int(ms)),
            Value::Float(_) => match value.as_i64() {
                Some(ms) => Ok(Stored::Int(ms)),
                None => Err(ValueError::NotInteger),
            },
            Value::Str(text) => match self.parse(text) {
                Some(ms) => Ok(Stored::Int(ms)),
                None => Err(ValueError::NotDate {
                    format: &self.pattern,
                }),
            },
            _ => Err(wrong_kind("a date", &value)),
        }
    }

    fn parse(&self, text: &str) -> Option<i64> {
        if let Some(strptime) = &self.strptime
            && let Ok(parts) = BrokenDownTime::parse(&**strptime, text)
        {
            if parts.offset().is_some() {
                return parts.to_timestamp().ok().map(|at| at.as_millisecond());
            }
            let date = parts.to_date().ok()?;
            let time = parts.to_time().unwrap_or_default();
            let at = date.to_datetime(time).to_zoned(self.zone.clone()).ok()?;
            return Some(at.timestamp().as_millisecond());
        }
        if let Ok(ms) = text.parse() {
            return Some(ms);
        }
        let at: jiff::Timestamp = text.parse().ok()?;
        Some(at.as_millisecond())
    }
}

fn zone_of(name: &str) -> Option<TimeZone> {
    if let Ok(zone) = TimeZone::get(name) {
        return Some(zone);
    }
    let name = name.strip_prefix("GMT").unwrap_or(name);
    let parts = BrokenDownTime::parse("%:z", name).or_else(|_| BrokenDownTime::parse("%z", name));
    Some(TimeZone::fixed(parts.ok()?.offset()?))
}

/// `yyyy-MM-dd HH:mm:ss` becomes `%Y-%m-%d %H:%M:%S`.
fn strptime_of(pattern: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut letters = pattern.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == '\'' {
            // Quoted text stands for itself.
            for quoted in letters.by_ref().take_while(|&letter| letter != '\'') {
                push_literal(quoted, &mut out);
            }
            continue;
        }
        if !letter.is_ascii_alphabetic() {
            push_literal(letter, &mut out);
            continue;
        }
        let mut count = 1;
        while letters.next_if_eq(&letter).is_some() {
            count += 1;
        }
        out.push_str(match letter {
            'y' | 'u' if count == 2 => "%y",
            'y' | 'u' => "%Y",
            'M' if count <= 2 => "%m",
            'M' if count == 3 => "%b",
            'M' => "%B",
            'd' => "%d",
            'H' => "%H",
            'h' => "%I",
            'm' => "%M",
            's' => "%S",
            'S' => "%f",
            'a' => "%p",
            'X' | 'x' => "%:z",
            'Z' => "%z",
            'T' => "T",
            _ => return Err(format!("the letter {letter:?} of the date pattern {pattern:?} is not known; expected letters such as in \"yyyy-MM-dd HH:mm:ss\"")),
        });
    }
    Ok(out)
}

fn push_literal(letter: char, out: &mut String) {
    if letter == '%' {
        out.push('%');
    }
    out.push(letter);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_by_their_pattern_and_zone() {
        for (pattern, zone, text, ms) in [
            (
                "yyyy-MM-dd HH:mm:ss",
                None,
                "1970-01-02 00:00:01",
                86_401_000,
            ),
            (
                "yyyy-MM-dd HH:mm:ss",
                Some("Asia/Shanghai"),
                "1970-01-01 08:00:01",
                1000,
            ),
            (
                "yyyy-MM-dd HH:mm:ss",
                Some("+08:00"),
                "1970-01-01 08:00:01",
                1000,
            ),
            ("yyyy-MM-dd", None, "1970-01-02", 86_400_000),
            (
                "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
                None,
                "1970-01-01T01:00:00.250+01:00",
                250,
            ),
            ("timestamp", None, "1234", 1234),
            ("yyyy", None, "1970-01-01T00:00:01Z", 1000),
        ] {
            let format = DateFormat::new(pattern, zone).unwrap();
            assert_eq!(format.parse(text), Some(ms), "{pattern} {text}");
            assert_eq!(format.parse("soon"), None);
        }
        assert!(
            DateFormat::new("yyyy-qq", None)
                .unwrap_err()
                .contains("'q'")
        );
        assert!(DateFormat::new("yyyy", Some("Moon/Base")).is_err());
    }
}
