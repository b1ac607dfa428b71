//! Schedules of conditions: periods of the week in a time zone.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::definition::SchedulePeriod;
use super::definition_error::AlarmDefinitionError;

const MAX_PERIODS: usize = 32;
const MINUTES_OF_DAY: u16 = 24 * 60;

/// Compiled [`SchedulePeriod`]s.
#[derive(Debug, Clone, Default)]
pub(super) struct AlarmSchedule(Box<[CompiledPeriod]>);

#[derive(Debug, Clone)]
struct CompiledPeriod {
    zone: TimeZone,
    /// One bit per day, Monday first.
    days: u8,
    from_minute: u16,
    to_minute: u16,
}

impl AlarmSchedule {
    pub(super) fn compile(
        periods: &[SchedulePeriod],
        path: &str,
    ) -> Result<Self, AlarmDefinitionError> {
        if periods.len() > MAX_PERIODS {
            let expected = format!("expected at most {MAX_PERIODS} periods");
            return Err(AlarmDefinitionError::new(path, expected));
        }
        let compiled = periods
            .iter()
            .enumerate()
            .map(|(at, period)| compile(period, &format!("{path}[{at}]")));
        Ok(Self(compiled.collect::<Result<_, _>>()?))
    }

    pub(super) fn contains(&self, at_ms: u64) -> bool {
        self.0.is_empty() || self.0.iter().any(|period| period.contains(at_ms))
    }
}

fn compile(period: &SchedulePeriod, path: &str) -> Result<CompiledPeriod, AlarmDefinitionError> {
    let zone = match &period.timezone {
        None => TimeZone::UTC,
        Some(name) => TimeZone::get(name).map_err(|_| {
            AlarmDefinitionError::new(
                &format!("{path}.timezone"),
                format!("{name:?} is not a time zone; expected an IANA name such as Europe/Berlin"),
            )
        })?,
    };
    let mut days = 0;
    for day in &period.days {
        if !(1..=7).contains(day) {
            return Err(AlarmDefinitionError::new(
                &format!("{path}.days"),
                format!("{day} is not a day; expected 1 (Monday) to 7 (Sunday)"),
            ));
        }
        days |= 1 << (day - 1);
    }
    let minute = |field: &str, text: &Option<String>, default: u16| match text {
        None => Ok(default),
        Some(text) => minute_of_day(text).ok_or_else(|| {
            AlarmDefinitionError::new(
                &format!("{path}.{field}"),
                format!("{text:?} is not a time of day; expected HH:MM, 00:00 to 24:00"),
            )
        }),
    };
    Ok(CompiledPeriod {
        zone,
        days: if days == 0 { 0x7f } else { days },
        from_minute: minute("from", &period.from, 0)?,
        to_minute: minute("to", &period.to, MINUTES_OF_DAY)?,
    })
}

fn minute_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    if hour.len() != 2 || minute.len() != 2 {
        return None;
    }
    let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
    let at = hour * 60 + minute;
    (minute < 60 && at <= MINUTES_OF_DAY).then_some(at)
}

impl CompiledPeriod {
    fn contains(&self, at_ms: u64) -> bool {
        let Some(time) = i64::try_from(at_ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        else {
            return false;
        };
        let local = self.zone.to_datetime(time);
        let minute =
            u16::from(local.hour().unsigned_abs()) * 60 + u16::from(local.minute().unsigned_abs());
        let day = local.weekday().to_monday_zero_offset().unsigned_abs();
        let has = |day: u8| self.days & (1 << day) != 0;
        if self.from_minute < self.to_minute {
            return has(day) && (self.from_minute..self.to_minute).contains(&minute);
        }
        // A period over midnight: the part after midnight belongs to the day before.
        (has(day) && minute >= self.from_minute) || (has((day + 6) % 7) && minute < self.to_minute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(period: SchedulePeriod) -> AlarmSchedule {
        AlarmSchedule::compile(&[period], "schedule").expect("a schedule")
    }

    fn ms(text: &str) -> u64 {
        let time: Timestamp = text.parse().expect("a time");
        time.as_millisecond().unsigned_abs()
    }

    fn period(
        zone: Option<&str>,
        days: &[u8],
        from: Option<&str>,
        to: Option<&str>,
    ) -> SchedulePeriod {
        SchedulePeriod {
            timezone: zone.map(str::to_owned),
            days: days.to_vec(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        }
    }

    #[test]
    fn an_empty_schedule_means_always() {
        assert!(AlarmSchedule::default().contains(0));
        assert!(schedule(period(None, &[], None, None)).contains(ms("2026-11-21T03:00:00Z")));
    }

    #[test]
    fn hours_are_those_of_the_zone_in_summer_and_winter() {
        let office = schedule(period(
            Some("Europe/Berlin"),
            &[1, 2, 3, 4, 5],
            Some("08:00"),
            Some("18:00"),
        ));
        // Winter: UTC+1. Friday 2026-11-20.
        assert!(!office.contains(ms("2026-11-20T06:59:00Z")));
        assert!(office.contains(ms("2026-11-20T07:00:00Z")));
        assert!(!office.contains(ms("2026-11-20T17:00:00Z")));
        // Summer: UTC+2.
        assert!(office.contains(ms("2026-07-17T06:00:00Z")));
        // Saturday.
        assert!(!office.contains(ms("2026-11-21T10:00:00Z")));
    }

    #[test]
    fn a_night_belongs_to_the_day_it_begins_on() {
        let night = schedule(period(None, &[5], Some("22:00"), Some("06:00")));
        assert!(night.contains(ms("2026-11-20T23:00:00Z")));
        assert!(night.contains(ms("2026-11-21T05:59:00Z")));
        assert!(!night.contains(ms("2026-11-21T06:00:00Z")));
        assert!(!night.contains(ms("2026-11-21T23:00:00Z")));
        assert!(!night.contains(ms("2026-11-20T05:00:00Z")));
    }

    #[test]
    fn invalid_times_are_rejected_with_their_path() {
        let rejected = |period| {
            let problem =
                AlarmSchedule::compile(&[period], "raise[0].schedule").expect_err("rejected");
            problem.to_string()
        };
        insta::assert_snapshot!(
            [
                rejected(period(Some("Mars/Base"), &[], None, None)),
                rejected(period(None, &[0], None, None)),
                rejected(period(None, &[], Some("8:00"), None)),
                rejected(period(None, &[], None, Some("24:01"))),
            ]
            .join("\n")
        );
    }
}
