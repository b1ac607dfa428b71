//! Native filters: those not written in jq, in addition to those that jaq provides for any value type.

use std::cell::RefCell;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jaq_core::box_iter::box_once;
use jaq_core::data::HasLut;
use jaq_core::native::{Filter, Fun, bome, unary, v};
use jaq_core::{Cv, DataT, Error, Lut, Native, RunPtr, ValR, ValT as _};
use jaq_std::ValT as _;

use super::execution_meter;
use super::value::{JqValue, ObjectFields};
use crate::calendar::CivilTime;
use crate::compilation_cache::CompilationCache;
use crate::compiled_regex::{CompiledRegex, compile_regex};
use crate::json;
use crate::value::Arena;

/// The value types of programs.
pub(super) struct JqDataType;

impl DataT for JqDataType {
    type V<'a> = JqValue;
    type Data<'a> = FilterData<'a>;
}

/// The data available to every filter of a running program. jaq requests the program from it at every step,
/// which is where steps are counted.
#[derive(Clone, Copy)]
pub(super) struct FilterData<'a> {
    pub(super) lut: &'a Lut<JqDataType>,
    pub(super) host: &'a JqContext,
}

impl<'a> HasLut<'a, JqDataType> for FilterData<'a> {
    fn lut(&self) -> &'a Lut<JqDataType> {
        execution_meter::count_steps(1);
        self.lut
    }
}

/// The environment of a program: the current time and compiled regular expressions.
pub(super) struct JqContext {
    now_ms: u64,
    regexes: RefCell<CompilationCache<Arc<CompiledRegex>>>,
}

impl JqContext {
    pub(super) fn new(now_ms: u64, regexes: CompilationCache<Arc<CompiledRegex>>) -> JqContext {
        JqContext {
            now_ms,
            regexes: RefCell::new(regexes),
        }
    }

    pub(super) fn into_regexes(self) -> CompilationCache<Arc<CompiledRegex>> {
        self.regexes.into_inner()
    }
}

type NativeFilters = Box<[Filter<RunPtr<JqDataType>>]>;

pub(super) fn native_filters() -> impl Iterator<Item = Fun<JqDataType>> {
    [
        value_filters(),
        math_filters(),
        encoding_filters(),
        regex_filters(),
    ]
    .into_iter()
    .flat_map(Vec::from)
    .map(|(name, arguments, filter)| (name, arguments, Native::<JqDataType>::new(filter)))
}

fn text(item: &JqValue) -> Result<&str, Error<JqValue>> {
    match item {
        JqValue::Str(text) => Ok(text),
        other => Err(Error::typ(other.clone(), "string")),
    }
}

fn value_filters() -> NativeFilters {
    Box::new([
        ("tojson", v(0), |cv| {
            bome(Ok(JqValue::text(&cv.1.to_json())))
        }),
        ("fromjson", v(0), |cv| {
            let arena = Arena::new();
            bome(
                text(&cv.1).and_then(|text| match json::parse(text, &arena) {
                    Ok(value) => Ok(JqValue::from_value(value, &arena)),
                    Err(error) => Err(Error::str(error)),
                }),
            )
        }),
        ("length", v(0), |cv| bome(length(&cv.1))),
        ("contains", v(1), |cv| {
            unary(cv, |item, part| contains(&item, &part))
        }),
        ("has", v(1), |cv| {
            unary(cv, |item, key| match (&item, &key) {
                (JqValue::Object(_), JqValue::Str(_))
                | (JqValue::Array(_), JqValue::Int(_) | JqValue::Float(_)) => {
                    item.child_at(&key).map(|part| part.is_some().into())
                }
                _ => Err(Error::index(item, key)),
            })
        }),
        ("indices", v(1), |cv| {
            unary(cv, |item, wanted| item.indices(&wanted))
        }),
        ("bsearch", v(1), |cv| {
            unary(cv, |item, wanted| match &item {
                JqValue::Array(tree) => Ok(JqValue::Int(match tree.inner.binary_search(&wanted) {
                    Ok(at) => at as i64,
                    Err(at) => -1 - at as i64,
                })),
                _ => Err(Error::typ(item, "array")),
            })
        }),
        ("now", v(0), |cv| {
            bome(Ok(JqValue::Float(cv.0.data().host.now_ms as f64 / 1000.0)))
        }),
        ("todateiso8601", v(0), |cv| bome(to_iso(&cv.1))),
        ("fromdateiso8601", v(0), |cv| bome(from_iso(&cv.1))),
        // Debug output is discarded.
        ("debug_empty", v(0), |_| Box::new(std::iter::empty())),
        ("stderr_empty", v(0), |_| Box::new(std::iter::empty())),
    ])
}

