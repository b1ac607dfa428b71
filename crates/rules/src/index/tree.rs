//! Filters with wildcards, level by level.

use std::sync::Arc;

use super::bucket::{Bucket, Look};
use super::map::Map;

/// One level of filters. Copies share what they have in common.
#[derive(Clone)]
pub(super) struct Node<T> {
    children: Map<Arc<Node<T>>>,
    /// Behind a `+` in this place.
    plus: Option<Arc<Node<T>>>,
    /// Filters that go on with `#`, and so end here or anywhere below.
    hash: Option<Arc<Bucket<T>>>,
    /// Filters that end here.
    here: Option<Arc<Bucket<T>>>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self {
            children: Map::default(),
            plus: None,
            hash: None,
            here: None,
        }
    }
}

impl<T> Node<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty()
            && self.plus.is_none()
            && self.hash.is_none()
            && self.here.is_none()
    }

    /// Calls `each` for the rules of all filters that match a topic.
    pub(super) fn matches<'a>(
        &'a self,
        topic: &str,
        look: &Look<'_>,
        each: &mut impl FnMut(&'a T),
    ) {
        if topic.starts_with('$') {
            // Wildcards in the first level do not match it [MQTT-4.7.2-1].
            let (level, rest) = split(topic);
            if let Some(child) = self.children.get(level) {
                child.matches_rest(rest, look, each);
            }
        } else {
            self.matches_rest(Some(topic), look, each);
        }
    }

    /// As deep as a filter has levels, and not deeper.
    fn matches_rest<'a>(
        &'a self,
        rest: Option<&str>,
        look: &Look<'_>,
        each: &mut impl FnMut(&'a T),
    ) {
        if let Some(bucket) = &self.hash {
            bucket.matches(look, each);
        }
        match rest {
            None => {
                if let Some(bucket) = &self.here {
                    bucket.matches(look, each);
                }
            }
            Some(rest) => {
                let (level, rest) = split(rest);
                if let Some(child) = self.children.get(level) {
                    child.matches_rest(rest, look, each);
                }
                if let Some(plus) = &self.plus {
                    plus.matches_rest(rest, look, each);
                }
            }
        }
    }
}

#[inline]
fn split(text: &str) -> (&str, Option<&str>) {
    match memchr::memchr(b'/', text.as_bytes()) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

impl<T: Clone> Node<T> {
    /// Changes the bucket of a filter. `None` as rest: the filter ends here.
    pub(super) fn change(&mut self, rest: Option<&str>, change: impl FnOnce(&mut Bucket<T>)) {
        let end = match rest {
            None => &mut self.here,
            Some("#") => &mut self.hash,
            Some(rest) => {
                let (level, rest) = split(rest);
                match level {
                    "+" => {
                        let plus = Arc::make_mut(self.plus.get_or_insert_default());
                        plus.change(rest, change);
                        if plus.is_empty() {
                            self.plus = None;
                        }
                    }
                    level => {
                        let child = Arc::make_mut(self.children.entry(level));
                        child.change(rest, change);
                        if child.is_empty() {
                            self.children.remove(level);
                        }
                    }
                }
                return;
            }
        };
        let bucket = Arc::make_mut(end.get_or_insert_default());
        change(bucket);
        if bucket.is_empty() {
            *end = None;
        }
    }
}
