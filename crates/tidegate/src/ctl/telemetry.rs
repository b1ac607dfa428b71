//! `tidegate ctl telemetry`: stored and live telemetry of devices and groups.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use outbound::url_encoding::url_encode;
use serde_json::{Value, json};
use series::Aggregate;
use wall_clock::now_ms;

use super::download;
use super::error::CtlError;
use super::http::{ApiClient, with_query};
use super::output::{CtlOutput, format_date};
use super::{backup_files, events};

#[derive(Subcommand)]
pub(super) enum TelemetryCommand {
    /// Show the latest value of each key of a device
    Latest {
        device: String,
        #[command(flatten)]
        keys: KeysArgs,
    },
    /// List rows of a device, newest first
    List {
        device: String,
        #[command(flatten)]
        keys: KeysArgs,
        #[command(flatten)]
        times: TimeRangeArgs,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100)]
        rows: u32,
        /// Oldest first
        #[arg(long)]
        ascending: bool,
    },
    /// Aggregate telemetry by intervals
    Intervals {
        device: String,
        /// Keys, separated by commas
        #[arg(long)]
        keys: String,
        #[command(flatten)]
        times: TimeRangeArgs,
        /// Length of an interval, such as 10m or 1h, or day, week, month, quarter or year; without it, one
        /// interval
        #[arg(long, value_name = "TIME", value_parser = parse_interval)]
        every: Option<IntervalArg>,
        /// IANA time zone of calendar intervals, such as Europe/Berlin [default: UTC]
        #[arg(long, value_name = "ZONE")]
        time_zone: Option<String>,
        #[arg(long, default_value = "avg,min,max,count", help = functions_help())]
        functions: String,
    },
    /// Print rows of devices as they arrive
    Watch {
        #[arg(required = true)]
        devices: Vec<String>,
        #[command(flatten)]
        keys: KeysArgs,
        /// End after this many rows
        #[arg(short = 'n', long, value_name = "N")]
        count: Option<u64>,
    },
    /// Export rows of a device to a file
    Export {
        device: String,
        #[command(flatten)]
        export: ExportArgs,
    },
    /// Export rows of all devices of a group to a file
    ExportGroup {
        group: String,
        #[command(flatten)]
        export: ExportArgs,
    },
    /// Delete rows of a device, or values of some keys
    Delete {
        device: String,
        #[command(flatten)]
        keys: KeysArgs,
        #[command(flatten)]
        times: TimeRangeArgs,
        /// Required to delete everything
        #[arg(long)]
        all: bool,
    },
    /// List recently rejected data of a device, with reasons
    Rejections { device: String },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportFormatArg {
    Jsonl,
    Csv,
    Parquet,
}

fn functions_help() -> String {
    let names = Aggregate::NAMES.join(", ");
    format!("Functions, separated by commas: {names}")
}

#[derive(Args)]
pub(super) struct KeysArgs {
    /// Only these keys, separated by commas
    #[arg(long)]
    keys: Option<String>,
}

#[derive(Args)]
pub(super) struct TimeRangeArgs {
    /// Only rows not older than this, such as 15m, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = period_ms, conflicts_with = "from_ms")]
    last: Option<u64>,
    /// Start of the time range, in milliseconds since 1970
    #[arg(long, value_name = "MS")]
    from_ms: Option<u64>,
    /// End of the time range, exclusive
    #[arg(long, value_name = "MS")]
    to_ms: Option<u64>,
}

#[derive(Args)]
pub(super) struct ExportArgs {
    file: PathBuf,
    /// Format [default: by the extension .csv, .parquet, .jsonl or .ndjson]. CSV needs --keys
    #[arg(long)]
    format: Option<ExportFormatArg>,
    #[command(flatten)]
    keys: KeysArgs,
    #[command(flatten)]
    times: TimeRangeArgs,
}

/// Parses `90s`, `15m`, `24h`, `7d`.
fn period_ms(text: &str) -> Result<u64, String> {
    let units = [
        ('s', 1000),
        ('m', 60_000),
        ('h', 3_600_000),
        ('d', 86_400_000),
    ];
    let read = units.iter().find_map(|(unit, ms)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*ms).filter(|ms| *ms > 0)
    });
    read.ok_or_else(|| "expected a number and s, m, h or d, such as 15m".to_owned())
}

