//! SQL statements of nodes.

use rules::CompileOptions;

/// Compiles a statement with at most one output per row. `text` is what the user wrote; errors refer to its lines and
/// columns.
pub(super) fn statement(before: &str, text: &str, behind: &str) -> Result<rules::Rule, String> {
    let sql = format!("{before}\n{text}\n{behind}");
    let rule = rules::compile(&sql, &CompileOptions::default()).map_err(|mut error| {
        let lines = text.lines().count().max(1) as u32;
        error.line = error.line.saturating_sub(1).max(1);
        if error.line > lines {
            // An error at a missing part points behind the text.
            error.line = lines;
            error.column = text.lines().last().unwrap_or_default().chars().count() as u32 + 1;
        }
        error.to_string()
    })?;
    match rule.window() {
        Some(_) => {
            Err("windows are not supported in a chain; use a rule on $EVENT.DEVICE".to_owned())
        }
        None => Ok(rule),
    }
}
