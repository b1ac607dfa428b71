//! `tidegate sub`: subscribes and writes messages to standard output, reconnecting when necessary.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::time::{Duration, SystemTime};

use clap::Args;
use mqtt::{
    PropertiesBuf, Property, QoS, ReasonCode, SubscriptionOptions, TopicLimits, Version,
    filter_matches, validate_topic_filter,
};
use mqtt_client::{AckResult, ClientSession, ReceivedMessage, SessionEvent};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

use super::connection::{ClientConnection, is_transient};
use super::error::ClientError;
use super::message_output::MessageFormat;
use super::options::{
    ConnectArgs, ConnectOptions, parse_qos, parse_user_property, require_version_5, usage_error,
};
use super::runtime::block_on;

const FIRST_RETRY: Duration = Duration::from_millis(250);
const LAST_RETRY: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "Example: tidegate sub -t 'home/+/light' -v"
)]
pub(crate) struct SubArgs {
    /// Topic filter; repeatable
    #[arg(short = 't', long = "topic", value_name = "FILTER", required = true)]
    topics: Vec<String>,
    /// Maximum quality of service: 0, 1 or 2
    #[arg(short = 'q', long, value_name = "QOS", default_value = "0", value_parser = parse_qos)]
    qos: QoS,
    /// Skip messages whose topic matches this filter; repeatable
    #[arg(short = 'T', long, value_name = "FILTER")]
    filter_out: Vec<String>,
    /// Unsubscribe this filter of the session; repeatable
    #[arg(short = 'U', long, value_name = "FILTER")]
    unsubscribe: Vec<String>,
    /// Skip retained messages
    #[arg(short = 'R', long)]
    no_retained: bool,
    /// Write only retained messages, and end at the first other message
    #[arg(long, conflicts_with = "no_retained")]
    retained_only: bool,
    /// End after this many messages
    #[arg(short = 'C', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this many seconds
    #[arg(short = 'W', long, value_name = "SECONDS")]
    timeout: Option<u32>,
    /// End after the subscription is acknowledged (with -c or -x: the session keeps it)
    #[arg(short = 'E', long)]
    exit_after_subscribe: bool,
    /// End instead of reconnecting when the connection is lost
    #[arg(long)]
    no_reconnect: bool,
    /// Disconnect so that the broker publishes the will (MQTT 5)
    #[arg(long)]
    disconnect_with_will: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    subscription: SubscriptionArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Write the topic before the payload
    #[arg(short = 'v', long, conflicts_with_all = ["json", "format"])]
    verbose: bool,
    /// Write one JSON object per message, with all properties
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write by a template, such as '{time} {topic} {payload_hex}'
    #[arg(short = 'F', long, value_name = "TEMPLATE", value_parser = |text: &str| MessageFormat::parse_template(text).map(|_| text.to_owned()))]
    format: Option<String>,
    /// Write no line break after a message
    #[arg(short = 'N', long)]
    no_newline: bool,
}

#[derive(Args)]
#[command(next_help_heading = "Subscription options (MQTT 5)")]
struct SubscriptionArgs {
    /// Do not receive messages published by this client
    #[arg(long)]
    no_local: bool,
    /// Keep the retain flag as it was published
    #[arg(long)]
    retain_as_published: bool,
    /// When retained messages are sent: 0 at each subscribe, 1 if the subscription is new, 2 never
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    retain_handling: u8,
    /// Number the broker adds to each message of this subscription
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=268_435_455))]
    subscription_id: Option<u32>,
    /// User property of SUBSCRIBE; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_user_property)]
    subscribe_user_property: Vec<(String, String)>,
}

impl SubArgs {
    pub(crate) fn run(self) -> Result<(), ClientError> {
        let version = self.connect.version();
        let filters = [
            ("--topic", &self.topics),
            ("--filter-out", &self.filter_out),
            ("--unsubscribe", &self.unsubscribe),
        ];
        for (flag, filters) in filters {
            for filter in filters {
                validate_topic_filter(filter, &TopicLimits::NONE)
                    .map_err(|error| usage_error(format!("{flag} {filter:?}: {error}")))?;
            }
        }
        let arguments = &self.subscription;
        let mut properties = PropertiesBuf::new();
        if let Some(id) = arguments.subscription_id {
            properties.push(Property::SubscriptionIdentifier(id));
        }
        for (name, value) in &arguments.subscribe_user_property {
            properties.push(Property::UserProperty(name, value));
        }
        require_version_5(version, "subscription", &properties)?;
        let options = SubscriptionOptions {
            qos: self.qos,
            no_local: arguments.no_local,
            retain_as_published: arguments.retain_as_published,
            retain_handling: arguments.retain_handling,
        };
        let is_plain =
            !options.no_local && !options.retain_as_published && options.retain_handling == 0;
        if version != Version::V5 && !is_plain {
            return Err(usage_error("subscription options need MQTT 5".into()));
        }
        let format = match (&self.output.format, self.output.json, self.output.verbose) {
            (Some(template), ..) => MessageFormat::parse_template(template).map_err(usage_error)?,
            (None, true, _) => MessageFormat::Json,
            (None, false, true) => MessageFormat::TopicAndPayload,
            (None, false, false) => MessageFormat::Payload,
        };
        let subscriber = Subscriber {
            filters: self
                .topics
                .into_iter()
                .map(|filter| (filter, options))
                .collect(),
            properties,
            unsubscribe: self.unsubscribe,
            filter_out: self.filter_out,
            no_retained: self.no_retained,
            retained_only: self.retained_only,
            remaining: self.count,
            exit_after_subscribe: self.exit_after_subscribe,
            reconnect: !self.no_reconnect,
            goodbye: match self.disconnect_with_will {
                true => ReasonCode::DISCONNECT_WITH_WILL,
                false => ReasonCode::SUCCESS,
            },
            format,
            bare: self.output.no_newline,
            out: BufWriter::new(io::stdout()),
            answers_missing: 0,
            is_subscribed: false,
        };
        let limit = self
            .timeout
            .map(|seconds| Duration::from_secs(seconds.into()));
        let options = self.connect.resolve("sub")?;
        block_on(subscriber.run(options, limit))
    }
}