/// Length of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntervalArg {
    Ms(u64),
    /// A calendar unit.
    Unit(&'static str),
}

fn parse_interval(text: &str) -> Result<IntervalArg, String> {
    let units = ["day", "week", "month", "quarter", "year"];
    if let Some(unit) = units.into_iter().find(|unit| *unit == text) {
        return Ok(IntervalArg::Unit(unit));
    }
    period_ms(text).map(IntervalArg::Ms).map_err(|_| {
        let units = units.join(", ");
        format!("expected a number and s, m, h or d, such as 15m, or one of {units}")
    })
}

impl TimeRangeArgs {
    fn is_given(&self) -> bool {
        self.last.is_some() || self.from_ms.is_some() || self.to_ms.is_some()
    }

    fn parameters(&self) -> [(&'static str, Option<String>); 2] {
        let last = self.last.map(|ms| now_ms().saturating_sub(ms));
        let from_ms = last.or(self.from_ms);
        [
            ("from_ms", from_ms.map(|ms| ms.to_string())),
            ("to_ms", self.to_ms.map(|ms| ms.to_string())),
        ]
    }
}

fn path_of(device: &str, rest: &str) -> String {
    format!("/api/v1/devices/{}/telemetry{rest}", url_encode(device))
}

impl TelemetryCommand {
    pub(super) async fn run(self, client: &ApiClient, output: &CtlOutput) -> anyhow::Result<()> {
        match self {
            Self::Latest { device, keys } => {
                let path = with_query(&path_of(&device, "/latest"), &[("keys", keys.keys)]);
                let answer = client.get(&path).await?;
                let values = answer["values"].as_object().into_iter().flatten();
                let rows = values.map(|(key, sample)| {
                    json!({"key": key, "value": sample["value"], "at_ms": sample["ts_ms"]})
                });
                let columns = &[("KEY", "key"), ("VALUE", "value"), ("AT", "at_ms")];
                output.print_rows((rows.collect(), false), columns)
            }
            Self::List {
                device,
                keys,
                times,
                rows,
                ascending,
            } => {
                let [from_ms, to_ms] = times.parameters();
                let order = if ascending { "asc" } else { "desc" };
                let parameters = [
                    ("keys", keys.keys),
                    from_ms,
                    to_ms,
                    ("rows", Some(rows.to_string())),
                    ("order", Some(order.to_owned())),
                ];
                let path = with_query(&path_of(&device, ""), &parameters);
                let answer = client.get(&path).await?;
                let rows = answer["rows"].as_array().into_iter().flatten();
                let rows = rows.map(|row| json!({"at_ms": row["ts_ms"], "values": row["values"]}));
                let columns = &[("AT", "at_ms"), ("VALUES", "values")];
                output.print_rows((rows.collect(), false), columns)
            }
            Self::Intervals {
                device,
                keys,
                times,
                every,
                time_zone,
                functions,
            } => {
                let [from_ms, to_ms] = times.parameters();
                let (interval_ms, interval) = match every {
                    Some(IntervalArg::Ms(ms)) => (Some(ms.to_string()), None),
                    Some(IntervalArg::Unit(unit)) => (None, Some(unit.to_owned())),
                    None => (None, None),
                };
                let parameters = [
                    ("keys", Some(keys)),
                    from_ms,
                    to_ms,
                    ("interval_ms", interval_ms),
                    ("interval", interval),
                    ("time_zone", time_zone),
                    ("functions", Some(functions)),
                ];
                let path = with_query(&path_of(&device, "/intervals"), &parameters);
                let answer = client.get(&path).await?;
                let rows = answer["data"].as_array().into_iter().flatten();
                let rows = rows.map(|row| {
                    json!({"at_ms": row["ts_ms"], "key": row["key"], "values": row["values"]})
                });
                let columns = &[("FROM", "at_ms"), ("KEY", "key"), ("VALUES", "values")];
                output.print_rows((rows.collect(), false), columns)
            }
            Self::Watch {
                devices,
                keys,
                count,
            } => {
                let parameters = [("devices", Some(devices.join(","))), ("keys", keys.keys)];
                let path = with_query("/api/v1/telemetry/live", &parameters);
                events::print_stream(client, &path, count, row_line).await
            }
            Self::Export { device, export } => export.run(client, &path_of(&device, "")).await,
            Self::ExportGroup { group, export } => {
                let telemetry = format!("/api/v1/device-groups/{}/telemetry", url_encode(&group));
                export.run(client, &telemetry).await
            }
            Self::Delete {
                device,
                keys,
                times,
                all,
            } => {
                if !all && keys.keys.is_none() && !times.is_given() {
                    bail!(
                        "say which with --keys, --last, --from-ms or --to-ms, or --all for all of it"
                    );
                }
                let [from_ms, to_ms] = times.parameters();
                let parameters = [("keys", keys.keys), from_ms, to_ms];
                let path = with_query(&path_of(&device, ""), &parameters);
                let answer = client.delete(&path).await?;
                output.print_done(&format!("telemetry of {device} was deleted"), &answer)
            }
            Self::Rejections { device } => {
                let answer = client.get(&path_of(&device, "/rejections")).await?;
                let rows = match &answer["rejections"] {
                    Value::Array(rows) => rows.clone(),
                    _ => Vec::new(),
                };
                let columns = &[
                    ("LAST", "last_at_ms"),
                    ("COUNT", "count"),
                    ("SUBJECT", "subject"),
                    ("REASON", "reason"),
                ];
                output.print_rows((rows, false), columns)
            }
        }
    }
}

impl ExportFormatArg {
    fn from_extension(file: &Path) -> Result<Self, CtlError> {
        let ending = file.extension().and_then(OsStr::to_str).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "csv" => Ok(Self::Csv),
            "parquet" => Ok(Self::Parquet),
            "" | "jsonl" | "ndjson" | "json" => Ok(Self::Jsonl),
            _ => Err(backup_files::unknown_ending(
                file,
                ".jsonl, .ndjson, .csv or .parquet",
            )),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }
}

/// Formats a row as a line of text.
fn row_line(json: &str) -> String {
    let row: Value = serde_json::from_str(json).unwrap_or_default();
    match (row["ts_ms"].as_u64(), row["device"].as_str()) {
        (Some(ts_ms), Some(device)) => {
            format!("{}  {device}  {}\n", format_date(ts_ms), row["values"])
        }
        _ => format!("{json}\n"),
    }
}

impl ExportArgs {
    /// Exports from the telemetry routes below `telemetry`.
    async fn run(self, client: &ApiClient, telemetry: &str) -> anyhow::Result<()> {
        let Self {
            file,
            format,
            keys,
            times,
        } = self;
        let format = format.map_or_else(|| ExportFormatArg::from_extension(&file), Ok)?;
        if format == ExportFormatArg::Csv && keys.keys.is_none() {
            bail!("CSV needs --keys: they are its columns");
        }
        let [from_ms, to_ms] = times.parameters();
        let parameters = [
            ("format", Some(format.name().to_owned())),
            ("keys", keys.keys),
            from_ms,
            to_ms,
        ];
        let path = with_query(&format!("{telemetry}/export"), &parameters);
        let body = client.stream(&path).await?;
        let shown = file.display();
        let saved = download::save(body, &file, true).await;
        let bytes = saved.with_context(|| format!("cannot save {shown}"))?;
        eprintln!("{shown}: {bytes} bytes");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_have_units() {
        assert_eq!(period_ms("90s"), Ok(90_000));
        assert_eq!(period_ms("7d"), Ok(604_800_000));
        for wrong in ["", "5", "h", "0m", "-1h", "1w", "99999999999999999999d"] {
            assert!(period_ms(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn intervals_are_periods_or_units_of_the_calendar() {
        assert_eq!(parse_interval("10m"), Ok(IntervalArg::Ms(600_000)));
        assert_eq!(parse_interval("month"), Ok(IntervalArg::Unit("month")));
        assert!(parse_interval("fortnight").unwrap_err().contains("quarter"));
    }
}
