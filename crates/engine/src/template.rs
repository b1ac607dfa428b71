//! Templates of actions.

use rules::template::{RenderSummary, Template as Inner, TemplateFormat};
use rules::{CompileOptions, EvaluationError, Rule, RuleState};

use crate::action_error::{ActionError, invalid_value};
use crate::action_input::ActionInput;
use crate::definition_error::RuleDefinitionError;

/// A text with placeholders that are filled in from an output.
pub(crate) struct ActionTemplate(Inner);

impl ActionTemplate {
    /// Compiles a text template.
    pub(crate) fn compile(
        text: &str,
        options: &CompileOptions,
        field: &str,
    ) -> Result<Self, RuleDefinitionError> {
        Self::compile_as(TemplateFormat::Text, text, options, field)
    }

    /// Compiles a template for content, which stays valid JSON if the template is JSON.
    pub(crate) fn compile_content(
        text: &str,
        options: &CompileOptions,
        field: &str,
    ) -> Result<Self, RuleDefinitionError> {
        Self::compile_as(TemplateFormat::detect(text), text, options, field)
    }

    fn compile_as(
        form: TemplateFormat,
        text: &str,
        options: &CompileOptions,
        field: &str,
    ) -> Result<Self, RuleDefinitionError> {
        let compiled = Inner::compile(text, form, options);
        Ok(Self(compiled.map_err(|error| {
            RuleDefinitionError::new(field, error.to_string())
        })?))
    }

    /// The text, if the template has no placeholders.
    pub(crate) fn constant(&self) -> Option<&str> {
        self.0.constant()
    }

    /// Placeholder names that are neither columns of the rule's output nor fields of events.
    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        self.0.unknown_names(rule)
    }

    /// Appends the rendered text.
    pub(crate) fn render<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<RenderSummary<'a>, EvaluationError> {
        self.0.render(&made.output, made.view, state, out)
    }

    /// Appends the rendered text of a name, such as a topic: null is an error. `what` names the field in the
    /// error.
    pub(crate) fn render_name<'a>(
        &'a self,
        what: &'static str,
        made: &ActionInput<'_, 'a>,
        state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<(), ActionError> {
        match self.render(made, state, out)?.first_null {
            None => Ok(()),
            Some(placeholder) => Err(ActionError::NullValue {
                what,
                placeholder: placeholder.into(),
            }),
        }
    }
}

/// A constant, or a template that is filled in from the output.
pub(crate) enum FixedOrTemplate<T> {
    Fixed(T),
    Template(ActionTemplate),
}

/// Renders a template whose result is text.
pub(crate) fn render<'t, 'a>(
    template: &'a ActionTemplate,
    made: &ActionInput<'_, 'a>,
    state: &mut RuleState,
    text: &'t mut Vec<u8>,
) -> Result<&'t str, ActionError> {
    text.clear();
    template.render(made, state, text)?;
    std::str::from_utf8(text).map_err(|_| invalid_value("a template", "bytes", "text"))
}
