//! SQL with `${...}`: each placeholder becomes a bound parameter, never a part of the text. An `INSERT ... VALUES (...)` is
//! split so that many rows form one statement.

use std::borrow::Cow;

use super::Template;
use crate::row::{SinkRow, SinkValue};
use crate::settings::SettingsError;

/// Marks a parameter; no statement contains it.
const MARK: char = '\0';
/// Maximum number of parameters in the protocols of MySQL and PostgreSQL.
const MAX_PARAMETERS: usize = 65_535;

/// How a database parses texts and marks parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlDialect {
    /// `?`; a backslash within a text escapes the next character.
    MySql,
    /// `$1`, `$2` ...
    Postgres,
}

/// A statement with parameters in place of placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlStatement {
    text: String,
    parameters: Vec<Template>,
    dialect: SqlDialect,
    insert: Option<InsertSpans>,
}

/// Offsets within the text of `INSERT ... VALUES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InsertSpans {
    values: usize,
    open: usize,
    /// After the closing parenthesis.
    close: usize,
}

impl SqlStatement {
    /// `field` is the name of the setting, for errors.
    pub fn parse(field: &str, text: &str, dialect: SqlDialect) -> Result<Self, SettingsError> {
        let sql = SqlScanner::new(text, dialect).scan();
        let sql = sql.map_err(|error| SettingsError::new(field, error))?;
        if sql.parameters.len() > MAX_PARAMETERS {
            let detail = format!("it has more than {MAX_PARAMETERS} placeholders");
            return Err(SettingsError::new(field, detail));
        }
        Ok(sql)
    }

    pub fn parameters(&self) -> &[Template] {
        &self.parameters
    }

    /// Whether rows can be combined into one statement.
    #[cfg(test)]
    fn is_insert(&self) -> bool {
        self.insert.is_some()
    }

    /// Maximum number of rows in one statement.
    pub fn max_rows(&self) -> usize {
        match self.insert {
            Some(_) => MAX_PARAMETERS / self.parameters.len().max(1),
            None => 1,
        }
    }

    /// The statement for a number of rows, which is 1 unless it is an insert.
    pub fn statement(&self, rows: usize) -> String {
        let mut numbers = 1..;
        let Some(insert) = self.insert else {
            return self.text_with_marks(&self.text, &mut numbers);
        };
        let tuple = &self.text[insert.open..insert.close];
        let mut statement = self.text[..insert.open].to_owned();
        for at in 0..rows {
            if at > 0 {
                statement.push(',');
            }
            statement.push_str(&self.text_with_marks(tuple, &mut numbers));
        }
        statement.push_str(&self.text[insert.close..]);
        statement
    }

    /// For PostgreSQL: an insert of any number of rows from arrays of these types, one array per parameter. `None` if the
    /// statement does not allow it.
    pub fn unnest_insert(&self, types: &[String]) -> Option<String> {
        let insert = self.insert?;
        let tuple = self.text[insert.open..insert.close]
            .strip_prefix('(')?
            .strip_suffix(')')?;
        let says_default = tuple
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|word| word.eq_ignore_ascii_case("default"));
        if says_default || self.parameters.is_empty() || types.len() != self.parameters.len() {
            return None;
        }
        let mut columns = 1..;
        let mut values = String::new();
        for c in tuple.chars() {
            match c {
                MARK => values.push_str(&format!("u.c{}", columns.next()?)),
                c => values.push(c),
            }
        }
        let arrays = types.iter().enumerate();
        let arrays: Vec<_> = arrays
            .map(|(at, name)| format!("${}::{name}[]", at + 1))
            .collect();
        let names: Vec<_> = (1..=types.len()).map(|at| format!("c{at}")).collect();
        Some(format!(
            "{}SELECT {values} FROM UNNEST({}) AS u({}){}",
            &self.text[..insert.values],
            arrays.join(", "),
            names.join(", "),
            &self.text[insert.close..]
        ))
    }

    fn text_with_marks(&self, text: &str, numbers: &mut impl Iterator<Item = usize>) -> String {
        let mut marked = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            match (c, self.dialect) {
                (MARK, SqlDialect::MySql) => marked.push('?'),
                (MARK, SqlDialect::Postgres) => {
                    let number = numbers.next().unwrap_or_default();
                    marked.push_str(&format!("${number}"));
                }
                (c, _) => marked.push(c),
            }
        }
        marked
    }

    /// Passes the values of a row, one per parameter, to `each`.
    pub fn bind(&self, row: SinkRow<'_>, mut each: impl FnMut(usize, SinkValue<'_>)) {
        let mut scratch = Vec::new();
        for (at, parameter) in self.parameters.iter().enumerate() {
            each(at, parameter.value(row, &mut scratch));
        }
    }
}