fn length(item: &JqValue) -> ValR<JqValue> {
    Ok(match item {
        JqValue::Null => JqValue::Int(0),
        JqValue::Bool(_) => return Err(Error::str(format!("{item} has no length"))),
        JqValue::Int(number) => number
            .checked_abs()
            .map_or(JqValue::Float((*number as f64).abs()), JqValue::Int),
        JqValue::Float(number) => JqValue::Float(number.abs()),
        JqValue::Str(text) => {
            execution_meter::count_steps(text.len() as u64 / 64);
            text.chars().count().into()
        }
        JqValue::Array(tree) => tree.inner.len().into(),
        JqValue::Object(tree) => tree.inner.len().into(),
    })
}

fn contains(item: &JqValue, part: &JqValue) -> ValR<JqValue> {
    fn holds(item: &JqValue, part: &JqValue) -> bool {
        execution_meter::count_steps(1);
        match (item, part) {
            (JqValue::Str(text), JqValue::Str(part)) => {
                execution_meter::count_steps(text.len() as u64 / 64);
                text.contains(&**part)
            }
            (JqValue::Array(items), JqValue::Array(parts)) => parts
                .inner
                .iter()
                .all(|part| items.inner.iter().any(|item| holds(item, part))),
            (JqValue::Object(fields), JqValue::Object(parts)) => parts
                .inner
                .iter()
                .all(|(name, part)| fields.inner.get(name).is_some_and(|item| holds(item, part))),
            _ => item == part,
        }
    }
    Ok(holds(item, part).into())
}

/// Formats seconds since 1970 as `2015-03-05T23:51:47Z`.
fn to_iso(item: &JqValue) -> ValR<JqValue> {
    let seconds = match item.as_f64() {
        Some(seconds) if seconds.abs() < 253_402_300_800.0 => seconds.floor() as i64,
        _ => return Err(Error::typ(item.clone(), "seconds since 1970")),
    };
    let at = CivilTime::from_local_s(seconds);
    Ok(JqValue::text(&format!("{at}Z")))
}

fn from_iso(item: &JqValue) -> ValR<JqValue> {
    let parsed = crate::functions::time_format::read_datetime(text(item)?).map_err(Error::str)?;
    match parsed.civil.to_local_s() {
        Some(local_s) => Ok(JqValue::Int(
            local_s - i64::from(parsed.offset_s.unwrap_or(0)),
        )),
        None => Err(Error::str(format!("there is no such time: {item}"))),
    }
}

macro_rules! floats {
    ($($name:literal $function:expr),* $(,)?) => {
        [$(($name, v(0), |cv: Cv<'_, JqDataType>| bome(float(&cv.1).map($function).map(JqValue::Float)))),*]
    };
}

fn float(item: &JqValue) -> Result<f64, Error<JqValue>> {
    item.as_f64()
        .ok_or_else(|| Error::typ(item.clone(), "number"))
}

fn math_filters() -> NativeFilters {
    let one: [Filter<RunPtr<JqDataType>>; 24] = floats![
        "sqrt" f64::sqrt, "cbrt" f64::cbrt, "exp" f64::exp, "exp2" f64::exp2, "exp10" |x| 10_f64.powf(x), "log" f64::ln,
        "log2" f64::log2, "log10" f64::log10, "log1p" f64::ln_1p, "expm1" f64::exp_m1, "sin" f64::sin, "cos" f64::cos,
        "tan" f64::tan, "asin" f64::asin, "acos" f64::acos, "atan" f64::atan, "sinh" f64::sinh, "cosh" f64::cosh,
        "tanh" f64::tanh, "asinh" f64::asinh, "acosh" f64::acosh, "atanh" f64::atanh, "trunc" f64::trunc, "fabs" f64::abs,
    ];
    let two: [Filter<RunPtr<JqDataType>>; 5] = [
        ("pow", v(2), |cv| binary(cv, f64::powf)),
        ("atan2", v(2), |cv| binary(cv, f64::atan2)),
        ("fmin", v(2), |cv| binary(cv, f64::min)),
        ("fmax", v(2), |cv| binary(cv, f64::max)),
        ("fmod", v(2), |cv| binary(cv, |x, y| x % y)),
    ];
    one.into_iter().chain(two).collect()
}

fn binary<'a>(
    mut cv: Cv<'a, JqDataType>,
    function: fn(f64, f64) -> f64,
) -> jaq_core::ValXs<'a, JqValue> {
    let (y, x) = (cv.0.pop_var(), cv.0.pop_var());
    bome(float(&x).and_then(|x| Ok(JqValue::Float(function(x, float(&y)?)))))
}

fn encoding_filters() -> NativeFilters {
    Box::new([
        ("encode_base64", v(0), |cv| {
            bome(text(&cv.1).map(|text| JqValue::text(&STANDARD.encode(text))))
        }),
        ("decode_base64", v(0), |cv| {
            bome(text(&cv.1).and_then(|text| match STANDARD.decode(text) {
                Ok(bytes) => Ok(JqValue::text(&String::from_utf8_lossy(&bytes))),
                Err(error) => Err(Error::str(error)),
            }))
        }),
        ("encode_uri", v(0), |cv| {
            bome(text(&cv.1).map(|text| {
                let mut out = String::with_capacity(text.len());
                for byte in text.bytes() {
                    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                        out.push(char::from(byte));
                    } else {
                        out.push_str(&format!("%{byte:02X}"));
                    }
                }
                JqValue::text(&out)
            }))
        }),
        ("escape_html", v(0), |cv| {
            bome(text(&cv.1).map(|text| {
                let escaped = text
                    .replace('&', "&amp;")
                    .replace('<', "&lt;")
                    .replace('>', "&gt;");
                JqValue::text(&escaped.replace('\'', "&#39;").replace('"', "&quot;"))
            }))
        }),
    ])
}

