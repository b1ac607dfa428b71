//! Dates and times of day on a local clock, from seconds of any size.
//!
//! `jiff` converts years -9999 to 9999 only. The Gregorian calendar repeats every 400 years, weekdays included, so all
//! conversions are done in the 400 years from 1970.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::Offset;

pub(crate) const DAY_S: i64 = 86_400;

const EPOCH: Date = Date::constant(1970, 1, 1);
const CYCLE_YEARS: i64 = 400;
const CYCLE_S: i64 = 146_097 * DAY_S;

/// Years that functions accept and print with four digits.
pub(crate) const YEARS: std::ops::RangeInclusive<i64> = 0..=9999;

/// A calendar date and a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CivilTime {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
}

/// Formats as `2015-03-05T23:51:47`.
impl fmt::Display for CivilTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            year,
            month,
            day,
            hour,
            minute,
            second,
        } = self;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )
    }
}

impl CivilTime {
    /// Converts from seconds since 1970 on a local clock.
    pub(crate) fn from_local_s(local_s: i64) -> CivilTime {
        let within = Timestamp::from_second(local_s.rem_euclid(CYCLE_S));
        let within = within.expect("the 400 years from 1970 are in jiff's range");
        let at = Offset::UTC.to_datetime(within);
        CivilTime {
            year: i64::from(at.year()) + local_s.div_euclid(CYCLE_S) * CYCLE_YEARS,
            month: at.month().into(),
            day: at.day().into(),
            hour: at.hour().into(),
            minute: at.minute().into(),
            second: at.second().into(),
        }
    }

    /// Seconds since 1970 on a local clock; `None` if the date or time does not exist.
    pub(crate) fn to_local_s(self) -> Option<i64> {
        let date = self.date().filter(|_| YEARS.contains(&self.year))?;
        let field = |number: i64| i8::try_from(number).ok();
        let time = Time::new(
            field(self.hour)?,
            field(self.minute)?,
            field(self.second)?,
            0,
        );
        let within = Offset::UTC.to_timestamp(date.to_datetime(time.ok()?));
        Some(within.ok()?.as_second() + cycle_of(self.year) * CYCLE_S)
    }

    /// The same day in the 400 years from 1970; `None` if it does not exist.
    fn date(self) -> Option<Date> {
        date_within_cycle(self.year, self.month, self.day)
    }

    /// Monday is 1, Sunday is 7.
    pub(crate) fn weekday(self) -> i64 {
        self.date()
            .map_or(0, |date| date.weekday().to_monday_one_offset().into())
    }

    /// 1 to 366.
    pub(crate) fn day_of_year(self) -> i64 {
        self.date().map_or(0, |date| date.day_of_year().into())
    }

    /// ISO 8601: week 1 contains the year's first Thursday.
    pub(crate) fn week_of_year(self) -> i64 {
        self.date()
            .map_or(0, |date| date.iso_week_date().week().into())
    }
}

fn cycle_of(year: i64) -> i64 {
    (year - i64::from(EPOCH.year())).div_euclid(CYCLE_YEARS)
}

fn date_within_cycle(year: i64, month: i64, day: i64) -> Option<Date> {
    let year = year.checked_sub(cycle_of(year) * CYCLE_YEARS)?;
    let (month, day) = (i8::try_from(month).ok()?, i8::try_from(day).ok()?);
    Date::new(i16::try_from(year).ok()?, month, day).ok()
}

pub(crate) fn days_in_month(year: i64, month: i64) -> i64 {
    date_within_cycle(year, month, 1).map_or(0, |date| date.days_in_month().into())
}

/// The month that contains a day, given as days since 1970-01-01. Months are counted from January of year 0,
/// so that a year begins at multiples of 12.
pub(crate) fn month_of(day_number: i64) -> i64 {
    let first = CivilTime::from_local_s(day_number.saturating_mul(DAY_S));
    first.year * 12 + first.month - 1
}

/// The first day of such a month, in days since 1970-01-01.
pub(crate) fn month_start(month: i64) -> i64 {
    let year = month.div_euclid(12);
    let first = date_within_cycle(year, month.rem_euclid(12) + 1, 1);
    let first = first.expect("each month has a first day");
    let within = first.duration_since(EPOCH).as_secs() / DAY_S;
    within + cycle_of(year) * (CYCLE_S / DAY_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_many_centuries_round_trip() {
        let first = month_start(12 * -400);
        let mut expected = (-400, 1, 1);
        for day in first..month_start(12 * 3000) {
            let civil = CivilTime::from_local_s(day * DAY_S + 86_399);
            assert_eq!((civil.year, civil.month, civil.day), expected);
            assert_eq!((civil.hour, civil.minute, civil.second), (23, 59, 59));
            let local_s = YEARS.contains(&civil.year).then_some(day * DAY_S + 86_399);
            assert_eq!(civil.to_local_s(), local_s);
            let (year, month, date) = expected;
            assert_eq!(month_of(day), year * 12 + month - 1);
            expected = if date < days_in_month(year, month) {
                (year, month, date + 1)
            } else if month < 12 {
                (year, month + 1, 1)
            } else {
                (year + 1, 1, 1)
            };
        }
    }

    #[test]
    fn seconds_of_any_size_have_a_date() {
        let last = CivilTime::from_local_s(253_402_300_799);
        assert_eq!(last.to_string(), "9999-12-31T23:59:59");
        assert_eq!(last.to_local_s(), Some(253_402_300_799));
        assert_eq!(CivilTime::from_local_s(253_402_300_800).year, 10_000);
        for local_s in [i64::MIN, i64::MAX] {
            let civil = CivilTime::from_local_s(local_s);
            assert!(!YEARS.contains(&civil.year) && civil.to_local_s().is_none());
            assert!((1..=7).contains(&civil.weekday()), "{civil:?}");
            let month = month_of(local_s / DAY_S);
            assert!(month_start(month) <= local_s / DAY_S);
        }
    }

    #[test]
    fn weeks_follow_iso_8601() {
        for (year, month, day, week, weekday) in [
            (2023, 7, 29, 30, 6),
            (2021, 1, 3, 53, 7),
            (2020, 12, 31, 53, 4),
            (2024, 12, 30, 1, 1),
            (2026, 1, 1, 1, 4),
        ] {
            let civil = CivilTime {
                year,
                month,
                day,
                hour: 0,
                minute: 0,
                second: 0,
            };
            assert_eq!(
                (civil.week_of_year(), civil.weekday()),
                (week, weekday),
                "{civil:?}"
            );
        }
    }

    #[test]
    fn invalid_dates_are_rejected() {
        let civil = CivilTime {
            year: 2023,
            month: 2,
            day: 29,
            hour: 0,
            minute: 0,
            second: 0,
        };
        assert_eq!(civil.to_local_s(), None);
        let civil = CivilTime {
            year: 2024,
            hour: 24,
            ..civil
        };
        assert_eq!(civil.to_local_s(), None);
        assert_eq!(
            CivilTime { hour: 23, ..civil }.to_local_s(),
            Some(1_709_247_600)
        );
    }
}
