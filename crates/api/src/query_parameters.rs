//! Query parameters: each must be known, well formed and given once; otherwise the response is 400
//! and names the parameter. The same table describes them in the OpenAPI document. Also contains
//! the cursors of paged lists.

use std::str::FromStr;

use axum::extract::Query as Pairs;
use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::problem_details::ProblemDetails;

pub(crate) const DEFAULT_LIMIT: usize = 100;
pub(crate) const MAX_LIMIT: usize = 1000;
/// The end of the year 9999. Larger values are probably in another unit.
pub(crate) const MAX_TIME_MS: u64 = 253_402_300_799_999;

/// A query parameter that a route accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) shape: ParameterType,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ParameterType {
    Text,
    Flag,
    /// `limit` of a list.
    Limit,
    /// `after` of a list.
    Cursor,
    /// A topic name without wildcards.
    Topic,
    /// One or several of these words, separated by commas.
    Words(&'static [&'static str]),
    /// A whole number within bounds, both inclusive.
    Number(u64, u64),
    /// One of these fields, with `-` for the descending order.
    Sort(&'static [&'static str]),
}

const fn parameter(name: &'static str, shape: ParameterType, about: &'static str) -> Parameter {
    Parameter {
        name,
        description: about,
        shape,
    }
}

/// A parameter with any text.
pub(crate) const fn text_parameter(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, ParameterType::Text, about)
}

/// A time in milliseconds since 1970.
pub(crate) const fn time_parameter(name: &'static str, about: &'static str) -> Parameter {
    parameter(name, ParameterType::Number(0, MAX_TIME_MS), about)
}

pub(crate) const LIMIT: Parameter = parameter(
    "limit",
    ParameterType::Limit,
    "Maximum number of rows per page.",
);
pub(crate) const AFTER: Parameter = parameter(
    "after",
    ParameterType::Cursor,
    "Value of `next` of the previous page; its format is opaque and may change.",
);
pub(crate) const CLIENT_ID: Parameter =
    parameter("client_id", ParameterType::Text, "Client id; exact match.");
pub(crate) const CLIENT_ID_CONTAINS: Parameter = parameter(
    "client_id_contains",
    ParameterType::Text,
    "Part of the client id.",
);
pub(crate) const USERNAME: Parameter =
    parameter("username", ParameterType::Text, "User name; exact match.");
pub(crate) const CONNECTED: Parameter = parameter(
    "connected",
    ParameterType::Flag,
    "`true`: connected clients, `false`: disconnected clients.",
);
pub(crate) const TOPIC_FILTER: Parameter = parameter(
    "topic_filter",
    ParameterType::Text,
    "Topic filter as subscribed, exact match: `$share/workers/plant/#`.",
);
pub(crate) const MATCHES_TOPIC: Parameter = parameter(
    "matches_topic",
    ParameterType::Topic,
    "Topic name that the filters match: `plant/7/temperature`.",
);
pub(crate) const MATCHES_FILTER: Parameter = parameter(
    "matches_filter",
    ParameterType::Text,
    "Topic filter that the topics match: `plant/#`.",
);
pub(crate) const NAMESPACE: Parameter = parameter(
    "namespace",
    ParameterType::Text,
    "Only rows of this namespace; default: of all that the caller may see.",
);
pub(crate) const NODE: Parameter = parameter(
    "node",
    ParameterType::Text,
    "Name of the cluster node that has the object. Needed only if several nodes have an object with this number.",
);
pub(crate) const ID_CONTAINS: Parameter = parameter(
    "id_contains",
    ParameterType::Text,
    "Part of the object's id or name.",
);

/// The parameters of a request, checked against the table of its route.
#[derive(Debug, Default)]
pub(crate) struct QueryParameters {
    values: Vec<(String, String)>,
    after: Option<PageCursor>,
    limit: usize,
}

