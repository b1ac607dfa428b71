//! The definition of a function: a line of the table of its family.

use super::args::Args;
use crate::evaluation_error::EvaluationError;
use crate::function_context::FunctionContext;
use crate::value::Value;

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
    /// Whether the function receives null arguments in EMQX's dialect only, outside windows and templates.
    pub accepts_null_in_emqx: bool,
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
        if !self.accepts_null && values.iter().any(Value::is_null) {
            return self.check_arity(values.len()).map(|()| Value::Undefined);
        }
        self.call_with_nulls(context, values)
    }

    /// Calls the function with null arguments, too.
    ///
    /// # Errors
    /// As [`Function::call`].
    pub(crate) fn call_with_nulls<'a>(
        &'static self,
        context: &mut FunctionContext<'a, '_>,
        values: &[Value<'a>],
    ) -> Result<Value<'a>, EvaluationError> {
        self.check_arity(values.len())?;
        (self.eval)(
            context,
            Args {
                function: self.name,
                values,
            },
        )
    }

    fn check_arity(&self, count: usize) -> Result<(), EvaluationError> {
        if count < self.min_args || count > self.max_args {
            return Err(EvaluationError::InvalidArgument {
                function: self.name,
                why: self.arity().into(),
            });
        }
        Ok(())
    }

    /// The accepted numbers of arguments, as text.
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

    pub(super) const fn alias(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    pub(super) const fn impure(mut self) -> Self {
        self.pure = false;
        self
    }

    pub(super) const fn accepts_null(mut self) -> Self {
        self.accepts_null = true;
        self
    }

    pub(super) const fn passes_null(mut self) -> Self {
        self.passes_null = true;
        self
    }

    pub(super) const fn accepts_null_in_emqx(mut self) -> Self {
        self.accepts_null_in_emqx = true;
        self
    }

    pub(super) const fn differing(mut self, how: &'static str) -> Self {
        self.differing = Some(how);
        self
    }
}

/// A line of a table: name, numbers of arguments, parameters, result type, help, example and its result.
#[expect(
    clippy::too_many_arguments,
    reason = "a line of a table is read by column"
)]
pub(super) const fn line(
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
        accepts_null_in_emqx: false,
        differing: None,
        eval,
    }
}
