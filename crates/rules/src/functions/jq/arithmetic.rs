//! Arithmetic and ordering of jq values.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use jaq_core::ops::Math;
use jaq_core::{Error, ValR};

use super::execution_meter;
use super::value::{JqValue, ObjectFields};
use crate::value::{Number, float_to_i64};

/// Converts a float without a fraction to an integer, within the range in which floats represent all
/// integers.
fn item_from_float(float: f64) -> JqValue {
    match float_to_i64(float) {
        Some(int) if float.abs() < 9_007_199_254_740_992.0 => JqValue::Int(int),
        _ => JqValue::Float(float),
    }
}

fn as_number(item: &JqValue) -> Option<Number> {
    match item {
        JqValue::Int(number) => Some(Number::Int(*number)),
        JqValue::Float(number) => Some(Number::Float(*number)),
        _ => None,
    }
}

/// Integer arithmetic; on overflow the result is a float.
fn checked_arithmetic(
    left: &JqValue,
    right: &JqValue,
    ints: fn(i64, i64) -> Option<i64>,
    floats: fn(f64, f64) -> f64,
) -> Option<JqValue> {
    execution_meter::count_steps(1);
    let (left, right) = (as_number(left)?, as_number(right)?);
    if let (Number::Int(left), Number::Int(right)) = (left, right)
        && let Some(result) = ints(left, right)
    {
        return Some(JqValue::Int(result));
    }
    Some(item_from_float(floats(left.as_f64(), right.as_f64())))
}

impl Add for JqValue {
    type Output = ValR<JqValue>;

    fn add(self, other: JqValue) -> ValR<JqValue> {
        if let Some(sum) =
            checked_arithmetic(&self, &other, i64::checked_add, |left, right| left + right)
        {
            return Ok(sum);
        }
        match (&self, &other) {
            (JqValue::Null, _) => Ok(other),
            (_, JqValue::Null) => Ok(self),
            (JqValue::Str(left), JqValue::Str(right)) => {
                execution_meter::count_bytes(left.len() + right.len());
                Ok(JqValue::Str([&**left, &**right].concat().into()))
            }
            (JqValue::Array(left), JqValue::Array(right)) => {
                execution_meter::count_bytes(left.bytes + right.bytes);
                Ok(JqValue::array([&left.inner[..], &right.inner[..]].concat()))
            }
            (JqValue::Object(left), JqValue::Object(right)) => {
                let mut fields = left.inner.clone();
                right
                    .inner
                    .iter()
                    .for_each(|(name, item)| fields.set(name, item.clone()));
                Ok(JqValue::object(fields))
            }
            _ => Err(Error::math(self, Math::Add, other)),
        }
    }
}

impl Sub for JqValue {
    type Output = ValR<JqValue>;

    fn sub(self, other: JqValue) -> ValR<JqValue> {
        if let Some(difference) =
            checked_arithmetic(&self, &other, i64::checked_sub, |left, right| left - right)
        {
            return Ok(difference);
        }
        match (&self, &other) {
            (JqValue::Array(left), JqValue::Array(right)) => {
                Ok(array_difference(&left.inner, &right.inner))
            }
            _ => Err(Error::math(self, Math::Sub, other)),
        }
    }
}

/// The items of one list that are not in the other.
fn array_difference(items: &[JqValue], others: &[JqValue]) -> JqValue {
    execution_meter::count_steps((items.len() * others.len()) as u64);
    let kept = items.iter().filter(|item| !others.contains(item));
    JqValue::array(kept.cloned().collect())
}

impl Mul for JqValue {
    type Output = ValR<JqValue>;

    fn mul(self, other: JqValue) -> ValR<JqValue> {
        if let Some(product) =
            checked_arithmetic(&self, &other, i64::checked_mul, |left, right| left * right)
        {
            return Ok(product);
        }
        match (&self, &other) {
            (JqValue::Str(text), count) | (count, JqValue::Str(text))
                if as_number(count).is_some() =>
            {
                let count = as_number(count).map_or(0.0, Number::as_f64);
                if count <= 0.0 {
                    return Ok(JqValue::Null);
                }
                let count = count.max(1.0) as usize;
                execution_meter::count_bytes(text.len().saturating_mul(count));
                Ok(JqValue::Str(
                    text.repeat(if text.is_empty() { 0 } else { count }).into(),
                ))
            }
            (JqValue::Object(left), JqValue::Object(right)) => {
                Ok(JqValue::object(deep_merge(&left.inner, &right.inner)?))
            }
            _ => Err(Error::math(self, Math::Mul, other)),
        }
    }
}

