//! Templates of actions.

use rules::{Fault, Options, RuleState, Value};

use crate::action::Made;
use crate::error::Invalid;

/// A text to be filled from an output.
pub(crate) struct Template {
    parts: Vec<Part>,
}

enum Part {
    Text(Box<str>),
    /// The names on the way to a value; none: the whole output.
    Path(Box<[Box<str>]>),
}

impl Template {
    pub(crate) fn compile(text: &str, _options: &Options, field: &str) -> Result<Self, Invalid> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let (path, behind) = behind
                .split_once('}')
                .ok_or_else(|| Invalid::new(field, format!("a ${{ without its }} in {text:?}")))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            let names = path.split('.').filter(|name| !name.is_empty());
            parts.push(Part::Path(names.map(Into::into).collect()));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self { parts })
    }

    /// The text, if nothing is filled in.
    pub(crate) fn constant(&self) -> Option<&str> {
        match &self.parts[..] {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends the text.
    pub(crate) fn fill<'a>(
        &'a self,
        made: &Made<'_, 'a>,
        _state: &mut RuleState,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let arena = made.view.arena();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.extend_from_slice(text.as_bytes()),
                Part::Path(names) => {
                    let whole = made.output.value();
                    let value = names
                        .iter()
                        .fold(whole, |value, name| value.field(name, arena));
                    match value {
                        Value::Null => {}
                        Value::Bytes(bytes) => out.extend_from_slice(bytes),
                        value => out.extend_from_slice(value.text(arena).as_bytes()),
                    }
                }
            }
        }
        Ok(())
    }
}
