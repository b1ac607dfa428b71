//! Templates with `%Y.%m.%d` for the time of a row (UTC) in addition to `${...}` for its fields.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use wall_clock::now_ms;

use crate::connector::ConnectorError;
use crate::row::{SinkRow, SinkValue};
use crate::settings::SettingsError;
use crate::template::Template;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatedTemplate(Vec<DatedPart>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum DatedPart {
    Template(Template),
    /// The letter after the `%`.
    Date(char),
}

const LETTERS: &str = "YymdHMSjGV";

impl DatedTemplate {
    /// `field` is the name of the setting, for errors.
    pub(crate) fn parse(field: &str, text: &str) -> Result<Self, SettingsError> {
        let mut pieces = Vec::new();
        // Text of the inner template; a % within a placeholder is not a date field.
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
                    pieces.push(DatedPart::Template(Template::parse(field, &plain)?));
                    plain.clear();
                    pieces.push(DatedPart::Date(letter));
                }
                _ => {
                    let detail = "expected one of Y y m d H M S j G V behind %, or %% for a %";
                    return Err(SettingsError::new(field, detail));
                }
            }
            rest = &rest[1..];
        }
        pieces.push(DatedPart::Template(Template::parse(field, &plain)?));
        Ok(Self(pieces))
    }

    /// Renders the template; a null value is an error of the row. `what` names the setting.
    pub(crate) fn render(
        &self,
        what: &str,
        row: SinkRow<'_>,
        at_ms: u64,
    ) -> Result<String, ConnectorError> {
        let at = i64::try_from(at_ms)
            .ok()
            .and_then(|at_ms| Timestamp::from_millisecond(at_ms).ok());
        let at = at.map(|at| Offset::UTC.to_datetime(at)).ok_or_else(|| {
            ConnectorError::permanent(format!(
                "{what}: the row's timestamp is {at_ms}; expected milliseconds since 1970, before the year 10000"
            ))
        })?;
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                DatedPart::Template(template) => out.push_str(&template.render_name(what, row)?),
                DatedPart::Date(letter) => write_date_part(at, *letter, &mut out),
            }
        }
        Ok(out)
    }
}

/// Creation time of a row: its field `timestamp` in milliseconds, otherwise the current time.
pub(crate) fn row_time_ms(row: SinkRow<'_>) -> u64 {
    match row.get("timestamp") {
        Some(SinkValue::Int(at_ms)) => u64::try_from(at_ms).unwrap_or_default(),
        _ => now_ms(),
    }
}

/// The calendar field of a letter behind `%`, in UTC.
fn write_date_part(at: DateTime, letter: char, out: &mut String) {
    let (number, width) = match letter {
        'Y' => (at.year(), 4),
        'y' => (at.year() % 100, 2),
        'm' => (at.month().into(), 2),
        'd' => (at.day().into(), 2),
        'H' => (at.hour().into(), 2),
        'M' => (at.minute().into(), 2),
        'S' => (at.second().into(), 2),
        'j' => (at.date().day_of_year(), 3),
        'G' => (at.date().iso_week_date().year(), 4),
        _ => (at.date().iso_week_date().week().into(), 2),
    };
    // Writing to a String cannot fail.
    let _ = write!(out, "{number:0width$}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;

    fn rendered(text: &str, at_s: u64) -> String {
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).text("a%Y", "x%d");
        let dated = DatedTemplate::parse("index", text).unwrap();
        let row = SinkRow::from_bytes(&bytes);
        dated.render("index", row, at_s * 1000).unwrap()
    }

    #[test]
    fn dates_are_filled_in() {
        assert_eq!(
            rendered("l-%Y.%m.%d-%H%M%S", 1_000_000_000),
            "l-2001.09.09-014640"
        );
        assert_eq!(rendered("100%% %y %j", 1_709_164_800), "100% 24 060");
        assert_eq!(rendered("%Y-%m-%d", 0), "1970-01-01");
        // Field values are not interpreted as date fields.
        assert_eq!(rendered("${'a%Y'}", 0), "x%d");
    }

    #[test]
    fn a_time_in_other_units_is_an_error_of_the_row() {
        let dated = DatedTemplate::parse("index", "l-%Y").unwrap();
        let error = dated.render("index", SinkRow::from_bytes(&[]), 1_700_000_000_000_000);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("expected milliseconds"), "{error}");
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
    fn other_letters_are_rejected() {
        for text in ["%q", "a%", "%", "%é"] {
            assert_eq!(
                DatedTemplate::parse("index", text).unwrap_err().field,
                "index"
            );
        }
    }
}
