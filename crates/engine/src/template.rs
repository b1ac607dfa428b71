//! Templates of actions.

use rules::template::{Form, Rendered, Template as Inner};
use rules::{Fault, Options, Rule, RuleState};

use crate::action::{Failure, Made};
use crate::error::Invalid;

/// A text to be filled from an output.
pub(crate) struct Template(Inner);

impl Template {
    /// Of a text.
    pub(crate) fn compile(text: &str, options: &Options, field: &str) -> Result<Self, Invalid> {
        Self::compile_as(Form::Text, text, options, field)
    }

    /// Of content, which stays JSON if the template is JSON.
    pub(crate) fn compile_content(
        text: &str,
        options: &Options,
        field: &str,
    ) -> Result<Self, Invalid> {
        Self::compile_as(Form::of(text), text, options, field)
    }

    fn compile_as(form: Form, text: &str, options: &Options, field: &str) -> Result<Self, Invalid> {
        let compiled = Inner::compile(text, form, options);
        Ok(Self(
            compiled.map_err(|error| Invalid::new(field, error.to_string()))?,
        ))
    }

    /// The text, if nothing is filled in.
    pub(crate) fn constant(&self) -> Option<&str> {
        self.0.constant()
    }

    /// Names in placeholders that no output of the rule has and that are no fields of events.
    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        self.0.unknown_names(rule)
    }

    /// Appends the text.
    pub(crate) fn fill<'a>(
        &'a self,
        made: &Made<'_, 'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<Rendered<'a>, Fault> {
        self.0.render(&made.output, made.view, state, out)
    }

    /// Appends the text where it names something, such as a topic: a null is a failure. `what` names the field.
    pub(crate) fn fill_name<'a>(
        &'a self,
        what: &'static str,
        made: &Made<'_, 'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match self.fill(made, state, out)?.first_null {
            None => Ok(()),
            Some(placeholder) => Err(Failure::Null {
                what,
                placeholder: placeholder.into(),
            }),
        }
    }
}
