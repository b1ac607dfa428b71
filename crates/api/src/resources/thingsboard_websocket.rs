//! ThingsBoard's WebSocket API: a client logs in with its first message and subscribes to telemetry
//! and attributes of devices.
//!
//! A connection has a bounded number of subscriptions, each a task. Their answers share one queue of
//! bounded size; a client that does not read is disconnected.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use tokio::io::AsyncReadExt as _;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};
use ws::{Decoder, Opcode};

use super::stream_connection::StreamConnection;
use super::thingsboard_answers::{AnswerSender, QueuedAnswer, answer_queue};
use super::thingsboard_entity_count::EntityCountSubscription;
use super::thingsboard_entity_data::{
    EntityDataCommand, EntityDataSubscription, MAX_DEVICES, MAX_WAITING_COMMANDS,
};
use super::thingsboard_subscriptions::{
    BAD_REQUEST, Command, CommandForm, Request, Subscription, rejection,
};
use super::websocket::{self, READ_BUFFER_BYTES, Socket};
use crate::access::{self, AuthenticationMethod, EndpointAccess, Role};
use crate::call::ApiCall;
use crate::connection_tracker::{ConnectionPermit, LongRequestKind, LongRequestPermit};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{Parameter, text_parameter};
use crate::state::ApiState;

/// Time limit for the login.
const LOGIN_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of subscriptions per connection.
const MAX_SUBSCRIPTIONS: usize = 256;

const TOKEN: Parameter = text_parameter(
    "token",
    "The token of a login, for clients that do not send it as `authCmd`.",
);
const ACCESS: EndpointAccess = EndpointAccess::Role(Role::Viewer);

pub(crate) fn endpoints() -> Vec<Endpoint> {
    let socket = |path: &str, id: &str| {
        get(path, id, open)
            .access(EndpointAccess::Open)
            .tag("telemetry")
            .summary("Subscribe to devices (ThingsBoard)")
            .parameters(&[TOKEN])
            .empty_response(101, "A WebSocket.")
            .problem_response(400, "The request is not a WebSocket handshake.")
            .problem_response(429, "Too many streams are open.")
    };
    vec![
        socket("/api/ws", "thingsboardWebSocket").description(
            "For callers with a node-wide role. The first message logs in: `{\"authCmd\": {\"cmdId\": 0, \"token\": \"..\"}, \"cmds\": [..]}`. Commands have the `type` \
             `TIMESERIES`, `TIMESERIES_HISTORY` or `ATTRIBUTES`, a `cmdId`, `entityId`, and `keys` separated by commas; \
             `unsubscribe` ends the subscription with this `cmdId`. `ENTITY_DATA` and `ENTITY_COUNT` have a `query` over \
             devices; `ENTITY_DATA_UNSUBSCRIBE` and `ENTITY_COUNT_UNSUBSCRIBE` end them.",
        ),
        socket("/api/ws/plugins/telemetry", "thingsboardOlderWebSocket").description(
            "The form of older clients: `tsSubCmds`, `attrSubCmds` and `historyCmds`, with the token in the address.",
        ),
    ]
}

async fn open(mut call: ApiCall) -> ApiResult {
    if !websocket::is_upgrade_requested(call.headers()) {
        return Err(ProblemDetails::bad_request(
            "This is a WebSocket; the request needs Upgrade: websocket.",
        ));
    }
    let connection = call.parts.extensions.get::<Arc<ConnectionPermit>>();
    let number = connection.map(|place| place.number);
    // Until the login the connection counts for its address.
    let place =
        call.begin_long_request(LongRequestKind::EventStream, call.client_ip.to_string())?;
    let mut headers = call.headers().clone();
    if let Some(token) = call.query.text_value(TOKEN.name) {
        show_token(&mut headers, token);
    }
    let pending_login = PendingLogin {
        app: call.app.clone(),
        headers,
        from: call.client_ip,
        revocations: call.revocations.clone(),
        number,
        place,
    };
    websocket::upgrade(&mut call, move |socket| async move {
        if let Err(error) = serve(socket, pending_login).await {
            tracing::debug!(%error, "ThingsBoard WebSocket ended with an error");
        }
    })
}

fn show_token(headers: &mut HeaderMap, token: &str) {
    if let Ok(mut value) = HeaderValue::try_from(format!("Bearer {token}")) {
        value.set_sensitive(true);
        headers.insert("x-authorization", value);
    }
}

/// A client that has not logged in.
struct PendingLogin {
    app: Arc<ApiState>,
    headers: HeaderMap,
    from: IpAddr,
    revocations: watch::Receiver<u64>,
    number: Option<u64>,
    place: LongRequestPermit,
}

