//! Sessions of browsers. They are stored, so that a restart of the node ends none; of the refresh token only its hash is.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use store::{ExpectedVersion, ObjectError, Objects};
use wall_clock::now_ms;

use super::secret::SecretHash;
use super::tokens::{LoginRecord, TokenFamily, TokenOwner};

/// Kind of the sessions in the store; the id is the hash of the refresh token.
const SESSION_KIND: &str = "console_session";
/// Uses of a session are stored at most once per this part of its lifetime, and once an hour.
const STORED_USES_PER_LIFETIME: u32 = 20;
const STORED_USE_INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of sessions of the node.
const MAX_SESSIONS: usize = 10_000;
/// Maximum number of sessions of one operator; one more ends the oldest.
const MAX_PER_OPERATOR: usize = 100;

/// A session in its stored form.
#[derive(Serialize, Deserialize)]
struct StoredSession {
    operator: String,
    /// As in [`LoginRecord`].
    password: SecretHash,
    expires_at_ms: u64,
}

/// A session that is read from the store to decide whether it stays.
struct SessionSummary {
    id: String,
    operator: String,
    expires_at_ms: u64,
}

/// The login of a new session: its access tokens belong to the family that its refresh token determines.
pub(crate) fn session_login(
    operator: &str,
    password: SecretHash,
    refresh_token: &SecretHash,
) -> LoginRecord {
    LoginRecord {
        owner: TokenOwner::Operator(operator.to_owned()),
        password,
        family: TokenFamily::of_session(refresh_token),
    }
}

/// Stores a session. Sessions that have expired are removed, and the oldest if there are too many. Blocks.
pub(crate) fn store_session(
    objects: &Objects,
    refresh_token: SecretHash,
    login: &LoginRecord,
    lifetime: Duration,
) -> Result<(), ObjectError> {
    let TokenOwner::Operator(operator) = &login.owner else {
        return Ok(());
    };
    make_room(objects, operator)?;
    let stored = StoredSession {
        operator: operator.clone(),
        password: login.password.clone(),
        expires_at_ms: expiry_after(lifetime),
    };
    let value = serde_json::to_value(stored).expect("its fields are plain");
    let id = String::from(refresh_token);
    let put = objects.put(SESSION_KIND, &id, value, ExpectedVersion::Any);
    put.map(drop)
}

/// The login of a session that has not expired. Blocks.
pub(crate) fn find_session(
    objects: &Objects,
    refresh_token: &SecretHash,
) -> Result<Option<LoginRecord>, ObjectError> {
    let id = String::from(refresh_token.clone());
    let Some(object) = objects.get(SESSION_KIND, &id)? else {
        return Ok(None);
    };
    let stored = serde_json::from_value::<StoredSession>(object.value);
    let stored = stored.ok().filter(|stored| now_ms() < stored.expires_at_ms);
    Ok(stored.map(|stored| session_login(&stored.operator, stored.password, refresh_token)))
}

/// Extends a session that is used: it ends when it has not been used for `lifetime`, to within the interval in which uses
/// are stored. Blocks.
pub(crate) fn extend_session(
    objects: &Objects,
    refresh_token: &SecretHash,
    lifetime: Duration,
) -> Result<(), ObjectError> {
    let id = String::from(refresh_token.clone());
    let Some(object) = objects.get(SESSION_KIND, &id)? else {
        return Ok(());
    };
    let Ok(stored) = serde_json::from_value::<StoredSession>(object.value) else {
        return Ok(());
    };
    let interval = STORED_USE_INTERVAL.min(lifetime / STORED_USES_PER_LIFETIME);
    let expires_at_ms = expiry_after(lifetime);
    if stored.expires_at_ms >= expiry_after(lifetime.saturating_sub(interval)) {
        return Ok(());
    }
    let value = serde_json::to_value(StoredSession {
        expires_at_ms,
        ..stored
    });
    let value = value.expect("its fields are plain");
    let expected = ExpectedVersion::Version(object.version);
    match objects.put(SESSION_KIND, &id, value, expected) {
        // It was extended or ended in the meantime.
        Err(ObjectError::Conflict { .. }) => Ok(()),
        put => put.map(drop),
    }
}

fn expiry_after(lifetime: Duration) -> u64 {
    now_ms() + u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX / 2)
}

/// Ends the session of a family, if it belongs to one. Blocks.
pub(crate) fn end_session(objects: &Objects, family: TokenFamily) -> Result<(), ObjectError> {
    remove_sessions(objects, |session| {
        let hash = SecretHash::try_from(session.id.clone());
        hash.is_ok_and(|hash| TokenFamily::of_session(&hash) == family)
    })
}

/// Ends all sessions of an operator. Blocks.
pub(crate) fn end_sessions_of(objects: &Objects, operator: &str) -> Result<(), ObjectError> {
    remove_sessions(objects, |session| session.operator == operator)
}

/// Ends all sessions. Blocks.
pub(crate) fn end_all_sessions(objects: &Objects) -> Result<(), ObjectError> {
    remove_sessions(objects, |_| true)
}

