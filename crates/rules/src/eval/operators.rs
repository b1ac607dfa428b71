//! Operators on values.

use std::cmp::Ordering;

use crate::evaluation_error::EvaluationError;
use crate::function_context::Dialect;
use crate::syntax::ast::BinaryOp;
use crate::value::{Number, Value};

pub(super) fn is_text(value: Value<'_>) -> bool {
    matches!(value, Value::Str(_) | Value::Bytes(_))
}

/// Whether one side is a number and the other a text that is no number. EMQX does not compare these.
#[inline]
pub(super) fn is_unordered(left: Value<'_>, right: Value<'_>) -> bool {
    let is_number = |value| matches!(value, Value::Int(_) | Value::Float(_) | Value::Big(_));
    (is_number(left) && is_text(right) && right.as_number().is_none())
        || (is_number(right) && is_text(left) && left.as_number().is_none())
}

/// Compares two values. In FluxMQ's dialect, every comparison with null is false. Values without an order are
/// not equal, so `!=` is true for them and all other comparisons are false.
pub(super) fn compare(op: BinaryOp, left: Value<'_>, right: Value<'_>, dialect: Dialect) -> bool {
    if left.is_null() || right.is_null() {
        return dialect == Dialect::Emqx && compare_null(op, left, right);
    }
    let ordering = left.compare(&right);
    match op {
        BinaryOp::Equal => ordering == Some(Ordering::Equal),
        BinaryOp::NotEqual => ordering != Some(Ordering::Equal),
        BinaryOp::Less => ordering == Some(Ordering::Less),
        BinaryOp::LessEqual => matches!(ordering, Some(Ordering::Less | Ordering::Equal)),
        BinaryOp::Greater => ordering == Some(Ordering::Greater),
        BinaryOp::GreaterEqual => matches!(ordering, Some(Ordering::Greater | Ordering::Equal)),
        _ => false,
    }
}

/// Comparison with null or undefined as in EMQX. Undefined equals only undefined, and all its other
/// comparisons are false. Null acts as a word: it equals null and the text `null`, and differs from anything
/// else.
fn compare_null(op: BinaryOp, left: Value<'_>, right: Value<'_>) -> bool {
    let ordering = match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::Null, Value::Null) => Some(Ordering::Equal),
        (Value::Undefined, _) | (_, Value::Undefined) => return false,
        (Value::Null, text) => text.as_bytes().map(|text| NULL.cmp(text)),
        (text, _) => text.as_bytes().map(|text| text.cmp(NULL)),
    };
    match op {
        BinaryOp::Equal => ordering == Some(Ordering::Equal),
        BinaryOp::NotEqual => ordering != Some(Ordering::Equal),
        BinaryOp::Less => ordering == Some(Ordering::Less),
        BinaryOp::LessEqual => ordering.is_some_and(Ordering::is_le),
        BinaryOp::Greater => ordering == Some(Ordering::Greater),
        BinaryOp::GreaterEqual => ordering.is_some_and(Ordering::is_ge),
        _ => false,
    }
}

const NULL: &[u8] = b"null";

/// NOT. In FluxMQ's dialect null stays null; in EMQX's dialect a value that is no boolean is false both
/// before and after NOT.
pub(super) fn not<'a>(value: Value<'a>, dialect: Dialect) -> Value<'a> {
    match (value, dialect) {
        (Value::Bool(truth), _) => Value::Bool(!truth),
        (_, Dialect::Emqx) => Value::Bool(false),
        (value, _) if value.is_null() => Value::Undefined,
        (value, _) => Value::Bool(!value.is_truthy()),
    }
}

pub(super) fn matches<'a>(topic: Value<'a>, filter: Value<'a>) -> Value<'a> {
    let matched = match (topic.as_str(), filter.as_str()) {
        (Some(topic), Some(filter)) => mqtt::filter_matches(filter, topic),
        _ => false,
    };
    Value::Bool(matched)
}

pub(super) fn negate(value: Value<'_>) -> Result<Value<'_>, EvaluationError> {
    match value {
        value if value.is_null() => Ok(Value::Undefined),
        value => match number("-", 1, value)? {
            Number::Int(number) => number
                .checked_neg()
                .map(Value::Int)
                .ok_or(EvaluationError::Overflow { function: "-" }),
            Number::Float(number) => Ok(Value::Float(-number)),
        },
    }
}

pub(super) fn arithmetic<'a>(
    op: BinaryOp,
    left: Value<'a>,
    right: Value<'a>,
) -> Result<Value<'a>, EvaluationError> {
    if left.is_null() || right.is_null() {
        return Ok(Value::Undefined);
    }
    let function = op.text();
    let left = number(function, 1, left)?;
    let right = number(function, 2, right)?;
    if let (Number::Int(left), Number::Int(right)) = (left, right)
        && op != BinaryOp::Divide
    {
        return integer_arithmetic(op, left, right);
    }
    let (left, right) = (left.as_f64(), right.as_f64());
    let result = match op {
        BinaryOp::Add => left + right,
        BinaryOp::Subtract => left - right,
        BinaryOp::Multiply => left * right,
        BinaryOp::Divide => left / right,
        BinaryOp::Quotient => {
            let whole = crate::value::float_to_i64((left / right).trunc());
            return whole
                .map(Value::Int)
                .ok_or(EvaluationError::NotANumber { function });
        }
        _ => left % right,
    };
    if result.is_finite() {
        Ok(Value::Float(result))
    } else {
        Err(EvaluationError::NotANumber { function })
    }
}

