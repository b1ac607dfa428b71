//! Redis commands with `${...}`: a word of the template is one argument, whatever its values are.

use super::Template;
use crate::row::SinkRow;
use crate::settings::SettingsError;

const MAX_WORDS: usize = 1024;

/// One command, or several joined by `&&`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisCommands(Vec<Vec<Template>>);

impl RedisCommands {
    /// `field` is the name of the setting, for errors.
    pub fn parse(field: &str, text: &str) -> Result<Self, SettingsError> {
        let words = split(text).map_err(|error| SettingsError::new(field, error))?;
        let mut commands = vec![Vec::new()];
        for word in words {
            match word {
                CommandWord::Then => commands.push(Vec::new()),
                CommandWord::Text(text) => {
                    let template = Template::parse(field, &text)?;
                    commands
                        .last_mut()
                        .expect("there is always one")
                        .push(template);
                }
            }
        }
        for command in &commands {
            let name = command
                .first()
                .ok_or_else(|| SettingsError::new(field, "expected a command"))?;
            if name.constant().is_none_or(str::is_empty) {
                let detail = "the name of a command cannot differ between rows";
                return Err(SettingsError::new(field, detail));
            }
            if command.len() > MAX_WORDS {
                let detail = format!("a command has more than {MAX_WORDS} words");
                return Err(SettingsError::new(field, detail));
            }
        }
        Ok(Self(commands))
    }

    /// Number of commands per row.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of each command, as written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|words| words.first()?.constant())
    }

    /// Renders each command for a row, argument by argument; the first is the command name.
    pub fn fill<'c>(
        &'c self,
        row: SinkRow<'c>,
    ) -> impl Iterator<Item = impl Iterator<Item = Vec<u8>> + 'c> + 'c {
        self.0.iter().map(move |words| {
            words.iter().map(move |word| {
                let mut argument = Vec::new();
                word.render(row, &mut argument);
                argument
            })
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
enum CommandWord {
    Text(String),
    Then,
}

/// Splits at white space; quotes group a word, also around values of `${...}`.
fn split(text: &str) -> Result<Vec<CommandWord>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(behind) = rest.strip_prefix("&&") {
            words.push(CommandWord::Then);
            rest = behind.trim_start();
            continue;
        }
        let mut word = String::new();
        while let Some(next) = rest.chars().next().filter(|c| !c.is_whitespace()) {
            match next {
                '\'' | '"' => rest = quoted(&rest[1..], next, &mut word)?,
                _ if rest.starts_with("${") => {
                    let (_, behind) = super::split_placeholder(&rest[2..])
                        .ok_or_else(|| format!("a ${{ without its }} in {text:?}"))?;
                    word.push_str(&rest[..rest.len() - behind.len()]);
                    rest = behind;
                }
                _ => {
                    word.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        words.push(CommandWord::Text(word));
        rest = rest.trim_start();
    }
    Ok(words)
}

/// Appends the text up to the quote; returns the rest. A backslash takes the next character literally.
fn quoted<'t>(text: &'t str, quote: char, word: &mut String) -> Result<&'t str, String> {
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => word.extend(chars.next().map(|(_, c)| c)),
            c if c == quote => return Ok(&text[at + 1..]),
            c => word.push(c),
        }
    }
    Err(format!("a {quote} is not closed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::SinkRowWriter;

    fn filled(text: &str) -> Vec<Vec<String>> {
        let mut bytes = Vec::new();
        let mut row = SinkRowWriter::new(&mut bytes);
        row.text("k", "a b && FLUSHALL");
        row.int("n", 5);
        let commands = RedisCommands::parse("command", text).unwrap();
        commands
            .fill(SinkRow::from_bytes(&bytes))
            .map(|words| words.map(|word| String::from_utf8(word).unwrap()).collect())
            .collect()
    }

    #[test]
    fn a_word_stays_one_word() {
        assert_eq!(
            filled("SET key:${k} ${n}"),
            [["SET", "key:a b && FLUSHALL", "5"]]
        );
        assert_eq!(
            filled(r#"HSET "a key" 'it\'s' x"${ k }"y"#),
            [["HSET", "a key", "it's", "xa b && FLUSHALLy"]]
        );
    }

    #[test]
    fn commands_are_chained() {
        assert_eq!(
            filled("INCR c && EXPIRE c ${n}"),
            [vec!["INCR", "c"], vec!["EXPIRE", "c", "5"]]
        );
    }

    #[test]
    fn mistakes_are_reported() {
        for text in ["", "SET a && ", "${k} a", "SET 'a", "SET ${k"] {
            let error = RedisCommands::parse("command", text).unwrap_err();
            assert_eq!(error.field, "command", "{text}");
        }
    }
}
