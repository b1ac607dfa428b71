//! Date and time functions. Timestamps are milliseconds since 1970 unless a unit is given; local time is that
//! of the rule's zone unless a zone is given.

use bumpalo::collections::String as ArenaString;

use super::args::Args;
use super::function::{Function, line};
use super::time_format::{self, ParsedTime, UnixTime, write_padded};
use crate::calendar::{CivilTime, DAY_S, YEARS, days_in_month};
use crate::evaluation_error::EvaluationError;
use crate::function_context::{Dialect, FunctionContext};
use crate::value::Value;
use crate::zone::Zone;

type Result<'a, T = Value<'a>> = std::result::Result<T, EvaluationError>;

const UNIT: &str = "'second', 'millisecond', 'microsecond' or 'nanosecond'";

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    line("now", (0, 0), "", "int", "The current time as a timestamp.", "now()", "1690599987495", |context, _| Ok(Value::Int(now_ms(context)))).impure(),
    line("currentDate", (0, 1), "[zone: string]", "string", "The current date as yyyy-MM-dd.", "currentDate()", r#""2023-07-29""#, |context, args| format_now(context, args, write_date)).impure(),
    line("currentTime", (0, 1), "[zone: string]", "string", "The current time of day as HH:mm:ss.", "currentTime('Asia/Shanghai')", r#""11:06:27""#, |context, args| format_now(context, args, write_time)).impure(),
    line("currentDateTime", (0, 1), "[zone: string]", "string", "The current date and time of day.", "currentDateTime()", r#""2023-07-29 03:06:27""#, |context, args| format_now(context, args, write_datetime)).impure(),
    line("date", (1, 2), "timestamp: int[, zone: string]", "string", "The date of a timestamp as yyyy-MM-dd.", "date(1690599987495)", r#""2023-07-29""#, |context, args| format_in_zone(context, args, write_date)),
    line("time", (1, 2), "timestamp: int[, zone: string]", "string", "The time of day of a timestamp as HH:mm:ss.", "time(1690599987495)", r#""03:06:27""#, |context, args| format_in_zone(context, args, write_time)),
    line("datetime", (1, 2), "timestamp: int[, zone: string]", "string", "The date and time of day of a timestamp as yyyy-MM-dd HH:mm:ss.", "datetime(1690599987495, '+08:00')", r#""2023-07-29 11:06:27""#, |context, args| format_in_zone(context, args, write_datetime)),
    line("formatDate", (2, 4), "timestamp: int, pattern: string[, zone: string] | unit: string, zone: string | int, format: string[, time: int]", "string", "Formats a timestamp by a Java pattern (yyyy-MM-dd HH:mm:ss.SSS XXX) or, with EMQX's arguments, by a format with %Y %m %d %H %M %S %N %3N %6N %z %:z %::z.", "format_date('millisecond', '+08:00', '%Y-%m-%d %H:%M:%S.%3N%:z', 1690599987495)", r#""2023-07-29 11:06:27.495+08:00""#, format_date).impure().differing("FluxMQ calls formatDate(timestamp, pattern), EMQX format_date(unit, offset, format[, time]); both work in both"),
    line("date_to_unix_ts", (3, 4), "unit: string, [zone: string | int, ]format: string, text: string", "int", "Parses a time by a format (see `formatDate`) that contains all of %Y %m %d %H %M %S, into a unit. Separators between numbers may differ; the zone applies if the text contains none.", "date_to_unix_ts('second', '+08:00', '%Y-%m-%d %H:%M:%S', '2024-02-23 15:00:00')", "1708671600", date_to_unix_ts),
    line("dateToTimestamp", (1, 2), "date: string[, zone: string]", "int", "The timestamp of the start of a day (yyyy-MM-dd).", "dateToTimestamp('2023-07-29')", "1690588800000", |context, args| timestamp_of(context, args, time_format::read_date)),
    line("datetimeToTimestamp", (1, 2), "datetime: string[, zone: string]", "int", "The timestamp of a date and time (yyyy-MM-dd HH:mm:ss, with or without fraction and offset).", "datetimeToTimestamp('2023-07-29 03:06:27')", "1690599987000", |context, args| timestamp_of(context, args, time_format::read_datetime)),
    line("timeToTimestamp", (1, 1), "time: string", "int", "Milliseconds from midnight to a time of day (HH:mm:ss).", "timeToTimestamp('11:06:27')", "39987000", time_to_timestamp),
    line("addYears", (2, 2), "timestamp: int, years: int", "int", "Adds years; 29 February becomes 28 February.", "addYears(1690599987495, 1)", "1722222387495", |context, args| add_months(context, args, 12)).differing("a year is 365 days in FluxMQ, as documented there, and a calendar year in EMQX"),
    line("addMonths", (2, 2), "timestamp: int, months: int", "int", "Adds months; limited to the last day of a shorter month.", "addMonths(1690599987495, 3)", "1698548787495", |context, args| add_months(context, args, 1)).differing("a month is 30 days in FluxMQ, as documented there, and a calendar month in EMQX"),
    line("addDays", (2, 2), "timestamp: int, days: int", "int", "Adds days of 24 hours.", "addDays(1690599987495, 7)", "1691204787495", |_, args| add(args, 86_400_000)),
    line("addHours", (2, 2), "timestamp: int, hours: int", "int", "Adds hours.", "addHours(1690599987495, 2)", "1690607187495", |_, args| add(args, 3_600_000)),
    line("addMinutes", (2, 2), "timestamp: int, minutes: int", "int", "Adds minutes.", "addMinutes(1690599987495, 30)", "1690601787495", |_, args| add(args, 60_000)),
    line("addSeconds", (2, 2), "timestamp: int, seconds: int", "int", "Adds seconds.", "addSeconds(1690599987495, 60)", "1690600047495", |_, args| add(args, 1_000)),
    line("year", (1, 2), "timestamp: int[, zone: string]", "int", "The year.", "year(1690599987495)", "2023", |context, args| civil_field(context, args, |civil| civil.year)),
    line("month", (1, 2), "timestamp: int[, zone: string]", "int", "The month, 1 to 12.", "month(1690599987495)", "7", |context, args| civil_field(context, args, |civil| civil.month)),
    line("day", (1, 2), "timestamp: int[, zone: string]", "int", "The day of the month, 1 to 31.", "day(1690599987495)", "29", |context, args| civil_field(context, args, |civil| civil.day)),
    line("hour", (1, 2), "timestamp: int[, zone: string]", "int", "The hour, 0 to 23.", "hour(1690599987495, 'Asia/Shanghai')", "11", |context, args| civil_field(context, args, |civil| civil.hour)),
    line("minute", (1, 2), "timestamp: int[, zone: string]", "int", "The minute, 0 to 59.", "minute(1690599987495)", "6", |context, args| civil_field(context, args, |civil| civil.minute)),
    line("second", (1, 2), "timestamp: int[, zone: string]", "int", "The second, 0 to 59.", "second(1690599987495)", "27", |context, args| civil_field(context, args, |civil| civil.second)),
    line("weekday", (1, 2), "timestamp: int[, zone: string]", "int", "The day of the week, from 1 for Monday to 7 for Sunday.", "weekday(1690599987495)", "6", |context, args| civil_field(context, args, CivilTime::weekday)),
    line("weekOfYear", (1, 2), "timestamp: int[, zone: string]", "int", "The ISO 8601 week of the year, 1 to 53.", "weekOfYear(1690599987495)", "30", |context, args| civil_field(context, args, CivilTime::week_of_year)),
    line("dayOfYear", (1, 2), "timestamp: int[, zone: string]", "int", "The day of the year, 1 to 366.", "dayOfYear(1690599987495)", "210", |context, args| civil_field(context, args, CivilTime::day_of_year)),
    line("now_timestamp", (0, 1), "[unit: string]", "int", "The current time since 1970, in seconds or the unit.", "now_timestamp()", "1690599987", now_timestamp).impure(),
    line("now_rfc3339", (0, 1), "[unit: string]", "string", "The current time in RFC 3339 format, with the precision of the unit.", "now_rfc3339('millisecond')", r#""2023-07-29T03:06:27.495+00:00""#, now_rfc3339).alias(&["now_to_rfc3339"]).impure(),
    line("unix_ts_to_rfc3339", (1, 2), "time: int[, unit: string]", "string", "Formats seconds (or the unit) since 1970 as RFC 3339.", "unix_ts_to_rfc3339(1690599987)", r#""2023-07-29T03:06:27+00:00""#, unix_ts_to_rfc3339),
    line("rfc3339_to_unix_ts", (1, 2), "text: string[, unit: string]", "int", "Parses RFC 3339 into seconds (or the unit) since 1970.", "rfc3339_to_unix_ts('2024-02-23T15:56:30.87Z', 'millisecond')", "1708703790870", rfc3339_to_unix_ts),
    line("mongo_date", (0, 2), "[time: int[, unit: string]]", "string", "The current time, or milliseconds (or the unit) since 1970, as a date of MongoDB's shell.", "mongo_date(1690599987495)", r#""ISODate(\"2023-07-29T03:06:27.495Z\")""#, mongo_date).impure(),
    line("timezone_to_offset_seconds", (1, 1), "zone: string", "int", "The current offset of a zone in seconds ahead of UTC.", "timezone_to_offset_seconds('+08:00')", "28800", timezone_to_offset_seconds).alias(&["timezone_to_second"]).impure().accepts_null_in_emqx().differing("in EMQX a missing zone is UTC"),
];

/// A unit of time, by its number per second.
#[derive(Clone, Copy)]
struct TimeUnit {
    per_second: i64,
    /// Decimal places of a second.
    digits: usize,
}

const SECOND: TimeUnit = TimeUnit {
    per_second: 1,
    digits: 0,
};
const UNITS: &[(&str, TimeUnit)] = &[
    ("second", SECOND),
    (
        "millisecond",
        TimeUnit {
            per_second: 1_000,
            digits: 3,
        },
    ),
    (
        "microsecond",
        TimeUnit {
            per_second: 1_000_000,
            digits: 6,
        },
    ),
    (
        "nanosecond",
        TimeUnit {
            per_second: 1_000_000_000,
            digits: 9,
        },
    ),
];

impl TimeUnit {
    fn moment(self, time: i64) -> UnixTime {
        let part = time.rem_euclid(self.per_second);
        UnixTime {
            unix_s: time.div_euclid(self.per_second),
            nanosecond: part * (1_000_000_000 / self.per_second),
        }
    }

    fn count_of(self, moment: UnixTime) -> Option<i64> {
        let part = moment.nanosecond / (1_000_000_000 / self.per_second);
        moment
            .unix_s
            .checked_mul(self.per_second)?
            .checked_add(part)
    }
}

fn unit<'a>(
    context: &FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    at: usize,
) -> Result<'a, TimeUnit> {
    if args.len() <= at {
        return Ok(SECOND);
    }
    args.keyword(at, context.arena, UNITS, UNIT)
}

fn now_ms(context: &FunctionContext<'_, '_>) -> i64 {
    i64::try_from(context.now_ms).unwrap_or(i64::MAX)
}

fn now(context: &FunctionContext<'_, '_>) -> UnixTime {
    UNITS[1].1.moment(now_ms(context))
}

/// The zone given by an argument: text, or seconds ahead of UTC. The rule's zone if the argument is missing
/// or 'local'.
fn zone<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    at: usize,
) -> Result<'a, Zone> {
    match args.get(at) {
        Value::Undefined | Value::Null => Ok(context.zone.clone()),
        Value::Int(seconds) => match i32::try_from(seconds).ok().and_then(Zone::fixed) {
            Some(zone) => Ok(zone),
            None => args.out_of_range(at, "less than a day"),
        },
        _ => match args.text(at, context.arena)? {
            "local" => Ok(context.zone.clone()),
            name => context
                .resources
                .time_zone(name)
                .or_else(|why| args.invalid(why)),
        },
    }
}

/// The local date and time in a zone.
fn civil<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    unix_s: i64,
    zone_at: usize,
) -> Result<'a, CivilTime> {
    let offset_s = if args.len() > zone_at {
        zone(context, args, zone_at)?.offset_s(unix_s)
    } else {
        context.zone.offset_s(unix_s)
    };
    let civil = CivilTime::from_local_s(unix_s.saturating_add(i64::from(offset_s)));
    if YEARS.contains(&civil.year) {
        Ok(civil)
    } else {
        args.out_of_range(0, "a time between the years 0 and 9999")
    }
}

fn format_in_zone<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    write: fn(&mut ArenaString<'a>, CivilTime),
) -> Result<'a> {
    let unix_s = args.int(0)?.div_euclid(1_000);
    let civil = civil(context, args, unix_s, 1)?;
    let mut out = ArenaString::with_capacity_in(19, context.arena);
    write(&mut out, civil);
    Ok(Value::Str(out.into_bump_str()))
}

fn format_now<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    write: fn(&mut ArenaString<'a>, CivilTime),
) -> Result<'a> {
    let unix_s = now(context).unix_s;
    let civil = civil(context, args, unix_s, 0)?;
    let mut out = ArenaString::with_capacity_in(19, context.arena);
    write(&mut out, civil);
    Ok(Value::Str(out.into_bump_str()))
}

fn write_date(out: &mut ArenaString<'_>, civil: CivilTime) {
    write_padded(out, civil.year, 4);
    out.push('-');
    write_padded(out, civil.month, 2);
    out.push('-');
    write_padded(out, civil.day, 2);
}

fn write_time(out: &mut ArenaString<'_>, civil: CivilTime) {
    write_padded(out, civil.hour, 2);
    out.push(':');
    write_padded(out, civil.minute, 2);
    out.push(':');
    write_padded(out, civil.second, 2);
}

fn write_datetime(out: &mut ArenaString<'_>, civil: CivilTime) {
    write_date(out, civil);
    out.push(' ');
    write_time(out, civil);
}

fn civil_field<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    field: fn(CivilTime) -> i64,
) -> Result<'a> {
    let unix_s = args.int(0)?.div_euclid(1_000);
    Ok(Value::Int(field(civil(context, args, unix_s, 1)?)))
}

