//! The statements on the pages of the manual compile without warnings.

use std::path::{Path, PathBuf};

use rules::{CompileOptions, compile};

/// The code blocks of a page in this language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    let parts = page.split(&fence).skip(1);
    parts
        .map(|part| part.split("\n```").next().unwrap_or(part))
        .collect()
}

/// Collects the statements inside a JSON value: a rule has its own in `sql`.
fn statements_of(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().filter(|_| name == "sql") {
                    Some(sql) => found.push(sql.to_owned()),
                    None => statements_of(value, found),
                }
            }
        }
        serde_json::Value::Array(items) => {
            items.iter().for_each(|item| statements_of(item, found));
        }
        _ => {}
    }
}

fn collect_pages(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the manual") {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            collect_pages(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

fn is_of_a_rule(sql: &str) -> bool {
    // Sinks contain statements, too.
    let first = sql.split_whitespace().next().unwrap_or_default();
    ["SELECT", "FOREACH"].contains(&first.to_ascii_uppercase().as_str()) && sql.contains("FROM")
}

#[test]
fn every_statement_of_the_manual_compiles() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut pages = Vec::new();
    collect_pages(&docs, &mut pages);
    let mut wrong = Vec::new();
    let mut count = 0;
    for path in pages {
        let page = std::fs::read_to_string(&path).expect("a page");
        let mut statements: Vec<String> = Vec::new();
        statements.extend(blocks(&page, "sql").into_iter().map(str::to_owned));
        for block in blocks(&page, "json") {
            match serde_json::from_str(block) {
                Ok(value) => statements_of(&value, &mut statements),
                Err(error) => wrong.push(format!("{}: {error}\n{block}", path.display())),
            }
        }
        for sql in statements.iter().filter(|sql| is_of_a_rule(sql)) {
            count += 1;
            let problem = match compile(sql, &CompileOptions::default()) {
                Ok(rule) if rule.warnings().is_empty() => continue,
                Ok(rule) => rule.warnings()[0].to_string(),
                Err(error) => error.report(),
            };
            wrong.push(format!("{}: {problem}\n{sql}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(count >= 6, "only {count} statements were found");
}
