//! The timestamp contained in an event, read by an expression that a rule defines beside its statement.

use crate::compile_options::CompileOptions;
use crate::evaluation_error::EvaluationError;
use crate::event_view::EventView;
use crate::functions::time_ms;
use crate::plan::OpId;
use crate::plan::builder::PlanBuilder;
use crate::plan::resolver::{NameScope, Resolver};
use crate::program::Program;
use crate::rule::{Rule, RuleState};
use crate::rule_source::{EventKind, RuleSource, own_fields};
use crate::statement_error::StatementError;
use crate::syntax::parse_expression;
use crate::value::{Number, Value};
use crate::zone::Zone;

/// A compiled timestamp expression, such as `payload.ts`.
pub struct EventTime {
    program: Program,
    node: OpId,
}

/// Smaller numbers are seconds (until the year 5138).
const SECONDS_BELOW: f64 = 1e11;
/// Smaller numbers are milliseconds. Each further unit has a limit 1000 times larger.
const MILLISECONDS_BELOW: f64 = 1e14;
const MICROSECONDS_BELOW: f64 = 1e17;

impl EventTime {
    /// Compiles an expression about the events of a rule.
    ///
    /// # Errors
    /// If the expression is invalid. The error contains the position and what was expected.
    pub fn compile(
        text: &str,
        rule: &Rule,
        options: &CompileOptions,
    ) -> Result<Self, StatementError> {
        let bounds = &options.limits;
        bounds.check_length("expression", text)?;
        let expression = parse_expression(text, 0, bounds)?;
        let builder = PlanBuilder::new(rule.dialect(), options.timezone.clone(), bounds.max_depth);
        let mut resolver = Resolver::new(text, builder, bounds, NameScope::Event);
        resolver.builder.text("");
        resolver.is_open = rule.sources.iter().any(RuleSource::has_open_fields);
        resolver.own_fields = own_fields(&rule.sources);
        resolver.is_of_devices =
            (rule.sources.iter()).all(|source| *source == RuleSource::Event(EventKind::Device));
        let node = resolver.resolve_expr(&expression)?;
        Ok(Self {
            program: Program::new(resolver.builder, bounds.evaluation_limits()),
            node,
        })
    }

    /// The event's timestamp in milliseconds since 1970; `None` if it has none.
    ///
    /// # Errors
    /// As [`Rule::run`].
    pub fn read<'a>(
        &'a self,
        view: &EventView<'a>,
        state: &mut RuleState,
    ) -> Result<Option<u64>, EvaluationError> {
        let program = &self.program;
        let value = program.evaluate(view, &mut state.kv, |evaluator| {
            evaluator.evaluate(self.node)
        })?;
        Ok(to_unix_ms(&value, program.zone()))
    }
}

/// Converts a number of seconds, milliseconds, microseconds or nanoseconds since 1970, distinguished by
/// magnitude. Also accepts text: such a number, or an ISO 8601 date and time, which is in the rule's zone
/// unless it contains an offset.
fn to_unix_ms(value: &Value<'_>, zone: &Zone) -> Option<u64> {
    if let Value::Str(text) = value
        && let Some(time_ms) = time_ms(text, zone)
    {
        return u64::try_from(time_ms).ok();
    }
    let number = match value.as_number()? {
        Number::Int(number) => number as f64,
        Number::Float(number) => number,
    };
    let per_ms = match number {
        _ if !number.is_finite() || number < 0.0 => return None,
        _ if number < SECONDS_BELOW => return Some((number * 1000.0).round() as u64),
        _ if number < MILLISECONDS_BELOW => 1.0,
        _ if number < MICROSECONDS_BELOW => 1e3,
        _ => 1e6,
    };
    Some((number / per_ms) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_follow_from_magnitude_and_texts_are_parsed() {
        let ms = 1_690_599_987_495;
        for (value, expected) in [
            (Value::Int(1_690_599_987), Some(ms - 495)),
            (Value::Float(1_690_599_987.495), Some(ms)),
            (Value::Int(ms as i64), Some(ms)),
            (Value::Int(ms as i64 * 1000 + 7), Some(ms)),
            (Value::Int(ms as i64 * 1_000_000), Some(ms)),
            (Value::Str("1690599987495"), Some(ms)),
            (Value::Str("2023-07-29T03:06:27.495Z"), Some(ms)),
            (Value::Str("2023-07-29 11:06:27.495+08:00"), Some(ms)),
            (Value::Str("2023-07-29T05:06:27.495"), Some(ms)),
            (Value::Str("yesterday"), None),
            (Value::Str("1969-07-29T03:06:27Z"), None),
            (Value::Int(-1), None),
            (Value::Float(f64::NAN), None),
            (Value::Undefined, None),
            (Value::Bool(true), None),
        ] {
            let zone = Zone::fixed(7200).expect("two hours");
            assert_eq!(to_unix_ms(&value, &zone), expected, "{value:?}");
        }
    }
}
