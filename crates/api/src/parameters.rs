//! Query parameters of the lists: each is known, well formed and given once, or the answer is 400 and says which
//! is not. Also the cursors that lead from page to page.

use axum::extract::Query as Pairs;
use axum::http::Uri;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use broker::info::Query;

use crate::problem::Problem;

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// Parameters that every list has.
const PAGING: [&str; 2] = ["after", "limit"];
pub(crate) const OF_CLIENTS: &[&str] = &["client_id", "client_id_contains", "username"];
pub(crate) const OF_SESSIONS: &[&str] =
    &["client_id", "client_id_contains", "username", "connected"];
pub(crate) const OF_SUBSCRIPTIONS: &[&str] = &[
    "client_id",
    "client_id_contains",
    "topic_filter",
    "matches_topic",
];
pub(crate) const OF_TOPICS: &[&str] = &["topic_filter", "matches_topic"];

/// What a list was asked for.
#[derive(Debug, Default)]
pub(crate) struct ListRequest {
    /// The conditions; `after` and `limit` are left to who makes the page.
    pub(crate) query: Query,
    pub(crate) after: Option<Cursor>,
    /// Rows of a page.
    pub(crate) limit: usize,
}

impl ListRequest {
    /// Reads the parameters of a request for a list that can be filtered by `filters`.
    pub(crate) fn read(uri: &Uri, filters: &[&str]) -> Result<Self, Problem> {
        let mut request = Self {
            limit: DEFAULT_LIMIT,
            ..Self::default()
        };
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in pairs(uri)? {
            if !filters.contains(&name.as_str()) && !PAGING.contains(&name.as_str()) {
                return Err(unknown(&name, &[filters, &PAGING].concat()));
            }
            if seen.contains(&name) {
                return Err(Problem::parameter(
                    &name,
                    format!("{name} is given twice; give it once."),
                ));
            }
            request.set(&name, value)?;
            seen.push(name);
        }
        Ok(request)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Problem> {
        let query = &mut self.query;
        match name {
            "client_id" => query.client_id = Some(value),
            "client_id_contains" => query.client_id_contains = Some(value),
            "username" => query.username = Some(value),
            "topic_filter" => query.topic_filter = Some(value),
            "matches_topic" if value.is_empty() || value.contains(['+', '#']) => {
                return Err(expected(
                    name,
                    &value,
                    "a topic name without wildcards, such as plant/7/temperature",
                ));
            }
            "matches_topic" => query.matches_topic = Some(value),
            "connected" => {
                query.connected = match value.as_str() {
                    "true" => Some(true),
                    "false" => Some(false),
                    _ => return Err(expected(name, &value, "true or false")),
                };
            }
            "after" => match Cursor::decode(&value) {
                Some(cursor) => self.after = Some(cursor),
                None => {
                    return Err(expected(
                        name,
                        &value,
                        "the value of next in an earlier answer",
                    ));
                }
            },
            "limit" => match value.parse() {
                Ok(limit @ 1..=MAX_LIMIT) => self.limit = limit,
                _ => return Err(expected(name, &value, "a whole number from 1 to 1000")),
            },
            _ => return Err(unknown(name, &PAGING)),
        }
        Ok(())
    }
}

/// For requests that have no parameters.
pub(crate) fn refuse_any(uri: &Uri) -> Result<(), Problem> {
    match pairs(uri)?.first() {
        None => Ok(()),
        Some((name, _)) => Err(unknown(name, &[])),
    }
}

fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    let pairs = Pairs::<Vec<(String, String)>>::try_from_uri(uri);
    pairs
        .map(|Pairs(pairs)| pairs)
        .map_err(|rejection| Problem::bad_request(rejection.body_text()))
}

fn unknown(name: &str, known: &[&str]) -> Problem {
    let known = match known {
        [] => "this request takes none".to_owned(),
        known => format!("there are {}", known.join(", ")),
    };
    Problem::parameter(
        name,
        format!("There is no parameter {name:?} here; {known}."),
    )
}

fn expected(name: &str, value: &str, expected: &str) -> Problem {
    Problem::parameter(name, format!("{name} is {value:?}; expected {expected}."))
}

/// The last row of a page: a client id or a topic filter, in lists of subscriptions both. To users it is a word
/// without meaning that needs no escaping in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) first: String,
    pub(crate) second: String,
}

impl Cursor {
    pub(crate) fn new(first: &str, second: &str) -> Self {
        Self {
            first: first.to_owned(),
            second: second.to_owned(),
        }
    }

    pub(crate) fn encode(&self) -> String {
        // MQTT strings hold no NUL.
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

    fn read(query: &str) -> Result<ListRequest, Problem> {
        let uri: Uri = format!("/api/v1/subscriptions?{query}").parse().unwrap();
        ListRequest::read(&uri, &[OF_SUBSCRIPTIONS, OF_SESSIONS].concat())
    }

    #[test]
    fn parameters_become_a_query() {
        let next = Cursor::new("ä/b", "#").encode();
        let request = read(&format!(
            "client_id=a%2Fb&client_id_contains=+x&username=&connected=false&topic_filter=a/%2B/%23\
             &matches_topic=a/b&limit=1000&after={next}"
        ))
        .unwrap();
        assert_eq!(request.query.client_id.as_deref(), Some("a/b"));
        assert_eq!(request.query.client_id_contains.as_deref(), Some(" x"));
        assert_eq!(request.query.username.as_deref(), Some(""));
        assert_eq!(request.query.connected, Some(false));
        assert_eq!(request.query.topic_filter.as_deref(), Some("a/+/#"));
        assert_eq!(request.query.matches_topic.as_deref(), Some("a/b"));
        assert_eq!(request.limit, 1000);
        assert_eq!(request.after, Some(Cursor::new("ä/b", "#")));
        assert_eq!(read("").unwrap().limit, 100);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        let cases = [
            ("clientid=a", "clientid", "there are client_id, "),
            ("limit=0", "limit", "1 to 1000"),
            ("limit=1001", "limit", "1 to 1000"),
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
        assert!(refuse_any(&uri).unwrap_err().detail.contains("takes none"));
    }
}
