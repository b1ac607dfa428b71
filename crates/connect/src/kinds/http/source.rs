//! The HTTP source: accepts requests to `/api/v1/sources/NAME/push`. A request contains one or more messages, is authenticated by
//! a secret of the source, and is answered once its messages are processed.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER_PERMISSIVE;
use ring::hmac;
use schemars::JsonSchema;
use secret::Secret;
use serde::Deserialize;
use serde_json::Map;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connector::parse_header;
use crate::connector::{BoxFuture, ConnectorError, SourceMessage, SourcePort, SourceReader};
use crate::push::{PushError, PushRequest, RequestHead};
use crate::row::{SinkRow, SinkRowWriter};
use crate::settings::{SettingsError, check_range};
use crate::template::Template;

const MAX_HEADERS: usize = 64;
/// Failed attempts are not counted here, so a secret must be too long to guess.
const MIN_SECRET_BYTES: usize = 16;
/// Time-out for processing the messages of a request; the API's own default is 10 seconds.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of an HTTP source.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpSourceSettings {
    /// Token that requests send as `Authorization: Bearer TOKEN`, or in `token_header`. At least 16 bytes.
    token: Option<Secret>,
    /// File that contains the token.
    token_file: Option<std::path::PathBuf>,
    /// Header that contains the token instead of `Authorization`.
    token_header: Option<String>,
    /// Requires signed requests. One of `token` and `signature` is required; with both, requests need both.
    signature: Option<PushSignatureSettings>,
    /// Format of a request body.
    #[serde(default)]
    format: PushFormat,
    /// Request headers that become properties of the messages.
    #[serde(default)]
    #[schemars(length(max = 64))]
    headers: Vec<String>,
    /// Topic that rules see; `${payload.a}` and, for the listed headers, `${headers.'x-name'}` are replaced.
    #[serde(default = "default_topic")]
    topic: String,
    /// Topic under which messages are also published on this node.
    local_topic: Option<String>,
    /// QoS (0, 1 or 2) of messages published on this node.
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    #[serde(default = "default_max_body_bytes")]
    #[schemars(range(min = 1, max = 67_108_864))]
    max_body_bytes: usize,
    /// Maximum number of messages in a request.
    #[serde(default = "default_max_messages")]
    #[schemars(range(min = 1, max = 100_000))]
    max_messages: usize,
    /// Maximum number of concurrent requests; further ones are rejected and should be retried.
    #[serde(default = "default_max_waiting_requests")]
    #[schemars(range(min = 1, max = 1000))]
    max_waiting_requests: usize,
}

fn default_topic() -> String {
    "posted".into()
}

fn default_max_body_bytes() -> usize {
    1 << 20
}

fn default_max_messages() -> usize {
    1000
}

fn default_max_waiting_requests() -> usize {
    16
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum PushFormat {
    /// The whole body is one message of any content.
    #[default]
    Single,
    /// The body is a JSON array; each element is a message.
    JsonArray,
    /// Each non-empty line is a message.
    Lines,
}

/// HMAC-SHA256 of the body in hexadecimal digits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PushSignatureSettings {
    secret: Secret,
    #[serde(default = "default_header")]
    header: String,
    /// Prefix of the digits, as `sha256=`.
    #[serde(default)]
    prefix: String,
}

fn default_header() -> String {
    "x-signature".into()
}

/// A token, stored as its tag under a random key: comparing tags leaks no timing information about the token.
struct TokenCheck {
    /// Name in lower case.
    header: String,
    /// Scheme that precedes the token.
    scheme: Option<&'static str>,
    key: hmac::Key,
    tag: hmac::Tag,
}

struct SignatureCheck {
    header: String,
    prefix: String,
    key: hmac::Key,
}

pub(super) struct HttpSource {
    token: Option<TokenCheck>,
    request_slots: Arc<Semaphore>,
    mapping: Arc<MessageMapping>,
}

/// Requirements on requests, and the mapping to messages.
struct MessageMapping {
    signature: Option<SignatureCheck>,
    format: PushFormat,
    headers: Vec<String>,
    topic: Template,
    local_topic: Option<Template>,
    qos: u8,
    max_body_bytes: usize,
    max_messages: usize,
}

