//! Generates the function reference from the tables.

use std::fmt::Write as _;

use super::catalogue::{FAMILIES, all};
use super::function::Function;

const HEAD: &str = "\
# Rule functions

<!-- Written by `cargo xtask docs` from the tables in crates/rules/src/functions; do not edit. -->

Function names ignore case and underscores: `isNull`, `is_null` and `ISNULL` are the same function. Parameters in brackets are
optional. The first argument may precede the name: `topic.startsWith('t/')` is `startsWith(topic, 't/')`.

- A null argument makes the result null, unless the function states otherwise (`isNull`, `coalesce`, ...). In EMQX's dialect it
  is an error instead, see [Rules](rules.md#null-numbers-text).
- A wrong type, a value out of range or an overflow is an error: the rule has no output for this message, and the error is
  counted. Nothing else is affected.
- Text is counted in characters, not bytes. Numbers may be given as text, arrays and maps as JSON.
- Bytes that are valid UTF-8 print as text, other bytes as base64.
- Local time is that of the rule's `timezone`; default UTC. Zones are names (`Europe/Berlin`) or offsets (`+08:00`).
- The result of a function is limited to 1 MiB of text or bytes, and to 100,000 items. A regular expression is limited to 4 KiB
  and has neither look-around nor back references.

These functions of EMQX are not available: `term_encode`, `term_decode`, `sparkplug_encode`, `sparkplug_decode`,
and those of the schema registry. `sum`, `avg`, `min`, `max`, `first` and `last` with one argument are aggregates in a rule with a
window.

The examples run as tests, in UTC at 2023-07-29 03:06:27.495.
";

/// The whole page as Markdown.
#[must_use]
pub fn render_reference() -> String {
    let mut page = HEAD.to_owned();
    for family in FAMILIES {
        write!(page, "\n## {}\n\n", family.title).expect("writing to memory");
        page.push_str("| function | gives | |\n|---|---|---|\n");
        for function in family.functions {
            page.push_str(&row(function));
        }
    }
    page.push_str("\n## Where the dialects differ\n\n");
    page.push_str("A rule selects its dialect with `dialect = \"fluxmq\"` or `\"emqx\"`. Without it, a rule with `$EVENT.` in FROM uses fluxmq.\n\n");
    page.push_str("| function | difference |\n|---|---|\n");
    for function in all() {
        if let Some(differs) = function.differing {
            writeln!(page, "| `{}` | {} |", function.name, escaped(differs))
                .expect("writing to memory");
        }
    }
    page
}

fn row(function: &Function) -> String {
    let mut names = format!("`{}({})`", function.name, escaped(function.parameters));
    if !function.aliases.is_empty() {
        let aliases: Vec<_> = function
            .aliases
            .iter()
            .map(|alias| format!("`{alias}`"))
            .collect();
        write!(names, ", also {}", aliases.join(", ")).expect("writing to memory");
    }
    let (example, result) = function.example;
    format!(
        "| {names} | {} | {} `{}` is `{}` |\n",
        escaped(function.returns),
        escaped(function.help),
        escaped(example),
        escaped(result),
    )
}

/// A `|` would end the table cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}