struct Subscriber {
    filters: Vec<(String, SubscriptionOptions)>,
    properties: PropertiesBuf,
    unsubscribe: Vec<String>,
    filter_out: Vec<String>,
    no_retained: bool,
    retained_only: bool,
    /// Remaining messages; `None`: unlimited.
    remaining: Option<u64>,
    exit_after_subscribe: bool,
    reconnect: bool,
    goodbye: ReasonCode,
    format: MessageFormat,
    /// Whether the line break after a message is omitted.
    bare: bool,
    out: BufWriter<Stdout>,
    /// Outstanding acknowledgements of SUBSCRIBE and UNSUBSCRIBE.
    answers_missing: u32,
    /// Whether the broker has the subscriptions.
    is_subscribed: bool,
}

/// Why the program stops.
#[derive(Clone, Copy)]
enum StopReason {
    /// All messages have arrived, or standard output is closed.
    Done,
    Interrupted,
    TimeLimit,
}

/// External reasons to stop: SIGINT, SIGTERM, the time limit.
struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    deadline: Option<Instant>,
}

impl StopSignals {
    fn install(deadline: Option<Instant>) -> Result<Self, ClientError> {
        let listen = |kind| {
            signal(kind).map_err(|error| ClientError::Local {
                what: "cannot listen for signals".into(),
                error,
            })
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            deadline,
        })
    }

    async fn wait(&mut self) -> StopReason {
        let deadline = self.deadline;
        let clock = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => StopReason::Interrupted,
            _ = self.terminate.recv() => StopReason::Interrupted,
            () = clock => StopReason::TimeLimit,
        }
    }
}

impl Subscriber {
    async fn run(
        mut self,
        mut options: ConnectOptions,
        limit: Option<Duration>,
    ) -> Result<(), ClientError> {
        let mut stop = StopSignals::install(limit.map(|limit| Instant::now() + limit))?;
        let mut session = options.new_session();
        let mut was_connected = false;
        let mut retry = FIRST_RETRY;
        let end = loop {
            let mut is_connected = false;
            let outcome = self
                .run_connection(&options, &mut session, &mut stop, &mut is_connected)
                .await;
            let error = match outcome {
                Ok(end) => break end,
                Err(error) => error,
            };
            was_connected |= is_connected;
            if !(self.reconnect && was_connected && error.is_transient()) {
                return Err(error);
            }
            if is_connected {
                retry = FIRST_RETRY;
            }
            eprintln!("{error}; trying again in {} s", retry.as_secs_f32());
            tokio::select! {
                () = sleep(retry) => {}
                end = stop.wait() => break end,
            }
            retry = (retry * 2).min(LAST_RETRY);
            // A session that outlives the connection has queued messages.
            let expiry = options.properties.as_properties().session_expiry_interval();
            options.clean_start &= expiry.unwrap_or_default() == 0;
        };
        match (end, self.remaining) {
            (StopReason::TimeLimit, Some(left)) if left > 0 => {
                let seconds = limit.unwrap_or_default().as_secs();
                let text = format!("{left} messages (-C) are missing after {seconds} s (-W)");
                Err(ClientError::TimedOut(text))
            }
            _ => Ok(()),
        }
    }

