//! Gregorian calendar arithmetic: converts between seconds and year, month, day.

use std::fmt;

pub(crate) const DAY_S: i64 = 86_400;

/// Years that functions accept and print with four digits.
pub(crate) const YEARS: std::ops::RangeInclusive<i64> = 0..=9999;

/// A calendar date and a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    pub year: i64,
    pub month: i64,
    pub day: i64,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
}

/// Formats as `2015-03-05T23:51:47`.
impl fmt::Display for Civil {
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

impl Civil {
    /// Converts from seconds since 1970 on a local clock.
    pub fn from_local_s(local_s: i64) -> Civil {
        let (year, month, day) = date_of(local_s.div_euclid(DAY_S));
        let second = local_s.rem_euclid(DAY_S);
        Civil {
            year,
            month,
            day,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    /// Seconds since 1970 on a local clock; `None` if the date or time does not exist.
    pub(crate) fn to_local_s(self) -> Option<i64> {
        let valid = YEARS.contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=days_in_month(self.year, self.month)).contains(&self.day)
            && (0..=23).contains(&self.hour)
            && (0..=59).contains(&self.minute)
            && (0..=59).contains(&self.second);
        valid.then(|| {
            day_number(self.year, self.month, self.day) * DAY_S
                + self.hour * 3600
                + self.minute * 60
                + self.second
        })
    }

    /// Monday is 1, Sunday is 7.
    pub(crate) fn weekday(self) -> i64 {
        // 1970-01-01 was a Thursday.
        (day_number(self.year, self.month, self.day) + 3).rem_euclid(7) + 1
    }

    /// 1 to 366.
    pub fn day_of_year(self) -> i64 {
        day_number(self.year, self.month, self.day) - day_number(self.year, 1, 1) + 1
    }

    /// ISO 8601: week 1 contains the year's first Thursday.
    pub fn week_of_year(self) -> i64 {
        let thursday = day_number(self.year, self.month, self.day) + 4 - self.weekday();
        let (year, _, _) = date_of(thursday);
        (thursday - day_number(year, 1, 1)) / 7 + 1
    }
}

pub(crate) fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The month that contains a day, given as days since 1970-01-01. Months are counted from January of year 0,
/// so that a year begins at multiples of 12.
pub(crate) fn month_of(day_number: i64) -> i64 {
    let (year, month, _) = date_of(day_number);
    year * 12 + month - 1
}

/// The first day of such a month, in days since 1970-01-01.
pub(crate) fn month_start(month: i64) -> i64 {
    day_number(month.div_euclid(12), month.rem_euclid(12) + 1, 1)
}

/// Days since 1970-01-01. The calculation uses years that begin in March, so that the leap day is the last
/// day of a year, and eras of 400 years.
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn date_of(day_number: i64) -> (i64, i64, i64) {
    let days = day_number + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_eight_centuries_round_trip() {
        let mut expected = (1600, 1, 1);
        for day in day_number(1600, 1, 1)..day_number(2400, 1, 1) {
            assert_eq!(date_of(day), expected);
            let (year, month, date) = expected;
            assert_eq!(day_number(year, month, date), day);
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
    fn weeks_follow_iso_8601() {
        for (year, month, day, week, weekday) in [
            (2023, 7, 29, 30, 6),
            (2021, 1, 3, 53, 7),
            (2020, 12, 31, 53, 4),
            (2024, 12, 30, 1, 1),
            (2026, 1, 1, 1, 4),
        ] {
            let civil = Civil {
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
        let civil = Civil {
            year: 2023,
            month: 2,
            day: 29,
            hour: 0,
            minute: 0,
            second: 0,
        };
        assert_eq!(civil.to_local_s(), None);
        let civil = Civil {
            year: 2024,
            hour: 24,
            ..civil
        };
        assert_eq!(civil.to_local_s(), None);
        assert_eq!(
            Civil { hour: 23, ..civil }.to_local_s(),
            Some(1_709_247_600)
        );
    }
}
