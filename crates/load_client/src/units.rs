//! Quantities as people write them (`2s`, `64`, `1KiB`, `20%`, `1.5M`), and back.

use std::time::Duration;

/// What a number measures; decides which suffixes it may carry and how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things; suffixes k, M, G.
    Count,
    /// Things per second; suffixes k, M, G.
    PerSecond,
    /// Nanoseconds; suffixes ns, us, ms, s, m.
    Nanoseconds,
    /// Seconds of processor time; the same suffixes as a time.
    Seconds,
    /// Bytes; suffixes B, kB, MB, GB, KiB, MiB, GiB.
    Bytes,
    /// A fraction, shown in percent.
    Fraction,
    /// One number divided by another of the same kind.
    Ratio,
}

const TIMES: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
];
const COUNTS: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("K", 1e3), ("M", 1e6), ("G", 1e9)];
const SIZES: &[(&str, f64)] = &[
    ("", 1.0),
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("KiB", 1024.0),
    ("MiB", 1024.0 * 1024.0),
    ("GiB", 1024.0 * 1024.0 * 1024.0),
];

impl Unit {
    fn suffixes(self) -> &'static [(&'static str, f64)] {
        match self {
            Unit::Count | Unit::PerSecond => COUNTS,
            Unit::Nanoseconds | Unit::Seconds => TIMES,
            Unit::Bytes => SIZES,
            Unit::Fraction => &[("%", 0.01)],
            Unit::Ratio => &[("", 1.0), ("x", 1.0)],
        }
    }

    /// Reads `text` as a quantity of this unit. Times require a unit.
    pub fn parse(self, text: &str) -> Result<f64, String> {
        let text = text.trim();
        let split = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '_'))
            .unwrap_or(text.len());
        let (number, suffix) = (text[..split].replace('_', ""), text[split..].trim());
        let number: f64 = number
            .parse()
            .map_err(|_| format!("`{text}` does not start with a number"))?;
        let suffixes = self.suffixes();
        let Some((_, factor)) = suffixes.iter().find(|(name, _)| *name == suffix) else {
            let known: Vec<&str> = suffixes
                .iter()
                .map(|(name, _)| if name.is_empty() { "(none)" } else { name })
                .collect();
            let found = if suffix.is_empty() {
                "no unit".to_owned()
            } else {
                format!("the unit `{suffix}`")
            };
            return Err(format!(
                "`{text}` has {found}; give one of {}",
                known.join(", ")
            ));
        };
        // A time of processor use is kept in seconds, everything else in the smallest unit.
        let scale = if self == Unit::Seconds { 1e-9 } else { 1.0 };
        Ok(number * factor * scale)
    }

    /// `value` for a person, with three significant digits or so.
    pub fn format(self, value: f64) -> String {
        if !value.is_finite() {
            return "-".to_owned();
        }
        match self {
            Unit::Count if value.abs() < 1e6 && value.fract() == 0.0 => group_thousands(value),
            Unit::Count | Unit::PerSecond => {
                format_scaled(value, &[(1e9, " G"), (1e6, " M"), (1e3, " k")])
            }
            Unit::Nanoseconds => format_time(value),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Bytes => format_scaled(
                value,
                &[
                    (1024.0 * 1024.0 * 1024.0, " GiB"),
                    (1024.0 * 1024.0, " MiB"),
                    (1024.0, " KiB"),
                    (1.0, " B"),
                ],
            ),
            Unit::Fraction => format!("{:.1} %", value * 100.0),
            Unit::Ratio => format!("{value:.2} x"),
        }
    }
}

fn format_time(ns: f64) -> String {
    format_scaled(ns, &[(1e9, " s"), (1e6, " ms"), (1e3, " us"), (1.0, " ns")])
}

fn format_scaled(value: f64, steps: &[(f64, &str)]) -> String {
    for (step, suffix) in steps {
        if value.abs() >= *step {
            return format!("{}{suffix}", format_digits(value / step));
        }
    }
    format_digits(value)
}

fn format_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v.fract() == 0.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

fn group_thousands(value: f64) -> String {
    let plain = format!("{:.0}", value.abs());
    let mut out = String::with_capacity(plain.len() + plain.len() / 3 + 1);
    if value < 0.0 {
        out.push('-');
    }
    for (at, digit) in plain.chars().enumerate() {
        if at > 0 && (plain.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// clap value parser: a duration such as `500ms`, `2s` or `1m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let ns = Unit::Nanoseconds.parse(text)?;
    if !(0.0..=86_400e9).contains(&ns) {
        return Err(format!("`{text}` is not between 0 s and one day"));
    }
    Ok(Duration::from_nanos(ns as u64))
}

/// clap value parser: a size in bytes such as `64` or `1KiB`.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let size = Unit::Bytes.parse(text)?;
    if !(0.0..=268_435_455.0).contains(&size) {
        return Err(format!(
            "`{text}` is not between 0 and 268435455 bytes, the largest MQTT packet"
        ));
    }
    Ok(size as usize)
}

/// clap value parser: a size that no protocol limits, up to 10 GB.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let size = Unit::Bytes.parse(text)?;
    if !(0.0..=1e10).contains(&size) {
        return Err(format!("`{text}` is not between 0 and 10GB"));
    }
    Ok(size as usize)
}

/// clap value parser: a positive rate per second such as `20000` or `20k`.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = Unit::PerSecond.parse(text)?;
    if !(0.001..=1e9).contains(&rate) {
        return Err(format!("`{text}` is not between 0.001 and 1G per second"));
    }
    Ok(rate)
}

/// clap value parser: a share such as `20%`.
pub fn parse_fraction(text: &str) -> Result<f64, String> {
    let share = Unit::Fraction.parse(text)?;
    if !(0.0..=1.0).contains(&share) {
        return Err(format!("`{text}` is not between 0% and 100%"));
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1m"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_bytes("1KiB"), Ok(1024));
        assert_eq!(parse_bytes("64"), Ok(64));
        assert_eq!(parse_rate("1.5M"), Ok(1_500_000.0));
        assert_eq!(parse_rate("1_000"), Ok(1000.0));
        assert_eq!(parse_fraction("20%"), Ok(0.2));
    }

    #[test]
    fn refuses_what_is_unclear() {
        assert_eq!(
            parse_duration("5").unwrap_err(),
            "`5` has no unit; give one of ns, us, µs, ms, s, m"
        );
        assert!(parse_bytes("1 parsec").unwrap_err().contains("`parsec`"));
        assert!(
            parse_bytes("1GiB")
                .unwrap_err()
                .contains("largest MQTT packet")
        );
        assert!(parse_fraction("120%").unwrap_err().contains("100%"));
        assert!(parse_rate("0").unwrap_err().contains("0.001"));
        assert!(parse_rate("fast").unwrap_err().contains("number"));
    }

    #[test]
    fn shows_a_handful_of_digits() {
        assert_eq!(Unit::PerSecond.format(5_123_456.0), "5.12 M");
        assert_eq!(Unit::Nanoseconds.format(1_250.0), "1.25 us");
        assert_eq!(Unit::Nanoseconds.format(0.0), "0");
        assert_eq!(Unit::Bytes.format(2048.0), "2 KiB");
        assert_eq!(Unit::Count.format(16_000.0), "16,000");
        assert_eq!(Unit::Count.format(12_345_678.0), "12.3 M");
        assert_eq!(Unit::Fraction.format(0.985), "98.5 %");
        assert_eq!(Unit::Ratio.format(25.456), "25.46 x");
    }
}
