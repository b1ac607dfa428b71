//! A cache of authenticator answers, bounded in entries and time. The key is a keyed digest of the request, because
//! the request contains a password.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ring::hmac;
use ring::rand::SystemRandom;

use crate::authenticator::{AuthenticatorAnswer, LoginRequest};

type AnswerCacheKey = [u8; 32];

pub(crate) struct AnswerCache {
    time_to_live: Duration,
    max_entries: usize,
    secret: hmac::Key,
    state: Mutex<AnswerCacheState>,
}

#[derive(Default)]
struct AnswerCacheState {
    entries: HashMap<AnswerCacheKey, (Instant, AuthenticatorAnswer)>,
    /// Keys in insertion order, which is also the order of expiry.
    order: VecDeque<(Instant, AnswerCacheKey)>,
}

impl AnswerCache {
    /// `None` if caching is disabled.
    pub(crate) fn new(time_to_live: Duration, max_entries: usize) -> Option<Self> {
        if time_to_live.is_zero() || max_entries == 0 {
            return None;
        }
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok()?;
        Some(Self {
            time_to_live,
            max_entries,
            secret,
            state: Mutex::default(),
        })
    }

    pub(crate) fn key(&self, request: &LoginRequest) -> AnswerCacheKey {
        let mut context = hmac::Context::with_key(&self.secret);
        let mut field = |bytes: Option<&[u8]>| {
            // The length prefix separates the fields.
            let len = bytes.map_or(u64::MAX, |bytes| bytes.len() as u64);
            context.update(&len.to_be_bytes());
            context.update(bytes.unwrap_or_default());
        };
        field(Some(request.client_id.as_bytes()));
        field(request.username.as_deref().map(str::as_bytes));
        field(request.password.as_ref().map(|password| &*password.0));
        field(request.common_name.as_deref().map(str::as_bytes));
        field(Some(request.listener.as_bytes()));
        let address = request.peer.map(|peer| peer.ip().to_string());
        field(address.as_deref().map(str::as_bytes));
        let mut key = [0; 32];
        key.copy_from_slice(context.sign().as_ref());
        key
    }

    pub(crate) fn get(&self, key: &AnswerCacheKey, now: Instant) -> Option<AuthenticatorAnswer> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, answer) = state.entries.get(key)?;
        (now.duration_since(*since) < self.time_to_live).then(|| answer.clone())
    }

    pub(crate) fn put(&self, key: AnswerCacheKey, answer: AuthenticatorAnswer, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.insert(key, (now, answer));
        state.order.push_back((now, key));
        while let Some(&(since, oldest)) = state.order.front() {
            let is_over = now.duration_since(since) >= self.time_to_live;
            if !is_over && state.order.len() <= self.max_entries {
                break;
            }
            state.order.pop_front();
            // A newer answer for the same key has its own position in `order`.
            if state
                .entries
                .get(&oldest)
                .is_some_and(|(kept, _)| *kept == since)
            {
                state.entries.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticator::Password;

    fn request(client_id: &str, password: &str) -> LoginRequest {
        LoginRequest {
            client_id: client_id.into(),
            password: Some(Password(password.into())),
            ..LoginRequest::default()
        }
    }

    #[test]
    fn an_answer_is_cached_for_its_lifetime_and_its_request_only() {
        let second = Duration::from_secs(1);
        let cache = AnswerCache::new(second, 10).unwrap();
        let now = Instant::now();
        let key = cache.key(&request("c1", "pencil"));
        cache.put(key, AuthenticatorAnswer::Deny, now);
        assert_eq!(cache.get(&key, now), Some(AuthenticatorAnswer::Deny));
        assert_eq!(cache.get(&cache.key(&request("c1", "pen")), now), None);
        assert_eq!(cache.get(&cache.key(&request("c1pencil", "")), now), None);
        assert_eq!(cache.get(&key, now + second), None);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let cache = AnswerCache::new(Duration::from_secs(60), 2).unwrap();
        let now = Instant::now();
        let keys = ["a", "b", "c"].map(|id| cache.key(&request(id, "")));
        for key in keys {
            cache.put(key, AuthenticatorAnswer::Ignore, now);
        }
        assert_eq!(cache.get(&keys[0], now), None);
        assert_eq!(cache.get(&keys[1], now), Some(AuthenticatorAnswer::Ignore));
        assert_eq!(cache.get(&keys[2], now), Some(AuthenticatorAnswer::Ignore));
        let state = cache.state.lock().unwrap();
        assert_eq!((state.entries.len(), state.order.len()), (2, 2));
    }
}
