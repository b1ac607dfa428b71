//! Rejected connections, so that people can find out why a client cannot connect. Equal attempts are
//! one entry with a count, so that a client that tries every second does not displace all others.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use hooks::{PeerAddress, RejectedConnect};
use mqtt::ReasonCode;

/// Maximum number of entries; the one whose last attempt is the oldest makes room.
const MAX_ENTRIES: usize = 1000;
/// Characters of client ids and user names that are kept.
const MAX_NAME_CHARS: usize = 256;

/// Equal rejected connections of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedConnection {
    /// Milliseconds since the Unix epoch.
    pub first_ms: u64,
    pub last_ms: u64,
    pub count: u64,
    /// The client id that was sent, if it could be read.
    pub client_id: Option<Box<str>>,
    /// Absent without a password, because it may then be the token of a device.
    pub username: Option<Box<str>>,
    /// `None`: a Unix socket.
    pub address: Option<IpAddr>,
    pub listener: Box<str>,
    /// The step that rejected the client: `protocol`, `ban`, `limit`, `authentication` or `availability`.
    pub step: &'static str,
    /// MQTT 5 reason code.
    pub code: u8,
    pub reason: Box<str>,
}

/// Selects entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RejectedConnectionQuery {
    /// Part of the client id.
    pub client_id_contains: Option<String>,
    pub username: Option<String>,
    pub address: Option<IpAddr>,
    pub limit: usize,
}

/// The rejected connections of a node since it started.
#[derive(Default)]
pub struct RejectedConnections {
    entries: Mutex<HashMap<u64, RejectedConnection>>,
    hasher: foldhash::fast::RandomState,
}

fn step_of(code: ReasonCode) -> &'static str {
    match code {
        ReasonCode::BANNED => "ban",
        ReasonCode::BAD_USER_NAME_OR_PASSWORD
        | ReasonCode::NOT_AUTHORIZED
        | ReasonCode::BAD_AUTHENTICATION_METHOD => "authentication",
        ReasonCode::CONNECTION_RATE_EXCEEDED | ReasonCode::QUOTA_EXCEEDED => "limit",
        ReasonCode::SERVER_UNAVAILABLE
        | ReasonCode::SERVER_BUSY
        | ReasonCode::USE_ANOTHER_SERVER
        | ReasonCode::SERVER_MOVED => "availability",
        _ => "protocol",
    }
}

fn name(text: Option<&str>) -> Option<Box<str>> {
    text.map(|text| text.chars().take(MAX_NAME_CHARS).collect::<String>().into())
}

impl RejectedConnections {
    pub(crate) fn record(&self, rejected: &RejectedConnect<'_>, now_ms: u64) {
        let address = match rejected.peer {
            PeerAddress::Tcp(address) => Some(address.ip().to_canonical()),
            PeerAddress::Unix | PeerAddress::Memory => None,
        };
        let reason = rejected.detail.unwrap_or("the client was rejected");
        let key = (
            rejected.client_id,
            rejected.username,
            address,
            (rejected.listener, rejected.code.0, reason),
        );
        let hash = self.hasher.hash_one(key);
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get_mut(&hash) {
            (entry.last_ms, entry.count) = (now_ms, entry.count + 1);
            return;
        }
        if entries.len() >= MAX_ENTRIES {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.last_ms);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                entries.remove(&oldest);
            }
        }
        let attempt = RejectedConnection {
            first_ms: now_ms,
            last_ms: now_ms,
            count: 1,
            client_id: name(rejected.client_id),
            username: name(rejected.username),
            address,
            listener: rejected.listener.into(),
            step: step_of(rejected.code),
            code: rejected.code.0,
            reason: reason.into(),
        };
        entries.insert(hash, attempt);
    }

    /// The selected entries, those with the newest attempts first.
    #[must_use]
    pub fn list(&self, query: &RejectedConnectionQuery) -> Vec<RejectedConnection> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let is_selected = |entry: &&RejectedConnection| {
            let (part, username) = (&query.client_id_contains, &query.username);
            part.as_ref().is_none_or(|part| {
                let id = entry.client_id.as_ref();
                id.is_some_and(|id| id.contains(part.as_str()))
            }) && username
                .as_ref()
                .is_none_or(|name| entry.username.as_deref() == Some(name))
                && (query.address).is_none_or(|address| entry.address == Some(address))
        };
        let mut selected: Vec<_> = entries.values().filter(is_selected).cloned().collect();
        selected.sort_by(|one, other| {
            (other.last_ms, &one.client_id).cmp(&(one.last_ms, &other.client_id))
        });
        selected.truncate(query.limit);
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(client_id: &str, code: ReasonCode) -> RejectedConnect<'_> {
        RejectedConnect {
            client_id: Some(client_id),
            username: Some("ann"),
            peer: PeerAddress::Tcp(([10, 0, 0, 1], 4000).into()),
            local_address: None,
            listener: "mqtt",
            code,
            detail: Some("the credentials were not accepted"),
            connect: None,
        }
    }

    fn all() -> RejectedConnectionQuery {
        RejectedConnectionQuery {
            limit: MAX_ENTRIES,
            ..RejectedConnectionQuery::default()
        }
    }

    #[test]
    fn equal_attempts_are_counted_and_others_are_listed() {
        let attempts = RejectedConnections::default();
        let wrong = ReasonCode::BAD_USER_NAME_OR_PASSWORD;
        for now_ms in [1, 2, 3] {
            attempts.record(&rejected("pump-1", wrong), now_ms);
        }
        attempts.record(&rejected("pump-2", ReasonCode::BANNED), 2);
        let listed = attempts.list(&all());
        assert_eq!(listed.len(), 2);
        let first = &listed[0];
        assert_eq!((first.count, first.first_ms, first.last_ms), (3, 1, 3));
        assert_eq!((first.step, listed[1].step), ("authentication", "ban"));
        for query in [
            RejectedConnectionQuery {
                client_id_contains: Some("-2".to_owned()),
                ..all()
            },
            RejectedConnectionQuery {
                username: Some("bob".to_owned()),
                ..all()
            },
            RejectedConnectionQuery {
                address: Some([10, 0, 0, 2].into()),
                ..all()
            },
            RejectedConnectionQuery { limit: 1, ..all() },
        ] {
            assert!(attempts.list(&query).len() < 2, "{query:?}");
        }
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let attempts = RejectedConnections::default();
        for number in 0..MAX_ENTRIES as u64 + 5 {
            let id = format!("c{number}");
            attempts.record(&rejected(&id, ReasonCode::BANNED), number);
        }
        let listed = attempts.list(&all());
        assert_eq!(listed.len(), MAX_ENTRIES);
        assert_eq!(listed[MAX_ENTRIES - 1].last_ms, 5);
    }
}
