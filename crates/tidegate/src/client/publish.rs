//! `tidegate pub`: publishes messages from arguments, a file or standard input, and waits until the
//! broker has acknowledged them.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead as _, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args};
use mqtt::{PropertiesBuf, Property, QoS, ReasonCode, TopicLimits, Version, validate_topic_name};
use mqtt_client::{AckResult, OutgoingMessage, SessionEvent};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{ClientConnection, is_transient};
use super::error::ClientError;
use super::options::{
    ConnectArgs, ConnectOptions, parse_qos, parse_user_property, require_version_5, usage_error,
};
use super::runtime::block_on;

/// Number of lines read ahead.
const LINES_AHEAD: usize = 64;
/// Maximum length of a line: the largest MQTT packet.
const MAX_LINE_BYTES: u64 = 268_435_455;
/// No further messages are read while this many bytes wait for the socket.
const MAX_UNSENT_BYTES: usize = 1 << 20;

#[derive(Args)]
#[command(
    disable_help_flag = true,
    group = ArgGroup::new("source").required(true).args(["message", "file", "null", "lines", "stdin"]),
    after_help = "Example: tidegate pub -t home/kitchen/light -m on -q 1 -r"
)]
pub(crate) struct PubArgs {
    /// Topic
    #[arg(short = 't', long, value_name = "TOPIC")]
    topic: String,
    /// Payload as text
    #[arg(short = 'm', long, value_name = "TEXT")]
    message: Option<String>,
    /// File with the payload
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Empty payload (with -r: delete the retained message)
    #[arg(short = 'n', long)]
    null: bool,
    /// Publish each line of standard input as a message
    #[arg(short = 'l', long)]
    lines: bool,
    /// Publish standard input as one message
    #[arg(short = 's', long)]
    stdin: bool,
    /// Quality of service: 0, 1 or 2
    #[arg(short = 'q', long, value_name = "QOS", default_value = "0", value_parser = parse_qos)]
    qos: QoS,
    /// Retain the message
    #[arg(short = 'r', long)]
    retain: bool,
    /// Number of times to publish the message
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "lines")]
    repeat: u64,
    /// Seconds between repetitions, such as 0.5
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_delay)]
    repeat_delay: Duration,
    /// Time limit in seconds for publishing and acknowledgement
    #[arg(short = 'W', long, value_name = "SECONDS")]
    timeout: Option<u32>,
    /// Disconnect so that the broker publishes the will (MQTT 5)
    #[arg(long)]
    disconnect_with_will: bool,
    #[command(flatten)]
    properties: MessageArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Args)]
#[command(next_help_heading = "Message properties (MQTT 5)")]
struct MessageArgs {
    /// Content type, such as application/json
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Response topic
    #[arg(long, value_name = "TOPIC")]
    response_topic: Option<String>,
    /// Correlation data of the request
    #[arg(long, value_name = "TEXT")]
    correlation_data: Option<String>,
    /// Seconds after which the message is no longer delivered
    #[arg(long, value_name = "SECONDS")]
    message_expiry: Option<u32>,
    /// Mark the payload as UTF-8 text
    #[arg(long)]
    utf8: bool,
    /// User property; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_user_property)]
    user_property: Vec<(String, String)>,
    /// Topic alias: send the topic once and this number afterwards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    topic_alias: Option<u16>,
}

impl MessageArgs {
    fn properties(&self) -> PropertiesBuf {
        let mut properties = PropertiesBuf::new();
        if self.utf8 {
            properties.push(Property::PayloadFormatIndicator(1));
        }
        if let Some(seconds) = self.message_expiry {
            properties.push(Property::MessageExpiryInterval(seconds));
        }
        if let Some(content_type) = &self.content_type {
            properties.push(Property::ContentType(content_type));
        }
        if let Some(topic) = &self.response_topic {
            properties.push(Property::ResponseTopic(topic));
        }
        if let Some(data) = &self.correlation_data {
            properties.push(Property::CorrelationData(data.as_bytes()));
        }
        for (name, value) in &self.user_property {
            properties.push(Property::UserProperty(name, value));
        }
        properties
    }
}

