//! Error texts about settings without the values that they quote. A secret that is written where something else is
//! expected must not reach a log or an answer.

/// How serde begins to quote a text that has the wrong type or value.
const QUOTES: [&str; 2] = ["invalid type: string ", "invalid value: string "];

/// The text of an error of serde, with `a text` in place of each text that it quotes.
#[must_use]
pub(crate) fn redact_quoted_texts(error: &str) -> String {
    let mut redacted = String::with_capacity(error.len());
    let mut rest = error;
    while let Some((at, quote)) = QUOTES
        .iter()
        .filter_map(|quote| Some((rest.find(&format!("{quote}\""))?, quote)))
        .min()
    {
        let (before, quoted) = rest.split_at(at + quote.len());
        redacted.push_str(before.trim_end_matches("string "));
        redacted.push_str("a text");
        rest = &quoted[quoted_length(quoted)..];
    }
    redacted.push_str(rest);
    redacted
}

/// Bytes of the quoted text at the beginning; what does not end is quoted to its end.
fn quoted_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn texts_that_serde_quotes_are_redacted() {
        for secret in ["pencil", "pen\"cil", "pen\\", "pén\u{7f}\ncil\\\"", ""] {
            let quoted = serde_json::to_value(secret).unwrap();
            let error = serde_json::from_value::<BTreeMap<String, u8>>(quoted).unwrap_err();
            assert_eq!(
                redact_quoted_texts(&error.to_string()),
                "invalid type: a text, expected a map"
            );
        }
        assert_eq!(
            redact_quoted_texts(
                "a: invalid value: string \"x\", expected y; invalid type: string \"z"
            ),
            "a: invalid value: a text, expected y; invalid type: a text"
        );
        let other = "missing field `url`; invalid type: sequence, expected a string";
        assert_eq!(redact_quoted_texts(other), other);
    }
}
