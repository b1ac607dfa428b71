//! Time zones: IANA names from a bundled database, and fixed offsets. The system's database is never read.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::civil;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::calendar::{CivilTime, DAY_S};

/// Never the system's database, even if another crate enables that feature of jiff.
static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A time zone. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(ZoneKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ZoneKind {
    /// Seconds east of UTC.
    Fixed(i32),
    Named(TimeZone),
}

impl Default for Zone {
    fn default() -> Self {
        Zone::UTC
    }
}

impl Zone {
    pub const UTC: Zone = Zone(ZoneKind::Fixed(0));

    /// A fixed offset in seconds east of UTC, less than a day.
    #[must_use]
    pub fn fixed(offset_s: i32) -> Option<Zone> {
        (offset_s.unsigned_abs() < DAY_S as u32).then_some(Zone(ZoneKind::Fixed(offset_s)))
    }

    /// Parses `UTC`, `Z`, an IANA name such as `Europe/Berlin`, or an offset: `+08:00`, `-0330`, `+8`,
    /// `+01:02:03`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Zone> {
        match text {
            "" => None,
            "Z" | "z" | "UTC" | "utc" => Some(Zone::UTC),
            _ if text.starts_with(['+', '-']) => Zone::fixed(parse_offset(text)?),
            _ => BUNDLED
                .get(text)
                .ok()
                .map(|zone| Zone(ZoneKind::Named(zone))),
        }
    }

    /// The name, or the offset in seconds as text.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.0 {
            ZoneKind::Fixed(0) => "UTC".to_owned(),
            ZoneKind::Fixed(offset_s) => format!("{offset_s:+}s"),
            ZoneKind::Named(zone) => zone.iana_name().unwrap_or_default().to_owned(),
        }
    }

    /// Offset in seconds east of UTC at a point in time.
    #[must_use]
    pub fn offset_s(&self, unix_s: i64) -> i32 {
        match &self.0 {
            ZoneKind::Fixed(offset_s) => *offset_s,
            ZoneKind::Named(zone) => match Timestamp::from_second(unix_s) {
                Ok(moment) => zone.to_offset(moment).seconds(),
                Err(_) => 0,
            },
        }
    }

    /// The point in time at which local clocks show `local_s`, given in seconds as if they were UTC. A
    /// skipped local time is moved forward by the length of the gap. Of a repeated local time the first
    /// occurrence is used.
    #[must_use]
    pub fn to_unix_s(&self, local_s: i64) -> i64 {
        match &self.0 {
            ZoneKind::Fixed(offset_s) => local_s - i64::from(*offset_s),
            ZoneKind::Named(zone) => named_to_unix_s(zone, local_s).unwrap_or(local_s),
        }
    }
}

fn named_to_unix_s(zone: &TimeZone, local_s: i64) -> Option<i64> {
    let local = CivilTime::from_local_s(local_s);
    let local = civil::DateTime::new(
        i16::try_from(local.year).ok()?,
        local.month as i8,
        local.day as i8,
        local.hour as i8,
        local.minute as i8,
        local.second as i8,
        0,
    )
    .ok()?;
    Some(zone.to_timestamp(local).ok()?.as_second())
}

/// Parses `Z`, `±hh[:mm][:ss]`, `±hhmm[ss]` into seconds east of UTC.
pub(crate) fn parse_offset(text: &str) -> Option<i32> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, digits) = match text.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let mut parts = [0_i32; 3];
    if digits.contains(':') {
        let mut given = digits.split(':');
        for part in &mut parts {
            let Some(text) = given.next() else { break };
            *part = two_digits(text)?;
        }
        if given.next().is_some() {
            return None;
        }
    } else {
        let digits = digits.as_bytes();
        if digits.len() == 1 {
            parts[0] = two_digits(str::from_utf8(digits).ok()?)?;
        } else if matches!(digits.len(), 2 | 4 | 6) {
            for (part, text) in parts.iter_mut().zip(digits.chunks_exact(2)) {
                *part = two_digits(str::from_utf8(text).ok()?)?;
            }
        } else {
            return None;
        }
    }
    let [hours, minutes, seconds] = parts;
    (hours <= 23 && minutes <= 59 && seconds <= 59)
        .then_some(sign * (hours * 3600 + minutes * 60 + seconds))
}

fn two_digits(text: &str) -> Option<i32> {
    let digits = matches!(text.len(), 1 | 2) && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_several_spellings() {
        for (text, offset_s) in [
            ("Z", 0),
            ("+08:00", 28_800),
            ("+0800", 28_800),
            ("+8", 28_800),
            ("-03:30", -12_600),
            ("+08:20:30", 30_030),
            ("UTC", 0),
        ] {
            let zone = Zone::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(zone.offset_s(0), offset_s, "{text}");
        }
        for text in [
            "",
            "+",
            "+25:00",
            "+08:60",
            "+8:",
            "+080",
            "+01:02:03:04",
            "Mars/Olympus",
            "+é",
        ] {
            assert!(Zone::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn named_zones_have_daylight_saving_time() {
        let berlin = Zone::parse("Europe/Berlin").expect("bundled");
        assert_eq!(berlin.offset_s(1_690_599_987), 7_200);
        assert_eq!(berlin.offset_s(1_700_599_987), 3_600);
        assert_eq!(berlin.to_unix_s(1_690_599_987 + 7_200), 1_690_599_987);
        // 2023-03-26 02:30 was skipped, 2023-10-29 02:30 occurred twice.
        assert_eq!(berlin.to_unix_s(1_679_797_800), 1_679_797_800 - 3_600);
        assert_eq!(berlin.to_unix_s(1_698_546_600), 1_698_546_600 - 7_200);
    }
}