impl PendingLogin {
    /// Checks the token of the first message, or the credentials of the request.
    async fn log_in(self, token: Option<&str>) -> Result<StreamConnection, ProblemDetails> {
        let Self {
            app,
            mut headers,
            from,
            revocations,
            number,
            place,
        } = self;
        if let Some(token) = token {
            show_token(&mut headers, token);
        }
        let who = access::authenticate(&app, ACCESS, &headers, from).await?;
        access::authorize(&app, &who, (ACCESS, &EndpointScope::Node), &[]).await?;
        // A web page of another origin can open a WebSocket, so the source address alone grants no access.
        if matches!(
            who.authentication,
            AuthenticationMethod::Anonymous | AuthenticationMethod::None
        ) {
            return Err(ProblemDetails::unauthorized(
                "The first message needs authCmd with the token of a login.",
            ));
        }
        let own =
            (app.connections).begin_long_request(number, LongRequestKind::EventStream, who.name)?;
        drop(place);
        let shown = (ACCESS, headers);
        Ok(StreamConnection::of_login(
            app,
            shown,
            from,
            revocations,
            own,
        ))
    }
}

/// Assembles the messages of a client.
struct Messages {
    decoder: Decoder,
    incoming: Vec<u8>,
    /// The start of an incomplete message; the decoder limits its size.
    partial: Vec<u8>,
}

impl Messages {
    /// Processes received bytes. `None`: send `out`, then close the connection.
    fn take(&mut self, out: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
        let mut whole = Vec::new();
        let partial = &mut self.partial;
        let is_open = websocket::handle_incoming(
            &mut self.decoder,
            &mut self.incoming,
            out,
            &mut |piece, is_last| {
                partial.extend_from_slice(piece);
                if is_last {
                    whole.push(std::mem::take(partial));
                }
            },
        );
        is_open.then_some(whole)
    }
}

async fn serve(mut socket: Socket, pending_login: PendingLogin) -> io::Result<()> {
    let mut messages = Messages {
        decoder: websocket::decoder(),
        incoming: Vec::with_capacity(READ_BUFFER_BYTES),
        partial: Vec::new(),
    };
    let app = pending_login.app.clone();
    let mut stopping = app.stopping.clone();
    let until = Instant::now() + LOGIN_WITHIN;
    let mut out = Vec::new();
    let mut first = loop {
        out.clear();
        tokio::select! {
            () = sleep_until(until) => {
                return close(&mut socket, ws::close_codes::POLICY_VIOLATION, "log in with authCmd").await;
            }
            () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => {
                return close(&mut socket, ws::close_codes::GOING_AWAY, "").await;
            }
            read = socket.read_buf(&mut messages.incoming) => if read? == 0 {
                return Ok(());
            },
        }
        match messages.take(&mut out) {
            None => return websocket::write(&mut socket, &out).await,
            Some(whole) if whole.is_empty() => websocket::write(&mut socket, &out).await?,
            Some(whole) => break whole,
        }
    };
    let login = match serde_json::from_slice::<Request>(&first[0]) {
        Ok(request) => request.auth_cmd,
        Err(error) => {
            let reason = format!("expected JSON with authCmd: {error}");
            return close(&mut socket, ws::close_codes::POLICY_VIOLATION, &reason).await;
        }
    };
    let token = login.as_ref().map(|login| login.token.as_str());
    let listener = match pending_login.log_in(token).await {
        Ok(listener) => listener,
        Err(problem) => {
            return close(
                &mut socket,
                ws::close_codes::POLICY_VIOLATION,
                &problem.detail,
            )
            .await;
        }
    };
    websocket::write(&mut socket, &out).await?;
    let mut subscriptions = Subscriptions::new(app);
    for message in first.drain(..) {
        let answers = subscriptions.take(&message);
        websocket::write(&mut socket, &frames(answers)).await?;
    }
    follow(socket, messages, listener, subscriptions).await
}

/// Serves the connection of a client that has logged in.
async fn follow(
    mut socket: Socket,
    mut messages: Messages,
    mut listener: StreamConnection,
    mut subscriptions: Subscriptions,
) -> io::Result<()> {
    let mut out = Vec::new();
    loop {
        out.clear();
        tokio::select! {
            biased;
            silence = listener.wait_for_keep_alive() => {
                if silence.is_none() {
                    return close(&mut socket, ws::close_codes::GOING_AWAY, "").await;
                }
                if listener.check_and_keep_alive().await.is_none() {
                    let why = "the login has ended";
                    return close(&mut socket, ws::close_codes::POLICY_VIOLATION, why).await;
                }
                ws::encode_frame(Opcode::Ping, b"", None, &mut out);
            }
            Some(answer) = subscriptions.answers.recv() => {
                ws::encode_frame(Opcode::Text, answer.text.as_bytes(), None, &mut out);
            }
            read = socket.read_buf(&mut messages.incoming) => {
                if read? == 0 {
                    return Ok(());
                }
                let Some(whole) = messages.take(&mut out) else {
                    return websocket::write(&mut socket, &out).await;
                };
                for message in whole {
                    out.extend(frames(subscriptions.take(&message)));
                }
            }
        }
        websocket::write(&mut socket, &out).await?;
    }
}

