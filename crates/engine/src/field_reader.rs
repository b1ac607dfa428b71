//! Reads the fields of a JSON object one at a time, with errors that name the field.

use rules::MAX_SQL_BYTES;
use serde_json::{Map, Value};

use crate::definition_error::RuleDefinitionError;

const MAX_USER_PROPERTIES: usize = 64;

/// Templates by name, and a template that yields additional properties.
pub(crate) type UserProperties = (Vec<(String, String)>, Option<String>);

/// Error text for an unknown value: lists the allowed values and suggests the closest one.
pub(crate) fn unknown_value_error(what: &str, found: &str, known: &[&str]) -> String {
    let all = known.join(", ");
    match rules::nearest_name(found, known.iter().copied()) {
        Some(near) => format!("{what} {found:?}; did you mean {near:?}? There are {all}"),
        None => format!("{what} {found:?}; there are {all}"),
    }
}

/// The fields of an object, taken one at a time. Fields left at the end are unknown.
pub(crate) struct FieldReader<'a> {
    path: &'a str,
    remaining: Vec<(&'a str, &'a Value)>,
    known: Vec<&'static str>,
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(value: &'a Value, path: &'a str) -> Result<Self, RuleDefinitionError> {
        let Value::Object(fields) = value else {
            return Err(RuleDefinitionError::new(path, "expected an object"));
        };
        let left = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        Ok(Self {
            path,
            remaining: left,
            known: Vec::new(),
        })
    }

    pub(crate) fn extend(&mut self, fields: &'a Map<String, Value>) {
        let fields = fields.iter().map(|(name, value)| (name.as_str(), value));
        self.remaining.extend(fields);
    }

    pub(crate) fn field_error(
        &self,
        field: &str,
        detail: impl Into<String>,
    ) -> RuleDefinitionError {
        let field = match self.path {
            "" => field.to_owned(),
            path => format!("{path}.{field}"),
        };
        RuleDefinitionError::new(field, detail)
    }

    /// The error of a required field that is missing. If a field that was not read has nearly its name, the error names that one.
    pub(crate) fn missing_error(&self, field: &'static str, expected: &str) -> RuleDefinitionError {
        let mut unread = self.remaining.iter().map(|(name, _)| *name);
        match unread.find(|name| rules::nearest_name(name, std::iter::once(field)).is_some()) {
            Some(near) => self.field_error(near, format!("unknown field; did you mean {field:?}?")),
            None => self.field_error(field, format!("is missing; expected {expected}")),
        }
    }

    /// Takes a field of the EMQX form, which error messages do not list. Null counts as missing.
    pub(crate) fn take_emqx(&mut self, name: &'static str) -> Option<&'a Value> {
        let value = self.take(name);
        self.known.pop();
        value
    }

    pub(crate) fn take_emqx_text(
        &mut self,
        name: &'static str,
    ) -> Result<Option<String>, RuleDefinitionError> {
        let text = self.take_text(name);
        self.known.pop();
        text
    }

    pub(crate) fn take_emqx_bool(
        &mut self,
        name: &'static str,
    ) -> Result<Option<bool>, RuleDefinitionError> {
        let flag = self.take_bool(name);
        self.known.pop();
        flag
    }

    /// Reads templates by name, or a template consisting of one placeholder that yields a map of them.
    pub(crate) fn take_user_properties(&mut self) -> Result<UserProperties, RuleDefinitionError> {
        const FIELD: &str = "user_properties";
        match self.take(FIELD) {
            None => Ok((Vec::new(), None)),
            Some(Value::String(text)) if text.is_empty() => Ok((Vec::new(), None)),
            Some(Value::String(text)) => {
                let is_placeholder = text.starts_with("${") && text.ends_with('}');
                match is_placeholder && text.len() <= MAX_SQL_BYTES {
                    true => Ok((Vec::new(), Some(text.clone()))),
                    false => {
                        let detail = "expected an object of names and templates, or one placeholder that yields one";
                        Err(self.field_error(FIELD, detail))
                    }
                }
            }
            Some(value) => Ok((self.template_entries(FIELD, value)?, None)),
        }
    }

    /// Reads an object of templates. Numbers are accepted as text.
    pub(crate) fn template_entries(
        &self,
        name: &str,
        value: &Value,
    ) -> Result<Vec<(String, String)>, RuleDefinitionError> {
        let Value::Object(templates) = value else {
            return Err(self.field_error(name, "expected an object of names and templates"));
        };
        if templates.len() > MAX_USER_PROPERTIES {
            let detail = format!("expected at most {MAX_USER_PROPERTIES} names");
            return Err(self.field_error(name, detail));
        }
        let pair = |(key, value): (&String, &Value)| match value {
            Value::String(value) => Ok((key.clone(), value.clone())),
            Value::Number(number) => Ok((key.clone(), number.to_string())),
            _ => Err(self.field_error(&format!("{name}.{key}"), "expected a text")),
        };
        templates.iter().map(pair).collect()
    }

    /// Takes a field. Null counts as missing.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        let at = self
            .remaining
            .iter()
            .position(|(field, _)| *field == name)?;
        let (_, value) = self.remaining.swap_remove(at);
        (!value.is_null()).then_some(value)
    }

    pub(crate) fn take_text(
        &mut self,
        name: &'static str,
    ) -> Result<Option<String>, RuleDefinitionError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= MAX_SQL_BYTES => Ok(Some(text.clone())),
            Some(Value::String(text)) => {
                let len = text.len();
                let detail =
                    format!("expected at most {MAX_SQL_BYTES} bytes (max_sql_bytes), found {len}");
                Err(self.field_error(name, detail))
            }
            Some(_) => Err(self.field_error(name, "expected a text")),
        }
    }

    pub(crate) fn take_bool(
        &mut self,
        name: &'static str,
    ) -> Result<Option<bool>, RuleDefinitionError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(self.field_error(name, "expected true or false")),
        }
    }

    /// Reads the value as text; "false" if it is missing.
    pub(crate) fn take_bool_or_template(
        &mut self,
        name: &'static str,
    ) -> Result<String, RuleDefinitionError> {
        match self.take(name) {
            None => Ok("false".to_owned()),
            Some(Value::Bool(flag)) => Ok(flag.to_string()),
            Some(Value::String(template)) if !template.is_empty() => Ok(template.clone()),
            Some(_) => {
                let detail = format!("expected true, false or a template such as ${{{name}}}");
                Err(self.field_error(name, detail))
            }
        }
    }

    pub(crate) fn take_number(
        &mut self,
        name: &'static str,
        from: u64,
        to: u64,
    ) -> Result<Option<u64>, RuleDefinitionError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_u64().filter(|number| (from..=to).contains(number)) {
                Some(number) => Ok(Some(number)),
                None => {
                    Err(self.field_error(name, format!("expected a number from {from} to {to}")))
                }
            },
        }
    }

    pub(crate) fn reject_unknown(&self) -> Result<(), RuleDefinitionError> {
        match self.remaining.first() {
            None => Ok(()),
            Some((name, _)) => {
                let all = self.known.join(", ");
                let detail = match rules::nearest_name(name, self.known.iter().copied()) {
                    Some(near) => {
                        format!("unknown field; did you mean {near:?}? There are {all}")
                    }
                    None => format!("unknown field; there are {all}"),
                };
                Err(self.field_error(name, detail))
            }
        }
    }
}
