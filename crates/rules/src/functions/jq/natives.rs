//! The filters that are not written in jq itself, beyond those that jaq has for any value.

use std::cell::RefCell;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jaq_core::box_iter::box_once;
use jaq_core::data::HasLut;
use jaq_core::native::{Filter, Fun, bome, unary, v};
use jaq_core::{Cv, DataT, Error, Lut, Native, RunPtr, ValR, ValT as _};
use jaq_std::ValT as _;

use super::meter;
use super::tree::Fields;
use super::value::Item;
use crate::calendar::Civil;
use crate::json;
use crate::tools::{Cache, Pattern};
use crate::value::Arena;

/// What programs work with.
pub(super) struct Kind;

impl DataT for Kind {
    type V<'a> = Item;
    type Data<'a> = Data<'a>;
}

/// What every filter of a running program can see. jaq asks it for the program at every step, which is where steps are counted.
#[derive(Clone, Copy)]
pub(super) struct Data<'a> {
    pub(super) lut: &'a Lut<Kind>,
    pub(super) host: &'a Host,
}

impl<'a> HasLut<'a, Kind> for Data<'a> {
    fn lut(&self) -> &'a Lut<Kind> {
        meter::steps(1);
        self.lut
    }
}

/// What a program may ask of the world: the moment, and compiled regular expressions.
pub(super) struct Host {
    now_ms: u64,
    regexes: RefCell<Cache<Arc<Pattern>>>,
}

impl Host {
    pub(super) fn new(now_ms: u64, regexes: Cache<Arc<Pattern>>) -> Host {
        Host {
            now_ms,
            regexes: RefCell::new(regexes),
        }
    }

    pub(super) fn into_regexes(self) -> Cache<Arc<Pattern>> {
        self.regexes.into_inner()
    }
}

type Natives = Box<[Filter<RunPtr<Kind>>]>;

pub(super) fn natives() -> impl Iterator<Item = Fun<Kind>> {
    [values(), mathematics(), codes(), expressions()]
        .into_iter()
        .flat_map(Vec::from)
        .map(|(name, arguments, filter)| (name, arguments, Native::<Kind>::new(filter)))
}

fn text(item: &Item) -> Result<&str, Error<Item>> {
    match item {
        Item::Str(text) => Ok(text),
        other => Err(Error::typ(other.clone(), "string")),
    }
}

