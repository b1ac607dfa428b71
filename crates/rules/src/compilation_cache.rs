//! A bounded cache of compilations: the least recently used one is evicted first.

use std::collections::BTreeMap;

/// Maximum number of cached compilations of one kind; the least recently used one is evicted first.
const MAX_CACHED: usize = 256;
/// Compilations by their source text.
pub(crate) struct CompilationCache<T> {
    entries: BTreeMap<Box<str>, (T, u64)>,
    clock: u64,
}

impl<T: Clone> CompilationCache<T> {
    pub(crate) fn new() -> Self {
        CompilationCache {
            entries: BTreeMap::new(),
            clock: 0,
        }
    }

    pub(crate) fn get_or_compile<E>(
        &mut self,
        key: &str,
        make: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, E> {
        self.clock += 1;
        if let Some((thing, used)) = self.entries.get_mut(key) {
            *used = self.clock;
            return Ok(thing.clone());
        }
        let thing = make(key)?;
        if self.entries.len() >= MAX_CACHED {
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(key.into(), (thing.clone(), self.clock));
        Ok(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_evicts_the_least_recently_used_entry() {
        let mut cache = CompilationCache::new();
        let mut made = 0;
        for key in 0..=MAX_CACHED {
            let mut get = |key: usize| {
                cache.get_or_compile(&key.to_string(), |_| {
                    made += 1;
                    Ok::<_, ()>(key)
                })
            };
            assert_eq!(get(key), Ok(key));
            assert_eq!(get(0), Ok(0));
        }
        assert_eq!((cache.entries.len(), made), (MAX_CACHED, MAX_CACHED + 1));
        assert!(!cache.entries.contains_key("1"));
    }
}
