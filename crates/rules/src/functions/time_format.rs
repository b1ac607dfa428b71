//! Formatting and parsing of times: EMQX's percent directives, Java's patterns, and the plain formats that
//! other functions read.

use bumpalo::collections::String as ArenaString;

use crate::calendar::CivilTime;

/// A point in time: seconds since 1970 and the fraction of the second.
#[derive(Clone, Copy)]
pub(super) struct UnixTime {
    pub(super) unix_s: i64,
    pub(super) nanosecond: i64,
}

/// A local date and time and its offset from UTC.
#[derive(Clone, Copy)]
pub(super) struct LocalTime {
    pub(super) civil: CivilTime,
    pub(super) nanosecond: i64,
    pub(super) offset_s: i32,
}

/// The result of parsing a text.
pub(super) struct ParsedTime {
    pub(super) civil: CivilTime,
    pub(super) nanosecond: i64,
    /// The offset, if the text contained one.
    pub(super) offset_s: Option<i32>,
}

impl ParsedTime {
    fn new() -> ParsedTime {
        let civil = CivilTime {
            year: 1970,
            month: 1,
            day: 1,
            hour: 0,
            minute: 0,
            second: 0,
        };
        ParsedTime {
            civil,
            nanosecond: 0,
            offset_s: None,
        }
    }
}

type ParseResult<T> = Result<T, String>;