/// The three filters on which `test`, `match`, `capture`, `scan`, `split`, `splits`, `sub` and `gsub` are
/// built.
fn regex_filters() -> NativeFilters {
    Box::new([
        ("matches", v(2), |cv| regex_matches(cv, false, true)),
        ("split_matches", v(2), |cv| regex_matches(cv, true, true)),
        ("split_", v(2), |cv| regex_matches(cv, true, false)),
    ])
}

/// Steps counted for compiling a regular expression.
const COMPILATION_STEPS: u64 = 2_000;
/// Amount of regular expression work that counts as one step.
const WORK_PER_STEP: u64 = 1 << 16;

fn regex_matches<'a>(
    mut cv: Cv<'a, JqDataType>,
    between: bool,
    found: bool,
) -> jaq_core::ValXs<'a, JqValue> {
    let (flags, pattern) = (cv.0.pop_var(), cv.0.pop_var());
    let host = cv.0.data().host;
    let list = (|| {
        let input = text(&cv.1)?;
        let mut pattern = text(&pattern)?.to_owned();
        let (mut global, mut empty_too) = (false, true);
        for flag in text(&flags)?.chars() {
            match flag {
                'g' => global = true,
                'n' => empty_too = false,
                'i' | 'x' | 's' => pattern.insert_str(0, &format!("(?{flag})")),
                'l' => {}
                'p' => pattern.insert_str(0, "(?s)"),
                other => return Err(Error::str(format!("invalid regex flag: {other}"))),
            }
        }
        let compiled = host
            .regexes
            .borrow_mut()
            .get_or_compile(&pattern, |pattern| {
                // About the time that compilation takes.
                execution_meter::count_steps(COMPILATION_STEPS);
                compile_regex(pattern)
            });
        let pattern = compiled.map_err(Error::str)?;
        execution_meter::count_steps(
            1 + input.len() as u64 / 16 + pattern.matching_cost(input.len()) / WORK_PER_STEP,
        );
        let regex = &pattern.regex;
        let mut parts = Vec::new();
        let mut end = 0;
        for caught in regex.captures_iter(input) {
            let Some(whole) = caught.get(0).filter(|whole| empty_too || !whole.is_empty()) else {
                continue;
            };
            if between {
                parts.push(JqValue::text(&input[end..whole.start()]));
            }
            if found {
                parts.push(capture_objects(input, regex, &caught)?);
            }
            end = whole.end();
            if !global {
                break;
            }
        }
        if between {
            parts.push(JqValue::text(&input[end..]));
        }
        Ok(JqValue::array(parts))
    })();
    box_once(list.map_err(jaq_core::Exn::from))
}

/// The captures of one match: an object for the whole match and one per group.
fn capture_objects(
    input: &str,
    regex: &regex::Regex,
    caught: &regex::Captures<'_>,
) -> ValR<JqValue> {
    let mut groups = Vec::with_capacity(caught.len());
    for (group, name) in caught.iter().zip(regex.capture_names()) {
        let mut fields = ObjectFields::default();
        let (offset, string) = match group {
            Some(group) => (
                input[..group.start()].chars().count() as i64,
                JqValue::text(group.as_str()),
            ),
            None => (-1, JqValue::Null),
        };
        execution_meter::count_steps(input.len() as u64 / 64);
        let length = group.map_or(0, |group| group.as_str().chars().count() as i64);
        fields.set("offset", JqValue::Int(offset));
        fields.set("length", JqValue::Int(length));
        fields.set("string", string);
        if groups.is_empty() {
            // The whole match has no name.
        } else if let Some(name) = name {
            fields.set("name", JqValue::text(name));
        }
        groups.push(JqValue::object(fields));
    }
    JqValue::from_iter(groups).range(None..None)
}
