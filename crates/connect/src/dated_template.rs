//! Templates with `%Y.%m.%d` for the time of a row (UTC) in addition to `${...}` for its fields.

use rules::Civil;
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
        let time = TimestampParts::from_unix_ms(at_ms);
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                DatedPart::Template(template) => out.push_str(&template.render_name(what, row)?),
                DatedPart::Date(letter) => out.push_str(&time.part(*letter)),
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

/// A point in time, split into calendar fields.
pub(crate) struct TimestampParts {
    at: Civil,
    iso_year: i64,
}

impl TimestampParts {
    pub(crate) fn from_unix_ms(at_ms: u64) -> Self {
        let seconds = (at_ms / 1000) as i64;
        // A week belongs to the year of its Thursday; 1970-01-01 was one.
        let days = seconds / 86_400;
        let thursday = days + 3 - (days + 3) % 7;
        Self {
            at: Civil::from_local_s(seconds),
            iso_year: Civil::from_local_s(thursday * 86_400).year,
        }
    }

    fn part(&self, letter: char) -> String {
        match letter {
            'Y' => format!("{:04}", self.at.year),
            'y' => format!("{:02}", self.at.year % 100),
            'm' => format!("{:02}", self.at.month),
            'd' => format!("{:02}", self.at.day),
            'H' => format!("{:02}", self.at.hour),
            'M' => format!("{:02}", self.at.minute),
            'S' => format!("{:02}", self.at.second),
            'j' => format!("{:03}", self.at.day_of_year()),
            'G' => format!("{:04}", self.iso_year),
            _ => format!("{:02}", self.at.week_of_year()),
        }
    }

    /// `20130524T000000Z`.
    pub(crate) fn to_compact_text(&self) -> String {
        let parts = "YmdTHMSZ".chars().map(|letter| match letter {
            'T' | 'Z' => letter.to_string(),
            _ => self.part(letter),
        });
        parts.collect()
    }
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
            assert_eq!(
                DatedTemplate::parse("index", text).unwrap_err().field,
                "index"
            );
        }
    }
}