impl HttpSource {
    pub(super) fn new(settings: HttpSourceSettings) -> Result<Self, SettingsError> {
        check_range("qos", settings.qos, 0..=2)?;
        check_range("max_body_bytes", settings.max_body_bytes, 1..=64 << 20)?;
        check_range("max_messages", settings.max_messages, 1..=100_000)?;
        check_range(
            "max_waiting_requests",
            settings.max_waiting_requests,
            1..=1000,
        )?;
        if settings.headers.len() > MAX_HEADERS {
            let detail = format!("expected at most {MAX_HEADERS}");
            return Err(SettingsError::new("headers", detail));
        }
        let headers = settings.headers.iter();
        let headers =
            headers.map(|name| Ok(parse_header("headers", name, "")?.0.as_str().to_owned()));
        let token = Secret::from_setting(
            "token",
            settings.token.as_ref(),
            settings.token_file.as_ref(),
        )?;
        let token = match (token, &settings.token_header) {
            (Some(token), header) => Some(TokenCheck::new(&token, header.as_deref())?),
            (None, Some(_)) => {
                return Err(SettingsError::new(
                    "token",
                    "missing; required with token_header",
                ));
            }
            (None, None) => None,
        };
        let seal = settings
            .signature
            .as_ref()
            .map(SignatureCheck::new)
            .transpose()?;
        if token.is_none() && seal.is_none() {
            let detail = "missing; without a token or a signature, anyone could send messages";
            return Err(SettingsError::new("token", detail));
        }
        let local_topic = settings.local_topic.as_deref();
        Ok(Self {
            token,
            request_slots: Arc::new(Semaphore::new(settings.max_waiting_requests)),
            mapping: Arc::new(MessageMapping {
                signature: seal,
                format: settings.format,
                headers: headers.collect::<Result<_, SettingsError>>()?,
                topic: Template::parse("topic", &settings.topic)?,
                local_topic: local_topic
                    .map(|text| Template::parse("local_topic", text))
                    .transpose()?,
                qos: settings.qos,
                max_body_bytes: settings.max_body_bytes,
                max_messages: settings.max_messages,
            }),
        })
    }
}

fn check_length(field: &str, secret: &Secret) -> Result<(), SettingsError> {
    match secret.reveal().len() < MIN_SECRET_BYTES {
        true => {
            let detail = format!("expected at least {MIN_SECRET_BYTES} bytes");
            Err(SettingsError::new(field, detail))
        }
        false => Ok(()),
    }
}

impl TokenCheck {
    fn new(token: &Secret, own_header: Option<&str>) -> Result<Self, SettingsError> {
        check_length("token", token)?;
        let random = ring::rand::SystemRandom::new();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random)
            .map_err(|_| SettingsError::new("token", "the system has no random numbers"))?;
        let name = own_header.unwrap_or("authorization");
        let (name, _) = parse_header("token_header", name, "")?;
        Ok(Self {
            scheme: (name == hyper::header::AUTHORIZATION).then_some("bearer"),
            header: name.as_str().to_owned(),
            tag: hmac::sign(&key, token.reveal().as_bytes()),
            key,
        })
    }

    fn matches(&self, head: &RequestHead) -> bool {
        let Some(value) = head.get(&self.header) else {
            return false;
        };
        let token = match self.scheme {
            None => value,
            Some(scheme) => match value.split_once(' ') {
                Some((given, token)) if given.eq_ignore_ascii_case(scheme) => token,
                _ => return false,
            },
        };
        hmac::verify(&self.key, token.trim().as_bytes(), self.tag.as_ref()).is_ok()
    }
}

impl SignatureCheck {
    fn new(signature: &PushSignatureSettings) -> Result<Self, SettingsError> {
        check_length("signature.secret", &signature.secret)?;
        let (name, _) = parse_header("signature", &signature.header, &signature.prefix)?;
        Ok(Self {
            header: name.as_str().to_owned(),
            prefix: signature.prefix.clone(),
            key: hmac::Key::new(hmac::HMAC_SHA256, signature.secret.reveal().as_bytes()),
        })
    }

