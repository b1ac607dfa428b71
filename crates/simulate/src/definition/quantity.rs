//! Times, shares and ranges as people write them: `"10s"`, `"20%"`, `[1, 5]`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

/// A time with a unit, such as `"500ms"`, `"10s"`, `"5m"`, `"2h"` or `"1d"`; at most 30 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimeSpan {
    pub(crate) ns: u64,
}

const MAX_SPAN_NS: f64 = 30.0 * 86_400e9;
const TIME_UNITS: [(&str, f64); 6] = [
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3_600e9),
    ("d", 86_400e9),
];

impl TimeSpan {
    pub(crate) const fn from_seconds(seconds: u64) -> Self {
        Self {
            ns: seconds * 1_000_000_000,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let at = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'))?;
        let number: f64 = text[..at].parse().ok()?;
        let unit = text[at..].trim();
        let (_, factor) = TIME_UNITS.iter().find(|(name, _)| *name == unit)?;
        let ns = number * factor;
        (ns <= MAX_SPAN_NS).then_some(Self { ns: ns as u64 })
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeSpanVisitor;
        impl Visitor<'_> for TimeSpanVisitor {
            type Value = TimeSpan;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a time with a unit (us, ms, s, m, h, d) up to 30 days, such as \"10s\"",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeSpan, E> {
                TimeSpan::parse(text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(TimeSpanVisitor)
    }
}

/// A part of a whole: `"20%"` or `0.2`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Share(pub(crate) f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShareVisitor;
        impl ShareVisitor {
            fn check<E: de::Error>(self, share: f64) -> Result<Share, E> {
                if (0.0..=1.0).contains(&share) {
                    return Ok(Share(share));
                }
                Err(E::invalid_value(de::Unexpected::Float(share), &self))
            }
        }
        impl Visitor<'_> for ShareVisitor {
            type Value = Share;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a share such as \"20%\" or 0.2, from 0 to 1")
            }

            fn visit_f64<E: de::Error>(self, share: f64) -> Result<Share, E> {
                self.check(share)
            }

            fn visit_u64<E: de::Error>(self, share: u64) -> Result<Share, E> {
                self.check(share as f64)
            }

            fn visit_i64<E: de::Error>(self, share: i64) -> Result<Share, E> {
                self.check(share as f64)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Share, E> {
                let percent = text
                    .trim()
                    .strip_suffix('%')
                    .and_then(|number| number.trim().parse::<f64>().ok());
                match percent {
                    Some(percent) => self.check(percent / 100.0),
                    None => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(ShareVisitor)
    }
}

/// One value, or `[from, to]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueRange<T> {
    pub(crate) from: T,
    pub(crate) to: T,
}

pub(crate) type NumberRange = ValueRange<f64>;
pub(crate) type TimeRange = ValueRange<TimeSpan>;

impl<T: Copy> ValueRange<T> {
    pub(crate) fn single(value: T) -> Self {
        Self {
            from: value,
            to: value,
        }
    }
}

impl<'de, T> Deserialize<'de> for ValueRange<T>
where
    T: Deserialize<'de> + Copy + PartialOrd,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RangeVisitor<T>(PhantomData<T>);
        impl<'de, T> Visitor<'de> for RangeVisitor<T>
        where
            T: Deserialize<'de> + Copy + PartialOrd,
        {
            type Value = ValueRange<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or two values [from, to] in ascending order")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let from = entries.next_element()?;
                let to = entries.next_element()?;
                let extra = entries.next_element::<de::IgnoredAny>()?;
                match (from, to, extra) {
                    (Some(from), Some(to), None) if from <= to => Ok(ValueRange { from, to }),
                    _ => Err(de::Error::custom(
                        "expected two values [from, to] in ascending order",
                    )),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::deserialize(de::value::StrDeserializer::new(text)).map(ValueRange::single)
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
                T::deserialize(de::value::F64Deserializer::new(value)).map(ValueRange::single)
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
                T::deserialize(de::value::I64Deserializer::new(value)).map(ValueRange::single)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
                T::deserialize(de::value::U64Deserializer::new(value)).map(ValueRange::single)
            }
        }
        deserializer.deserialize_any(RangeVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_times_shares_and_ranges() {
        let span = |value| serde_json::from_value::<TimeSpan>(value);
        assert_eq!(span(json!("1.5s")).unwrap().ns, 1_500_000_000);
        assert_eq!(span(json!("2h")).unwrap(), TimeSpan::from_seconds(7200));
        for wrong in [
            json!("10"),
            json!(10),
            json!("-1s"),
            json!("40d"),
            json!("s"),
        ] {
            let error = span(wrong).unwrap_err().to_string();
            assert!(error.contains("such as \"10s\""), "{error}");
        }
        let share = |value| serde_json::from_value::<Share>(value).map(|share| share.0);
        assert_eq!(share(json!("20%")).unwrap(), 0.2);
        assert_eq!(share(json!(1)).unwrap(), 1.0);
        assert!(share(json!("120%")).is_err() && share(json!(-1)).is_err());
        let range = |value| serde_json::from_value::<NumberRange>(value);
        assert_eq!(range(json!(5)).unwrap(), NumberRange::single(5.0));
        assert_eq!(range(json!([1, 2.5])).unwrap().to, 2.5);
        assert!(
            range(json!([2, 1]))
                .unwrap_err()
                .to_string()
                .contains("ascending")
        );
        let times = serde_json::from_value::<TimeRange>(json!(["1s", "2s"])).unwrap();
        assert_eq!(times.to, TimeSpan::from_seconds(2));
    }
}
