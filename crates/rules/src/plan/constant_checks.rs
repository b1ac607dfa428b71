//! Checks the constants of a statement. A constant that would make every evaluation fail is an error, one that is
//! probably a mistake is a warning.

use super::builder::PlanBuilder;
use super::{Op, OpId};
use crate::evaluation_error::EvaluationError;
use crate::functions::{self, Function};

/// The reason why a call can never succeed: the argument and its error.
pub(super) struct ConstantArgumentError {
    pub(super) argument: usize,
    pub(super) reason: String,
}

/// Checks each constant argument separately. Calls with only constant arguments are evaluated instead.
pub(super) fn check_call(
    builder: &PlanBuilder,
    function: &'static Function,
    arguments: &[OpId],
) -> Option<ConstantArgumentError> {
    let first = arguments.first().and_then(|&id| builder.scalar(id));
    let is_unit_first = first.is_some_and(|first| first.as_number().is_none());
    let names = parameter_names(function, arguments.len(), is_unit_first);
    let name_of = |at: usize| names.get(at).copied().unwrap_or_default();
    for (at, &id) in arguments.iter().enumerate() {
        let Some(value) = builder.scalar(id) else {
            continue;
        };
        let Some(text) = value.as_str() else {
            continue;
        };
        let checked = match (function.name, name_of(at)) {
            (
                "regex_match" | "matches" | "regex_replace" | "regex_extract" | "replaceFirst",
                "expression",
            ) => crate::compiled_regex::compile_regex(text)
                .map(drop)
                .map_err(String::from),
            #[cfg(feature = "jq")]
            ("jq", "program") => functions::jq::JqProgram::compile(text)
                .map(drop)
                .map_err(String::from),
            ("jsonPath", "path") => functions::check_json_path(text),
            (name, parameter) => functions::check_time_constant(name, parameter, &value),
        };
        if let Err(why) = checked {
            return Some(ConstantArgumentError {
                argument: at,
                reason: why,
            });
        }
    }
    None
}

/// The parameter names for this number of arguments. Functions with two signatures list the second one after
/// a `|`.
fn parameter_names(
    function: &'static Function,
    arguments: usize,
    is_unit_first: bool,
) -> Vec<&'static str> {
    let ways = function.parameters.split(" | ");
    let names = |way: &'static str| -> Vec<&'static str> {
        way.split(',')
            .filter_map(|part| part.split_once(':'))
            .map(|(name, _)| name.trim_matches([' ', '[', ']']))
            .collect()
    };
    // A `|` also separates types: a single parameter has no second name.
    match function.name {
        "formatDate" if is_unit_first => vec!["unit", "zone", "format", "time"],
        "formatDate" => vec!["timestamp", "pattern", "zone"],
        "date_to_unix_ts" if arguments == 3 => vec!["unit", "format", "text"],
        "date_to_unix_ts" => vec!["unit", "zone", "format", "text"],
        _ => ways.flat_map(names).collect(),
    }
}

/// Whether an error from constants alone will recur with every event. Budget errors do not count, because the
/// budget may be larger then.
pub(super) fn is_deterministic(fault: &EvaluationError) -> bool {
    matches!(
        fault,
        EvaluationError::WrongType { .. }
            | EvaluationError::OutOfRange { .. }
            | EvaluationError::Overflow { .. }
            | EvaluationError::NotANumber { .. }
            | EvaluationError::InvalidArgument { .. }
    )
}

/// A warning about a LIKE pattern that is probably meant as a topic filter.
pub(super) fn like_warning(builder: &PlanBuilder, pattern: OpId) -> Option<String> {
    let Op::Text(text) = builder.op(pattern) else {
        return None;
    };
    let text = builder.text_of(text);
    (is_wildcard_filter(text) && !text.contains(['%', '_'])).then(|| {
        format!(
            "LIKE treats `+` and `#` literally here, only `%` and `_` are wildcards; did you mean =~ '{text}'?"
        )
    })
}

/// Whether a text is a topic filter with a level `+` or `#`.
pub(super) fn is_wildcard_filter(text: &str) -> bool {
    mqtt::levels(text).any(|level| level == "+" || level == "#")
        && mqtt::validate_topic_filter(text, &mqtt::TopicLimits::NONE).is_ok()
}
