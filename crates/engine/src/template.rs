//! Templates of actions.

use rules::{Fault, Options, RuleState};

use crate::action::Made;
use crate::error::Invalid;

/// A text to be filled from an output.
pub(crate) struct Template {
    inner: rules::Template,
}

impl Template {
    pub(crate) fn compile(text: &str, options: &Options, field: &str) -> Result<Self, Invalid> {
        let inner = rules::Template::compile(text, options)
            .map_err(|error| Invalid::new(field, error.to_string()))?;
        Ok(Self { inner })
    }

    /// The text, if nothing is filled in.
    pub(crate) fn constant(&self) -> Option<&str> {
        self.inner.constant()
    }

    /// Appends the text.
    pub(crate) fn fill<'a>(
        &'a self,
        made: &Made<'_, 'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        self.inner.render(&made.output, made.view, state, out)
    }
}