/// Two signatures in one: FluxMQ's begins with a timestamp, EMQX's with the name of a unit.
fn format_date<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let named = args
        .get(0)
        .as_str()
        .and_then(|name| UNITS.iter().find(|(unit, _)| *unit == name));
    let (moment, zone_at, format_at) = match named {
        Some(_) if args.len() < 3 => {
            return args.invalid("expected a unit, an offset, a format and perhaps a time");
        }
        Some((_, unit)) if args.len() == 4 => (unit.moment(args.int(3)?), 1, 2),
        Some((_, unit)) => (
            unit.moment(unit.count_of(now(context)).ok_or_else(|| args.overflow())?),
            1,
            2,
        ),
        None if args.len() == 4 => return args.out_of_range(0, UNIT),
        None => (UNITS[1].1.moment(args.int(0)?), 2, 1),
    };
    let format = args.text(format_at, context.arena)?;
    let zone = zone(context, args, zone_at)?;
    let offset_s = zone.offset_s(moment.unix_s);
    let civil = CivilTime::from_local_s(moment.unix_s.saturating_add(i64::from(offset_s)));
    if !YEARS.contains(&civil.year) {
        return args.out_of_range(0, "a time between the years 0 and 9999");
    }
    context.check_output_size(args.function, format.len().saturating_mul(4))?;
    let mut out = ArenaString::with_capacity_in(format.len() + 16, context.arena);
    let shown = time_format::LocalTime {
        civil,
        nanosecond: moment.nanosecond,
        offset_s,
    };
    if named.is_some() || format.contains('%') {
        time_format::write_percent(&mut out, format, shown);
    } else if let Err(why) = time_format::write_java(&mut out, format, shown) {
        return args.invalid(why);
    }
    Ok(Value::Str(out.into_bump_str()))
}