/// Merges recursively: objects present in both are merged.
fn deep_merge(left: &ObjectFields, right: &ObjectFields) -> ValR<ObjectFields, JqValue> {
    let mut fields = left.clone();
    for (name, item) in right.iter() {
        let item = match (fields.get(name), item) {
            (Some(JqValue::Object(left)), JqValue::Object(right)) => {
                JqValue::object(deep_merge(&left.inner, &right.inner)?)
            }
            _ => item.clone(),
        };
        fields.set(name, item);
    }
    Ok(fields)
}

impl Div for JqValue {
    type Output = ValR<JqValue>;

    fn div(self, other: JqValue) -> ValR<JqValue> {
        let exact = |left: i64, right: i64| {
            (left.checked_rem(right) == Some(0)).then(|| left.wrapping_div(right))
        };
        if let Some(quotient) = checked_arithmetic(&self, &other, exact, |left, right| left / right)
        {
            return Ok(quotient);
        }
        match (&self, &other) {
            (JqValue::Str(text), JqValue::Str(_)) if text.is_empty() => {
                Ok(JqValue::array(Vec::new()))
            }
            (JqValue::Str(text), JqValue::Str(separator)) if separator.is_empty() => Ok(text
                .chars()
                .map(|letter| JqValue::text(letter.encode_utf8(&mut [0; 4])))
                .collect()),
            (JqValue::Str(text), JqValue::Str(separator)) => {
                Ok(text.split(&**separator).map(JqValue::text).collect())
            }
            _ => Err(Error::math(self, Math::Div, other)),
        }
    }
}

impl Rem for JqValue {
    type Output = ValR<JqValue>;

    fn rem(self, other: JqValue) -> ValR<JqValue> {
        let by_zero = as_number(&other).is_some_and(|number| number.as_f64() == 0.0);
        match checked_arithmetic(&self, &other, i64::checked_rem, |left, right| left % right) {
            Some(rest) if !by_zero => Ok(rest),
            _ => Err(Error::math(self, Math::Rem, other)),
        }
    }
}

impl Neg for JqValue {
    type Output = ValR<JqValue>;

    fn neg(self) -> ValR<JqValue> {
        match self {
            JqValue::Int(number) => Ok(number
                .checked_neg()
                .map_or(JqValue::Float(-(number as f64)), JqValue::Int)),
            JqValue::Float(number) => Ok(JqValue::Float(-number)),
            other => Err(Error::typ(other, "number")),
        }
    }
}

/// jq's order of types: null, false, true, numbers, strings, arrays, objects.
fn type_rank(item: &JqValue) -> u8 {
    match item {
        JqValue::Null => 0,
        JqValue::Bool(false) => 1,
        JqValue::Bool(true) => 2,
        JqValue::Int(_) | JqValue::Float(_) => 3,
        JqValue::Str(_) => 4,
        JqValue::Array(_) => 5,
        JqValue::Object(_) => 6,
    }
}

impl Ord for JqValue {
    fn cmp(&self, other: &Self) -> Ordering {
        execution_meter::count_steps(1);
        if let (Some(left), Some(right)) = (as_number(self), as_number(other)) {
            let nan = |number: Number| number.as_f64().is_nan();
            return left
                .compare(right)
                .unwrap_or_else(|| nan(right).cmp(&nan(left)));
        }
        match (self, other) {
            (JqValue::Str(left), JqValue::Str(right)) => {
                execution_meter::count_steps(left.len().min(right.len()) as u64 / 64);
                left.cmp(right)
            }
            (JqValue::Array(left), JqValue::Array(right)) => left.inner.cmp(&right.inner),
            (JqValue::Object(left), JqValue::Object(right)) => {
                let (left, right) = (left.inner.sorted(), right.inner.sorted());
                let names = |fields: &[(&str, &JqValue)]| {
                    fields
                        .iter()
                        .map(|(name, _)| (*name).to_owned())
                        .collect::<Vec<_>>()
                };
                let items = |fields: &[(&str, &JqValue)]| {
                    fields
                        .iter()
                        .map(|(_, item)| (*item).clone())
                        .collect::<Vec<_>>()
                };
                names(&left)
                    .cmp(&names(&right))
                    .then_with(|| items(&left).cmp(&items(&right)))
            }
            _ => type_rank(self).cmp(&type_rank(other)),
        }
    }
}

#[expect(
    clippy::non_canonical_partial_ord_impl,
    reason = "in jq NaN is less than any number, including itself"
)]
impl PartialOrd for JqValue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (JqValue::Float(left), JqValue::Float(right)) if left.is_nan() && right.is_nan() => {
                Some(Ordering::Less)
            }
            _ => Some(self.cmp(other)),
        }
    }
}

impl PartialEq for JqValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (JqValue::Float(left), JqValue::Float(right)) => left == right,
            _ => self.cmp(other).is_eq(),
        }
    }
}

impl Eq for JqValue {}
