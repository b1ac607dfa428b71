//! Text templates with placeholders: `${temperature} °C at ${deviceName}`.

use rules::{
    CompileOptions, EvaluationResources, EvaluationScratch, EventKind, RuleEvent, RuleOutput,
    RuleState, Template, TemplateFormat, Value,
};
use serde_json::Value as Json;

use super::definition_error::AlarmDefinitionError;

const MAX_TEXT_BYTES: usize = 4096;
/// Maximum size of the memory retained between two texts.
const MAX_RETAINED_BYTES: usize = 64 << 10;

/// A compiled template.
pub(super) struct DetailsTemplate(Template);

/// Renders templates; one per thread.
pub(super) struct TemplateRenderer {
    scratch: EvaluationScratch,
    state: RuleState,
}

impl DetailsTemplate {
    pub(super) fn compile(text: &str, field: &str) -> Result<Self, AlarmDefinitionError> {
        if text.len() > MAX_TEXT_BYTES {
            let expected = format!("expected at most {MAX_TEXT_BYTES} bytes");
            return Err(AlarmDefinitionError::new(field, expected));
        }
        let compiled = Template::compile(text, TemplateFormat::Text, &CompileOptions::default());
        let compiled =
            compiled.map_err(|error| AlarmDefinitionError::new(field, error.to_string()))?;
        Ok(Self(compiled))
    }
}

impl TemplateRenderer {
    pub(super) fn new() -> Self {
        // The random numbers of a text need no secrecy.
        Self {
            scratch: EvaluationScratch::new(
                EvaluationResources::new([7; 32], 0),
                MAX_RETAINED_BYTES,
            ),
            state: RuleState::default(),
        }
    }

    /// Renders the template with these values. A failed placeholder is replaced by its error.
    pub(super) fn render(
        &mut self,
        text: &DetailsTemplate,
        now_ms: u64,
        values: &[(&str, &Json)],
    ) -> String {
        self.scratch.reset();
        let arena = self.scratch.arena();
        let texts: Vec<_> = values.iter().map(|(_, value)| value.to_string()).collect();
        let columns: Vec<_> = values
            .iter()
            .zip(&texts)
            .map(|((name, _), text)| {
                (
                    *name,
                    rules::json::parse(text, arena).unwrap_or(Value::Null),
                )
            })
            .collect();
        let event = RuleEvent::new(EventKind::Device, now_ms);
        let view = self.scratch.view(&event, now_ms);
        let output = RuleOutput { columns: &columns };
        let mut out = Vec::new();
        if let Err(fault) = text.0.render(&output, &view, &mut self.state, &mut out) {
            out.extend_from_slice(format!("({fault})").as_bytes());
        }
        String::from_utf8(out)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn templates_render_values_and_functions() {
        let text =
            DetailsTemplate::compile("${t} °C at ${upper(deviceName)}, ${missing}", "details");
        let (t, name) = (json!(31.5), json!("hall"));
        let values = [("t", &t), ("deviceName", &name)];
        let written = TemplateRenderer::new().render(&text.expect("a text"), 0, &values);
        assert_eq!(written, "31.5 °C at HALL, null");
    }

    #[test]
    fn invalid_templates_are_rejected() {
        let rejected = DetailsTemplate::compile("${nosuch(1)}", "details")
            .err()
            .expect("an error");
        assert_eq!(rejected.field, "details");
    }
}
