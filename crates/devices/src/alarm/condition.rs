//! A compiled condition: tests of the latest values of a device's keys, which are addressed by slot.

use std::cmp::Ordering;

use serde_json::Value as Json;

use super::definition::{AlarmCondition, ConditionTest, TestOperator};
use super::definition_error::AlarmDefinitionError;

const MAX_DEPTH: usize = 8;
const MAX_TESTS: usize = 64;
const MAX_TEXT_BYTES: usize = 1024;
const MAX_SILENCE_S: u64 = 400 * 24 * 3600;
/// The pseudo key that is true while a device is connected.
pub(super) const ONLINE_KEY: &str = "$online";

/// A value that conditions compare.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Box<str>),
}

/// The latest value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LatestValue {
    pub(super) value: Scalar,
    /// Timestamp of the message.
    pub(super) ts_ms: i64,
    /// Time of arrival.
    pub(super) received_ms: u64,
}

/// The input of a condition.
pub(super) struct ConditionContext<'a> {
    pub(super) latest: &'a [Option<LatestValue>],
    pub(super) attribute: &'a dyn Fn(&str) -> Option<Scalar>,
    pub(super) now_ms: u64,
}

/// The key names that conditions use, by slot.
#[derive(Debug, Default)]
pub(super) struct KeyNames(pub(super) Vec<Box<str>>);

impl KeyNames {
    fn index_of(&mut self, name: &str) -> usize {
        let found = self.0.iter().position(|known| **known == *name);
        found.unwrap_or_else(|| {
            self.0.push(name.into());
            self.0.len() - 1
        })
    }
}

#[derive(Debug, Clone)]
pub(super) enum CompiledCondition {
    All(Box<[CompiledCondition]>),
    Any(Box<[CompiledCondition]>),
    Compare {
        place: usize,
        accepted: ComparisonOutcomes,
        with: ConditionOperand,
    },
    Between {
        place: usize,
        from: Scalar,
        to: Scalar,
    },
    Contains {
        place: usize,
        what: ConditionOperand,
    },
    SilentFor {
        place: usize,
        silence_ms: u64,
    },
}

/// The orderings of value and operand for which a comparison holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ComparisonOutcomes {
    less: bool,
    equal: bool,
    greater: bool,
    /// Whether it also holds for values that cannot be compared; true for `!=` only.
    incomparable: bool,
}

#[derive(Debug, Clone)]
pub(super) struct ConditionOperand {
    constant: Option<Scalar>,
    attribute: Option<Box<str>>,
}

impl CompiledCondition {
    pub(super) fn compile(
        condition: &AlarmCondition,
        names: &mut KeyNames,
        path: &str,
    ) -> Result<Self, AlarmDefinitionError> {
        let mut tests = 0;
        compile(condition, names, path, 0, &mut tests)
    }

    pub(super) fn holds(&self, facts: &ConditionContext<'_>) -> bool {
        match self {
            Self::All(all) => all.iter().all(|one| one.holds(facts)),
            Self::Any(any) => any.iter().any(|one| one.holds(facts)),
            Self::Compare {
                place,
                accepted: holds_for,
                with,
            } => match (value(facts, *place), with.resolve(facts)) {
                (Some(value), Some(with)) => holds_for.accepts(value.compare(&with)),
                _ => false,
            },
            Self::Between { place, from, to } => value(facts, *place).is_some_and(|value| {
                let (low, high) = (value.compare(from), value.compare(to));
                low.is_some_and(Ordering::is_ge) && high.is_some_and(Ordering::is_le)
            }),
            Self::Contains { place, what } => match (value(facts, *place), what.resolve(facts)) {
                (Some(Scalar::Text(text)), Some(Scalar::Text(what))) => text.contains(&*what),
                _ => false,
            },
            Self::SilentFor { place, silence_ms } => {
                let latest = facts.latest[*place].as_ref();
                latest.is_some_and(|latest| facts.now_ms >= latest.received_ms + silence_ms)
            }
        }
    }

    /// Returns the time at which the condition may begin to hold if no message arrives before.
    pub(super) fn due_ms(&self, facts: &ConditionContext<'_>) -> Option<u64> {
        match self {
            Self::All(some) | Self::Any(some) => {
                some.iter().filter_map(|one| one.due_ms(facts)).min()
            }
            Self::SilentFor { place, silence_ms } => {
                let at_ms = facts.latest[*place].as_ref()?.received_ms + silence_ms;
                (at_ms > facts.now_ms).then_some(at_ms)
            }
            _ => None,
        }
    }

