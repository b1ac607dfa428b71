//! Redis and compatible servers. The query is a command whose words may contain placeholders; a word remains one
//! argument, whatever is filled in.

use std::time::Duration;

use outbound::redis::{RedisOptions, RedisServer};
use redis::{Cmd, RedisConnectionInfo, TlsCertificates, Value};

use super::user_database::{DatabaseRow, DatabaseSettings, UserDatabase};
use crate::authenticator::{AnswerFuture, AuthBackendError, LoginRequest};
use crate::template::Template;

const DEFAULT_PORT: u16 = 6379;
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct RedisUserDatabase {
    server: RedisServer,
    command_words: Vec<Template>,
    reply_shape: ReplyShape,
}

/// The form of the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReplyShape {
    /// HMGET, HGET: the values of these fields.
    Fields(Vec<String>),
    /// HGETALL: field names and values.
    Pairs,
    /// HGETALL for rules: topics and actions.
    Rules,
}

impl RedisUserDatabase {
    pub(super) fn new(settings: &DatabaseSettings, for_rules: bool) -> Result<Self, String> {
        let (words, answer) = parse_command(&settings.query, for_rules)?;
        let (host, port) = settings.host_and_port(DEFAULT_PORT)?;
        let mut login = RedisConnectionInfo::default();
        if let Some(username) = &settings.username {
            login = login.set_username(username);
        }
        if let Some(password) = settings.password() {
            login = login.set_password(password);
        }
        if let Some(database) = &settings.database {
            let number = database
                .parse()
                .map_err(|_| "database: expected a database number")?;
            login = login.set_db(number);
        }
        let root_cert =
            match &settings.tls_ca {
                None => None,
                Some(path) => Some(std::fs::read(path).map_err(|error| {
                    format!("tls_ca: {} cannot be read: {error}", path.display())
                })?),
            };
        let options = RedisOptions {
            login,
            tls: settings.tls.then_some(TlsCertificates {
                client_tls: None,
                root_cert,
            }),
            connect_timeout: REPLY_TIMEOUT,
            response_timeout: Some(REPLY_TIMEOUT),
        };
        let server = RedisServer::new(host, port, &options).map_err(|error| error.to_string())?;
        Ok(Self {
            server,
            command_words: words,
            reply_shape: answer,
        })
    }

    /// Runs a command. If its connection turns out to be lost, the command is retried on a new one.
    async fn run_command(&self, command: &Cmd) -> Result<Value, AuthBackendError> {
        let mut is_first = true;
        loop {
            let connecting = self.server.shared_connection();
            let (number, mut connection) = connecting.await.map_err(AuthBackendError::new)?;
            let error = match connection.send_packed_command(command).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let is_lost = error.is_unrecoverable_error() || error.is_io_error();
            if is_lost {
                self.server.discard(number).await;
            }
            if !is_lost || !is_first || error.is_timeout() {
                return Err(AuthBackendError::new(error));
            }
            is_first = false;
        }
    }

    async fn query(&self, request: &LoginRequest) -> Result<Vec<DatabaseRow>, AuthBackendError> {
        let mut command = Cmd::new();
        for word in &self.command_words {
            match word.fill(request) {
                Some(word) => command.arg(word),
                // The client lacks a name used in the key, so no key can exist.
                None => return Ok(Vec::new()),
            };
        }
        parse_reply(self.run_command(&command).await?, &self.reply_shape)
    }
}

/// Parses a command; the error lists the supported commands.
fn parse_command(query: &str, for_rules: bool) -> Result<(Vec<Template>, ReplyShape), String> {
    let words: Vec<&str> = query.split_whitespace().collect();
    let name = words.first().map(|word| word.to_ascii_uppercase());
    let fields = || {
        let fields = words.iter().skip(2);
        fields.map(|field| field.to_lowercase()).collect::<Vec<_>>()
    };
    let answer = match (name.as_deref(), words.len(), for_rules) {
        (Some("HGETALL"), 2, true) => ReplyShape::Rules,
        (Some("HGETALL"), 2, false) => ReplyShape::Pairs,
        (Some("HMGET"), 3.., false) | (Some("HGET"), 3, false) => ReplyShape::Fields(fields()),
        (_, _, true) => return Err("query: expected HGETALL KEY".into()),
        (_, _, false) => {
            return Err("query: expected HMGET KEY FIELD..., HGET KEY FIELD or HGETALL KEY".into());
        }
    };
    if let ReplyShape::Fields(fields) = &answer
        && !fields.iter().any(|field| field == "password_hash")
    {
        return Err("query: one of the fields has to be password_hash".into());
    }
    let words = words.iter().map(|word| Template::parse(word));
    let words = words
        .collect::<Result<_, String>>()
        .map_err(|error| format!("query: {error}"))?;
    Ok((words, answer))
}

