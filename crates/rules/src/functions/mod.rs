//! All functions of the language: one file per family, one line per function in the family's table.
//! Documentation, completion and the tests of the examples are generated from these tables.

mod args;
mod arrays;
mod bits;
mod compress;
mod convert;
mod encoding;
mod ids;
pub(crate) mod jq;
mod json_documents;
mod jsonpath;
mod maps;
mod math;
mod message;
mod reference;
mod search;
mod sprintf;
mod state_and_environment;
mod strings;
mod time;
mod time_format;
mod types;

use std::sync::LazyLock;

pub use args::Args;
pub(crate) use jsonpath::check as check_json_path;
pub use reference::render_reference;
pub(crate) use time::{check_constant as check_time_constant, time_ms};

use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::{Arena, Value};

/// The implementation of a function.
pub type FunctionBody = for<'a, 'e, 'v> fn(
    &mut FunctionContext<'a, 'e>,
    Args<'v, 'a>,
) -> Result<Value<'a>, EvaluationError>;

/// One function: a line of a table.
pub struct Function {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub min_args: usize,
    /// [`UNLIMITED_ARGS`] if there is no maximum.
    pub max_args: usize,
    /// Names and types for people; optional parameters are in brackets.
    pub parameters: &'static str,
    pub returns: &'static str,
    pub help: &'static str,
    /// An expression and its result as JSON, evaluated in UTC at 2023-07-29 03:06:27.495.
    pub example: (&'static str, &'static str),
    /// Whether equal arguments always give equal results: a call with constant arguments may then be
    /// evaluated once, at compile time.
    pub pure: bool,
    /// Whether the function receives null arguments. All others return null if an argument is null, or fail
    /// in EMQX's dialect.
    pub accepts_null: bool,
    /// Whether the function returns null for null in EMQX's dialect, too, where other functions that need a
    /// value fail.
    pub passes_null: bool,
    /// Description of the differences between the dialects.
    pub differing: Option<&'static str>,
    pub eval: FunctionBody,
}

/// No maximum number of arguments.
pub const UNLIMITED_ARGS: usize = usize::MAX;

impl Function {
    /// Calls the function.
    ///
    /// # Errors
    /// If an argument has the wrong type or is out of range, or the result would be.
    pub fn call<'a>(
        &'static self,
        context: &mut FunctionContext<'a, '_>,
        values: &[Value<'a>],
    ) -> Result<Value<'a>, EvaluationError> {
        if values.len() < self.min_args || values.len() > self.max_args {
            return Err(EvaluationError::InvalidArgument {
                function: self.name,
                why: self.arity().into(),
            });
        }
        if !self.accepts_null && values.iter().any(Value::is_null) {
            return Ok(Value::Undefined);
        }
        (self.eval)(
            context,
            Args {
                function: self.name,
                values,
            },
        )
    }

    /// The accepted numbers of arguments, in words.
    #[must_use]
    pub fn arity(&self) -> String {
        let plural = |count| if count == 1 { "" } else { "s" };
        match (self.min_args, self.max_args) {
            (0, 0) => "expected no argument".to_owned(),
            (min, max) if min == max => format!("expected {min} argument{}", plural(min)),
            (min, UNLIMITED_ARGS) => format!("expected {min} or more arguments"),
            (min, max) => format!("expected {min} to {max} arguments"),
        }
    }

    const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn impure(mut self) -> Self {
        self.pure = false;
        self
    }

    const fn accepts_null(mut self) -> Self {
        self.accepts_null = true;
        self
    }

    const fn passes_null(mut self) -> Self {
        self.passes_null = true;
        self
    }

    const fn differing(mut self, how: &'static str) -> Self {
        self.differing = Some(how);
        self
    }
}

/// A line of a table: name, numbers of arguments, parameters, result type, help, example and its result.
#[expect(
    clippy::too_many_arguments,
    reason = "a line of a table is read by column"
)]
const fn line(
    name: &'static str,
    (min_args, max_args): (usize, usize),
    parameters: &'static str,
    returns: &'static str,
    help: &'static str,
    example: &'static str,
    result: &'static str,
    eval: FunctionBody,
) -> Function {
    Function {
        name,
        aliases: &[],
        min_args,
        max_args,
        parameters,
        returns,
        help,
        example: (example, result),
        pure: true,
        accepts_null: false,
        passes_null: false,
        differing: None,
        eval,
    }
}