    /// Whether the condition tests this slot.
    pub(super) fn refers_to(&self, slot: usize) -> bool {
        match self {
            Self::All(some) | Self::Any(some) => some.iter().any(|one| one.refers_to(slot)),
            Self::Compare { place, .. }
            | Self::Between { place, .. }
            | Self::Contains { place, .. }
            | Self::SilentFor { place, .. } => *place == slot,
        }
    }
}

fn value<'a>(facts: &ConditionContext<'a>, place: usize) -> Option<&'a Scalar> {
    facts.latest[place].as_ref().map(|latest| &latest.value)
}

impl ConditionOperand {
    fn resolve(&self, facts: &ConditionContext<'_>) -> Option<Scalar> {
        let of_device = self.attribute.as_ref();
        let of_device = of_device.and_then(|name| (facts.attribute)(name));
        of_device.or_else(|| self.constant.clone())
    }
}

impl ComparisonOutcomes {
    fn from_operator(operator: TestOperator) -> Option<Self> {
        let holds = |less, equal, greater| Self {
            less,
            equal,
            greater,
            incomparable: false,
        };
        Some(match operator {
            TestOperator::Equal => holds(false, true, false),
            TestOperator::NotEqual => Self {
                incomparable: true,
                ..holds(true, false, true)
            },
            TestOperator::Greater => holds(false, false, true),
            TestOperator::GreaterOrEqual => holds(false, true, true),
            TestOperator::Less => holds(true, false, false),
            TestOperator::LessOrEqual => holds(true, true, false),
            TestOperator::Contains | TestOperator::Between | TestOperator::SilentFor => {
                return None;
            }
        })
    }

    fn accepts(self, ordering: Option<Ordering>) -> bool {
        match ordering {
            Some(Ordering::Less) => self.less,
            Some(Ordering::Equal) => self.equal,
            Some(Ordering::Greater) => self.greater,
            None => self.incomparable,
        }
    }
}

impl Scalar {
    pub fn from_json(value: &Json) -> Option<Self> {
        Some(match value {
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(value) => Self::Int(value),
                None => Self::Float(number.as_f64()?),
            },
            Json::String(text) => Self::Text(text.as_str().into()),
            Json::Null | Json::Array(_) | Json::Object(_) => return None,
        })
    }

    pub fn to_json(&self) -> Json {
        match self {
            Self::Bool(value) => (*value).into(),
            Self::Int(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::Text(text) => (&**text).into(),
        }
    }

    /// Numbers and numeric texts are compared by value, other texts by code point, and `false` is less than `true`.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => Some(a.cmp(b)),
            (Self::Text(a), Self::Text(b)) => Some(a.cmp(b)),
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(b)),
            (a, b) => a.to_number()?.partial_cmp(&b.to_number()?),
        }
    }

    fn to_number(&self) -> Option<f64> {
        match self {
            Self::Bool(_) => None,
            #[expect(clippy::cast_precision_loss, reason = "compared with a float")]
            Self::Int(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            Self::Text(text) => text.trim().parse().ok(),
        }
    }
}

fn compile(
    condition: &AlarmCondition,
    names: &mut KeyNames,
    path: &str,
    depth: usize,
    tests: &mut usize,
) -> Result<CompiledCondition, AlarmDefinitionError> {
    if depth > MAX_DEPTH {
        let expected = format!("expected at most {MAX_DEPTH} levels of nested conditions");
        return Err(AlarmDefinitionError::new(path, expected));
    }
    let mut several = |word: &str, some: &[AlarmCondition]| {
        let path = format!("{path}.{word}");
        if some.is_empty() {
            return Err(AlarmDefinitionError::new(
                &path,
                "is empty; expected conditions",
            ));
        }
        let compiled = some
            .iter()
            .enumerate()
            .map(|(at, one)| compile(one, names, &format!("{path}[{at}]"), depth + 1, tests));
        compiled.collect::<Result<Box<[_]>, _>>()
    };
    match condition {
        AlarmCondition::All(all) => several("all", &all.all).map(CompiledCondition::All),
        AlarmCondition::Any(any) => several("any", &any.any).map(CompiledCondition::Any),
        AlarmCondition::Test(test) => {
            *tests += 1;
            if *tests > MAX_TESTS {
                let expected = format!("expected at most {MAX_TESTS} tests in a condition");
                return Err(AlarmDefinitionError::new(path, expected));
            }
            compile_test(test, names, path)
        }
    }
}