/// Converts a parsed time to a timestamp. The zone applies if the text contained no offset.
fn to_unix_time<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    parsed: &ParsedTime,
    zone_at: Option<usize>,
) -> Result<'a, UnixTime> {
    let Some(local_s) = parsed.civil.to_local_s() else {
        return args.invalid("there is no such date or time");
    };
    let unix_s = match (parsed.offset_s, zone_at) {
        (Some(offset_s), _) => local_s - i64::from(offset_s),
        (None, Some(at)) => zone(context, args, at)?.to_unix_s(local_s),
        (None, None) => context.zone.to_unix_s(local_s),
    };
    Ok(UnixTime {
        unix_s,
        nanosecond: parsed.nanosecond,
    })
}

/// Milliseconds since 1970 of an ISO 8601 date and time, which is in the zone unless it contains an offset.
pub(crate) fn time_ms(text: &str, zone: &Zone) -> Option<i64> {
    let parsed = time_format::read_datetime(text).ok()?;
    let local_s = parsed.civil.to_local_s()?;
    let unix_s = match parsed.offset_s {
        Some(offset_s) => local_s - i64::from(offset_s),
        None => zone.to_unix_s(local_s),
    };
    (unix_s.checked_mul(1000)?).checked_add(parsed.nanosecond / 1_000_000)
}