fn values() -> Natives {
    Box::new([
        ("tojson", v(0), |cv| bome(Ok(Item::text(&cv.1.to_json())))),
        ("fromjson", v(0), |cv| {
            let arena = Arena::new();
            bome(
                text(&cv.1).and_then(|text| match json::parse(text, &arena) {
                    Ok(value) => Ok(Item::from_value(value, &arena)),
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
                (Item::Object(_), Item::Str(_))
                | (Item::Array(_), Item::Int(_) | Item::Float(_)) => {
                    item.part(&key).map(|part| part.is_some().into())
                }
                _ => Err(Error::index(item, key)),
            })
        }),
        ("indices", v(1), |cv| {
            unary(cv, |item, wanted| item.indices(&wanted))
        }),
        ("bsearch", v(1), |cv| {
            unary(cv, |item, wanted| match &item {
                Item::Array(tree) => Ok(Item::Int(match tree.inner.binary_search(&wanted) {
                    Ok(at) => at as i64,
                    Err(at) => -1 - at as i64,
                })),
                _ => Err(Error::typ(item, "array")),
            })
        }),
        ("now", v(0), |cv| {
            bome(Ok(Item::Float(cv.0.data().host.now_ms as f64 / 1000.0)))
        }),
        ("todateiso8601", v(0), |cv| bome(to_iso(&cv.1))),
        ("fromdateiso8601", v(0), |cv| bome(from_iso(&cv.1))),
        // Nobody listens.
        ("debug_empty", v(0), |_| Box::new(std::iter::empty())),
        ("stderr_empty", v(0), |_| Box::new(std::iter::empty())),
    ])
}

fn length(item: &Item) -> ValR<Item> {
    Ok(match item {
        Item::Null => Item::Int(0),
        Item::Bool(_) => return Err(Error::str(format!("{item} has no length"))),
        Item::Int(number) => number
            .checked_abs()
            .map_or(Item::Float((*number as f64).abs()), Item::Int),
        Item::Float(number) => Item::Float(number.abs()),
        Item::Str(text) => {
            meter::steps(text.len() as u64 / 64);
            text.chars().count().into()
        }
        Item::Array(tree) => tree.inner.len().into(),
        Item::Object(tree) => tree.inner.len().into(),
    })
}

fn contains(item: &Item, part: &Item) -> ValR<Item> {
    fn holds(item: &Item, part: &Item) -> bool {
        meter::steps(1);
        match (item, part) {
            (Item::Str(text), Item::Str(part)) => {
                meter::steps(text.len() as u64 / 64);
                text.contains(&**part)
            }
            (Item::Array(items), Item::Array(parts)) => parts
                .inner
                .iter()
                .all(|part| items.inner.iter().any(|item| holds(item, part))),
            (Item::Object(fields), Item::Object(parts)) => parts
                .inner
                .iter()
                .all(|(name, part)| fields.inner.get(name).is_some_and(|item| holds(item, part))),
            _ => item == part,
        }
    }
    Ok(holds(item, part).into())
}

/// Seconds since 1970 as `2015-03-05T23:51:47Z`.
fn to_iso(item: &Item) -> ValR<Item> {
    let seconds = match item.as_f64() {
        Some(seconds) if seconds.abs() < 253_402_300_800.0 => seconds.floor() as i64,
        _ => return Err(Error::typ(item.clone(), "seconds since 1970")),
    };
    let at = Civil::from_local_s(seconds);
    Ok(Item::text(&format!("{at}Z")))
}

fn from_iso(item: &Item) -> ValR<Item> {
    let parsed = crate::functions::time_format::read_datetime(text(item)?).map_err(Error::str)?;
    match parsed.civil.to_local_s() {
        Some(local_s) => Ok(Item::Int(local_s - i64::from(parsed.offset_s.unwrap_or(0)))),
        None => Err(Error::str(format!("there is no such time: {item}"))),
    }
}

macro_rules! floats {
    ($($name:literal $function:expr),* $(,)?) => {
        [$(($name, v(0), |cv: Cv<'_, Kind>| bome(float(&cv.1).map($function).map(Item::Float)))),*]
    };
}

fn float(item: &Item) -> Result<f64, Error<Item>> {
    item.as_f64()
        .ok_or_else(|| Error::typ(item.clone(), "number"))
}

fn mathematics() -> Natives {
    let one: [Filter<RunPtr<Kind>>; 24] = floats![
        "sqrt" f64::sqrt, "cbrt" f64::cbrt, "exp" f64::exp, "exp2" f64::exp2, "exp10" |x| 10_f64.powf(x), "log" f64::ln,
        "log2" f64::log2, "log10" f64::log10, "log1p" f64::ln_1p, "expm1" f64::exp_m1, "sin" f64::sin, "cos" f64::cos,
        "tan" f64::tan, "asin" f64::asin, "acos" f64::acos, "atan" f64::atan, "sinh" f64::sinh, "cosh" f64::cosh,
        "tanh" f64::tanh, "asinh" f64::asinh, "acosh" f64::acosh, "atanh" f64::atanh, "trunc" f64::trunc, "fabs" f64::abs,
    ];
    let two: [Filter<RunPtr<Kind>>; 5] = [
        ("pow", v(2), |cv| binary(cv, f64::powf)),
        ("atan2", v(2), |cv| binary(cv, f64::atan2)),
        ("fmin", v(2), |cv| binary(cv, f64::min)),
        ("fmax", v(2), |cv| binary(cv, f64::max)),
        ("fmod", v(2), |cv| binary(cv, |x, y| x % y)),
    ];
    one.into_iter().chain(two).collect()
}

fn binary<'a>(mut cv: Cv<'a, Kind>, function: fn(f64, f64) -> f64) -> jaq_core::ValXs<'a, Item> {
    let (y, x) = (cv.0.pop_var(), cv.0.pop_var());
    bome(float(&x).and_then(|x| Ok(Item::Float(function(x, float(&y)?)))))
}

fn codes() -> Natives {
    Box::new([
        ("encode_base64", v(0), |cv| {
            bome(text(&cv.1).map(|text| Item::text(&STANDARD.encode(text))))
        }),
        ("decode_base64", v(0), |cv| {
            bome(text(&cv.1).and_then(|text| match STANDARD.decode(text) {
                Ok(bytes) => Ok(Item::text(&String::from_utf8_lossy(&bytes))),
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
                Item::text(&out)
            }))
        }),
        ("escape_html", v(0), |cv| {
            bome(text(&cv.1).map(|text| {
                let escaped = text
                    .replace('&', "&amp;")
                    .replace('<', "&lt;")
                    .replace('>', "&gt;");
                Item::text(&escaped.replace('\'', "&#39;").replace('"', "&quot;"))
            }))
        }),
    ])
}

/// The three filters that `test`, `match`, `capture`, `scan`, `split`, `splits`, `sub` and `gsub` are made of.
fn expressions() -> Natives {
    Box::new([
        ("matches", v(2), |cv| matches(cv, false, true)),
        ("split_matches", v(2), |cv| matches(cv, true, true)),
        ("split_", v(2), |cv| matches(cv, true, false)),
    ])
}

/// What compiling a regular expression counts for.
const COMPILATION_STEPS: u64 = 2_000;
/// As much work of a regular expression as one step.
const WORK_PER_STEP: u64 = 1 << 16;

fn matches<'a>(mut cv: Cv<'a, Kind>, between: bool, found: bool) -> jaq_core::ValXs<'a, Item> {
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
        let compiled = host.regexes.borrow_mut().get(&pattern, |pattern| {
            // About as long as compiling takes.
            meter::steps(COMPILATION_STEPS);
            crate::tools::compile_regex(pattern)
        });
        let pattern = compiled.map_err(Error::str)?;
        meter::steps(1 + input.len() as u64 / 16 + pattern.work(input.len()) / WORK_PER_STEP);
        let regex = &pattern.regex;
        let mut parts = Vec::new();
        let mut end = 0;
        for caught in regex.captures_iter(input) {
            let Some(whole) = caught.get(0).filter(|whole| empty_too || !whole.is_empty()) else {
                continue;
            };
            if between {
                parts.push(Item::text(&input[end..whole.start()]));
            }
            if found {
                parts.push(captures(input, regex, &caught)?);
            }
            end = whole.end();
            if !global {
                break;
            }
        }
        if between {
            parts.push(Item::text(&input[end..]));
        }
        Ok(Item::array(parts))
    })();
    box_once(list.map_err(jaq_core::Exn::from))
}

/// What one match caught: an object for the whole and for each group.
fn captures(input: &str, regex: &regex::Regex, caught: &regex::Captures<'_>) -> ValR<Item> {
    let mut groups = Vec::with_capacity(caught.len());
    for (group, name) in caught.iter().zip(regex.capture_names()) {
        let mut fields = Fields::default();
        let (offset, string) = match group {
            Some(group) => (
                input[..group.start()].chars().count() as i64,
                Item::text(group.as_str()),
            ),
            None => (-1, Item::Null),
        };
        meter::steps(input.len() as u64 / 64);
        let length = group.map_or(0, |group| group.as_str().chars().count() as i64);
        fields.set("offset", Item::Int(offset));
        fields.set("length", Item::Int(length));
        fields.set("string", string);
        if groups.is_empty() {
            // The whole match has no name.
        } else if let Some(name) = name {
            fields.set("name", Item::text(name));
        }
        groups.push(Item::object(fields));
    }
    Item::from_iter(groups).range(None..None)
}