fn compile_test(
    test: &ConditionTest,
    names: &mut KeyNames,
    path: &str,
) -> Result<CompiledCondition, AlarmDefinitionError> {
    let at = |field: &str| format!("{path}.{field}");
    if test.key.is_empty() || test.key.len() > MAX_TEXT_BYTES {
        let expected = format!("expected 1 to {MAX_TEXT_BYTES} bytes");
        return Err(AlarmDefinitionError::new(&at("key"), expected));
    }
    let place = names.index_of(&test.key);
    let constant = |value: &Json| match Scalar::from_json(value) {
        Some(Scalar::Text(text)) if text.len() > MAX_TEXT_BYTES => {
            let expected = format!("expected at most {MAX_TEXT_BYTES} bytes");
            Err(AlarmDefinitionError::new(&at("value"), expected))
        }
        Some(scalar) => Ok(scalar),
        None => Err(AlarmDefinitionError::new(
            &at("value"),
            format!("{value} is not comparable; expected a number, a text, true or false"),
        )),
    };
    if test.attribute.is_some()
        && matches!(test.is, TestOperator::Between | TestOperator::SilentFor)
    {
        return Err(AlarmDefinitionError::new(
            &at("attribute"),
            "is not supported by between and silent_for; use value",
        ));
    }
    let operand = || match (&test.value, &test.attribute) {
        (None, None) => Err(AlarmDefinitionError::new(
            &at("value"),
            "is missing; expected a value, or the name of an attribute",
        )),
        (value, attribute) => Ok(ConditionOperand {
            constant: value.as_ref().map(constant).transpose()?,
            attribute: attribute.as_deref().map(Into::into),
        }),
    };
    Ok(match test.is {
        TestOperator::Contains => {
            let what = operand()?;
            if !matches!(what.constant, None | Some(Scalar::Text(_))) {
                return Err(AlarmDefinitionError::new(&at("value"), "expected a text"));
            }
            CompiledCondition::Contains { place, what }
        }
        TestOperator::Between => match test.value.as_ref().and_then(Json::as_array).map(|v| &v[..])
        {
            Some([from, to]) => {
                let (from, to) = (constant(from)?, constant(to)?);
                if from.compare(&to).is_none_or(Ordering::is_gt) {
                    return Err(AlarmDefinitionError::new(
                        &at("value"),
                        "expected an array [from, to] of two numbers or two texts, from not above to",
                    ));
                }
                CompiledCondition::Between { place, from, to }
            }
            _ => {
                let found = test.value.as_ref().unwrap_or(&Json::Null);
                let expected =
                    format!("expected an array of two values, such as [10, 20]; found {found}");
                return Err(AlarmDefinitionError::new(&at("value"), expected));
            }
        },
        TestOperator::SilentFor => {
            let seconds = test.value.as_ref().and_then(Json::as_u64);
            match seconds.filter(|seconds| (1..=MAX_SILENCE_S).contains(seconds)) {
                Some(seconds) => CompiledCondition::SilentFor {
                    place,
                    silence_ms: seconds * 1000,
                },
                None => {
                    let expected = format!("expected whole seconds, 1 to {MAX_SILENCE_S}");
                    return Err(AlarmDefinitionError::new(&at("value"), expected));
                }
            }
        }
        operator => CompiledCondition::Compare {
            place,
            accepted: ComparisonOutcomes::from_operator(operator)
                .expect("between and silent_for are handled above"),
            with: operand()?,
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compiled(condition: Json) -> Result<(CompiledCondition, KeyNames), String> {
        let condition = serde_json::from_value(condition).map_err(|error| error.to_string())?;
        let mut names = KeyNames::default();
        let compiled = CompiledCondition::compile(&condition, &mut names, "when");
        Ok((compiled.map_err(|problem| problem.to_string())?, names))
    }

    /// Whether the condition holds for the given values of a device.
    fn holds(condition: Json, reported: Json) -> bool {
        let (compiled, names) = compiled(condition).expect("a condition");
        let latest = names.0.iter().map(|name| {
            Scalar::from_json(&reported[&**name]).map(|value| LatestValue {
                value,
                ts_ms: 0,
                received_ms: 0,
            })
        });
        let attribute = |name: &str| Scalar::from_json(&reported["attributes"][name]);
        compiled.holds(&ConditionContext {
            latest: &latest.collect::<Vec<_>>(),
            attribute: &attribute,
            now_ms: 10_000,
        })
    }

    #[test]
    fn tests_compare_as_the_types_allow() {
        let table = [
            (">", json!(30), json!(30.5), true),
            (">", json!(30), json!(30), false),
            (">", json!(30), json!("31"), true),
            (">", json!(30), json!("hot"), false),
            (">=", json!(30), json!(30), true),
            ("<", json!(0), json!(-1), true),
            ("<=", json!(0.5), json!(1), false),
            ("=", json!("on"), json!("on"), true),
            ("=", json!(1), json!(1.0), true),
            ("=", json!(true), json!(true), true),
            ("=", json!(true), json!(1), false),
            ("!=", json!("on"), json!("off"), true),
            ("!=", json!(true), json!("x"), true),
            ("contains", json!("err"), json!("an error"), true),
            ("contains", json!("err"), json!(5), false),
            ("between", json!([1, 2]), json!(2), true),
            ("between", json!([1, 2]), json!(2.1), false),
            ("silent_for", json!(10), json!(1), true),
            ("silent_for", json!(11), json!(1), false),
        ];
        for (is, value, reported, expected) in table {
            let condition = json!({"key": "k", "is": is, "value": value});
            assert_eq!(
                holds(condition, json!({"k": reported})),
                expected,
                "{reported} {is} {value}"
            );
        }
    }

    #[test]
    fn large_integers_are_compared_exactly() {
        let condition = json!({"key": "k", "is": "=", "value": i64::MAX});
        assert!(!holds(condition, json!({"k": i64::MAX - 1})));
    }

    #[test]
    fn no_test_holds_for_a_missing_value() {
        for is in ["=", "!=", "<"] {
            let condition = json!({"key": "k", "is": is, "value": 1});
            assert!(!holds(condition, json!({})), "{is}");
        }
        assert!(!holds(
            json!({"key": "k", "is": "silent_for", "value": 1}),
            json!({})
        ));
    }

    #[test]
    fn and_and_or_nest() {
        let hot = json!({"key": "t", "is": ">", "value": 30});
        let wet = json!({"key": "h", "is": ">", "value": 80});
        let off = json!({"key": "on", "is": "=", "value": false});
        let condition = json!({"all": [off, {"any": [hot, wet]}]});
        assert!(holds(condition.clone(), json!({"on": false, "h": 90})));
        assert!(!holds(condition.clone(), json!({"on": true, "h": 90})));
        assert!(!holds(condition, json!({"on": false, "h": 10, "t": 10})));
    }

    #[test]
    fn an_attribute_of_the_device_comes_before_the_value() {
        let condition = json!({"key": "t", "is": ">", "attribute": "limit", "value": 30});
        assert!(holds(condition.clone(), json!({"t": 31})));
        assert!(!holds(
            condition.clone(),
            json!({"t": 31, "attributes": {"limit": 40}})
        ));
        let without = json!({"key": "t", "is": ">", "attribute": "limit"});
        assert!(!holds(without, json!({"t": 31})));
    }

    #[test]
    fn invalid_conditions_are_rejected_with_their_path() {
        let deep = (0..10).fold(
            json!({"key": "k", "is": "=", "value": 1}),
            |inner, _| json!({"all": [inner]}),
        );
        let rejected = [
            json!({"key": "", "is": "=", "value": 1}),
            json!({"key": "k", "is": "=", "value": [1]}),
            json!({"key": "k", "is": "="}),
            json!({"key": "k", "is": "between", "value": [2, 1]}),
            json!({"key": "k", "is": "between", "value": 2}),
            json!({"key": "k", "is": "contains", "value": 2}),
            json!({"key": "k", "is": "silent_for", "value": 0}),
            json!({"key": "k", "is": "silent_for", "attribute": "a"}),
            json!({"any": []}),
            json!({"all": [{"key": "k", "is": "~", "value": 1}]}),
            deep,
        ];
        let reported: Vec<_> = rejected
            .into_iter()
            .map(|condition| compiled(condition).expect_err("rejected"))
            .collect();
        insta::assert_snapshot!(reported.join("\n"));
    }
}
