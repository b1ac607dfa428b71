//! Texts with `%Y.%m.%d` for the time of a row beside `${...}` for its fields. The time is UTC.

use crate::machine::now_ms;
use crate::row::{Row, Value};
use crate::settings::Invalid;
use crate::template::Template;

/// A text to fill in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dated(Vec<Piece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Template(Template),
    /// The letter behind the `%`.
    Date(char),
}

const LETTERS: &str = "YymdHMSjGV";

impl Dated {
    /// `field` is the setting the text is from, for the error.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, Invalid> {
        let mut pieces = Vec::new();
        // What belongs to a template; a % within a placeholder is none of a date.
        let mut plain = String::new();
        let mut rest = text;
        while let Some(next) = rest.chars().next() {
            if rest.starts_with("${") {
                let end = rest.find('}').map_or(rest.len(), |at| at + 1);
                plain.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            rest = &rest[next.len_utf8()..];
            if next != '%' {
                plain.push(next);
                continue;
            }
            let letter = rest.chars().next();
            match letter {
                Some('%') => plain.push('%'),
                Some(letter) if LETTERS.contains(letter) => {
                    pieces.push(Piece::Template(Template::parse(field, &plain)?));
                    plain.clear();
                    pieces.push(Piece::Date(letter));
                }
                _ => {
                    let detail = "expected one of Y y m d H M S j G V behind %, or %% for a %";
                    return Err(Invalid::new(field, detail));
                }
            }
            rest = &rest[1..];
        }
        pieces.push(Piece::Template(Template::parse(field, &plain)?));
        Ok(Self(pieces))
    }

    pub(crate) fn render(&self, row: Row<'_>, at_ms: u64) -> String {
        let time = Time::of(at_ms);
        let mut out = Vec::new();
        for piece in &self.0 {
            match piece {
                Piece::Template(template) => template.render(row, &mut out),
                Piece::Date(letter) => out.extend_from_slice(time.part(*letter).as_bytes()),
            }
        }
        String::from_utf8(out)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

/// When a row came to be: its field `timestamp` in milliseconds, or else now.
pub(crate) fn time_of(row: Row<'_>) -> u64 {
    match row.get("timestamp") {
        Some(Value::Int(at_ms)) => u64::try_from(at_ms).unwrap_or_default(),
        _ => now_ms(),
    }
}

/// A moment, taken apart.
pub(crate) struct Time {
    year: u64,
    month: u64,
    day: u64,
    /// From 1.
    day_of_year: u64,
    hour: u64,
    minute: u64,
    second: u64,
    iso_year: u64,
    iso_week: u64,
}

impl Time {
    pub(crate) fn of(at_ms: u64) -> Self {
        let seconds = at_ms / 1000;
        let days = seconds / 86_400;
        let (year, month, day) = date_of(days);
        let day_of_year = days - days_before(year) + 1;
        // A week belongs to the year of its Thursday; 1970-01-01 was one.
        let thursday = days + 3 - (days + 3) % 7;
        let (iso_year, _, _) = date_of(thursday);
        Self {
            year,
            month,
            day,
            day_of_year,
            hour: seconds / 3600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            iso_year,
            iso_week: (thursday - days_before(iso_year)) / 7 + 1,
        }
    }

    fn part(&self, letter: char) -> String {
        match letter {
            'Y' => format!("{:04}", self.year),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'H' => format!("{:02}", self.hour),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'j' => format!("{:03}", self.day_of_year),
            'G' => format!("{:04}", self.iso_year),
            _ => format!("{:02}", self.iso_week),
        }
    }

    /// `20130524T000000Z`.
    pub(crate) fn compact(&self) -> String {
        let parts = "YmdTHMSZ".chars().map(|letter| match letter {
            'T' | 'Z' => letter.to_string(),
            _ => self.part(letter),
        });
        parts.collect()
    }
}

/// Year, month and day, counted from 1, of a day since 1970-01-01. The year is taken to begin in March, so that the day
/// that comes and goes is its last.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Days from 1970-01-01 to the first of January of a year.
fn days_before(year: u64) -> u64 {
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::RowWriter;

    fn rendered(text: &str, at_s: u64) -> String {
        let mut bytes = Vec::new();
        RowWriter::new(&mut bytes).text("a%Y", "x%d");
        let dated = Dated::parse("index", text).unwrap();
        dated.render(Row::from_bytes(&bytes), at_s * 1000)
    }

    #[test]
    fn dates_are_filled_in() {
        assert_eq!(
            rendered("l-%Y.%m.%d-%H%M%S", 1_000_000_000),
            "l-2001.09.09-014640"
        );
        assert_eq!(rendered("100%% %y %j", 1_709_164_800), "100% 24 060");
        assert_eq!(rendered("%Y-%m-%d", 0), "1970-01-01");
        // What comes from fields is no date.
        assert_eq!(rendered("${'a%Y'}", 0), "x%d");
    }

    #[test]
    fn weeks_are_those_of_iso_8601() {
        // 2016-01-03, 2018-12-31, 2020-12-31, 2021-01-01, 2026-11-21
        for (at_s, week) in [
            (1_451_779_200, "2015-53"),
            (1_546_214_400, "2019-01"),
            (1_609_372_800, "2020-53"),
            (1_609_459_200, "2020-53"),
            (1_795_219_200, "2026-47"),
            (0, "1970-01"),
        ] {
            assert_eq!(rendered("%G-%V", at_s), week, "{at_s}");
        }
    }

    #[test]
    fn other_letters_are_refused() {
        for text in ["%q", "a%", "%", "%é"] {
            assert_eq!(Dated::parse("index", text).unwrap_err().field, "index");
        }
    }
}
