//! WebSockets of the API: the handshake, and the event stream with one text message per event.
//! Input from the client is ignored.

use std::io;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use ws::{Decoder, DecoderEvent, DecoderOptions, Opcode, Role};

use super::stream_connection::{ItemStream, StreamItem};
use crate::call::ApiCall;
use crate::problem_details::{ApiResult, ProblemDetails};

/// Time after which a client that does not read an event is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const READ_BUFFER_BYTES: usize = 4096;
const OPTIONS: DecoderOptions = DecoderOptions {
    role: Role::Server,
    refuse_text: false,
    max_message_bytes: 64 * 1024,
    has_compression: false,
};

pub(super) fn is_upgrade_requested(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    upgrade.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

/// A connection upgraded to a WebSocket.
pub(super) type Socket = TokioIo<hyper::upgrade::Upgraded>;

/// Responds 101 and starts a task that sends the stream.
pub(super) fn upgrade_response(call: &mut ApiCall, feed: impl ItemStream) -> ApiResult {
    upgrade(call, move |socket| async move {
        if let Err(error) = send_items(socket, feed).await {
            tracing::debug!(%error, "event WebSocket ended with an error");
        }
    })
}

/// Responds 101 and starts a task that serves the connection.
pub(super) fn upgrade<F: Future<Output = ()> + Send>(
    call: &mut ApiCall,
    serve: impl FnOnce(Socket) -> F + Send + 'static,
) -> ApiResult {
    let headers = call.headers();
    let is_version = |value: &HeaderValue| value.as_bytes() == b"13";
    if !headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_some_and(is_version)
    {
        return Err(ProblemDetails::bad_request(
            "Sec-WebSocket-Version: expected 13.",
        ));
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let key = key
        .and_then(|key| key.to_str().ok())
        .filter(|key| key.len() == 24)
        .ok_or_else(|| ProblemDetails::bad_request("Sec-WebSocket-Key is missing or invalid."))?;
    let accept = HeaderValue::try_from(ws::accept_key(key))
        .map_err(|_| ProblemDetails::bad_request("Sec-WebSocket-Key is invalid."))?;
    let upgrade = call.parts.extensions.remove::<OnUpgrade>();
    let upgrade = upgrade.ok_or_else(|| {
        ProblemDetails::bad_request(
            "This connection cannot be upgraded to a WebSocket; use HTTP/1.1.",
        )
    })?;
    tokio::spawn(async move {
        match upgrade.await {
            Ok(upgraded) => serve(TokioIo::new(upgraded)).await,
            Err(error) => tracing::debug!(%error, "WebSocket upgrade failed"),
        }
    });
    let fields = [
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, fields).into_response())
}

async fn send_items(mut socket: Socket, mut feed: impl ItemStream) -> io::Result<()> {
    let mut decoder = decoder();
    let mut incoming = Vec::with_capacity(READ_BUFFER_BYTES);
    let mut out = Vec::new();
    loop {
        out.clear();
        tokio::select! {
            item = feed.next() => match item {
                Some(StreamItem::Event(_, json)) => {
                    ws::encode_frame(Opcode::Text, json.as_bytes(), None, &mut out);
                }
                Some(StreamItem::KeepAlive) => ws::encode_frame(Opcode::Ping, b"", None, &mut out),
                None => {
                    ws::encode_close(Some(ws::close_codes::GOING_AWAY), "", None, &mut out);
                    return write(&mut socket, &out).await;
                }
            },
            read = socket.read_buf(&mut incoming) => {
                if read? == 0 {
                    return Ok(());
                }
                if !handle_incoming(&mut decoder, &mut incoming, &mut out, &mut |_, _| ()) {
                    return write(&mut socket, &out).await;
                }
            }
        }
        write(&mut socket, &out).await?;
    }
}

pub(super) fn decoder() -> Decoder {
    Decoder::new(OPTIONS)
}

/// Processes received bytes and passes pieces of messages to `message`, with `true` after the last
/// piece. `false`: send `out`, then close the connection.
pub(super) fn handle_incoming(
    decoder: &mut Decoder,
    incoming: &mut Vec<u8>,
    out: &mut Vec<u8>,
    message: &mut dyn FnMut(&[u8], bool),
) -> bool {
    let mut at = 0;
    loop {
        match decoder.decode(&mut incoming[at..]) {
            Ok(step) => {
                match step.event {
                    None => {
                        at += step.consumed;
                        incoming.drain(..at);
                        return true;
                    }
                    Some(DecoderEvent::Ping(payload)) => {
                        ws::encode_frame(Opcode::Pong, payload, None, out);
                    }
                    Some(DecoderEvent::Close { code, .. }) => {
                        ws::encode_close(code, "", None, out);
                        return false;
                    }
                    Some(DecoderEvent::Data {
                        chunk,
                        is_end_of_message: end_of_message,
                        ..
                    }) => message(chunk, end_of_message),
                    Some(DecoderEvent::Pong(_)) => {}
                }
                at += step.consumed;
            }
            Err(error) => {
                ws::encode_close(Some(error.code), error.detail, None, out);
                return false;
            }
        }
    }
}

pub(super) async fn write(socket: &mut Socket, bytes: &[u8]) -> io::Result<()> {
    let written = timeout(WRITE_TIMEOUT, socket.write_all(bytes)).await;
    written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