fn date_to_unix_ts<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let unit = unit(context, args, 0)?;
    let (zone_at, format_at) = if args.len() == 4 {
        (Some(1), 2)
    } else {
        (None, 1)
    };
    let format = args.text(format_at, context.arena)?;
    let text = args.text(format_at + 1, context.arena)?;
    time_format::check_percent(format).or_else(|why| args.invalid(why))?;
    let parsed = time_format::read_percent(format, text).or_else(|why| args.invalid(why))?;
    let moment = to_unix_time(context, args, &parsed, zone_at)?;
    unit.count_of(moment)
        .map(Value::Int)
        .ok_or_else(|| args.overflow())
}

fn timestamp_of<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    read: fn(&str) -> std::result::Result<ParsedTime, String>,
) -> Result<'a> {
    let parsed = read(args.text(0, context.arena)?).or_else(|why| args.invalid(why))?;
    let zone_at = (args.len() > 1).then_some(1);
    let moment = to_unix_time(context, args, &parsed, zone_at)?;
    UNITS[1]
        .1
        .count_of(moment)
        .map(Value::Int)
        .ok_or_else(|| args.overflow())
}

fn time_to_timestamp<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let parsed =
        time_format::read_time(args.text(0, context.arena)?).or_else(|why| args.invalid(why))?;
    let moment = UnixTime {
        unix_s: parsed.civil.to_local_s().unwrap_or(0).rem_euclid(DAY_S),
        nanosecond: parsed.nanosecond,
    };
    UNITS[1]
        .1
        .count_of(moment)
        .map(Value::Int)
        .ok_or_else(|| args.overflow())
}

