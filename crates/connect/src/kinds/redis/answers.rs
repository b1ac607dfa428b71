//! What servers say is wrong, and whether it can pass.

use redis::{RedisError, ServerError, Value as Answer};

use crate::connector::Failure;

use super::Address;

/// Of a connection: all of these can pass.
pub(super) fn failure(error: RedisError) -> Failure {
    Failure::passing(error)
}

pub(super) fn error_in(answer: &Answer) -> Option<&ServerError> {
    match answer {
        Answer::ServerError(error) => Some(error),
        // Of EXEC.
        Answer::Array(answers) => answers.iter().find_map(error_in),
        _ => None,
    }
}

pub(super) fn failure_of(error: &ServerError) -> Failure {
    let message = match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    };
    match is_passing(error.code()) {
        true => Failure::passing(message),
        false => Failure::of_rows(message),
    }
}

fn is_passing(code: &str) -> bool {
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
pub(super) fn is_of_old_routes(code: &str) -> bool {
    ["CLUSTERDOWN", "MASTERDOWN", "MOVED", "READONLY"].contains(&code)
}

/// Where a key is instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// From now on.
    Moved(Address),
    /// This one time: the slot is being moved there, key by key.
    Ask(Address),
}

/// Whether an answer sends us elsewhere; `asked` is who gave it, whose host is meant if none is named.
pub(super) fn elsewhere(error: &ServerError, asked: &Address) -> Option<Elsewhere> {
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
        true => Elsewhere::Moved(address),
        false => Elsewhere::Ask(address),
    })
}