/// Writes a non-negative number padded with zeros.
pub(super) fn write_padded(out: &mut ArenaString<'_>, number: i64, count: usize) {
    if count == 2 && (0..100).contains(&number) {
        let pair = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        out.push_str(str::from_utf8(&pair).expect("digits"));
        return;
    }
    let mut text = [b'0'; 20];
    let mut left = number.unsigned_abs();
    let mut at = text.len();
    while left > 0 {
        at -= 1;
        text[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    at = at.min(text.len() - count.min(text.len()));
    out.push_str(str::from_utf8(&text[at..]).expect("digits"));
}

/// Writes `+hh:mm` with this separator, and the seconds of the offset if `seconds` is set.
pub(super) fn write_offset(
    out: &mut ArenaString<'_>,
    offset_s: i32,
    separator: &str,
    seconds: bool,
) {
    out.push(if offset_s < 0 { '-' } else { '+' });
    let offset_s = i64::from(offset_s.unsigned_abs());
    write_padded(out, offset_s / 3600, 2);
    out.push_str(separator);
    write_padded(out, offset_s / 60 % 60, 2);
    if seconds {
        out.push_str(separator);
        write_padded(out, offset_s % 60, 2);
    }
}

/// Formats with EMQX's directives; anything else is copied.
pub(super) fn write_percent(out: &mut ArenaString<'_>, format: &str, shown: LocalTime) {
    let civil = shown.civil;
    let mut rest = format;
    while let Some(at) = memchr::memchr(b'%', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some((directive, behind)) = directive(rest) else {
            out.push('%');
            rest = &rest[1..];
            continue;
        };
        rest = behind;
        match directive {
            Directive::Year => write_padded(out, civil.year, 4),
            Directive::Month => write_padded(out, civil.month, 2),
            Directive::Day => write_padded(out, civil.day, 2),
            Directive::Hour => write_padded(out, civil.hour, 2),
            Directive::Minute => write_padded(out, civil.minute, 2),
            Directive::Second => write_padded(out, civil.second, 2),
            Directive::Fraction(count) => {
                write_padded(
                    out,
                    shown.nanosecond / 10_i64.pow(9 - count),
                    count as usize,
                );
            }
            Directive::Offset(0) => write_offset(out, shown.offset_s, "", false),
            Directive::Offset(colons) => write_offset(out, shown.offset_s, ":", colons == 2),
        }
    }
    out.push_str(rest);
}

#[derive(Clone, Copy)]
enum Directive {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    /// Number of digits of the fraction.
    Fraction(u32),
    /// Number of colons.
    Offset(u8),
}

const DIRECTIVES: &[(&str, Directive)] = &[
    ("%Y", Directive::Year),
    ("%m", Directive::Month),
    ("%d", Directive::Day),
    ("%H", Directive::Hour),
    ("%M", Directive::Minute),
    ("%S", Directive::Second),
    ("%N", Directive::Fraction(9)),
    ("%3N", Directive::Fraction(3)),
    ("%6N", Directive::Fraction(6)),
    ("%z", Directive::Offset(0)),
    ("%:z", Directive::Offset(1)),
    ("%::z", Directive::Offset(2)),
];

fn directive(text: &str) -> Option<(Directive, &str)> {
    DIRECTIVES
        .iter()
        .find_map(|(name, directive)| Some((*directive, text.strip_prefix(name)?)))
}

/// Checks that a text in this format contains a complete date and time.
pub(super) fn check_percent(format: &str) -> ParseResult<()> {
    for (name, part) in [
        ("%Y", "year"),
        ("%m", "month"),
        ("%d", "day"),
        ("%H", "hour"),
        ("%M", "minute"),
        ("%S", "second"),
    ] {
        if !format.contains(name) {
            return Err(format!(
                "the format {format:?} lacks the {part}, expected {name}"
            ));
        }
    }
    Ok(())
}

/// Parses a text by a format that [`check_percent`] accepts. As in EMQX, separators between numbers may
/// differ. If the text ends before the offset, it has none.
pub(super) fn read_percent(format: &str, text: &str) -> ParseResult<ParsedTime> {
    let mut parsed = ParsedTime::new();
    let mut reader = TimeReader {
        rest: text,
        whole: text,
    };
    let mut rest = format;
    while let Some(letter) = rest.chars().next() {
        let Some((directive, behind)) = directive(rest) else {
            reader.separator(letter)?;
            rest = &rest[letter.len_utf8()..];
            continue;
        };
        rest = behind;
        let civil = &mut parsed.civil;
        match directive {
            Directive::Year => civil.year = reader.number(4, "the year")?,
            Directive::Month => civil.month = reader.number(2, "the month")?,
            Directive::Day => civil.day = reader.number(2, "the day")?,
            Directive::Hour => civil.hour = reader.number(2, "the hour")?,
            Directive::Minute => civil.minute = reader.number(2, "the minute")?,
            Directive::Second => civil.second = reader.number(2, "the second")?,
            Directive::Fraction(count) => {
                parsed.nanosecond =
                    reader.number(count as usize, "the fraction")? * 10_i64.pow(9 - count);
            }
            Directive::Offset(_) if reader.rest.is_empty() => {}
            Directive::Offset(_) => parsed.offset_s = Some(reader.offset()?),
        }
    }
    reader.end()?;
    Ok(parsed)
}

/// Parses `2023-07-29`; slashes are accepted.
pub(super) fn read_date(text: &str) -> ParseResult<ParsedTime> {
    let mut reader = TimeReader {
        rest: text.trim(),
        whole: text,
    };
    let mut parsed = ParsedTime::new();
    reader.date(&mut parsed.civil)?;
    reader.end()?;
    Ok(parsed)
}

/// Parses `11:06:27`, `11:06`, `11:06:27.495`.
pub(super) fn read_time(text: &str) -> ParseResult<ParsedTime> {
    let mut reader = TimeReader {
        rest: text.trim(),
        whole: text,
    };
    let mut parsed = ParsedTime::new();
    reader.time(&mut parsed)?;
    reader.end()?;
    if parsed.civil.to_local_s().is_none() {
        return Err(format!("there is no such time: {text:?}"));
    }
    Ok(parsed)
}

/// Parses `2023-07-29 11:06:27`, with `T` accepted instead of the blank, and an optional fraction and offset.
pub(super) fn read_datetime(text: &str) -> ParseResult<ParsedTime> {
    let mut reader = TimeReader {
        rest: text.trim(),
        whole: text,
    };
    let mut parsed = ParsedTime::new();
    reader.date(&mut parsed.civil)?;
    if reader.rest.is_empty() {
        return Ok(parsed);
    }
    reader.one_of(&['T', 't', ' '])?;
    reader.time(&mut parsed)?;
    if !reader.rest.is_empty() {
        parsed.offset_s = Some(reader.offset()?);
    }
    reader.end()?;
    Ok(parsed)
}

struct TimeReader<'t> {
    rest: &'t str,
    whole: &'t str,
}

impl TimeReader<'_> {
    fn parse_error<T>(&self, expected: &str) -> ParseResult<T> {
        let mut shown: String = self.whole.chars().take(40).collect();
        if shown.len() < self.whole.len() {
            shown.push_str("...");
        }
        let at = self.whole.len() - self.rest.len();
        Err(format!("expected {expected} at byte {at} of {shown:?}"))
    }

    fn literal(&mut self, letter: char) -> ParseResult<()> {
        match self.rest.strip_prefix(letter) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => self.parse_error(&format!("{letter:?}")),
        }
    }

    /// Any character except a digit is accepted as this separator.
    fn separator(&mut self, letter: char) -> ParseResult<()> {
        match self.rest.chars().next() {
            Some(other) if other == letter || !other.is_ascii_digit() => {
                self.rest = &self.rest[other.len_utf8()..];
                Ok(())
            }
            _ => self.parse_error(&format!("{letter:?}")),
        }
    }

    fn one_of(&mut self, letters: &[char]) -> ParseResult<()> {
        match self.rest.strip_prefix(letters) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => self.parse_error(&format!("one of {letters:?}")),
        }
    }

    fn number(&mut self, count: usize, what: &str) -> ParseResult<i64> {
        match self.rest.split_at_checked(count) {
            Some((digits, rest)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.rest = rest;
                Ok(digits
                    .bytes()
                    .fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
            }
            _ => self.parse_error(&format!("{count} digits of {what}")),
        }
    }

    fn date(&mut self, civil: &mut CivilTime) -> ParseResult<()> {
        civil.year = self.number(4, "the year")?;
        self.one_of(&['-', '/'])?;
        civil.month = self.number(2, "the month")?;
        self.one_of(&['-', '/'])?;
        civil.day = self.number(2, "the day")?;
        Ok(())
    }

    fn time(&mut self, parsed: &mut ParsedTime) -> ParseResult<()> {
        parsed.civil.hour = self.number(2, "the hour")?;
        self.literal(':')?;
        parsed.civil.minute = self.number(2, "the minute")?;
        let Some(rest) = self.rest.strip_prefix(':') else {
            return Ok(());
        };
        self.rest = rest;
        parsed.civil.second = self.number(2, "the second")?;
        if let Some(rest) = self.rest.strip_prefix(['.', ',']) {
            let count = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (fraction, behind) = rest.split_at(count);
            if count == 0 {
                return self.parse_error("digits of the fraction");
            }
            let nine = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
            parsed.nanosecond = nine.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
            self.rest = behind;
        }
        Ok(())
    }

    /// Parses the rest of the text as an offset, or the part of it that looks like one.
    fn offset(&mut self) -> ParseResult<i32> {
        let text = self.rest.trim_start();
        let end = text
            .char_indices()
            .find(|(at, letter)| *at > 0 && !letter.is_ascii_digit() && *letter != ':')
            .map_or(text.len(), |(at, _)| at);
        let (offset, behind) = text.split_at(end);
        match crate::zone::parse_offset(offset) {
            Some(offset_s) => {
                self.rest = behind;
                Ok(offset_s)
            }
            None => self.parse_error("an offset such as Z or +08:00"),
        }
    }

    fn end(&self) -> ParseResult<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            self.parse_error("the end")
        }
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// Formats with a Java pattern: runs of letters are fields; 'quoted text' and all other characters are
/// copied.
pub(super) fn write_java(
    out: &mut ArenaString<'_>,
    pattern: &str,
    shown: LocalTime,
) -> ParseResult<()> {
    let mut rest = pattern;
    while let Some(letter) = rest.chars().next() {
        if letter == '\'' {
            rest = write_quoted(out, &rest[1..]);
            continue;
        }
        if !letter.is_ascii_alphabetic() {
            out.push(letter);
            rest = &rest[letter.len_utf8()..];
            continue;
        }
        let count = rest.chars().take_while(|next| *next == letter).count();
        rest = &rest[count..];
        write_java_field(out, letter, count, shown)?;
    }
    Ok(())
}

