//! Templates of actions.

use rules::template::{Form, Template as Inner};
use rules::{Fault, Options, RuleState};

use crate::action::Made;
use crate::error::Invalid;

/// A text to be filled from an output.
pub(crate) struct Template(Inner);

impl Template {
    pub(crate) fn compile(text: &str, options: &Options, field: &str) -> Result<Self, Invalid> {
        let compiled = Inner::compile(text, Form::Text, options);
        Ok(Self(
            compiled.map_err(|error| Invalid::new(field, error.to_string()))?,
        ))
    }

    /// The text, if nothing is filled in.
    pub(crate) fn constant(&self) -> Option<&str> {
        self.0.constant()
    }

    /// Appends the text.
    pub(crate) fn fill<'a>(
        &'a self,
        made: &Made<'_, 'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        self.0.render(&made.output, made.view, state, out)?;
        Ok(())
    }
}