fn add<'a>(args: Args<'_, 'a>, unit_ms: i64) -> Result<'a> {
    let (timestamp, count) = (args.int(0)?, args.int(1)?);
    count
        .checked_mul(unit_ms)
        .and_then(|ms| timestamp.checked_add(ms))
        .map(Value::Int)
        .ok_or_else(|| args.overflow())
}

fn add_months<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    months_each: i64,
) -> Result<'a> {
    if context.dialect == Dialect::Fluxmq {
        let days = if months_each == 12 { 365 } else { 30 };
        return add(args, days * DAY_S * 1_000);
    }
    let timestamp = args.int(0)?;
    let mut civil = civil(context, args, timestamp.div_euclid(1_000), 2)?;
    let count = args.int(1)?.checked_mul(months_each);
    let months = count.and_then(|count| count.checked_add(civil.year * 12 + civil.month - 1));
    let months = months.ok_or_else(|| args.overflow())?;
    (civil.year, civil.month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    civil.day = civil.day.min(days_in_month(civil.year, civil.month));
    match civil.to_local_s() {
        Some(local_s) => Ok(Value::Int(
            context.zone.to_unix_s(local_s) * 1_000 + timestamp.rem_euclid(1_000),
        )),
        None => args.out_of_range(1, "a time between the years 0 and 9999"),
    }
}

fn now_timestamp<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let unit = unit(context, args, 0)?;
    unit.count_of(now(context))
        .map(Value::Int)
        .ok_or_else(|| args.overflow())
}

