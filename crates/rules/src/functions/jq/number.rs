//! Arithmetic and order of a program's values.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use jaq_core::ops::Math;
use jaq_core::{Error, ValR};

use super::meter;
use super::tree::Fields;
use super::value::Item;
use crate::value::{Number, float_to_i64};

/// A float that is an integer becomes one, as far as floats count by ones.
fn number(float: f64) -> Item {
    match float_to_i64(float) {
        Some(int) if float.abs() < 9_007_199_254_740_992.0 => Item::Int(int),
        _ => Item::Float(float),
    }
}

fn as_number(item: &Item) -> Option<Number> {
    match item {
        Item::Int(number) => Some(Number::Int(*number)),
        Item::Float(number) => Some(Number::Float(*number)),
        _ => None,
    }
}

/// Integers as far as they go, floats beyond.
fn calculate(
    left: &Item,
    right: &Item,
    ints: fn(i64, i64) -> Option<i64>,
    floats: fn(f64, f64) -> f64,
) -> Option<Item> {
    meter::steps(1);
    let (left, right) = (as_number(left)?, as_number(right)?);
    if let (Number::Int(left), Number::Int(right)) = (left, right)
        && let Some(result) = ints(left, right)
    {
        return Some(Item::Int(result));
    }
    Some(number(floats(left.as_f64(), right.as_f64())))
}

impl Add for Item {
    type Output = ValR<Item>;

    fn add(self, other: Item) -> ValR<Item> {
        if let Some(sum) = calculate(&self, &other, i64::checked_add, |left, right| left + right) {
            return Ok(sum);
        }
        match (&self, &other) {
            (Item::Null, _) => Ok(other),
            (_, Item::Null) => Ok(self),
            (Item::Str(left), Item::Str(right)) => {
                meter::bytes(left.len() + right.len());
                Ok(Item::Str([&**left, &**right].concat().into()))
            }
            (Item::Array(left), Item::Array(right)) => {
                meter::bytes(left.bytes + right.bytes);
                Ok(Item::array([&left.inner[..], &right.inner[..]].concat()))
            }
            (Item::Object(left), Item::Object(right)) => {
                let mut fields = left.inner.clone();
                right
                    .inner
                    .iter()
                    .for_each(|(name, item)| fields.set(name, item.clone()));
                Ok(Item::object(fields))
            }
            _ => Err(Error::math(self, Math::Add, other)),
        }
    }
}

impl Sub for Item {
    type Output = ValR<Item>;

    fn sub(self, other: Item) -> ValR<Item> {
        if let Some(difference) =
            calculate(&self, &other, i64::checked_sub, |left, right| left - right)
        {
            return Ok(difference);
        }
        match (&self, &other) {
            (Item::Array(left), Item::Array(right)) => Ok(without(&left.inner, &right.inner)),
            _ => Err(Error::math(self, Math::Sub, other)),
        }
    }
}

/// The items of one list that are not in the other.
fn without(items: &[Item], others: &[Item]) -> Item {
    meter::steps((items.len() * others.len()) as u64);
    let kept = items.iter().filter(|item| !others.contains(item));
    Item::array(kept.cloned().collect())
}

impl Mul for Item {
    type Output = ValR<Item>;

    fn mul(self, other: Item) -> ValR<Item> {
        if let Some(product) =
            calculate(&self, &other, i64::checked_mul, |left, right| left * right)
        {
            return Ok(product);
        }
        match (&self, &other) {
            (Item::Str(text), count) | (count, Item::Str(text)) if as_number(count).is_some() => {
                let count = as_number(count).map_or(0.0, Number::as_f64);
                if count <= 0.0 {
                    return Ok(Item::Null);
                }
                let count = count.max(1.0) as usize;
                meter::bytes(text.len().saturating_mul(count));
                Ok(Item::Str(
                    text.repeat(if text.is_empty() { 0 } else { count }).into(),
                ))
            }
            (Item::Object(left), Item::Object(right)) => {
                Ok(Item::object(merged(&left.inner, &right.inner)?))
            }
            _ => Err(Error::math(self, Math::Mul, other)),
        }
    }
}