    fn matches(&self, head: &RequestHead, body: &[u8]) -> bool {
        let digits = head.get(&self.header).map(str::trim);
        let digits = digits.and_then(|value| value.strip_prefix(&self.prefix));
        let tag = digits.and_then(|digits| HEXLOWER_PERMISSIVE.decode(digits.as_bytes()).ok());
        tag.is_some_and(|tag| hmac::verify(&self.key, body, &tag).is_ok())
    }
}

impl SourceReader for HttpSource {
    /// Does nothing: requests arrive through the API.
    fn read<'a>(&'a self, _: &'a dyn SourcePort) -> BoxFuture<'a, ConnectorError> {
        Box::pin(std::future::pending())
    }

    fn admit(&self, head: &RequestHead) -> Result<Box<dyn PushRequest>, PushError> {
        if let Some(token) = &self.token
            && !token.matches(head)
        {
            return Err(PushError::Credentials("the source's token is not in it"));
        }
        let shape = self.mapping.clone();
        // The body cannot be valid, so it is not read.
        if let Some(seal) = &shape.signature
            && head.get(&seal.header).is_none()
        {
            return Err(PushError::Credentials("it is not signed"));
        }
        let place = self.request_slots.clone().try_acquire_owned();
        let place = place.map_err(|_| PushError::TooManyRequests)?;
        Ok(Box::new(HttpPushRequest {
            mapping: shape,
            head: head.clone(),
            place,
        }))
    }
}

struct HttpPushRequest {
    mapping: Arc<MessageMapping>,
    head: RequestHead,
    place: OwnedSemaphorePermit,
}

impl PushRequest for HttpPushRequest {
    fn max_body_bytes(&self) -> usize {
        self.mapping.max_body_bytes
    }

    fn accept(
        self: Box<Self>,
        body: Vec<u8>,
        port: Arc<dyn SourcePort>,
    ) -> BoxFuture<'static, Result<(), PushError>> {
        Box::pin(async move {
            let messages = self.mapping.parse_messages(&self.head, body)?;
            let place = self.place;
            // Continues when the caller stops waiting: processing that has begun keeps its slot until it ends.
            let taking = tokio::spawn(async move {
                for message in messages {
                    port.accept(message).await;
                }
                drop(place);
            });
            match tokio::time::timeout(ACCEPT_TIMEOUT, taking).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(PushError::TimedOut),
            }
        })
    }
}

impl MessageMapping {
    fn parse_messages(
        &self,
        head: &RequestHead,
        body: Vec<u8>,
    ) -> Result<Vec<SourceMessage>, PushError> {
        if let Some(seal) = &self.signature
            && !seal.matches(head, &body)
        {
            return Err(PushError::Credentials("its signature is wrong"));
        }
        let payloads: Vec<Vec<u8>> = match self.format {
            PushFormat::Single => vec![body],
            PushFormat::JsonArray => {
                let values: Vec<&RawValue> = serde_json::from_slice(&body).map_err(|error| {
                    PushError::Content(format!("expected a JSON array: {error}"))
                })?;
                let texts = values.iter().map(|value| value.get().as_bytes().to_vec());
                texts.collect()
            }
            PushFormat::Lines => {
                let lines = body.split(|byte| *byte == b'\n');
                let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
                let lines = lines.filter(|line| !line.is_empty());
                lines.map(<[u8]>::to_vec).collect()
            }
        };
        if payloads.len() > self.max_messages {
            let (found, most) = (payloads.len(), self.max_messages);
            let what = format!("expected at most {most} messages in one request, found {found}");
            return Err(PushError::Content(what));
        }
        let headers = self.headers.iter();
        let properties = headers.filter_map(|name| Some((name.clone(), head.get(name)?.into())));
        let properties: Vec<(String, String)> = properties.collect();
        let payloads = payloads.into_iter();
        payloads
            .map(|payload| self.build_message(&properties, payload))
            .collect()
    }

