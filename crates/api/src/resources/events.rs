//! The stream of events: Server-Sent Events, or a WebSocket where the request asks for one.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use futures_util::stream;

use super::event_feed::{Feed, Filter, TYPES};
use super::listener::{Item, Items};
use super::websocket;
use crate::access::{Proof, Role};
use crate::call::{Call, text};
use crate::connections::{LastingKind, LastingPlace};
use crate::endpoint::{Endpoint, Outcome, get};
use crate::parameters::{CLIENT_ID, Parameter, Shape};
use crate::problem::Problem;

const DEFAULT_STATS_INTERVAL_S: u64 = 10;
const WANTED: Parameter = Parameter {
    name: "types",
    about: "Only these, separated by commas. Without it, all.",
    shape: Shape::Words(TYPES),
};
const STATS_INTERVAL_S: Parameter = Parameter {
    name: "stats_interval_s",
    about: "Seconds between two events `stats`; 10 if not given.",
    shape: Shape::Number(1, 3600),
};

pub(crate) fn endpoints() -> Vec<Endpoint> {
    vec![
        get("/api/v1/events", "events", events)
            .role(Role::Viewer)
            .tag("events")
            .summary("What happens, as it happens")
            .description(
                "Server-Sent Events; with `Upgrade: websocket` a WebSocket whose text messages are the same JSON objects. \
                 Each has `event` and `at_ms`: connected, disconnected, authentication_failed, session_created, session_ended, \
                 subscribed, unsubscribed, dropped, alarm_raised, alarm_cleared, stats (counters, every `stats_interval_s`), and lost if this listener was too slow for \
                 `count` others. The stream ends when the credentials do.",
            )
            .parameters(&[WANTED, CLIENT_ID, STATS_INTERVAL_S])
            .answers_raw(200, "The stream.", &["text/event-stream"])
            .answers_nothing(101, "A WebSocket.")
            .problem(429, "Too many streams are open."),
    ]
}

async fn events(mut call: Call) -> Outcome {
    let seconds = call.query.number(STATS_INTERVAL_S);
    let filter = Filter {
        types: call.query.words(WANTED),
        client_id: call.query.owned(CLIENT_ID),
        stats_every: Duration::from_secs(seconds.unwrap_or(DEFAULT_STATS_INTERVAL_S)),
    };
    let place = place(&call)?;
    let feed = Feed::new(&call, filter, place);
    stream_of(&mut call, feed)
}

/// A place among the streams that may be open.
pub(super) fn place(call: &Call) -> Result<LastingPlace, Problem> {
    let holder = match call.who.proof {
        Proof::Anonymous | Proof::Nothing => call.from.to_string(),
        Proof::Token | Proof::ApiKey | Proof::LocalToken => call.who.name.clone(),
    };
    call.last(LastingKind::EventStream, holder)
}

/// Server-Sent Events, or a WebSocket if that is asked for.
pub(super) fn stream_of(call: &mut Call, feed: impl Items) -> Outcome {
    if websocket::is_asked_for(call.headers()) {
        return websocket::answer(call, feed);
    }
    sent_events(call, feed)
}

/// Server-Sent Events, whatever is asked for.
pub(super) fn sent_events(call: &Call, feed: impl Items) -> Outcome {
    call.keep_connection();
    // A first line at once, so that a client knows that it is connected.
    let stream = stream::unfold((feed, true), |(mut feed, is_first)| async move {
        let text = match is_first {
            true => ": connected\n\n".to_owned(),
            false => match feed.next().await? {
                Item::KeepAlive => ": still here\n\n".to_owned(),
                // JSON on one line, as an event's data must be.
                Item::Event(name, json) => format!("event: {name}\ndata: {json}\n\n"),
            },
        };
        Some((
            Ok::<_, std::convert::Infallible>(Bytes::from(text)),
            (feed, false),
        ))
    });
    let mut response = text("text/event-stream", Body::from_stream(stream));
    // nginx would collect it otherwise.
    response.headers_mut().insert(
        header::HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    Ok(response)
}