fn make_room(objects: &Objects, operator: &str) -> Result<(), ObjectError> {
    let now_ms = now_ms();
    remove_sessions(objects, |session| session.expires_at_ms <= now_ms)?;
    let all = sessions(objects)?;
    let own = all.iter().filter(|session| session.operator == operator);
    let oldest = if own.clone().count() >= MAX_PER_OPERATOR {
        own.min_by_key(|session| session.expires_at_ms)
    } else if all.len() >= MAX_SESSIONS {
        all.iter().min_by_key(|session| session.expires_at_ms)
    } else {
        None
    };
    match oldest {
        Some(session) => remove(objects, &session.id),
        None => Ok(()),
    }
}

fn remove_sessions(
    objects: &Objects,
    ends: impl Fn(&SessionSummary) -> bool,
) -> Result<(), ObjectError> {
    let all = sessions(objects)?;
    let mut ended = all.iter().filter(|session| ends(session));
    ended.try_for_each(|session| remove(objects, &session.id))
}

fn sessions(objects: &Objects) -> Result<Vec<SessionSummary>, ObjectError> {
    let mut all = Vec::new();
    objects.for_each(SESSION_KIND, |object| {
        // What cannot be read is removed like an expired one.
        let stored = serde_json::from_value::<StoredSession>(object.value);
        let (operator, expires_at_ms) = stored.map_or((String::new(), 0), |stored| {
            (stored.operator, stored.expires_at_ms)
        });
        all.push(SessionSummary {
            id: object.id,
            operator,
            expires_at_ms,
        });
    })?;
    Ok(all)
}

fn remove(objects: &Objects, id: &str) -> Result<(), ObjectError> {
    let removed = objects.delete(SESSION_KIND, id, ExpectedVersion::Any);
    removed.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn begin(objects: &Objects, operator: &str, token: &str, lifetime: Duration) -> SecretHash {
        let token = SecretHash::from_secret(token);
        let login = session_login(operator, SecretHash::from_secret("hash"), &token);
        store_session(objects, token.clone(), &login, lifetime).unwrap();
        token
    }

    fn has(objects: &Objects, token: &SecretHash) -> bool {
        find_session(objects, token).unwrap().is_some()
    }

    #[test]
    fn a_session_that_is_used_is_extended() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = store::Store::open(folder.path(), store::StoreConfig::default()).unwrap();
        let objects = store.objects().clone();
        let version = |token: &SecretHash| {
            let stored = objects.get(SESSION_KIND, &String::from(token.clone()));
            stored.unwrap().map(|object| object.version)
        };
        let used = begin(&objects, "ann", "used", Duration::from_secs(1));
        extend_session(&objects, &used, HOUR).unwrap();
        let expiry = sessions(&objects).unwrap()[0].expires_at_ms;
        assert!(expiry > now_ms() + 3_500_000, "{expiry}");
        let found = find_session(&objects, &used).unwrap().unwrap();
        assert_eq!(found.owner, TokenOwner::Operator("ann".to_owned()));

        let extended = version(&used);
        extend_session(&objects, &used, HOUR).unwrap();
        assert_eq!(
            version(&used),
            extended,
            "uses in quick succession are not stored"
        );

        end_sessions_of(&objects, "ann").unwrap();
        extend_session(&objects, &used, HOUR * 2).unwrap();
        assert!(!has(&objects, &used), "a session that has ended stays so");
    }

    #[test]
    fn sessions_end_by_time_by_number_and_with_their_operator() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = store::Store::open(folder.path(), store::StoreConfig::default()).unwrap();
        let objects = store.objects().clone();
        let late = begin(&objects, "ann", "late", Duration::ZERO);
        assert!(!has(&objects, &late));
        let oldest = begin(&objects, "ann", "oldest", HOUR);
        assert!(
            objects
                .get(SESSION_KIND, &String::from(late))
                .unwrap()
                .is_none(),
            "an expired session is removed by the next login"
        );
        let of_bob = begin(&objects, "bob", "bob", HOUR);
        for number in 1..=MAX_PER_OPERATOR {
            begin(&objects, "ann", &number.to_string(), HOUR * 2);
        }
        let youngest = SecretHash::from_secret(&MAX_PER_OPERATOR.to_string());
        assert!(!has(&objects, &oldest) && has(&objects, &youngest) && has(&objects, &of_bob));
        let found = find_session(&objects, &of_bob).unwrap().unwrap();
        assert_eq!(found.owner, TokenOwner::Operator("bob".to_owned()));

        end_session(&objects, TokenFamily::of_session(&youngest)).unwrap();
        let other = SecretHash::from_secret("1");
        assert!(!has(&objects, &youngest) && has(&objects, &other));
        end_sessions_of(&objects, "ann").unwrap();
        assert!(!has(&objects, &other) && has(&objects, &of_bob));
        end_all_sessions(&objects).unwrap();
        assert!(!has(&objects, &of_bob));
    }
}
