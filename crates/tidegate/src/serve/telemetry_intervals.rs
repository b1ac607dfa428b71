//! Aggregation of telemetry by intervals of fixed length, and by days, weeks, months, quarters and
//! years of a calendar.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use api::{CalendarUnit, IntervalLength, IntervalQuery, IntervalRow, TelemetryBackendError};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde_json::Value;
use series::{
    Aggregate, DeviceNo, IntervalSummary, Intervals, KeyId, RangeQuery, RowOrder, Series,
};

use super::telemetry_values::{to_backend_error, value_to_json};

/// Maximum number of intervals per response.
const MAX_INTERVALS: usize = 1_000_000;

fn parameter_error(name: &'static str, detail: impl Into<String>) -> TelemetryBackendError {
    TelemetryBackendError::Parameter {
        name,
        detail: detail.into(),
    }
}

/// The time zone with this IANA name; UTC without a name.
fn parse_time_zone(name: Option<&str>) -> Result<TimeZone, TelemetryBackendError> {
    let Some(name) = name else {
        return Ok(TimeZone::UTC);
    };
    TimeZone::get(name).map_err(|_| {
        let detail = format!("{name:?} is unknown; expected an IANA name such as Europe/Berlin");
        parameter_error("time_zone", detail)
    })
}

fn out_of_bounds_error() -> TelemetryBackendError {
    parameter_error("from_ms", "expected a time of the years 1 to 9999")
}

/// The start of a local day: midnight, or the first time of the day if clocks skip midnight.
fn day_start(date: Date, zone: &TimeZone) -> Result<i64, TelemetryBackendError> {
    let start = date
        .to_zoned(zone.clone())
        .map_err(|_| out_of_bounds_error())?;
    Ok(start.timestamp().as_millisecond())
}

fn date_of(ts_ms: i64, zone: &TimeZone) -> Result<Date, TelemetryBackendError> {
    let time = Timestamp::from_millisecond(ts_ms).map_err(|_| out_of_bounds_error())?;
    Ok(time.to_zoned(zone.clone()).date())
}

/// The start of the calendar unit that contains this day.
fn unit_start(unit: CalendarUnit, date: Date) -> Result<Date, TelemetryBackendError> {
    let month = |month| Date::new(date.year(), month, 1);
    let first = match unit {
        CalendarUnit::Day => Ok(date),
        // ISO 8601: a week begins on Monday.
        CalendarUnit::Week => {
            let days = date.weekday().to_monday_zero_offset();
            date.checked_sub(i32::from(days).days())
        }
        CalendarUnit::WeekFromSunday => {
            let days = date.weekday().to_sunday_zero_offset();
            date.checked_sub(i32::from(days).days())
        }
        CalendarUnit::Month => month(date.month()),
        CalendarUnit::Quarter => month((date.month() - 1) / 3 * 3 + 1),
        CalendarUnit::Year => month(1),
    };
    first.map_err(|_| out_of_bounds_error())
}

fn next_unit_start(unit: CalendarUnit, date: Date) -> Option<Date> {
    let span = match unit {
        CalendarUnit::Day => 1.day(),
        CalendarUnit::Week | CalendarUnit::WeekFromSunday => 1.week(),
        CalendarUnit::Month => 1.month(),
        CalendarUnit::Quarter => 3.months(),
        CalendarUnit::Year => 1.year(),
    };
    date.checked_add(span).ok()
}

/// The starts of calendar units, from the one that contains `from_ms` to the last one before
/// `to_ms`.
fn interval_starts(
    unit: CalendarUnit,
    zone: &TimeZone,
    (from_ms, to_ms): (i64, i64),
) -> Result<Vec<i64>, TelemetryBackendError> {
    let mut date = unit_start(unit, date_of(from_ms, zone)?)?;
    let mut starts = vec![day_start(date, zone)?];
    while starts.len() <= MAX_INTERVALS {
        let Some(next) = next_unit_start(unit, date) else {
            break;
        };
        let start = day_start(next, zone)?;
        if start >= to_ms {
            break;
        }
        // A day skipped by the time zone starts with the next day.
        if starts.last().is_none_or(|last| *last < start) {
            starts.push(start);
        }
        date = next;
    }
    Ok(starts)
}

fn interval_list(query: &IntervalQuery, from_ms: i64) -> Result<Intervals, TelemetryBackendError> {
    let zone = parse_time_zone(query.time_zone.as_deref())?;
    let times = (from_ms, query.to_ms);
    let mut intervals = Intervals {
        from_ms,
        to_ms: query.to_ms,
        ..Intervals::default()
    };
    match query.length {
        IntervalLength::All => {
            intervals.interval_ms = (query.to_ms - from_ms).max(1);
            intervals.origin_ms = from_ms;
        }
        IntervalLength::Ms(interval_ms) => {
            intervals.interval_ms = interval_ms;
            intervals.origin_ms = match query.origin_ms {
                Some(origin_ms) => origin_ms,
                None if query.time_zone.is_some() => day_start(date_of(from_ms, &zone)?, &zone)?,
                None => 0,
            };
        }
        IntervalLength::Calendar(unit) => intervals.starts = interval_starts(unit, &zone, times)?,
    }
    Ok(intervals)
}

fn function_values(summary: &IntervalSummary, functions: &[Aggregate]) -> Vec<Value> {
    let values = functions.iter().map(|function| summary.get(*function));
    values
        .map(|value| value.map_or(Value::Null, value_to_json))
        .collect()
}