impl PubArgs {
    pub(crate) fn run(self) -> Result<(), ClientError> {
        validate_topic_name(&self.topic, &TopicLimits::NONE)
            .map_err(|error| usage_error(format!("--topic {:?}: {error}", self.topic)))?;
        let properties = self.properties.properties();
        let version = self.connect.version();
        require_version_5(version, "message", &properties)?;
        if version != Version::V5 && self.properties.topic_alias.is_some() {
            return Err(usage_error("topic aliases need MQTT 5".into()));
        }
        let source = self.payload_source()?;
        let limit = self.timeout;
        let job = PublishJob {
            goodbye: match self.disconnect_with_will {
                true => ReasonCode::DISCONNECT_WITH_WILL,
                false => ReasonCode::SUCCESS,
            },
            topic: self.topic,
            qos: self.qos,
            retain: self.retain,
            topic_alias: self.properties.topic_alias,
            properties,
        };
        let options = self.connect.resolve("pub")?;
        block_on(async move {
            let work = job.publish_all(&options, source);
            match limit {
                None => work.await,
                Some(seconds) => timeout(Duration::from_secs(seconds.into()), work)
                    .await
                    .unwrap_or_else(|_| {
                        let text =
                            format!("not everything was acknowledged within {seconds} s (-W)");
                        Err(ClientError::TimedOut(text))
                    }),
            }
        })
    }

    fn payload_source(&self) -> Result<PayloadSource, ClientError> {
        let whole = if let Some(text) = &self.message {
            text.clone().into_bytes()
        } else if let Some(path) = &self.file {
            std::fs::read(path)
                .map_err(|error| local_error(format!("cannot read {}", path.display()), error))?
        } else if self.stdin {
            let mut input = Vec::new();
            let read = io::stdin().take(MAX_LINE_BYTES + 1).read_to_end(&mut input);
            read.map_err(|error| local_error("cannot read standard input".into(), error))?;
            input
        } else if self.lines {
            return Ok(PayloadSource::Lines(read_lines()));
        } else {
            Vec::new()
        };
        Ok(PayloadSource::Repeated {
            payload: whole.into(),
            left: self.repeat,
            delay: self.repeat_delay,
            next_at: Instant::now(),
        })
    }
}

fn local_error(what: String, error: io::Error) -> ClientError {
    ClientError::Local { what, error }
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok();
    let delay = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    delay.ok_or_else(|| "expected seconds such as 2 or 0.5".into())
}

/// The origin of payloads.
enum PayloadSource {
    Repeated {
        payload: Arc<[u8]>,
        left: u64,
        delay: Duration,
        next_at: Instant,
    },
    Lines(mpsc::Receiver<io::Result<Vec<u8>>>),
}

impl PayloadSource {
    /// The next payload; `None` at the end. Cancel safe.
    async fn next_payload(&mut self) -> Option<io::Result<Arc<[u8]>>> {
        match self {
            Self::Repeated { left: 0, .. } => None,
            Self::Repeated {
                payload,
                left,
                delay,
                next_at,
            } => {
                if !delay.is_zero() {
                    sleep_until(*next_at).await;
                    *next_at += *delay;
                }
                *left -= 1;
                Some(Ok(payload.clone()))
            }
            Self::Lines(lines) => Some(lines.recv().await?.map(Into::into)),
        }
    }
}

/// Reads on a thread of its own: a read of standard input cannot be cancelled, and must not prevent
/// the program from ending.
fn read_lines() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let read = (&mut input)
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut line);
            let line = match read {
                Ok(0) => return,
                Ok(_) => {
                    if line.ends_with(b"\n") {
                        line.pop();
                    }
                    Ok(line)
                }
                Err(error) => Err(error),
            };
            let is_end = line.is_err();
            if sender.blocking_send(line).is_err() || is_end {
                return;
            }
        }
    });
    receiver
}

struct PublishJob {
    topic: String,
    qos: QoS,
    retain: bool,
    topic_alias: Option<u16>,
    properties: PropertiesBuf,
    goodbye: ReasonCode,
}