/// Objects in both are merged in turn.
fn merged(left: &Fields, right: &Fields) -> ValR<Fields, Item> {
    let mut fields = left.clone();
    for (name, item) in right.iter() {
        let item = match (fields.get(name), item) {
            (Some(Item::Object(left)), Item::Object(right)) => {
                Item::object(merged(&left.inner, &right.inner)?)
            }
            _ => item.clone(),
        };
        fields.set(name, item);
    }
    Ok(fields)
}

impl Div for Item {
    type Output = ValR<Item>;

    fn div(self, other: Item) -> ValR<Item> {
        let exact = |left: i64, right: i64| {
            (left.checked_rem(right) == Some(0)).then(|| left.wrapping_div(right))
        };
        if let Some(quotient) = calculate(&self, &other, exact, |left, right| left / right) {
            return Ok(quotient);
        }
        match (&self, &other) {
            (Item::Str(text), Item::Str(_)) if text.is_empty() => Ok(Item::array(Vec::new())),
            (Item::Str(text), Item::Str(separator)) if separator.is_empty() => Ok(text
                .chars()
                .map(|letter| Item::text(letter.encode_utf8(&mut [0; 4])))
                .collect()),
            (Item::Str(text), Item::Str(separator)) => {
                Ok(text.split(&**separator).map(Item::text).collect())
            }
            _ => Err(Error::math(self, Math::Div, other)),
        }
    }
}

impl Rem for Item {
    type Output = ValR<Item>;

    fn rem(self, other: Item) -> ValR<Item> {
        let by_zero = as_number(&other).is_some_and(|number| number.as_f64() == 0.0);
        match calculate(&self, &other, i64::checked_rem, |left, right| left % right) {
            Some(rest) if !by_zero => Ok(rest),
            _ => Err(Error::math(self, Math::Rem, other)),
        }
    }
}

impl Neg for Item {
    type Output = ValR<Item>;

    fn neg(self) -> ValR<Item> {
        match self {
            Item::Int(number) => Ok(number
                .checked_neg()
                .map_or(Item::Float(-(number as f64)), Item::Int)),
            Item::Float(number) => Ok(Item::Float(-number)),
            other => Err(Error::typ(other, "number")),
        }
    }
}

/// null, false, true, numbers, strings, arrays, objects: jq's order of types.
fn rank(item: &Item) -> u8 {
    match item {
        Item::Null => 0,
        Item::Bool(false) => 1,
        Item::Bool(true) => 2,
        Item::Int(_) | Item::Float(_) => 3,
        Item::Str(_) => 4,
        Item::Array(_) => 5,
        Item::Object(_) => 6,
    }
}

impl Ord for Item {
    fn cmp(&self, other: &Self) -> Ordering {
        meter::steps(1);
        if let (Some(left), Some(right)) = (as_number(self), as_number(other)) {
            let nan = |number: Number| number.as_f64().is_nan();
            return left
                .compare(right)
                .unwrap_or_else(|| nan(right).cmp(&nan(left)));
        }
        match (self, other) {
            (Item::Str(left), Item::Str(right)) => {
                meter::steps(left.len().min(right.len()) as u64 / 64);
                left.cmp(right)
            }
            (Item::Array(left), Item::Array(right)) => left.inner.cmp(&right.inner),
            (Item::Object(left), Item::Object(right)) => {
                let (left, right) = (left.inner.sorted(), right.inner.sorted());
                let names = |fields: &[(&str, &Item)]| {
                    fields
                        .iter()
                        .map(|(name, _)| (*name).to_owned())
                        .collect::<Vec<_>>()
                };
                let items = |fields: &[(&str, &Item)]| {
                    fields
                        .iter()
                        .map(|(_, item)| (*item).clone())
                        .collect::<Vec<_>>()
                };
                names(&left)
                    .cmp(&names(&right))
                    .then_with(|| items(&left).cmp(&items(&right)))
            }
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

#[expect(
    clippy::non_canonical_partial_ord_impl,
    reason = "in jq what is no number is less than any number, itself too"
)]
impl PartialOrd for Item {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Item::Float(left), Item::Float(right)) if left.is_nan() && right.is_nan() => {
                Some(Ordering::Less)
            }
            _ => Some(self.cmp(other)),
        }
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Item::Float(left), Item::Float(right)) => left == right,
            _ => self.cmp(other).is_eq(),
        }
    }
}

impl Eq for Item {}