fn integer_arithmetic<'a>(
    op: BinaryOp,
    left: i64,
    right: i64,
) -> Result<Value<'a>, EvaluationError> {
    let function = op.text();
    let result = match op {
        BinaryOp::Add => left.checked_add(right),
        BinaryOp::Subtract => left.checked_sub(right),
        BinaryOp::Multiply => left.checked_mul(right),
        BinaryOp::Quotient | BinaryOp::Remainder if right == 0 => {
            return Err(EvaluationError::NotANumber { function });
        }
        BinaryOp::Quotient => left.checked_div(right),
        _ => left.checked_rem(right),
    };
    result
        .map(Value::Int)
        .ok_or(EvaluationError::Overflow { function })
}

fn number(
    function: &'static str,
    argument: usize,
    value: Value<'_>,
) -> Result<Number, EvaluationError> {
    if matches!(value, Value::Big(_)) {
        return Err(EvaluationError::Overflow { function });
    }
    value.as_number().ok_or(EvaluationError::WrongType {
        function,
        argument,
        expected: "a number",
        found: value.type_name(),
    })
}

/// LIKE: `%` matches any text, `_` one character, and a backslash escapes the next character.
pub(super) fn is_like(text: &str, pattern: &str) -> bool {
    let mut text = text.chars();
    let mut pattern = pattern.chars();
    // Position to resume at if the text after the last `%` does not match.
    let mut retry = None;
    loop {
        let mut after = pattern.clone();
        let fits = match after.next() {
            Some('%') => {
                retry = Some((text.clone(), after.clone()));
                true
            }
            Some('_') => text.next().is_some(),
            Some('\\') => text.next() == Some(after.next().unwrap_or('\\')),
            Some(wanted) => text.next() == Some(wanted),
            None if text.as_str().is_empty() => return true,
            None => false,
        };
        if fits {
            pattern = after;
            continue;
        }
        let Some((start, after)) = &mut retry else {
            return false;
        };
        if start.next().is_none() {
            return false;
        }
        text = start.clone();
        pattern = after.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn like_supports_two_wildcards() {
        for (text, pattern, expected) in [
            ("a/fluxmq/b", "%fluxmq%", true),
            ("fluxmq", "%fluxmq%", true),
            ("fluxm", "%fluxmq%", false),
            ("abc", "a_c", true),
            ("ac", "a_c", false),
            ("äöü", "ä_ü", true),
            ("abcbd", "a%bd", true),
            ("", "%", true),
            ("", "", true),
            ("a", "", false),
            ("50%", "50\\%", true),
            ("50x", "50\\%", false),
            ("aaab", "%a_b", true),
            ("xay", "x%z%y", false),
        ] {
            assert_eq!(is_like(text, pattern), expected, "{text} like {pattern}");
        }
    }

    #[test]
    fn integers_are_checked() {
        let max = Value::Int(i64::MAX);
        assert_eq!(
            arithmetic(BinaryOp::Add, max, Value::Int(1)).err(),
            Some(EvaluationError::Overflow { function: "+" })
        );
        assert_eq!(
            arithmetic(BinaryOp::Quotient, Value::Int(i64::MIN), Value::Int(-1)).err(),
            Some(EvaluationError::Overflow { function: "div" })
        );
        assert!(matches!(
            arithmetic(BinaryOp::Divide, Value::Int(7), Value::Int(2)),
            Ok(Value::Float(3.5))
        ));
        assert!(matches!(
            arithmetic(BinaryOp::Quotient, Value::Int(7), Value::Int(2)),
            Ok(Value::Int(3))
        ));
        assert!(arithmetic(BinaryOp::Divide, Value::Int(7), Value::Int(0)).is_err());
        assert!(matches!(
            arithmetic(BinaryOp::Multiply, Value::Undefined, Value::Int(0)),
            Ok(Value::Undefined)
        ));
        assert!(negate(Value::Int(i64::MIN)).is_err());
    }
}