/// A group of related functions.
pub struct FunctionFamily {
    pub title: &'static str,
    pub functions: &'static [Function],
}

#[rustfmt::skip]
pub const FAMILIES: &[FunctionFamily] = &[
    FunctionFamily { title: "Conversion", functions: convert::TABLE },
    FunctionFamily { title: "Text", functions: strings::TABLE },
    FunctionFamily { title: "Searching text", functions: search::TABLE },
    FunctionFamily { title: "Dates and times", functions: time::TABLE },
    FunctionFamily { title: "Mathematics", functions: math::TABLE },
    FunctionFamily { title: "Bits and bytes", functions: bits::TABLE },
    FunctionFamily { title: "Hashes and codes", functions: encoding::TABLE },
    FunctionFamily { title: "Compression", functions: compress::TABLE },
    FunctionFamily { title: "JSON", functions: json_documents::TABLE },
    FunctionFamily { title: "jq", functions: jq::TABLE },
    FunctionFamily { title: "Arrays", functions: arrays::TABLE },
    FunctionFamily { title: "Maps", functions: maps::TABLE },
    FunctionFamily { title: "Types and conditions", functions: types::TABLE },
    FunctionFamily { title: "Ids", functions: ids::TABLE },
    FunctionFamily { title: "The message", functions: message::TABLE },
    FunctionFamily { title: "Memory", functions: state_and_environment::TABLE },
];

pub fn all() -> impl Iterator<Item = &'static Function> {
    FAMILIES.iter().flat_map(|family| family.functions)
}

/// Finds a function by its name or alias. Ignores case and underscores: `isNull`, `is_null` and `ISNULL` are
/// the same.
#[must_use]
pub fn find(name: &str) -> Option<&'static Function> {
    static BY_NAME: LazyLock<Vec<(String, &'static Function)>> = LazyLock::new(|| {
        let mut names: Vec<_> = all()
            .flat_map(|function| {
                let names = std::iter::once(&function.name).chain(function.aliases);
                names.map(move |name| (normalize_name(name), function))
            })
            .collect();
        names.sort_by(|(left, _), (right, _)| left.cmp(right));
        names
    });
    let wanted = normalize_name(name);
    let at = BY_NAME
        .binary_search_by(|(name, _)| name.as_str().cmp(&wanted))
        .ok()?;
    Some(BY_NAME[at].1)
}

fn normalize_name(name: &str) -> String {
    name.chars()
        .filter(|letter| *letter != '_')
        .flat_map(char::to_lowercase)
        .collect()
}

/// The closest existing name to an unknown one, if any is close enough.
#[must_use]
pub fn nearest(name: &str) -> Option<&'static str> {
    let names = all().flat_map(|function| std::iter::once(&function.name).chain(function.aliases));
    crate::suggestion::nearest_name(name, names.copied())
}

/// A float with at most `decimals` decimal places, without trailing zeros except the first one.
pub(crate) fn compact_decimals(number: f64, decimals: usize, arena: &Arena) -> &str {
    use std::fmt::Write as _;
    let mut text = bumpalo::collections::String::new_in(arena);
    write!(text, "{number:.decimals$}").expect("writing to memory");
    if decimals > 0 {
        let digits = text.trim_end_matches('0').len();
        let point = usize::from(text.as_bytes()[digits - 1] == b'.');
        text.truncate(digits + point);
    }
    text.into_bump_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_does_not_matter() {
        for name in ["randomInt", "random_int", "RANDOMINT", "RandomInt"] {
            assert_eq!(
                find(name).map(|function| function.name),
                Some("randomInt"),
                "{name}"
            );
        }
        assert!(find("no_such_function").is_none());
    }

    #[test]
    fn no_two_functions_share_a_name() {
        let mut names: Vec<_> = all()
            .flat_map(|function| std::iter::once(&function.name).chain(function.aliases))
            .map(|name| normalize_name(name))
            .collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        assert_eq!(nearest("flor"), Some("floor"));
        assert_eq!(nearest("sqart"), Some("sqrt"));
        assert_eq!(nearest("completely_different"), None);
    }
}