impl QueryParameters {
    pub(crate) fn read(uri: &Uri, known: &[Parameter]) -> Result<Self, ProblemDetails> {
        let mut parameters = Self {
            limit: DEFAULT_LIMIT,
            ..Self::default()
        };
        let pairs = Pairs::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|rejection| ProblemDetails::bad_request(rejection.body_text()))?;
        for (name, value) in pairs.0 {
            let Some(parameter) = known.iter().find(|known| known.name == name) else {
                return Err(unknown_parameter(&name, known));
            };
            if parameters.text_value(&name).is_some() {
                return Err(ProblemDetails::invalid_parameter(
                    &name,
                    format!("{name} is given twice; give it once."),
                ));
            }
            if !parameters.validate(parameter.shape, &value) {
                let expected = parameter.shape.expected_text();
                let end = match parameter.shape.nearest_word(&value) {
                    Some(near) => format!("; did you mean {near}?"),
                    None => ".".to_owned(),
                };
                return Err(ProblemDetails::invalid_parameter(
                    &name,
                    format!("{name} is {value:?}; expected {expected}{end}"),
                ));
            }
            parameters.values.push((name, value));
        }
        Ok(parameters)
    }

    fn validate(&mut self, shape: ParameterType, value: &str) -> bool {
        match shape {
            ParameterType::Text => true,
            // Some languages format booleans as `True`.
            ParameterType::Flag => ["true", "false"]
                .iter()
                .any(|flag| value.eq_ignore_ascii_case(flag)),
            ParameterType::Topic => !value.is_empty() && !value.contains(['+', '#', '\0']),
            ParameterType::Words(words) => value.split(',').all(|word| words.contains(&word)),
            ParameterType::Number(min, max) => {
                whole_number(value).is_some_and(|n| (min..=max).contains(&n))
            }
            ParameterType::Sort(fields) => {
                let field = value.strip_prefix('-').unwrap_or(value);
                fields.contains(&field)
            }
            ParameterType::Limit => match whole_number(value) {
                Some(limit @ 1..=1000) => {
                    self.limit = limit as usize;
                    true
                }
                _ => false,
            },
            ParameterType::Cursor => {
                self.after = PageCursor::decode(value);
                self.after.is_some()
            }
        }
    }

    pub(crate) fn text_value(&self, name: &str) -> Option<&str> {
        let mut given = self.values.iter();
        given
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// An owned text parameter, as queries to the node need it.
    pub(crate) fn owned_text(&self, parameter: Parameter) -> Option<String> {
        self.text_value(parameter.name).map(str::to_owned)
    }

    /// The non-empty items of a comma-separated parameter.
    pub(crate) fn comma_separated(&self, parameter: Parameter) -> Vec<String> {
        let given = self.text_value(parameter.name).unwrap_or_default();
        let words = given.split(',').filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    }

    pub(crate) fn flag_value(&self, parameter: Parameter) -> Option<bool> {
        let value = self.text_value(parameter.name)?;
        Some(value.eq_ignore_ascii_case("true"))
    }

    pub(crate) fn number_value(&self, parameter: Parameter) -> Option<u64> {
        self.text_value(parameter.name).and_then(whole_number)
    }

    /// The maximum number of rows per page.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn after(&self) -> Option<PageCursor> {
        self.after.clone()
    }

    /// The cursor of a list with numbered rows; `rows` names the list in the error.
    pub(crate) fn after_number<N: FromStr>(&self, rows: &str) -> Result<Option<N>, ProblemDetails> {
        let Some(cursor) = &self.after else {
            return Ok(None);
        };
        let wrong = |_| {
            ProblemDetails::invalid_parameter(
                AFTER.name,
                format!("after must be a cursor from the list of {rows}."),
            )
        };
        cursor.first.parse().map(Some).map_err(wrong)
    }
}

