//! Evaluates function calls with constants, written as in a rule.

use std::sync::Arc;

use rules::{
    Arena, Dialect, EvaluationError, EvaluationResources, FunctionContext, FunctionLimits, KvStore,
    MessageSource, Value, Zone, functions, json,
};

/// 2023-07-29 03:06:27.495, the time used in the documentation of FluxMQ.
pub(crate) const NOW_MS: u64 = 1_690_599_987_495;

/// With an environment variable for the example of `getenv`.
pub(crate) fn resources() -> EvaluationResources {
    let variables = [("SITE".into(), "north".into())];
    EvaluationResources::new([7; 32], 1).with_environment(Arc::new(variables.into()))
}

/// Evaluates an expression and passes on its value, or its error.
pub(crate) fn evaluate<T>(
    expression: &str,
    dialect: Dialect,
    zone: &Zone,
    then: impl FnOnce(&Arena, Result<Value<'_>, EvaluationError>) -> T,
) -> T {
    let arena = Arena::new();
    let mut resources = resources();
    let mut kv = KvStore::default();
    let message = PublishedMessage;
    let context = FunctionContext {
        arena: &arena,
        resources: &mut resources,
        kv: &mut kv,
        message: Some(&message),
        zone,
        dialect,
        now_ms: NOW_MS,
        limits: FunctionLimits::default(),
    };
    let mut reader = ExpressionReader {
        text: expression,
        at: 0,
        context,
    };
    let value = reader.value();
    assert!(
        value.is_err() || reader.rest().is_empty(),
        "{expression}: what is {:?}?",
        reader.rest()
    );
    then(&arena, value)
}

/// The message seen by functions of the family "message".
struct PublishedMessage;

impl<'a> MessageSource<'a> for PublishedMessage {
    fn message_part(&self, part: rules::MessagePart, arena: &'a Arena) -> Value<'a> {
        use rules::MessagePart;
        match part {
            MessagePart::Topic => Value::Str("sensor/7/data"),
            MessagePart::Payload => Value::Bytes(br#"{"temperature": 21.5, "tags": ["a", "b"]}"#),
            MessagePart::Qos => Value::Int(1),
            MessagePart::Flags => {
                json::parse(r#"{"retain":false,"dup":false}"#, arena).expect("valid")
            }
            MessagePart::ClientId => Value::Str("c1"),
            MessagePart::Username => Value::Str("u1"),
            MessagePart::PeerHost => Value::Str("127.0.0.1"),
            MessagePart::MessageId => Value::Str("0005F0A9B3"),
        }
    }
}

struct ExpressionReader<'t, 'a, 'e> {
    text: &'t str,
    at: usize,
    context: FunctionContext<'a, 'e>,
}

impl<'a> ExpressionReader<'_, 'a, '_> {
    fn rest(&self) -> &str {
        self.text[self.at..].trim_start()
    }

    fn skip(&mut self, count: usize) {
        self.at = self.text.len() - self.rest().len() + count;
    }

    fn take(&mut self, letter: char) -> bool {
        let there = self.rest().starts_with(letter);
        if there {
            self.skip(1);
        }
        there
    }

    fn value(&mut self) -> Result<Value<'a>, EvaluationError> {
        let rest = self.rest().to_owned();
        match rest.chars().next().expect("a value") {
            quote @ ('\'' | '"') => {
                let end = rest[1..].find(quote).expect("an end of the text");
                self.skip(end + 2);
                Ok(Value::Str(self.context.arena.alloc_str(&rest[1..=end])))
            }
            '[' => {
                self.skip(1);
                let items = self.list(']')?;
                Ok(Value::Array(self.context.arena.alloc_slice_copy(&items)))
            }
            '{' => {
                let end = rest.rfind('}').expect("an end of the object");
                self.skip(end + 1);
                let text = self.context.arena.alloc_str(&rest[..=end]);
                Ok(json::parse(text, self.context.arena).expect("an object"))
            }
            '-' | '0'..='9' => {
                let end = rest.find(|letter: char| {
                    !matches!(letter, '-' | '+' | '.' | 'e' | 'E' | '0'..='9')
                });
                let number = &rest[..end.unwrap_or(rest.len())];
                self.skip(number.len());
                Ok(
                    json::parse(self.context.arena.alloc_str(number), self.context.arena)
                        .expect("a number"),
                )
            }
            _ => self.call(&rest),
        }
    }

    fn call(&mut self, rest: &str) -> Result<Value<'a>, EvaluationError> {
        let end = rest
            .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .unwrap_or(rest.len());
        let name = &rest[..end];
        self.skip(end);
        match name {
            "true" => return Ok(Value::Bool(true)),
            "false" => return Ok(Value::Bool(false)),
            "null" if !self.rest().starts_with('(') => return Ok(Value::Undefined),
            _ => {}
        }
        assert!(self.take('('), "{}: expected ( behind {name:?}", self.text);
        let values = self.list(')')?;
        let function = functions::find(name).unwrap_or_else(|| panic!("no function {name}"));
        function.call(&mut self.context, &values)
    }

    fn list(&mut self, close: char) -> Result<Vec<Value<'a>>, EvaluationError> {
        let mut values = Vec::new();
        while !self.take(close) {
            values.push(self.value()?);
            if !self.take(',') {
                assert!(
                    self.rest().starts_with(close),
                    "{}: expected , or {close}",
                    self.text
                );
            }
        }
        Ok(values)
    }
}