    /// A null value in the topic is an error of the content.
    fn build_message(
        &self,
        properties: &[(String, String)],
        payload: Vec<u8>,
    ) -> Result<SourceMessage, PushError> {
        let is_constant = |template: &Template| template.constant().is_some();
        let mut bytes = Vec::new();
        if !is_constant(&self.topic) || !self.local_topic.iter().all(is_constant) {
            let mut row = SinkRowWriter::new(&mut bytes);
            row.bytes("payload", &payload);
            row.map("headers", |headers| {
                for (name, value) in properties {
                    headers.text(name, value);
                }
            });
        }
        let row = SinkRow::from_bytes(&bytes);
        let named = |field: &str, template: &Template| {
            let rendered = template.render_name(field, row);
            rendered.map_err(|failure| PushError::Content(failure.to_string()))
        };
        let local_topic = self.local_topic.as_ref();
        Ok(SourceMessage {
            topic: named("topic", &self.topic)?,
            local_topic: local_topic
                .map(|topic| named("local_topic", topic))
                .transpose()?,
            payload,
            qos: self.qos,
            properties: properties.to_vec(),
            fields: Map::new(),
            ..SourceMessage::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::parse_settings;
    use serde_json::{Value, json};
    use std::sync::Mutex;
    use tokio::sync::Notify;

    const TOKEN: &str = "a-token-of-a-source";

    fn source(more: Value) -> Result<HttpSource, SettingsError> {
        HttpSource::new(parse_settings(more.as_object().unwrap().clone())?)
    }

    fn head(fields: &[(&str, &str)]) -> RequestHead {
        let fields = fields.iter();
        RequestHead::new(fields.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    fn with_token() -> RequestHead {
        head(&[("Authorization", &format!("Bearer {TOKEN}")), ("X-Id", "7")])
    }

    /// A test port that accepts messages once it is opened.
    #[derive(Default)]
    struct GatedPort {
        taken: Mutex<Vec<SourceMessage>>,
        opened: Notify,
        is_shut: bool,
    }

    impl SourcePort for GatedPort {
        fn accept<'a>(&'a self, message: SourceMessage) -> BoxFuture<'a, ()> {
            Box::pin(async move {
                if self.is_shut {
                    self.opened.notified().await;
                }
                self.taken.lock().unwrap().push(message);
            })
        }
    }

    #[tokio::test]
    async fn a_request_is_one_message_or_several() {
        let cases = [
            ("single", "[1, 2]", vec!["[1, 2]"]),
            (
                "json_array",
                "[{\"a\": 1.50}, 18446744073709551616]",
                vec!["{\"a\": 1.50}", "18446744073709551616"],
            ),
            ("lines", "a\r\n\nb", vec!["a", "b"]),
        ];
        for (format, body, expected) in cases {
            let source = source(json!({
                "token": TOKEN, "format": format, "headers": ["x-id"], "topic": "d/${headers.'x-id'}/x"
            }))
            .unwrap();
            let gate = Arc::new(GatedPort::default());
            let admitted = source.admit(&with_token()).unwrap();
            admitted
                .accept(body.into(), gate.clone())
                .await
                .unwrap_or_else(|rejected| panic!("{format}: {rejected:?}"));
            let taken = gate.taken.lock().unwrap();
            let payloads: Vec<_> = taken
                .iter()
                .map(|message| String::from_utf8_lossy(&message.payload).into_owned())
                .collect();
            assert_eq!(payloads, expected, "{format}");
            assert_eq!(taken[0].properties, [("x-id".to_owned(), "7".to_owned())]);
            assert_eq!(taken[0].topic, "d/7/x");
        }
        let named = source(json!({"token": TOKEN, "topic": "d/${payload.a}"})).unwrap();
        let gate = Arc::new(GatedPort::default());
        let admitted = named.admit(&with_token()).unwrap();
        let taken = admitted.accept("{\"a\": 1.5}".into(), gate.clone()).await;
        taken.unwrap_or_else(|rejected| panic!("{rejected:?}"));
        assert_eq!(gate.taken.lock().unwrap()[0].topic, "d/1.5");
        let admitted = named.admit(&with_token()).unwrap();
        let rejected = admitted.accept("{\"b\": 1}".into(), Arc::new(GatedPort::default()));
        match rejected.await {
            Err(PushError::Content(why)) => assert!(why.contains("${payload.a} is null"), "{why}"),
            other => panic!("{other:?}"),
        }
        let limited =
            source(json!({"token": TOKEN, "format": "lines", "max_messages": 2})).unwrap();
        let admitted = limited.admit(&with_token()).unwrap();
        let rejected = admitted.accept("a\nb\nc".into(), Arc::new(GatedPort::default()));
        assert!(matches!(rejected.await, Err(PushError::Content(_))));
    }

    #[tokio::test]
    async fn a_request_must_prove_itself() {
        let by_token = source(json!({"token": TOKEN})).unwrap();
        let wrong = [
            head(&[]),
            head(&[("authorization", TOKEN)]),
            head(&[("authorization", "Bearer another-token")]),
            head(&[("authorization", &format!("Basic {TOKEN}"))]),
            head(&[
                ("authorization", &format!("Bearer {TOKEN}")),
                ("authorization", "Bearer x"),
            ]),
        ];
        for head in wrong {
            let rejected = by_token.admit(&head).err();
            assert!(
                matches!(rejected, Some(PushError::Credentials(_))),
                "{head:?}"
            );
        }
        let own = source(json!({"token": TOKEN, "token_header": "X-Key"})).unwrap();
        assert!(own.admit(&head(&[("x-key", TOKEN)])).is_ok());
        assert!(own.admit(&with_token()).is_err());
        let signed = source(json!({
            "signature": {"secret": "Jefe-and-some-more", "prefix": "sha256="}
        }))
        .unwrap();
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe-and-some-more");
        let tag = hmac::sign(&key, b"what?");
        let digits: String = tag.as_ref().iter().map(|b| format!("{b:02X}")).collect();
        let right = head(&[("X-Signature", &format!("sha256={digits}"))]);
        let gate = || Arc::new(GatedPort::default());
        let take = |head: &RequestHead, body: &str| {
            let admitted = signed.admit(head).unwrap();
            admitted.accept(body.into(), gate())
        };
        assert_eq!(take(&right, "what?").await, Ok(()));
        for (head, body) in [
            (&right, "what!"),
            (&head(&[("x-signature", &digits)]), "what?"),
            (&head(&[("x-signature", "sha256=zz")]), "what?"),
        ] {
            let rejected = take(head, body).await;
            assert!(
                matches!(rejected, Err(PushError::Credentials(_))),
                "{head:?}"
            );
        }
        assert!(signed.admit(&head(&[])).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_wait_than_may() {
        let source = source(json!({"token": TOKEN, "max_waiting_requests": 2})).unwrap();
        let gate = Arc::new(GatedPort {
            is_shut: true,
            ..GatedPort::default()
        });
        for _ in 0..2 {
            let admitted = source.admit(&with_token()).unwrap();
            let late = admitted.accept(b"x".to_vec(), gate.clone()).await;
            assert_eq!(late, Err(PushError::TimedOut));
        }
        assert_eq!(
            source.admit(&with_token()).err(),
            Some(PushError::TooManyRequests)
        );
        gate.opened.notify_waiters();
        while source.admit(&with_token()).is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.taken.lock().unwrap().len(), 2);
    }

    #[test]
    fn settings_are_checked() {
        let field = |settings: Value| source(settings).err().unwrap().field;
        assert_eq!(field(json!({})), "token");
        assert_eq!(field(json!({"token": "short"})), "token");
        assert_eq!(field(json!({"token_header": "x"})), "token");
        assert_eq!(
            field(json!({"signature": {"secret": "short"}})),
            "signature.secret"
        );
        assert_eq!(
            field(json!({"token": TOKEN, "headers": ["a b"]})),
            "headers.a b"
        );
        assert_eq!(field(json!({"token": TOKEN, "qos": 3})), "qos");
    }
}
