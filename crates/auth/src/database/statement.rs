//! SQL with `${...}` placeholders for client data. Each becomes a bound parameter and is never inserted into the text.

use crate::authenticator::LoginRequest;
use crate::template::TemplateField;

/// The parameter syntax of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterStyle {
    /// `?`
    #[cfg(feature = "mysql")]
    Question,
    /// `$1`, `$2` ...
    #[cfg(feature = "postgres")]
    Numbered,
}

/// An SQL statement with its placeholders converted to parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParameterizedStatement {
    pub(crate) sql: String,
    fields: Vec<TemplateField>,
}

impl ParameterizedStatement {
    pub(crate) fn parse(text: &str, style: ParameterStyle) -> Result<Self, String> {
        let mut sql = String::with_capacity(text.len());
        let mut fields = Vec::new();
        let mut rest = text;
        // A placeholder within a quoted text would be part of the text and could not be bound.
        let mut quote: Option<char> = None;
        while let Some(next) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("${") {
                let (name, mut behind) = after.split_once('}').ok_or("a ${ without its }")?;
                if let Some(quote) = quote.take() {
                    let is_alone = sql.ends_with(quote) && behind.starts_with(quote);
                    if !is_alone {
                        return Err(format!(
                            "${{{name}}} stands within a quoted text and cannot be bound; write it by itself, as in \
                             WHERE username = ${{username}}"
                        ));
                    }
                    sql.pop();
                    behind = &behind[1..];
                }
                fields.push(TemplateField::from_name(name)?);
                match style {
                    #[cfg(feature = "mysql")]
                    ParameterStyle::Question => sql.push('?'),
                    #[cfg(feature = "postgres")]
                    ParameterStyle::Numbered => sql.push_str(&format!("${}", fields.len())),
                }
                rest = behind;
                continue;
            }
            match quote {
                Some(open) if open == next => quote = None,
                None if next == '\'' || next == '"' || next == '`' => quote = Some(next),
                _ => {}
            }
            sql.push(next);
            rest = &rest[next.len_utf8()..];
        }
        if quote.is_some() {
            return Err("a quote is not closed".into());
        }
        Ok(Self { sql, fields })
    }

    pub(crate) fn parameters(&self, request: &LoginRequest) -> Vec<Option<String>> {
        let values = self.fields.iter().map(|field| field.value_for(request));
        // No database accepts a NUL in a text.
        values
            .map(|value| value.filter(|value| !value.contains('\0')))
            .collect()
    }
}

#[cfg(all(test, feature = "mysql", feature = "postgres"))]
mod tests {
    use super::*;

    fn request() -> LoginRequest {
        LoginRequest {
            client_id: "c 1".into(),
            username: Some("' OR 1=1 --".into()),
            ..LoginRequest::default()
        }
    }

    #[test]
    fn placeholders_in_statements_become_parameters() {
        let text = "SELECT h FROM u WHERE n = ${username} AND c = '${clientid}' AND x = 'a'";
        let question = ParameterizedStatement::parse(text, ParameterStyle::Question).unwrap();
        assert_eq!(
            question.sql,
            "SELECT h FROM u WHERE n = ? AND c = ? AND x = 'a'"
        );
        let numbered = ParameterizedStatement::parse(text, ParameterStyle::Numbered).unwrap();
        assert_eq!(
            numbered.sql,
            "SELECT h FROM u WHERE n = $1 AND c = $2 AND x = 'a'"
        );
        let parameters = numbered.parameters(&request());
        assert_eq!(parameters, [Some("' OR 1=1 --".into()), Some("c 1".into())]);
    }

    #[test]
    fn a_placeholder_within_a_text_is_rejected() {
        for text in [
            "a LIKE '%${username}'",
            "a = 'x ${username}'",
            "a = '${username}x'",
        ] {
            let error = ParameterizedStatement::parse(text, ParameterStyle::Question).unwrap_err();
            assert!(error.contains("cannot be bound"), "{error}");
        }
        assert!(ParameterizedStatement::parse("a = 'x", ParameterStyle::Question).is_err());
        assert!(ParameterizedStatement::parse("a = ${user}", ParameterStyle::Question).is_err());
    }
}