struct SqlScanner<'t> {
    rest: &'t str,
    dialect: SqlDialect,
    text: String,
    /// The text with every quoted byte replaced by an `x`.
    mask: String,
    parameters: Vec<Template>,
}

impl<'t> SqlScanner<'t> {
    fn new(text: &'t str, dialect: SqlDialect) -> Self {
        Self {
            rest: text.trim().trim_end_matches(';'),
            dialect,
            text: String::new(),
            mask: String::new(),
            parameters: Vec::new(),
        }
    }

    fn scan(mut self) -> Result<SqlStatement, String> {
        if self.rest.contains(MARK) {
            return Err("it contains a NUL character".into());
        }
        if self.rest.is_empty() {
            return Err("expected a statement".into());
        }
        while let Some(next) = self.rest.chars().next() {
            if self.rest.starts_with("${") {
                self.placeholder()?;
            } else if next == '\'' {
                self.quoted_text()?;
            } else if next == '"' || next == '`' {
                self.quoted_name(next)?;
            } else if self.rest.starts_with("--") || self.rest.starts_with("/*") {
                self.comment();
            } else if next == ';' {
                return Err("expected one statement, found several".into());
            } else {
                self.text.push(next);
                self.mask.push(next);
                self.rest = &self.rest[next.len_utf8()..];
            }
        }
        let insert = find_insert(&self.text, &self.mask);
        Ok(SqlStatement {
            text: self.text,
            parameters: self.parameters,
            dialect: self.dialect,
            insert,
        })
    }

    fn placeholder(&mut self) -> Result<(), String> {
        let (inside, behind) =
            super::split_placeholder(&self.rest[2..]).ok_or("a ${ without its }")?;
        let is_part_of_name = |c: char| c.is_alphanumeric() || c == '_';
        if self.text.ends_with(is_part_of_name) || behind.starts_with(is_part_of_name) {
            return Err(format!(
                "${{{inside}}} is a part of a name; names of tables and columns cannot differ between rows"
            ));
        }
        self.push_parameter(&format!("${{{}}}", without_null_word(inside)))?;
        self.rest = behind;
        Ok(())
    }

    fn push_parameter(&mut self, template: &str) -> Result<(), String> {
        let template = Template::parse("", template).map_err(|error| error.detail)?;
        self.parameters.push(template);
        self.text.push(MARK);
        self.mask.push(MARK);
        Ok(())
    }

    /// Replaces a quoted text that contains placeholders by one parameter.
    fn quoted_text(&mut self) -> Result<(), String> {
        let mut content = String::new();
        let mut chars = self.rest.char_indices().skip(1).peekable();
        let end = loop {
            match chars.next() {
                None => return Err("a quote is not closed".into()),
                Some((_, '\\')) if self.dialect == SqlDialect::MySql => {
                    content.extend(chars.next().map(|(_, c)| match c {
                        'n' => '\n',
                        't' => '\t',
                        'r' => '\r',
                        other => other,
                    }));
                }
                Some((at, '\'')) => match chars.peek() {
                    Some((_, '\'')) => {
                        chars.next();
                        content.push('\'');
                    }
                    _ => break at + 1,
                },
                Some((_, c)) => content.push(c),
            }
        };
        let (quoted, behind) = self.rest.split_at(end);
        self.rest = behind;
        if content.contains("${") {
            return self.push_parameter(&content);
        }
        self.push_masked(quoted);
        Ok(())
    }

    fn quoted_name(&mut self, quote: char) -> Result<(), String> {
        let end = self.rest[1..].find(quote).ok_or("a quote is not closed")? + 2;
        let (quoted, behind) = self.rest.split_at(end);
        if quoted.contains("${") {
            return Err(format!(
                "a placeholder is within the name {quoted}; names of tables and columns cannot differ between rows, and \
                 texts have single quotes"
            ));
        }
        self.rest = behind;
        self.push_masked(quoted);
        Ok(())
    }

    fn comment(&mut self) {
        let end = match self.rest.starts_with("--") {
            true => self.rest.find('\n'),
            false => self.rest.find("*/").map(|at| at + 2),
        };
        self.rest = &self.rest[end.unwrap_or(self.rest.len())..];
        self.text.push(' ');
        self.mask.push(' ');
    }

