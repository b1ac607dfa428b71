//! Bans of client ids, users and addresses, temporary or permanent. A banned client is rejected
//! whatever its credentials.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwap;
use serde::Deserialize;
use serde_json::Value;

use crate::json;
use crate::rules::{AddressRange, RuleSubject};

/// Maximum number of temporary bans made by the node; the earliest to end are evicted.
const MAX_TEMPORARY: usize = 100_000;
const MAX_REASON_CHARS: usize = 512;

/// A ban.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ban {
    pub target: BanTarget,
    /// End of the ban in milliseconds since 1970; `None`: permanent.
    pub until_ms: Option<u64>,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BanTarget {
    ClientId(String),
    Username(String),
    Address(AddressRange),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BanDefinition {
    #[serde(default)]
    client_id: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    address: Option<String>,
    #[serde(default)]
    until_ms: Option<u64>,
    #[serde(default)]
    reason: Option<String>,
}

impl Ban {
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let written: BanDefinition = json::parse(value)?;
        let of = match (written.client_id, written.username, written.address) {
            (Some(client_id), None, None) if !client_id.is_empty() => {
                BanTarget::ClientId(client_id)
            }
            (None, Some(username), None) if !username.is_empty() => BanTarget::Username(username),
            (None, None, Some(address)) => {
                BanTarget::Address(address.parse().map_err(|e| format!("address: {e}"))?)
            }
            _ => return Err("expected exactly one of client_id, username, address".into()),
        };
        let reason = written.reason.unwrap_or_default();
        if reason.chars().count() > MAX_REASON_CHARS {
            return Err(format!("reason: longer than {MAX_REASON_CHARS} characters"));
        }
        Ok(Self {
            target: of,
            until_ms: written.until_ms,
            reason,
        })
    }

    fn is_active(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| until_ms > now_ms)
    }
}

/// All bans of a node.
#[derive(Default)]
pub(crate) struct BanList {
    /// Bans from the store.
    stored: ArcSwap<BanIndex>,
    /// Bans made by the node: client ids with the end of the ban.
    temporary: Mutex<HashMap<String, u64>>,
}

#[derive(Default)]
struct BanIndex {
    by_name: HashMap<BanTarget, Option<u64>>,
    single_addresses: HashMap<IpAddr, Option<u64>>,
    ranges: Vec<(AddressRange, Option<u64>)>,
}

impl BanList {
    pub(crate) fn set_stored<'a>(&self, bans: impl Iterator<Item = &'a Ban>) {
        let now_ms = wall_clock::now_ms();
        let mut index = BanIndex::default();
        for ban in bans.filter(|ban| ban.is_active(now_ms)) {
            match &ban.target {
                BanTarget::Address(range) => match range.single() {
                    Some(address) => {
                        keep_longest(index.single_addresses.entry(address), ban.until_ms)
                    }
                    None => index.ranges.push((*range, ban.until_ms)),
                },
                name => keep_longest(index.by_name.entry(name.clone()), ban.until_ms),
            }
        }
        self.stored.store(index.into());
    }

    /// Bans a client id until the given time.
    pub(crate) fn add_temporary(&self, client_id: &str, until_ms: u64) {
        let now_ms = wall_clock::now_ms();
        let mut temporary = self
            .temporary
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if temporary.len() >= MAX_TEMPORARY {
            temporary.retain(|_, until_ms| *until_ms > now_ms);
        }
        if temporary.len() >= MAX_TEMPORARY {
            temporary.clear();
        }
        temporary.insert(client_id.to_owned(), until_ms);
    }

    pub(crate) fn is_banned(&self, who: &RuleSubject<'_>, now_ms: u64) -> bool {
        let holds = |until_ms: &Option<u64>| until_ms.is_none_or(|until_ms| until_ms > now_ms);
        let kept = self.stored.load();
        let is_named = |banned| kept.by_name.get(&banned).is_some_and(holds);
        if !kept.by_name.is_empty() {
            let by_name = is_named(BanTarget::ClientId(who.client_id.to_owned()))
                || (who.username)
                    .is_some_and(|name| is_named(BanTarget::Username(name.to_owned())));
            if by_name {
                return true;
            }
        }
        if let Some(address) = who.address.map(|address| address.to_canonical())
            && (kept.single_addresses.get(&address).is_some_and(holds)
                || (kept.ranges.iter())
                    .any(|(range, until_ms)| range.contains(address) && holds(until_ms)))
        {
            return true;
        }
        let temporary = self
            .temporary
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        temporary
            .get(who.client_id)
            .is_some_and(|until_ms| *until_ms > now_ms)
    }
}

/// Keeps the longer of two bans of the same target.
fn keep_longest<K>(
    entry: std::collections::hash_map::Entry<'_, K, Option<u64>>,
    until_ms: Option<u64>,
) {
    let known = entry.or_insert(until_ms);
    *known = match (*known, until_ms) {
        (Some(a), Some(b)) => Some(a.max(b)),
        _ => None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn who<'a>(client_id: &'a str, username: Option<&'a str>, address: &str) -> RuleSubject<'a> {
        RuleSubject {
            client_id,
            username,
            address: Some(address.parse().unwrap()),
            ..RuleSubject::default()
        }
    }

    #[test]
    fn names_addresses_and_ranges_are_kept_out() {
        let bans = BanList::default();
        let kept = [
            json!({"client_id": "c1"}),
            json!({"username": "ann", "reason": "left"}),
            json!({"address": "10.1.0.0/16"}),
            json!({"address": "10.2.0.1"}),
            json!({"client_id": "late", "until_ms": 1}),
        ]
        .map(|ban| Ban::from_json(&ban).unwrap());
        bans.set_stored(kept.iter());
        let now_ms = wall_clock::now_ms();
        assert!(bans.is_banned(&who("c1", None, "10.0.0.1"), now_ms));
        assert!(bans.is_banned(&who("c2", Some("ann"), "10.0.0.1"), now_ms));
        assert!(bans.is_banned(&who("c2", None, "10.1.9.9"), now_ms));
        assert!(bans.is_banned(&who("c2", None, "10.2.0.1"), now_ms));
        assert!(bans.is_banned(&who("c2", None, "::ffff:10.2.0.1"), now_ms));
        assert!(!bans.is_banned(&who("late", Some("bob"), "10.2.0.2"), now_ms));
        bans.set_stored([].iter());
        assert!(!bans.is_banned(&who("c1", None, "10.0.0.1"), now_ms));
    }

    #[test]
    fn a_ban_ends_by_itself() {
        let bans = BanList::default();
        let now_ms = wall_clock::now_ms();
        bans.add_temporary("c1", now_ms + 1000);
        assert!(bans.is_banned(&who("c1", None, "10.0.0.1"), now_ms));
        assert!(!bans.is_banned(&who("c1", None, "10.0.0.1"), now_ms + 1000));
    }

    #[test]
    fn an_invalid_ban_is_rejected() {
        let error = |value| Ban::from_json(&value).unwrap_err();
        assert!(error(json!({})).starts_with("expected exactly one"));
        assert!(error(json!({"client_id": ""})).starts_with("expected exactly one"));
        assert!(error(json!({"client_id": "a", "username": "b"})).starts_with("expected exactly"));
        assert!(error(json!({"address": "x"})).starts_with("address: "));
        assert!(error(json!({"client": "x"})).contains("client"));
    }
}
