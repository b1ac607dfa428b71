//! Conditions of filters. Conditions such as `key > 20 AND other = 3` are decided without an expression evaluator.
//! Everything else is an expression of the rule language, which also decides if a value is not a number as expected.

use rules::Rule;
use series::{KeyId, Point, PointValue};

use super::statement::statement;

pub(super) struct ChainCondition {
    simple: Option<Box<[KeyComparison]>>,
    pub(super) rule: Box<Rule>,
}

struct KeyComparison {
    /// Index in the keys of the chain.
    key: usize,
    operator: ComparisonOperator,
    number: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ComparisonOperator {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Integers up to this magnitude are exact as doubles.
const MAX_EXACT: i64 = 1 << 53;

impl ChainCondition {
    pub(super) fn compile(text: &str, keys: &mut Vec<Box<str>>) -> Result<Self, String> {
        let before = "SELECT 1 AS passes FROM \"$EVENT.DEVICE\" WHERE (";
        let rule = Box::new(statement(before, text, ")")?);
        Ok(Self {
            simple: parse_simple(text, keys),
            rule,
        })
    }

    /// Returns `None` if the expression has to decide.
    #[inline]
    pub(super) fn evaluate_simple(&self, points: &[Point<'_>], keys: &[KeyId]) -> Option<bool> {
        for comparison in self.simple.as_deref()? {
            let key = *keys.get(comparison.key)?;
            let point = points.iter().rev().find(|point| point.key == key)?;
            let value = match point.value {
                PointValue::Float(value) => value,
                PointValue::Int(value) if value.abs() <= MAX_EXACT => value as f64,
                _ => return None,
            };
            let number = comparison.number;
            let holds = match comparison.operator {
                ComparisonOperator::Less => value < number,
                ComparisonOperator::LessOrEqual => value <= number,
                ComparisonOperator::Greater => value > number,
                ComparisonOperator::GreaterOrEqual => value >= number,
            };
            if !holds {
                return Some(false);
            }
        }
        Some(true)
    }
}

/// Parses comparisons of keys with numbers, joined by AND; `None`: the condition is not of this form.
fn parse_simple(text: &str, keys: &mut Vec<Box<str>>) -> Option<Box<[KeyComparison]>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut found = Vec::new();
    for part in words.split(|word| word.eq_ignore_ascii_case("and")) {
        let [key, operator, number] = part else {
            return None;
        };
        let operator = match *operator {
            "<" => ComparisonOperator::Less,
            "<=" => ComparisonOperator::LessOrEqual,
            ">" => ComparisonOperator::Greater,
            ">=" => ComparisonOperator::GreaterOrEqual,
            _ => return None,
        };
        // These names are fields of every event.
        let is_key = key.starts_with(|c: char| c.is_ascii_alphabetic())
            && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !matches!(*key, "ts" | "deviceId" | "productId" | "timestamp" | "node");
        let is_number = number.chars().all(|c| matches!(c, '0'..='9' | '.' | '-'));
        let number = number.parse().ok().filter(|_| is_key && is_number)?;
        found.push((*key, operator, number));
    }
    let comparisons = found.into_iter().map(|(key, operator, number)| {
        let known = keys.iter().position(|known| **known == *key);
        let key = known.unwrap_or_else(|| {
            keys.push(key.into());
            keys.len() - 1
        });
        KeyComparison {
            key,
            operator,
            number,
        }
    });
    Some(comparisons.collect())
}
