//! The event stream: Server-Sent Events, or a WebSocket if the request contains an upgrade.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use futures_util::stream;

use super::event_feed::{EventFeed, EventFeedFilter, TYPES};
use super::stream_connection::{ItemStream, StreamItem};
use super::websocket;
use crate::access::{AuthenticationMethod, Role};
use crate::call::{ApiCall, text_response};
use crate::connection_tracker::{LongRequestKind, LongRequestPermit};
use crate::endpoint::{Endpoint, EndpointScope, get};
use crate::problem_details::{ApiResult, ProblemDetails};
use crate::query_parameters::{CLIENT_ID, Parameter, ParameterType};

const DEFAULT_STATS_INTERVAL_S: u64 = 10;
const WANTED: Parameter = Parameter {
    name: "types",
    description: "Types of events, separated by commas; default: all.",
    shape: ParameterType::Words(TYPES),
};
const STATS_INTERVAL_S: Parameter = Parameter {
    name: "stats_interval_s",
    description: "Seconds between two `stats` events; default 10.",
    shape: ParameterType::Number(1, 3600),
};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/events", "events", events)
            .role(Role::Viewer, EndpointScope::Node)
            .tag("events")
            .summary("Stream events")
            .description(
                "Server-Sent Events; with `Upgrade: websocket` a WebSocket whose text messages are the same JSON objects. \
                 Each has `event` and `at_ms`: connected, disconnected, authentication_failed, session_created, session_ended, \
                 subscribed, unsubscribed, dropped, alarm_raised, alarm_cleared, stats (counters, every `stats_interval_s`), and lost if this client was too slow for \
                 `count` others. The stream ends when the credentials do.",
            )
            .parameters(&[WANTED, CLIENT_ID, STATS_INTERVAL_S])
            .raw_response(200, "The stream.", &["text/event-stream"])
            .empty_response(101, "A WebSocket.")
            .problem_response(429, "Too many streams are open."),
    ]
}

async fn events(mut call: ApiCall) -> ApiResult {
    let seconds = call.query.number_value(STATS_INTERVAL_S);
    let filter = EventFeedFilter {
        types: call.query.comma_separated(WANTED),
        client_id: call.query.owned_text(CLIENT_ID),
        stats_every: Duration::from_secs(seconds.unwrap_or(DEFAULT_STATS_INTERVAL_S)),
    };
    let place = begin_stream(&call)?;
    let feed = EventFeed::new(&call, filter, place);
    stream_response(&mut call, feed)
}

/// Takes a permit for an event stream.
pub(super) fn begin_stream(call: &ApiCall) -> Result<LongRequestPermit, ProblemDetails> {
    let holder = match call.identity.authentication {
        AuthenticationMethod::Anonymous | AuthenticationMethod::None => call.client_ip.to_string(),
        AuthenticationMethod::Token
        | AuthenticationMethod::ApiKey
        | AuthenticationMethod::LocalToken => call.identity.name.clone(),
    };
    call.begin_long_request(LongRequestKind::EventStream, holder)
}

/// Server-Sent Events, or a WebSocket if the request contains an upgrade.
pub(super) fn stream_response(call: &mut ApiCall, feed: impl ItemStream) -> ApiResult {
    if websocket::is_upgrade_requested(call.headers()) {
        return websocket::upgrade_response(call, feed);
    }
    sse_response(call, feed)
}

/// Server-Sent Events, even if the request contains an upgrade.
pub(super) fn sse_response(call: &ApiCall, feed: impl ItemStream) -> ApiResult {
    call.mark_long_lived();
    // Sends a first line immediately, so that the client knows that it is connected.
    let stream = stream::unfold((feed, true), |(mut feed, is_first)| async move {
        let text = match is_first {
            true => ": connected\n\n".to_owned(),
            false => match feed.next().await? {
                StreamItem::KeepAlive => ": still here\n\n".to_owned(),
                // JSON on one line, as event data requires.
                StreamItem::Event(name, json) => format!("event: {name}\ndata: {json}\n\n"),
            },
        };
        Some((
            Ok::<_, std::convert::Infallible>(Bytes::from(text)),
            (feed, false),
        ))
    });
    let mut response = text_response("text/event-stream", Body::from_stream(stream));
    // Prevents buffering in nginx.
    response.headers_mut().insert(
        header::HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    Ok(response)
}