fn now_rfc3339<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let unit = unit(context, args, 0)?;
    let moment = now(context);
    write_rfc3339(context, args, moment, unit)
}

fn unix_ts_to_rfc3339<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let unit = unit(context, args, 1)?;
    let moment = unit.moment(args.int(0)?);
    write_rfc3339(context, args, moment, unit)
}

fn write_rfc3339<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
    moment: UnixTime,
    unit: TimeUnit,
) -> Result<'a> {
    let civil = civil(context, args, moment.unix_s, 9)?;
    let mut out = ArenaString::with_capacity_in(35, context.arena);
    write_date(&mut out, civil);
    out.push('T');
    write_time(&mut out, civil);
    if unit.digits > 0 {
        out.push('.');
        write_padded(
            &mut out,
            moment.nanosecond / 10_i64.pow(9 - unit.digits as u32),
            unit.digits,
        );
    }
    time_format::write_offset(&mut out, context.zone.offset_s(moment.unix_s), ":", false);
    Ok(Value::Str(out.into_bump_str()))
}

fn mongo_date<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let moment = match args.len() {
        0 => now(context),
        1 => UNITS[1].1.moment(args.int(0)?),
        _ => unit(context, args, 1)?.moment(args.int(0)?),
    };
    let civil = CivilTime::from_local_s(moment.unix_s);
    if !YEARS.contains(&civil.year) {
        return args.out_of_range(0, "a time between the years 0 and 9999");
    }
    let mut out = ArenaString::with_capacity_in(36, context.arena);
    out.push_str("ISODate(\"");
    write_date(&mut out, civil);
    out.push('T');
    write_time(&mut out, civil);
    out.push('.');
    write_padded(&mut out, moment.nanosecond / 1_000_000, 3);
    out.push_str("Z\")");
    Ok(Value::Str(out.into_bump_str()))
}

/// Checks a constant argument of a time function: zone, unit or format.
pub(crate) fn check_constant(
    function: &str,
    parameter: &str,
    value: &Value<'_>,
) -> std::result::Result<(), String> {
    let Some(text) = value.as_str() else {
        return Ok(());
    };
    match parameter {
        "zone" if text != "local" && Zone::parse(text).is_none() => Err(format!(
            "unknown time zone {text:?}, expected a name such as Europe/Berlin or an offset such as +08:00"
        )),
        "unit" if UNITS.iter().all(|(unit, _)| *unit != text) => {
            Err(format!("unknown unit {text:?}, expected {UNIT}"))
        }
        "format" if function == "date_to_unix_ts" => time_format::check_percent(text),
        // In an EMQX call whose unit is not constant, this position holds a zone.
        "pattern" if !text.contains('%') && Zone::parse(text).is_none() => {
            let arena = crate::value::Arena::new();
            let shown = time_format::LocalTime {
                civil: CivilTime::from_local_s(0),
                nanosecond: 0,
                offset_s: 0,
            };
            time_format::write_java(&mut ArenaString::new_in(&arena), text, shown)
        }
        _ => Ok(()),
    }
}

fn rfc3339_to_unix_ts<'a>(context: &mut FunctionContext<'a, '_>, args: Args<'_, 'a>) -> Result<'a> {
    let unit = unit(context, args, 1)?;
    let parsed = time_format::read_datetime(args.text(0, context.arena)?)
        .or_else(|why| args.invalid(why))?;
    let moment = to_unix_time(context, args, &parsed, None)?;
    unit.count_of(moment)
        .map(Value::Int)
        .ok_or_else(|| args.overflow())
}

fn timezone_to_offset_seconds<'a>(
    context: &mut FunctionContext<'a, '_>,
    args: Args<'_, 'a>,
) -> Result<'a> {
    // Only in EMQX's dialect.
    match args.get(0) {
        Value::Undefined => return Ok(Value::Int(0)),
        Value::Null => return args.wrong_type(0, "a time zone"),
        _ => {}
    }
    let unix_s = now(context).unix_s;
    Ok(Value::Int(i64::from(
        zone(context, args, 0)?.offset_s(unix_s),
    )))
}