/// Digits only: `+1` is not a number in a URL.
fn whole_number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl ParameterType {
    /// The permitted word nearest to the first one that is not permitted.
    fn nearest_word(self, value: &str) -> Option<&'static str> {
        let Self::Words(words) = self else {
            return None;
        };
        let wrong = value.split(',').find(|word| !words.contains(word))?;
        rules::nearest_name(wrong, words.iter().copied())
    }

    fn expected_text(self) -> String {
        match self {
            Self::Text => "a text".into(),
            Self::Flag => "true or false".into(),
            Self::Limit => format!("a whole number from 1 to {MAX_LIMIT}"),
            Self::Cursor => "the value of next in an earlier answer".into(),
            Self::Topic => "a topic name without wildcards, such as plant/7/temperature".into(),
            Self::Words(words) => format!("one or several of {}", words.join(", ")),
            Self::Number(min, max) => format!("a whole number from {min} to {max}"),
            Self::Sort(fields) => format!("one of {}, with - for descending", fields.join(", ")),
        }
    }

    pub(crate) fn schema(self) -> Value {
        match self {
            Self::Text | Self::Cursor => json!({"type": "string"}),
            Self::Flag => json!({"type": "boolean"}),
            Self::Limit => {
                json!({"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT})
            }
            Self::Topic => json!({"type": "string", "minLength": 1, "pattern": "^[^+#\\u0000]+$"}),
            Self::Words(words) => {
                let word = words.join("|");
                json!({"type": "string", "pattern": format!("^({word})(,({word}))*$")})
            }
            Self::Number(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
            Self::Sort(fields) => {
                let orders = fields
                    .iter()
                    .flat_map(|field| [(*field).to_owned(), format!("-{field}")]);
                json!({"type": "string", "enum": orders.collect::<Vec<_>>()})
            }
        }
    }
}

fn unknown_parameter(name: &str, known: &[Parameter]) -> ProblemDetails {
    let known: Vec<_> = known.iter().map(|known| known.name).collect();
    let near = rules::nearest_name(name, known.iter().copied());
    let remedy = match (known.as_slice(), near) {
        ([], _) => "this request takes none.".to_owned(),
        (known, None) => format!("there are {}.", known.join(", ")),
        (known, Some(near)) => format!("there are {}; did you mean {near}?", known.join(", ")),
    };
    ProblemDetails::invalid_parameter(name, format!("Unknown parameter {name:?}; {remedy}"))
}

/// The last row of a page: a client id, a topic or an id; lists of subscriptions need two of them.
/// Clients see an opaque word that needs no escaping in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageCursor {
    pub(crate) first: String,
    pub(crate) second: String,
}

impl PageCursor {
    pub(crate) fn new(first: &str, second: &str) -> Self {
        Self {
            first: first.to_owned(),
            second: second.to_owned(),
        }
    }

    pub(crate) fn encode(&self) -> String {
        // Neither MQTT strings nor object ids contain NUL.
        URL_SAFE_NO_PAD.encode(format!("{}\0{}", self.first, self.second))
    }

    fn decode(text: &str) -> Option<Self> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let (first, second) = text.split_once('\0')?;
        Some(Self::new(first, second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Parameter] = &[
        LIMIT,
        AFTER,
        CLIENT_ID,
        CLIENT_ID_CONTAINS,
        USERNAME,
        CONNECTED,
        TOPIC_FILTER,
        MATCHES_TOPIC,
    ];

    fn read(query: &str) -> Result<QueryParameters, ProblemDetails> {
        let uri: Uri = format!("/api/v1/subscriptions?{query}").parse().unwrap();
        QueryParameters::read(&uri, KNOWN)
    }

    #[test]
    fn parameters_are_read_and_decoded() {
        let next = PageCursor::new("ä/b", "#").encode();
        let read_all = read(&format!(
            "client_id=a%2Fb&client_id_contains=+x&username=&connected=false&topic_filter=a/%2B/%23\
             &matches_topic=a/b&limit=1000&after={next}"
        ))
        .unwrap();
        assert_eq!(read_all.text_value("client_id"), Some("a/b"));
        assert_eq!(read_all.text_value("client_id_contains"), Some(" x"));
        assert_eq!(read_all.owned_text(USERNAME).as_deref(), Some(""));
        assert_eq!(read_all.flag_value(CONNECTED), Some(false));
        assert_eq!(read_all.text_value("topic_filter"), Some("a/+/#"));
        assert_eq!(read_all.text_value("matches_topic"), Some("a/b"));
        assert_eq!(read_all.limit(), 1000);
        assert_eq!(read_all.after(), Some(PageCursor::new("ä/b", "#")));
        assert_eq!(read("").unwrap().limit(), 100);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        let cases = [
            (
                "clientid=a",
                "clientid",
                "there are limit, after, client_id",
            ),
            ("limit=0", "limit", "1 to 1000"),
            ("limit=1001", "limit", "1 to 1000"),
            ("limit=%2B5", "limit", "1 to 1000"),
            ("limit=ten", "limit", "\"ten\""),
            ("connected=yes", "connected", "true or false"),
            ("matches_topic=a/%2B", "matches_topic", "without wildcards"),
            ("matches_topic=", "matches_topic", "topic name"),
            ("after=client-1", "after", "value of next"),
            ("limit=1&limit=2", "limit", "twice"),
        ];
        for (query, parameter, hint) in cases {
            let problem = read(query).unwrap_err();
            assert_eq!(problem.parameter.as_deref(), Some(parameter), "{query}");
            assert!(problem.detail.contains(hint), "{query}: {}", problem.detail);
        }
        let uri: Uri = "/api/v1/node?verbose=1".parse().unwrap();
        let problem = QueryParameters::read(&uri, &[]).unwrap_err();
        assert!(problem.detail.contains("takes none"));
    }
}