fn frames(answers: Vec<String>) -> Vec<u8> {
    let mut out = Vec::new();
    for answer in answers {
        ws::encode_frame(Opcode::Text, answer.as_bytes(), None, &mut out);
    }
    out
}

async fn close(socket: &mut Socket, code: u16, reason: &str) -> io::Result<()> {
    let mut end = reason.len().min(ws::close_codes::MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = Vec::new();
    ws::encode_close(Some(code), &reason[..end], None, &mut out);
    websocket::write(socket, &out).await
}

/// The subscriptions of one connection; their tasks end with it.
struct Subscriptions {
    app: Arc<ApiState>,
    tasks: HashMap<i64, SubscriptionTask>,
    /// The devices that `ENTITY_DATA` subscriptions may still show.
    free_devices: Arc<Semaphore>,
    sender: AnswerSender,
    answers: mpsc::Receiver<QueuedAnswer>,
}

struct SubscriptionTask {
    task: AbortHandle,
    /// Of `ENTITY_DATA`: for later commands with the same `cmdId`.
    commands: Option<mpsc::Sender<EntityDataCommand>>,
}

impl Subscriptions {
    fn new(app: Arc<ApiState>) -> Self {
        let (sender, answers) = answer_queue();
        Self {
            app,
            tasks: HashMap::new(),
            free_devices: Arc::new(Semaphore::new(MAX_DEVICES)),
            sender,
            answers,
        }
    }

    /// Processes a message; returns the errors of invalid commands.
    fn take(&mut self, message: &[u8]) -> Vec<String> {
        let request = match serde_json::from_slice::<Request>(message) {
            Ok(request) => request,
            Err(error) => {
                let detail = format!("The message cannot be read: {error}.");
                return vec![rejection(CommandForm::Device, 0, BAD_REQUEST, &detail)];
            }
        };
        let mut rejections = Vec::new();
        for command in request.commands() {
            let (form, id) = (command.form(), command.cmd_id);
            if let Err(detail) = self.execute(command) {
                rejections.push(rejection(form, id, BAD_REQUEST, &detail));
            }
        }
        rejections
    }

    fn execute(&mut self, command: Command) -> Result<(), String> {
        let id = command.cmd_id;
        if command.form() == CommandForm::EntityData && !command.is_unsubscribe() {
            return self.execute_entity_data(id, EntityDataCommand::read(&command)?);
        }
        self.end(id);
        if command.is_unsubscribe() {
            return Ok(());
        }
        self.check_count()?;
        let (app, sender) = (self.app.clone(), self.sender.clone());
        let task = match command.form() {
            CommandForm::EntityCount => {
                tokio::spawn(EntityCountSubscription::read(&command)?.run(app, sender))
            }
            _ => tokio::spawn(Subscription::read(command)?.run(app, sender)),
        };
        let task = SubscriptionTask {
            task: task.abort_handle(),
            commands: None,
        };
        self.tasks.insert(id, task);
        Ok(())
    }

    fn execute_entity_data(&mut self, id: i64, command: EntityDataCommand) -> Result<(), String> {
        if !command.has_query() {
            let task = self.tasks.get(&id).and_then(|task| task.commands.as_ref());
            let unknown = "query: expected, because no ENTITY_DATA subscription has this cmdId.";
            let commands = task
                .filter(|commands| !commands.is_closed())
                .ok_or(unknown)?;
            let sent = commands.try_send(command);
            return sent.map_err(|_| {
                format!(
                    "{MAX_WAITING_COMMANDS} commands with this cmdId wait; expected the next one after an answer."
                )
            });
        }
        self.end(id);
        self.check_count()?;
        let (commands, receiver) = mpsc::channel(MAX_WAITING_COMMANDS);
        commands.try_send(command).expect("the queue is empty");
        let subscription = EntityDataSubscription::new(
            id,
            self.app.clone(),
            self.sender.clone(),
            self.free_devices.clone(),
        );
        let task = SubscriptionTask {
            task: tokio::spawn(subscription.run(receiver)).abort_handle(),
            commands: Some(commands),
        };
        self.tasks.insert(id, task);
        Ok(())
    }

    fn end(&mut self, id: i64) {
        if let Some(subscription) = self.tasks.remove(&id) {
            subscription.task.abort();
        }
    }

    fn check_count(&mut self) -> Result<(), String> {
        self.tasks
            .retain(|_, subscription| !subscription.task.is_finished());
        match self.tasks.len() < MAX_SUBSCRIPTIONS {
            true => Ok(()),
            false => Err(format!(
                "A connection has at most {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe from one first."
            )),
        }
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for subscription in self.tasks.values() {
            subscription.task.abort();
        }
    }
}
