//! Looks at the constants of a statement: those that would make every evaluation fail are errors, those that hardly mean what
//! they say are warnings.

use super::builder::PlanBuilder;
use super::{Op, OpId};
use crate::evaluation_error::EvaluationError;
use crate::functions::{self, Function};

/// Why a call can never succeed: which argument, and what is wrong with it.
pub(super) struct ConstantArgumentError {
    pub(super) argument: usize,
    pub(super) reason: String,
}

/// Looks at each constant argument by itself; calls of constants alone are evaluated instead.
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
            ) => crate::evaluation_resources::compile_regex(text)
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

/// The names of the parameters in the order of this many arguments. Functions that are called in two ways name the second way
/// behind a `|`.
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
    // Types have a `|`, too: what belongs to one parameter has no second name.
    match function.name {
        "formatDate" if is_unit_first => vec!["unit", "zone", "format", "time"],
        "formatDate" => vec!["timestamp", "pattern", "zone"],
        "date_to_unix_ts" if arguments == 3 => vec!["unit", "format", "text"],
        "date_to_unix_ts" => vec!["unit", "zone", "format", "text"],
        _ => ways.flat_map(names).collect(),
    }
}

/// Whether a fault of constants alone will come again with every event. A budget may be larger then.
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

/// What a pattern of LIKE hardly means.
pub(super) fn like_warning(builder: &PlanBuilder, pattern: OpId) -> Option<String> {
    let Op::Text(text) = builder.op(pattern) else {
        return None;
    };
    let text = builder.text_of(text);
    let is_filter = mqtt::levels(text).any(|level| level == "+" || level == "#");
    let has_wildcard = text.contains(['%', '_']);
    (is_filter && !has_wildcard).then(|| {
        format!("LIKE takes `+` and `#` for themselves, only `%` and `_` stand for other text; did you mean topic =~ '{text}'?")
    })
}
