//! What servers say is wrong, and whether it can pass.

use redis::{RedisError, ServerError, Value as Answer};

use crate::connector::ConnectorError;

use super::ServerAddress;

/// Of a connection: all of these can pass.
pub(super) fn failure(error: RedisError) -> ConnectorError {
    ConnectorError::transient(error)
}

pub(super) fn error_in(answer: &Answer) -> Option<&ServerError> {
    match answer {
        Answer::ServerError(error) => Some(error),
        // Of EXEC.
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

/// Whether a server says so because it is not, or no longer, what it is taken for.
pub(super) fn is_stale_route_error(code: &str) -> bool {
    ["CLUSTERDOWN", "MASTERDOWN", "MOVED", "READONLY"].contains(&code)
}

/// Where a key is instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Redirect {
    /// From now on.
    Moved(ServerAddress),
    /// This one time: the slot is being moved there, key by key.
    Ask(ServerAddress),
}

/// Whether an answer sends us elsewhere; `asked` is who gave it, whose host is meant if none is named.
pub(super) fn redirect(error: &ServerError, asked: &ServerAddress) -> Option<Redirect> {
    let is_for_good = match error.code() {
        "MOVED" => true,
        "ASK" => false,
        _ => return None,
    };
    // `SLOT HOST:PORT`; a host may be an address of IPv6 without brackets.
    let (_, place) = error.details()?.split_once(' ')?;
    let (host, port) = place.rsplit_once(':')?;
    let host = if host.is_empty() { &asked.0 } else { host };
    let address = (host.to_owned(), port.trim().parse().ok()?);
    Some(match is_for_good {
        true => Redirect::Moved(address),
        false => Redirect::Ask(address),
    })
}