    async fn run_connection(
        &mut self,
        options: &ConnectOptions,
        session: &mut ClientSession,
        stop: &mut StopSignals,
        is_connected: &mut bool,
    ) -> Result<StopReason, ClientError> {
        let (mut connection, connected) = tokio::select! {
            opened = ClientConnection::open(options, session) => opened?,
            end = stop.wait() => return Ok(end),
        };
        *is_connected = true;
        if !(connected.session_present && self.is_subscribed) {
            self.subscribe(&mut connection)?;
        }
        let end = loop {
            let event = match connection.next_buffered_event()? {
                Some(event) => event,
                None => {
                    // Output is flushed before waiting for more.
                    if let Err(error) = self.out.flush() {
                        break write_outcome(error)?;
                    }
                    tokio::select! {
                        event = connection.next_event() => event?,
                        end = stop.wait() => break end,
                    }
                }
            };
            if let Some(end) = self.handle_event(event, options.debug)? {
                break end;
            }
        };
        let flushed = self.out.flush();
        connection
            .close(self.goodbye, &PropertiesBuf::new())
            .await?;
        flushed.map_or_else(write_outcome, |()| Ok(end))
    }

    fn subscribe(&mut self, connection: &mut ClientConnection<'_>) -> Result<(), ClientError> {
        let session = &mut connection.session;
        session
            .subscribe(&self.filters, &self.properties)
            .map_err(usage_error)?;
        self.answers_missing = 1;
        if !self.unsubscribe.is_empty() {
            session
                .unsubscribe(&self.unsubscribe, &PropertiesBuf::new())
                .map_err(usage_error)?;
            self.answers_missing = 2;
        }
        Ok(())
    }

    /// Handles an event; returns a stop reason if it is the last one needed.
    fn handle_event(
        &mut self,
        event: SessionEvent,
        debug: bool,
    ) -> Result<Option<StopReason>, ClientError> {
        match event {
            SessionEvent::Message(message) => self.write_message(&message),
            SessionEvent::Subscribed {
                codes,
                reason_string,
            } => {
                self.check_subscribed(&codes, reason_string, debug)?;
                Ok(self.subscribe_answered())
            }
            SessionEvent::Unsubscribed {
                codes,
                reason_string,
            } => {
                let failed = |code: &&ReasonCode| code.is_error();
                if let Some(reason) = codes.iter().find(failed).copied() {
                    let answer = AckResult {
                        reason,
                        reason_string,
                    };
                    eprintln!("the broker rejected the unsubscription: {answer}");
                }
                Ok(self.subscribe_answered())
            }
            SessionEvent::Disconnected {
                answer,
                server_reference,
            } => {
                let elsewhere = server_reference
                    .map_or_else(String::new, |other| format!("; it names {other} instead"));
                Err(ClientError::Rejected {
                    what: "to go on".into(),
                    reason: format!("{answer}{elsewhere}"),
                    is_passing: is_transient(answer.reason),
                })
            }
            _ => Ok(None),
        }
    }

    fn subscribe_answered(&mut self) -> Option<StopReason> {
        self.answers_missing -= 1;
        self.is_subscribed = true;
        (self.exit_after_subscribe && self.answers_missing == 0).then_some(StopReason::Done)
    }

    /// Prints the rejected filters; an error if all were rejected.
    fn check_subscribed(
        &self,
        codes: &[ReasonCode],
        reason_string: Option<String>,
        debug: bool,
    ) -> Result<(), ClientError> {
        let mut last_rejection = None;
        for ((filter, _), reason) in self.filters.iter().zip(codes) {
            if reason.is_error() {
                let answer = AckResult {
                    reason: *reason,
                    reason_string: reason_string.clone(),
                };
                if codes.len() > 1 {
                    eprintln!("the broker rejected the subscription to {filter:?}: {answer}");
                }
                last_rejection = Some((filter, answer));
            } else if debug {
                eprintln!("subscribed to {filter:?} with QoS {}", reason.0);
            }
        }
        match last_rejection {
            Some((filter, answer)) if codes.iter().all(|code| code.is_error()) => {
                Err(ClientError::Rejected {
                    what: format!("the subscription to {filter:?}"),
                    reason: answer.to_string(),
                    is_passing: false,
                })
            }
            _ => Ok(()),
        }
    }

    fn write_message(
        &mut self,
        message: &ReceivedMessage,
    ) -> Result<Option<StopReason>, ClientError> {
        if self.retained_only && !message.retain {
            return Ok(Some(StopReason::Done));
        }
        let is_unwanted = (self.no_retained && message.retain)
            || self
                .filter_out
                .iter()
                .any(|filter| filter_matches(filter, &message.topic));
        if is_unwanted {
            return Ok(None);
        }
        let shown = self
            .format
            .write(message, SystemTime::now(), self.bare, &mut self.out);
        if let Err(error) = shown {
            return write_outcome(error).map(Some);
        }
        if let Some(left) = &mut self.remaining {
            *left -= 1;
            return Ok((*left == 0).then_some(StopReason::Done));
        }
        Ok(None)
    }
}

/// A closed standard output (`| head`) is a normal end.
fn write_outcome(error: io::Error) -> Result<StopReason, ClientError> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(StopReason::Done),
        _ => Err(ClientError::Local {
            what: "cannot write to standard output".into(),
            error,
        }),
    }
}
