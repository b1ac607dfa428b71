//! Tree of topic filters with wildcards, one level per node.

use std::sync::Arc;

use super::persistent_map::PersistentMap;
use super::rule_bucket::{IndexLookup, RuleBucket};

/// One level of filters. Copies share unchanged nodes.
#[derive(Clone)]
pub(super) struct FilterNode<T> {
    children: PersistentMap<Arc<FilterNode<T>>>,
    /// The subtree of `+` at this level.
    plus: Option<Arc<FilterNode<T>>>,
    /// Filters with `#` here, which match this level and everything below.
    hash: Option<Arc<RuleBucket<T>>>,
    /// Filters that end here.
    bucket: Option<Arc<RuleBucket<T>>>,
}

impl<T> Default for FilterNode<T> {
    fn default() -> Self {
        Self {
            children: PersistentMap::default(),
            plus: None,
            hash: None,
            bucket: None,
        }
    }
}

impl<T> FilterNode<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty()
            && self.plus.is_none()
            && self.hash.is_none()
            && self.bucket.is_none()
    }

    /// Calls `each` with the rules of all filters that match a topic.
    pub(super) fn matches<'a>(
        &'a self,
        topic: &str,
        look: &IndexLookup<'_>,
        each: &mut impl FnMut(&'a T),
    ) {
        if topic.starts_with('$') {
            // Wildcards in the first level do not match topics that begin with `$` [MQTT-4.7.2-1].
            let (level, rest) = split(topic);
            if let Some(child) = self.children.get(level) {
                child.match_levels(rest, look, each);
            }
        } else {
            self.match_levels(Some(topic), look, each);
        }
    }

    /// Recursion is limited by the number of levels of a filter.
    fn match_levels<'a>(
        &'a self,
        rest: Option<&str>,
        look: &IndexLookup<'_>,
        each: &mut impl FnMut(&'a T),
    ) {
        if let Some(bucket) = &self.hash {
            bucket.matches(look, each);
        }
        match rest {
            None => {
                if let Some(bucket) = &self.bucket {
                    bucket.matches(look, each);
                }
            }
            Some(rest) => {
                let (level, rest) = split(rest);
                if let Some(child) = self.children.get(level) {
                    child.match_levels(rest, look, each);
                }
                if let Some(plus) = &self.plus {
                    plus.match_levels(rest, look, each);
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

impl<T: Clone> FilterNode<T> {
    /// Changes the bucket of a filter. `None` as the rest means that the filter ends here.
    pub(super) fn update_bucket(
        &mut self,
        rest: Option<&str>,
        change: impl FnOnce(&mut RuleBucket<T>),
    ) {
        let end = match rest {
            None => &mut self.bucket,
            Some("#") => &mut self.hash,
            Some(rest) => {
                let (level, rest) = split(rest);
                match level {
                    "+" => {
                        let plus = Arc::make_mut(self.plus.get_or_insert_default());
                        plus.update_bucket(rest, change);
                        if plus.is_empty() {
                            self.plus = None;
                        }
                    }
                    level => {
                        let child = Arc::make_mut(self.children.entry(level));
                        child.update_bucket(rest, change);
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