    fn push_masked(&mut self, quoted: &str) {
        self.text.push_str(quoted);
        self.mask.extend(std::iter::repeat_n('x', quoted.len()));
    }
}

/// FluxMQ's examples write SQL's null as a text where no quotes are: `${ifNull(payload.t, "NULL")}`. A parameter with that text
/// would not be null, so the word is removed.
fn without_null_word(placeholder: &str) -> Cow<'_, str> {
    let word = |quoted| {
        let call = placeholder.trim_end().strip_suffix(')')?.trim_end();
        let front = call.strip_suffix(quoted)?.trim_end();
        front.ends_with(',').then(|| format!("{front} null)"))
    };
    match word("\"NULL\"").or_else(|| word("'NULL'")) {
        Some(changed) => Cow::Owned(changed),
        None => Cow::Borrowed(placeholder),
    }
}

/// Finds the single group of values of an insert whose other parts have no parameters.
fn find_insert(text: &str, mask: &str) -> Option<InsertSpans> {
    let upper = mask.to_ascii_uppercase();
    if !upper.starts_with("INSERT") && !upper.starts_with("REPLACE") {
        return None;
    }
    let bytes = upper.as_bytes();
    let is_word = |at: usize| {
        bytes
            .get(at)
            .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
    };
    let (mut depth, mut found) = (0_usize, None);
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            _ if depth == 0 && bytes[at..].starts_with(b"VALUE") => {
                let length = if bytes[at..].starts_with(b"VALUES") {
                    6
                } else {
                    5
                };
                let is_alone = !is_word(at.wrapping_sub(1)) && !is_word(at + length);
                let open = bytes[at + length..]
                    .iter()
                    .position(|b| !b.is_ascii_whitespace());
                let open = open.map(|open| at + length + open);
                if is_alone && open.is_some_and(|open| bytes[open] == b'(') {
                    found = Some((at, open?));
                    break;
                }
            }
            _ => {}
        }
        at += 1;
    }
    let (values, open) = found?;
    let mut depth = 0_usize;
    let close = bytes[open..].iter().position(|byte| {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        depth == 0
    })?;
    let close = open + close + 1;
    let is_single = !text[close..].trim_start().starts_with(',');
    let is_bound_elsewhere = text[..open].contains(MARK) || text[close..].contains(MARK);
    (is_single && !is_bound_elsewhere).then_some(InsertSpans {
        values,
        open,
        close,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;

    fn mysql(text: &str) -> SqlStatement {
        SqlStatement::parse("sql", text, SqlDialect::MySql).unwrap()
    }

    fn postgres(text: &str) -> SqlStatement {
        SqlStatement::parse("sql", text, SqlDialect::Postgres).unwrap()
    }

    #[test]
    fn placeholders_become_parameters() {
        let sql = mysql(
            "UPDATE t SET a = ${a}, b = '${b}', c = 'x ${c}' WHERE d = 'it''s' AND e = 'a\\'b';",
        );
        assert_eq!(
            sql.statement(1),
            "UPDATE t SET a = ?, b = ?, c = ? WHERE d = 'it''s' AND e = 'a\\'b'"
        );
        assert!(!sql.is_insert());
        assert_eq!(sql.parameters().len(), 3);
        assert_eq!(sql.parameters()[2], Template::parse("", "x ${c}").unwrap());
        let sql = postgres("DELETE FROM t WHERE a = ${a} AND b = ${b} -- ${c}");
        assert_eq!(sql.statement(1), "DELETE FROM t WHERE a = $1 AND b = $2  ");
    }

    #[test]
    fn a_value_is_never_a_part_of_the_text() {
        let sql = mysql("INSERT INTO t VALUES (${x})");
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).text("x", "'); DROP TABLE t; --");
        let mut bound = Vec::new();
        sql.bind(SinkRow::from_bytes(&bytes), |at, value| {
            bound.push((at, format!("{value:?}")));
        });
        assert_eq!(sql.statement(1), "INSERT INTO t VALUES (?)");
        assert_eq!(bound, [(0, "Text(\"'); DROP TABLE t; --\")".to_owned())]);
    }

    #[test]
    fn the_insert_of_fluxmq_s_manual_has_nulls_and_both_spellings() {
        let sql = mysql(
            "INSERT INTO iot_messages(device_id, topic, message_data, temperature, humidity, created_at, message_hash) VALUES (
                '${coalesce(jsonPath(msg, \"$.deviceId\"), clientId)}', '${topic}', '${json(msg)}',
                ${ifNull(jsonPath(msg, \"$.temperature\"), \"NULL\")}, ${ifNull(jsonPath(msg, '$.humidity'), 'NULL')},
                '${datetime(timestamp)}', '${md5(concat(clientId, topic, str(timestamp)))}')",
        );
        let value = serde_json::json!({
            "payload": "{\"temperature\": 21.5}", "clientId": "c1", "topic": "t/a", "timestamp": 1_690_599_987_495_u64,
        });
        let mut bytes = Vec::new();
        SinkRowWriter::new(&mut bytes).json_fields(value.as_object().unwrap());
        let mut bound = Vec::new();
        sql.bind(SinkRow::from_bytes(&bytes), |_, value| {
            bound.push(format!("{value:?}"))
        });
        assert!(sql.is_insert());
        assert_eq!(
            bound[..6],
            [
                "Text(\"c1\")",
                "Text(\"t/a\")",
                "Text(\"{\\\"temperature\\\": 21.5}\")",
                "Float(21.5)",
                "Null",
                "Text(\"2023-07-29 03:06:27\")",
            ]
        );
        assert!(
            bound[6].starts_with("Text(") && bound[6].len() == 32 + 8,
            "{bound:?}"
        );
        // Alone and within quotes it is an ordinary word.
        let words = mysql("INSERT INTO t VALUES ('${ifNull(none, \"NULL\")}', ${name})");
        SinkRowWriter::new(&mut bytes).text("name", "NULL");
        let mut bound = Vec::new();
        words.bind(SinkRow::from_bytes(&bytes), |_, value| {
            bound.push(format!("{value:?}"))
        });
        assert_eq!(bound, ["Text(\"NULL\")", "Text(\"NULL\")"]);
    }

    #[test]
    fn an_insert_takes_many_rows() {
        let sql = mysql(
            "insert into `values` (a, b) values (${a}, f(${b}, ')')) ON DUPLICATE KEY UPDATE b = VALUES(b)",
        );
        assert_eq!(
            sql.statement(2),
            "insert into `values` (a, b) values (?, f(?, ')')),(?, f(?, ')')) ON DUPLICATE KEY UPDATE b = VALUES(b)"
        );
        assert_eq!(sql.max_rows(), 32_767);
        let sql = postgres("INSERT INTO t (a, b) VALUES (${a}, ${b}) ON CONFLICT DO NOTHING");
        assert_eq!(
            sql.statement(2),
            "INSERT INTO t (a, b) VALUES ($1, $2),($3, $4) ON CONFLICT DO NOTHING"
        );
    }

    #[test]
    fn arrays_hold_many_rows() {
        let sql = postgres(
            "INSERT INTO t (a, b, c) VALUES (${a}, ${b}::jsonb, now()) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b",
        );
        let types = ["\"int4\"".to_owned(), "\"text\"".to_owned()];
        assert_eq!(
            sql.unnest_insert(&types).unwrap(),
            "INSERT INTO t (a, b, c) SELECT u.c1, u.c2::jsonb, now() FROM UNNEST($1::\"int4\"[], $2::\"text\"[]) AS \
             u(c1, c2) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b"
        );
        let with_default = postgres("INSERT INTO t VALUES (${a}, DEFAULT)");
        assert_eq!(with_default.unnest_insert(&types[..1]), None);
    }

    #[test]
    fn what_is_no_plain_insert_is_run_row_by_row() {
        for text in [
            "INSERT INTO t SELECT * FROM s WHERE a = ${a}",
            "INSERT INTO t VALUES (${a}), (${b})",
            "INSERT INTO t (a) VALUES (${a}) ON DUPLICATE KEY UPDATE b = ${b}",
            "CALL p(${a})",
        ] {
            assert!(!mysql(text).is_insert(), "{text}");
        }
    }

    #[test]
    fn names_cannot_be_filled_in() {
        for text in [
            "INSERT INTO t_${a} VALUES (1)",
            "INSERT INTO `t_${a}` VALUES (1)",
            "INSERT INTO ${a}_t VALUES (1)",
        ] {
            let error = SqlStatement::parse("sql", text, SqlDialect::MySql).unwrap_err();
            assert!(error.detail.contains("cannot differ"), "{error}");
        }
        for text in ["", "SELECT 1; SELECT 2", "a = 'x", "a = ${x"] {
            assert!(
                SqlStatement::parse("sql", text, SqlDialect::MySql).is_err(),
                "{text}"
            );
        }
    }
}