/// Copies text up to the closing quote; two quotes stand for one. Returns the rest.
fn write_quoted<'t>(out: &mut ArenaString<'_>, text: &'t str) -> &'t str {
    if let Some(rest) = text.strip_prefix('\'') {
        out.push('\'');
        return rest;
    }
    let mut rest = text;
    loop {
        let Some((quoted, behind)) = rest.split_once('\'') else {
            out.push_str(rest);
            return "";
        };
        out.push_str(quoted);
        match behind.strip_prefix('\'') {
            Some(behind) => {
                out.push('\'');
                rest = behind;
            }
            None => return behind,
        }
    }
}

fn write_java_field(
    out: &mut ArenaString<'_>,
    letter: char,
    count: usize,
    shown: LocalTime,
) -> ParseResult<()> {
    let civil = shown.civil;
    match letter {
        'y' | 'u' | 'Y' if count == 2 => write_padded(out, civil.year % 100, 2),
        'y' | 'u' | 'Y' => write_padded(out, civil.year, count.clamp(4, 9)),
        'M' | 'L' if count >= 3 => write_name(out, MONTHS[civil.month as usize - 1], count),
        'M' | 'L' => write_padded(out, civil.month, count),
        'd' => write_padded(out, civil.day, count),
        'D' => write_padded(out, civil.day_of_year(), count),
        'H' => write_padded(out, civil.hour, count),
        'k' => write_padded(out, if civil.hour == 0 { 24 } else { civil.hour }, count),
        'K' => write_padded(out, civil.hour % 12, count),
        'h' => write_padded(out, (civil.hour + 11) % 12 + 1, count),
        'm' => write_padded(out, civil.minute, count),
        's' => write_padded(out, civil.second, count),
        'S' => {
            let count = count.min(9);
            write_padded(out, shown.nanosecond / 10_i64.pow(9 - count as u32), count);
        }
        'n' => write_padded(out, shown.nanosecond, count),
        'a' => out.push_str(if civil.hour < 12 { "AM" } else { "PM" }),
        'E' => write_name(out, DAYS[civil.weekday() as usize - 1], count.max(3)),
        'e' => write_padded(out, civil.weekday(), count),
        'w' => write_padded(out, civil.week_of_year(), count),
        'Q' => write_padded(out, (civil.month + 2) / 3, count),
        'X' if shown.offset_s == 0 => out.push('Z'),
        'X' | 'x' if count == 1 && shown.offset_s % 3600 == 0 => {
            out.push(if shown.offset_s < 0 { '-' } else { '+' });
            write_padded(out, i64::from(shown.offset_s.abs() / 3600), 2);
        }
        'X' | 'x' => write_offset(
            out,
            shown.offset_s,
            if count == 3 || count == 5 { ":" } else { "" },
            false,
        ),
        'Z' if count < 4 => write_offset(out, shown.offset_s, "", false),
        'Z' | 'z' | 'O' | 'V' | 'v' => write_offset(out, shown.offset_s, ":", false),
        'G' => out.push_str("AD"),
        _ => {
            return Err(format!(
                "no field {letter} in a date pattern; expected y M d H h m s S a E D w Q X x Z, other letters in quotes"
            ));
        }
    }
    Ok(())
}

/// Writes a name or its first three letters.
fn write_name(out: &mut ArenaString<'_>, name: &str, count: usize) {
    out.push_str(if count == 3 { &name[..3] } else { name });
}
