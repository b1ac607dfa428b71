//! The command of a row: its text with the values of a form and, when it runs, of a node.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};

/// What a node provides to commands.
const NODE_NAMES: [&str; 6] = ["mqtt", "ws", "http", "pid", "token_file", "data_dir"];

/// Arguments of `tidegate` for a row in one form. Names of the node remain in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowCommand {
    arguments: Vec<String>,
}

impl RowCommand {
    /// A command whose names are in `values`, or of a node, if the row has one.
    pub(super) fn new(
        text: &str,
        values: &BTreeMap<String, String>,
        has_node: bool,
    ) -> anyhow::Result<Self> {
        let value = |name: &str| match values.get(name) {
            Some(value) => Ok(value.clone()),
            None if NODE_NAMES.contains(&name) && has_node => Ok(format!("{{{name}}}")),
            None => bail!("{{{name}}} has no value"),
        };
        let arguments = split(text)?;
        let arguments = arguments
            .iter()
            .map(|argument| replace_names(argument, value));
        Ok(Self {
            arguments: arguments.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Arguments with the values of a node.
    pub(super) fn arguments(
        &self,
        node_value: impl Fn(&str) -> anyhow::Result<String> + Copy,
    ) -> anyhow::Result<Vec<String>> {
        let arguments = self.arguments.iter();
        arguments
            .map(|argument| replace_names(argument, node_value))
            .collect()
    }
}

/// For a shell; names of the node are in capital letters, as variables are.
impl std::fmt::Display for RowCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tidegate")?;
        for argument in &self.arguments {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,{}".contains(c);
            if argument.is_empty() || !argument.chars().all(is_plain) {
                write!(f, " '{argument}'")?;
            } else {
                let variable = |name: &str| Ok(format!("${}", name.to_uppercase()));
                let shown = replace_names(argument, variable);
                write!(f, " {}", shown.map_err(|_| std::fmt::Error)?)?;
            }
        }
        Ok(())
    }
}

/// Words between spaces; single quotes keep spaces.
pub(super) fn split(text: &str) -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    for c in text.chars() {
        match c {
            '\'' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !is_quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    ensure!(!is_quoted, "`{text}` has a quote that is not closed");
    words.extend(word);
    Ok(words)
}

/// Replaces each `{name}`; other braces are text.
fn replace_names(
    text: &str,
    value: impl Fn(&str) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let name = rest.find('}').map(|end| &rest[1..end]);
        let is_name = |name: &&str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        match name.filter(is_name) {
            Some(name) => {
                out.push_str(&value(name)?);
                rest = &rest[name.len() + 2..];
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_names() {
        let words = split("bench  pipeline --only 'actor 1 device' ''").expect("right");
        assert_eq!(words, ["bench", "pipeline", "--only", "actor 1 device", ""]);
        assert!(split("a 'b").is_err());
        let upper = |name: &str| Ok(name.to_uppercase());
        let replaced = replace_names("mqtt://{mqtt} {\"a\": 1} {x", upper).expect("right");
        assert_eq!(replaced, "mqtt://MQTT {\"a\": 1} {x");
    }
}
