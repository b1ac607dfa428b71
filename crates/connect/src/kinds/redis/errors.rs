//! Classification of errors that Redis servers report.

use redis::{RedisError, ServerError, Value as Answer};

use crate::connector::ConnectorError;

use super::connections::ServerAddress;

/// Converts a connection error; all of them are transient.
pub(super) fn failure(error: RedisError) -> ConnectorError {
    ConnectorError::transient(error)
}

pub(super) fn error_in(answer: &Answer) -> Option<&ServerError> {
    match answer {
        Answer::ServerError(error) => Some(error),
        // The reply to EXEC.
        Answer::Array(answers) => answers.iter().find_map(error_in),
        _ => None,
    }
}

pub(super) fn server_error(error: &ServerError) -> ConnectorError {
    let message = match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    };
    match is_transient(error.code()) {
        true => ConnectorError::transient(message),
        false => ConnectorError::bad_rows(message),
    }
}

fn is_transient(code: &str) -> bool {
    [
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOAUTH",
        "NOPERM",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "UNBLOCKED",
        "WRONGPASS",
    ]
    .contains(&code)
}

/// Whether the error shows that the server no longer has the assumed role or slots.
pub(super) fn is_stale_route_error(code: &str) -> bool {
    ["CLUSTERDOWN", "MASTERDOWN", "MOVED", "READONLY"].contains(&code)
}

/// Where a key is located instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Redirect {
    /// Permanently moved.
    Moved(ServerAddress),
    /// For this request only: the slot is being migrated key by key.
    Ask(ServerAddress),
}

/// The redirection in a reply, if any; `asked` is the server that replied, whose host applies if none is named.
pub(super) fn redirect(error: &ServerError, contacted: &ServerAddress) -> Option<Redirect> {
    let is_for_good = match error.code() {
        "MOVED" => true,
        "ASK" => false,
        _ => return None,
    };
    // `SLOT HOST:PORT`; the host may be an IPv6 address without brackets.
    let (_, place) = error.details()?.split_once(' ')?;
    let (host, port) = place.rsplit_once(':')?;
    let host = if host.is_empty() { &contacted.0 } else { host };
    let address = (host.to_owned(), port.trim().parse().ok()?);
    Some(match is_for_good {
        true => Redirect::Moved(address),
        false => Redirect::Ask(address),
    })
}