/// The time of the first value before `to_ms`; `to_ms` if there is none.
fn first_value_ms(
    series: &Series,
    to_ms: i64,
    (devices, keys): (&[DeviceNo], &[KeyId]),
) -> Result<i64, TelemetryBackendError> {
    let mut first_ms = to_ms;
    for &device in devices {
        let range = RangeQuery {
            from_ms: 0,
            to_ms: first_ms,
            limit: 1,
            order: RowOrder::OldestFirst,
        };
        let found = series.range(device, Some(keys), &range, &mut |row| {
            first_ms = row.ts_ms;
            ControlFlow::Break(())
        });
        found.map_err(to_backend_error)?;
    }
    Ok(first_ms)
}

/// The intervals of each device and key, ascending; if merged, of each key over all devices.
pub(super) fn query_intervals(
    series: &Series,
    query: &IntervalQuery,
    (devices, keys): (&[DeviceNo], &[KeyId]),
) -> Result<Vec<IntervalRow>, TelemetryBackendError> {
    // Intervals from 1970 on could be as many as a caller requests, and one interval of everything would be dated 1970.
    let from_ms = match query.from_ms {
        Some(from_ms) => from_ms,
        None => first_value_ms(series, query.to_ms, (devices, keys))?,
    };
    let intervals = interval_list(query, from_ms)?;
    let name = |key| series.key_name(key).unwrap_or_default().to_owned();
    let names: HashMap<_, _> = devices.iter().copied().zip(&query.devices).collect();
    let (mut rows, mut is_too_much) = (Vec::new(), false);
    let mut merged = BTreeMap::<(String, i64), IntervalSummary>::new();
    let each = &mut |device, key, ts_ms, summary: &IntervalSummary| {
        if rows.len().max(merged.len()) >= MAX_INTERVALS {
            is_too_much = true;
        } else if query.merged {
            merged.entry((name(key), ts_ms)).or_default().merge(summary);
        } else {
            rows.push(IntervalRow {
                device: names.get(&device).map(|name| (*name).clone()),
                key: name(key),
                ts_ms,
                values: function_values(summary, &query.functions),
            });
        }
    };
    let read = series.aggregate(devices, keys, &intervals, each);
    read.map_err(to_backend_error)?;
    if is_too_much {
        let detail = format!("expected a length that gives at most {MAX_INTERVALS} intervals");
        return Err(parameter_error("interval_ms", detail));
    }
    rows.extend(
        merged
            .into_iter()
            .map(|((key, ts_ms), summary)| IntervalRow {
                device: None,
                key,
                ts_ms,
                values: function_values(&summary, &query.functions),
            }),
    );
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    fn starts_of(unit: CalendarUnit, name: &str, from: &str, to: &str) -> Vec<String> {
        let zone = parse_time_zone(Some(name)).unwrap();
        let found = interval_starts(unit, &zone, (ms(from), ms(to))).unwrap();
        let text = |ts_ms| Timestamp::from_millisecond(ts_ms).unwrap().to_string();
        found.into_iter().map(text).collect()
    }

    #[test]
    fn days_are_as_long_as_the_clocks_make_them() {
        let berlin = "Europe/Berlin";
        let from = "2025-03-29T10:00:00Z";
        assert_eq!(
            starts_of(CalendarUnit::Day, berlin, from, "2025-03-31T22:00:00Z"),
            [
                "2025-03-28T23:00:00Z",
                "2025-03-29T23:00:00Z",
                "2025-03-30T22:00:00Z"
            ]
        );
        assert_eq!(
            starts_of(
                CalendarUnit::Day,
                berlin,
                "2025-10-26T12:00:00Z",
                "2025-10-27T00:00:00Z"
            ),
            ["2025-10-25T22:00:00Z", "2025-10-26T23:00:00Z"]
        );
        // Midnight was skipped: the day starts at one o'clock.
        assert_eq!(
            starts_of(
                CalendarUnit::Day,
                "America/Sao_Paulo",
                "2018-11-04T12:00:00Z",
                "2018-11-04T13:00:00Z"
            ),
            ["2018-11-04T03:00:00Z"]
        );
    }

    #[test]
    fn longer_units_begin_at_calendar_boundaries() {
        let of = |unit, to| starts_of(unit, "UTC", "2025-02-13T00:00:00Z", to);
        let week = of(CalendarUnit::Week, "2025-02-18T00:00:00Z");
        assert_eq!(week, ["2025-02-10T00:00:00Z", "2025-02-17T00:00:00Z"]);
        let months = of(CalendarUnit::Month, "2025-04-01T00:00:00Z");
        assert_eq!(months, ["2025-02-01T00:00:00Z", "2025-03-01T00:00:00Z"]);
        let quarters = of(CalendarUnit::Quarter, "2025-04-01T00:00:00.001Z");
        assert_eq!(quarters, ["2025-01-01T00:00:00Z", "2025-04-01T00:00:00Z"]);
        assert_eq!(
            of(CalendarUnit::Year, "2025-12-01T00:00:00Z"),
            ["2025-01-01T00:00:00Z"]
        );
    }

    #[test]
    fn unknown_zones_are_rejected_with_an_example() {
        let rejected = parse_time_zone(Some("Berlin")).unwrap_err();
        let TelemetryBackendError::Parameter { name, detail } = rejected else {
            panic!("{rejected:?}");
        };
        assert_eq!(name, "time_zone");
        assert!(detail.contains("Europe/Berlin"), "{detail}");
    }
}