fn value_to_text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Int(number) => Some(number.to_string()),
        Value::Boolean(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn parse_reply(answer: Value, shape: &ReplyShape) -> Result<Vec<DatabaseRow>, AuthBackendError> {
    let pairs: Vec<(Option<String>, Option<String>)> = match (answer, shape) {
        (Value::Nil, _) => Vec::new(),
        (Value::Array(values), ReplyShape::Fields(fields)) => {
            let names = fields.iter().cloned().map(Some);
            names.zip(values.into_iter().map(value_to_text)).collect()
        }
        (Value::Array(values), ReplyShape::Pairs | ReplyShape::Rules) => {
            let mut values = values.into_iter().map(value_to_text);
            let mut pairs = Vec::new();
            while let (Some(name), Some(value)) = (values.next(), values.next()) {
                pairs.push((name, value));
            }
            pairs
        }
        (Value::Map(pairs), _) => (pairs.into_iter())
            .map(|(name, value)| (value_to_text(name), value_to_text(value)))
            .collect(),
        (one, ReplyShape::Fields(fields)) => vec![(fields.first().cloned(), value_to_text(one))],
        _ => {
            return Err(AuthBackendError::new("unexpected reply to the command"));
        }
    };
    let pairs = pairs
        .into_iter()
        .filter_map(|(name, value)| Some((name?, value)));
    if *shape == ReplyShape::Rules {
        return pairs
            .map(|(topic, action)| parse_rule(topic, action))
            .collect();
    }
    let row: DatabaseRow = pairs
        .map(|(name, value)| (name.to_lowercase(), value))
        .collect();
    // All fields of a missing key are nil.
    let is_there = row.values().any(Option::is_some);
    Ok(if is_there { vec![row] } else { Vec::new() })
}

/// Parses a topic and its action: `publish`, or JSON with conditions on QoS and retain.
fn parse_rule(topic: String, action: Option<String>) -> Result<DatabaseRow, AuthBackendError> {
    let wrong = || AuthBackendError(format!("the rule for {topic:?} is invalid"));
    let action = action.ok_or_else(wrong)?;
    let mut row = DatabaseRow::new();
    match action.starts_with('{') {
        false => {
            row.insert("action".into(), Some(action));
        }
        true => {
            let fields: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&action).map_err(|_| wrong())?;
            for (name, value) in fields {
                let text = match value {
                    serde_json::Value::String(text) => text,
                    serde_json::Value::Array(values) => {
                        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                        values.join(",")
                    }
                    other => other.to_string(),
                };
                row.insert(name, Some(text));
            }
        }
    }
    row.entry("permission".into())
        .or_insert_with(|| Some("allow".into()));
    row.insert("topic".into(), Some(topic));
    Ok(row)
}

impl UserDatabase for RedisUserDatabase {
    fn query_rows<'a>(
        &'a self,
        request: &'a LoginRequest,
    ) -> AnswerFuture<'a, Result<Vec<DatabaseRow>, AuthBackendError>> {
        Box::pin(self.query(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn commands_are_taken_apart() {
        let (words, answer) =
            parse_command("HMGET mqtt_user:${username} password_hash salt", false).unwrap();
        assert_eq!(words.len(), 4);
        assert_eq!(
            answer,
            ReplyShape::Fields(vec!["password_hash".into(), "salt".into()])
        );
        let request = LoginRequest {
            username: Some("x y\r\nFLUSHALL".into()),
            ..LoginRequest::default()
        };
        let key = words[1].fill(&request).unwrap();
        assert_eq!(
            key, "mqtt_user:x y\r\nFLUSHALL",
            "one word, sent with its length"
        );
        assert!(parse_command("GET x", false).is_err());
        assert!(parse_command("HGET x salt", false).is_err());
        assert!(parse_command("HMGET x password_hash", true).is_err());
        assert!(parse_command("HGETALL a:${user}", true).is_err());
    }

    #[test]
    fn answers_become_rows() {
        let fields = ReplyShape::Fields(vec!["password_hash".into(), "salt".into()]);
        let rows = parse_reply(Value::Array(vec![bulk("h"), Value::Nil]), &fields).unwrap();
        assert_eq!(rows[0]["password_hash"].as_deref(), Some("h"));
        assert_eq!(rows[0]["salt"], None);
        let nobody = parse_reply(Value::Array(vec![Value::Nil, Value::Nil]), &fields).unwrap();
        assert!(nobody.is_empty());
        let pairs = vec![bulk("password_hash"), bulk("h")];
        let rows = parse_reply(Value::Array(pairs), &ReplyShape::Pairs).unwrap();
        assert_eq!(rows[0]["password_hash"].as_deref(), Some("h"));
    }

    #[test]
    fn rules_are_topics_with_actions() {
        let pairs = vec![
            bulk("a/#"),
            bulk("publish"),
            bulk("b"),
            bulk(r#"{"action": "subscribe", "qos": [1, 2], "permission": "deny"}"#),
        ];
        let rows = parse_reply(Value::Array(pairs), &ReplyShape::Rules).unwrap();
        let rules: Vec<_> = rows
            .iter()
            .map(|row| super::super::parse_rule(row).unwrap())
            .collect();
        assert!(rules[0].is_allowed && rules[0].publish && !rules[0].subscribe);
        assert!(!rules[1].is_allowed && rules[1].qos == 0b110);
        let wrong = vec![bulk("a"), bulk("{")];
        assert!(parse_reply(Value::Array(wrong), &ReplyShape::Rules).is_err());
    }
}