impl PublishJob {
    async fn publish_all(
        self,
        options: &ConnectOptions,
        mut source: PayloadSource,
    ) -> Result<(), ClientError> {
        let mut session = options.new_session();
        let (mut connection, connected) = ClientConnection::open(options, &mut session).await?;
        if self.qos as u8 > connected.max_qos {
            return Err(usage_error(format!(
                "the broker accepts at most QoS {}; set it with -q",
                connected.max_qos
            )));
        }
        let mut is_done = false;
        let mut numbers = HashMap::new();
        let mut published = 0_u64;
        let mut answers = AnswerCounts::default();
        while !is_done || connection.session.in_flight() > 0 {
            let takes_more = !is_done
                && (self.qos == QoS::AtMostOnce || connection.session.has_quota())
                && connection.unsent_bytes() < MAX_UNSENT_BYTES;
            tokio::select! {
                event = connection.poll_progress() => {
                    if let Some(event) = event? {
                        self.handle_event(event, &mut numbers, &mut answers, options.debug)?;
                    }
                }
                payload = source.next_payload(), if takes_more => match payload {
                    None => is_done = true,
                    Some(payload) => {
                        let payload = payload
                            .map_err(|error| local_error("cannot read standard input".into(), error))?;
                        published += 1;
                        let packet_id = self.publish(&mut connection, &payload)?;
                        numbers.insert(packet_id, published);
                    }
                },
            }
        }
        connection
            .close(self.goodbye, &PropertiesBuf::new())
            .await?;
        answers.finish(&self.topic)
    }

    fn publish(
        &self,
        connection: &mut ClientConnection<'_>,
        payload: &[u8],
    ) -> Result<u16, ClientError> {
        let message = OutgoingMessage {
            topic: &self.topic,
            payload,
            qos: self.qos,
            retain: self.retain,
            properties: &self.properties,
            topic_alias: self.topic_alias,
        };
        connection.session.publish(&message).map_err(usage_error)
    }

    /// Counts the result of a message; with `debug` prints each.
    fn handle_event(
        &self,
        event: SessionEvent,
        numbers: &mut HashMap<u16, u64>,
        answers: &mut AnswerCounts,
        debug: bool,
    ) -> Result<(), ClientError> {
        match event {
            SessionEvent::Published { packet_id, answer } => {
                let number = numbers.remove(&packet_id).unwrap_or_default();
                if debug {
                    eprintln!("message {number}: {answer}");
                }
                answers.add(number, answer);
                Ok(())
            }
            SessionEvent::Disconnected { answer, .. } => Err(ClientError::Rejected {
                what: "to go on".into(),
                reason: answer.to_string(),
                is_passing: is_transient(answer.reason),
            }),
            // For example messages of an earlier session.
            _ => Ok(()),
        }
    }
}

/// Number of results per reason code. There are at most 256 codes.
#[derive(Default)]
struct AnswerCounts {
    acknowledged: u64,
    by_code: BTreeMap<u8, AnswerCount>,
}

struct AnswerCount {
    messages: u64,
    first_number: u64,
    first: AckResult,
}

impl AnswerCounts {
    fn add(&mut self, number: u64, answer: AckResult) {
        self.acknowledged += 1;
        if answer.reason == ReasonCode::SUCCESS {
            return;
        }
        let count = self.by_code.entry(answer.reason.0).or_insert(AnswerCount {
            messages: 0,
            first_number: number,
            first: answer,
        });
        count.messages += 1;
    }

    /// Prints the codes other than success with their counts, such as no matching subscribers
    /// (0x10). The first rejection is returned as the error of the program.
    fn finish(self, topic: &str) -> Result<(), ClientError> {
        let total = self.acknowledged;
        let is_error = |count: &&AnswerCount| count.first.reason.is_error();
        let first_rejection = self
            .by_code
            .values()
            .filter(is_error)
            .min_by_key(|count| count.first_number);
        for count in self.by_code.values() {
            let AnswerCount {
                messages, first, ..
            } = count;
            let outcome = match first.reason.is_error() {
                // The error contains it.
                true if total == 1 => continue,
                true => "rejected",
                false => "accepted",
            };
            match total {
                1 => eprintln!("message 1 {outcome}: {first}"),
                _ => eprintln!("{messages} of {total} messages {outcome}: {first}"),
            }
        }
        first_rejection.map_or(Ok(()), |count| {
            Err(ClientError::Rejected {
                what: format!("message {} to {topic:?}", count.first_number),
                reason: count.first.to_string(),
                is_passing: false,
            })
        })
    }
}
