//! What evaluations of one shard share: random numbers, ids, compiled regular expressions and time zones. All bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::function_context::FunctionLimits;
use crate::random::Rng;
use crate::zone::Zone;

/// How many compiled things of one kind are kept; the one unused for longest goes first.
const MAX_CACHED: usize = 256;
/// The longest regular expression, and the most memory one may take once compiled.
const MAX_PATTERN_BYTES: usize = 4 << 10;
const MAX_REGEX_BYTES: usize = 1 << 20;

/// One for each shard.
pub struct EvaluationResources {
    pub rng: Rng,
    pub(crate) ids: IdGenerator,
    regexes: CompilationCache<Arc<CompiledRegex>>,
    zones: CompilationCache<Zone>,
    #[cfg(feature = "jq")]
    pub(crate) programs: CompilationCache<Arc<crate::functions::jq::JqProgram>>,
    /// What `getenv` may read.
    environment: Environment,
}

/// Variables of the node's environment by their names; those that are not set have an empty value.
pub type Environment = Arc<BTreeMap<Box<str>, Box<str>>>;

impl EvaluationResources {
    /// `node` tells apart the snowflake ids of different shards and nodes; its lower 10 bits count.
    #[must_use]
    pub fn new(seed: [u8; 32], node: u16) -> EvaluationResources {
        EvaluationResources {
            rng: Rng::new(seed),
            ids: IdGenerator {
                node: u64::from(node) & 0x3ff,
                last: 0,
                last_uuid: 0,
            },
            regexes: CompilationCache::new(),
            zones: CompilationCache::new(),
            #[cfg(feature = "jq")]
            programs: CompilationCache::new(),
            environment: Environment::default(),
        }
    }

    /// Lets `getenv` read these variables and no others.
    #[must_use]
    pub fn with_environment(mut self, environment: Environment) -> EvaluationResources {
        self.environment = environment;
        self
    }

    pub(crate) fn environment_variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|value| &**value)
    }

    /// A compiled expression; one that no earlier event used is counted.
    pub(crate) fn compiled_regex(
        &mut self,
        pattern: &str,
        limits: &mut FunctionLimits,
    ) -> Result<Arc<CompiledRegex>, Box<str>> {
        self.regexes.get_or_compile(pattern, |pattern| {
            limits.count_compilation()?;
            compile_regex(pattern)
        })
    }

    /// Lends the compiled expressions to a program of jq.
    #[cfg(feature = "jq")]
    pub(crate) fn take_regexes(&mut self) -> CompilationCache<Arc<CompiledRegex>> {
        std::mem::replace(&mut self.regexes, CompilationCache::new())
    }

    #[cfg(feature = "jq")]
    pub(crate) fn return_regexes(&mut self, regexes: CompilationCache<Arc<CompiledRegex>>) {
        self.regexes = regexes;
    }

    pub(crate) fn time_zone(&mut self, name: &str) -> Result<Zone, Box<str>> {
        self.zones.get_or_compile(name, |name| {
            Zone::parse(name).ok_or_else(|| {
                "unknown time zone, expected a name such as Europe/Berlin or an offset such as +08:00".into()
            })
        })
    }
}

/// A compiled regular expression.
pub(crate) struct CompiledRegex {
    pub(crate) regex: regex::Regex,
    /// No more memory than this; the time one byte of text may take grows with it.
    size_bytes: usize,
}

impl CompiledRegex {
    /// How much looking through so many bytes of text may cost: most expressions take a nanosecond for each byte, but at worst
    /// one looks at each of its states for each byte.
    pub(crate) fn matching_cost(&self, text_bytes: usize) -> u64 {
        self.size_bytes as u64 * text_bytes as u64
    }
}

/// The sizes that compiled expressions are told apart by.
const REGEX_SIZES: [usize; 5] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, MAX_REGEX_BYTES];

/// An expression of bounded length and size.
pub(crate) fn compile_regex(pattern: &str) -> Result<Arc<CompiledRegex>, Box<str>> {
    if pattern.len() > MAX_PATTERN_BYTES {
        let why = format!("the regular expression is longer than {MAX_PATTERN_BYTES} bytes");
        return Err(why.into());
    }
    let build = |size_bytes| {
        regex::RegexBuilder::new(pattern)
            .size_limit(size_bytes)
            .dfa_size_limit(MAX_REGEX_BYTES)
            .build()
    };
    // The first size that is enough; whatever else is wrong is wrong at any size.
    let mut built = Err(regex::Error::CompiledTooBig(0));
    let mut size_bytes = 0;
    for size in REGEX_SIZES {
        built = build(size);
        size_bytes = size;
        if !matches!(built, Err(regex::Error::CompiledTooBig(_))) {
            break;
        }
    }
    built
        .map(|regex| Arc::new(CompiledRegex { regex, size_bytes }))
        .map_err(|error| {
            // The last line says what is wrong, those before it draw where.
            let text = error.to_string();
            let why = text.lines().last().unwrap_or_default();
            let why = why.trim_start_matches("error: ");
            format!("invalid regular expression: {why}").into()
        })
}

/// State of the ids that grow.
pub(crate) struct IdGenerator {
    node: u64,
    /// Milliseconds and count of the last snowflake id.
    last: u64,
    /// Milliseconds and count of the last UUID of version 7.
    last_uuid: u64,
}

/// 2010-11-04T01:42:54.657Z, where the milliseconds of snowflake ids begin.
const SNOWFLAKE_EPOCH_MS: u64 = 1_288_834_974_657;

impl IdGenerator {
    /// 41 bits of milliseconds, 10 of node, 12 that count. Always greater than the last: a millisecond with more than 4096 ids
    /// and a clock that went back borrow from the future.
    pub(crate) fn snowflake(&mut self, now_ms: u64) -> i64 {
        let now = now_ms.saturating_sub(SNOWFLAKE_EPOCH_MS) << 12;
        self.last = now.max(self.last + 1);
        let (ms, count) = (self.last >> 12, self.last & 0xfff);
        ((ms & 0x1ff_ffff_ffff) << 22 | self.node << 12 | count) as i64
    }

    /// 48 bits of milliseconds and 12 that count within one, always greater than the last.
    pub(crate) fn uuid_v7(&mut self, now_ms: u64) -> (u64, u64) {
        self.last_uuid = (now_ms << 12).max(self.last_uuid + 1);
        (
            self.last_uuid >> 12 & 0xffff_ffff_ffff,
            self.last_uuid & 0xfff,
        )
    }
}

/// Things by the text they were compiled from.
pub(crate) struct CompilationCache<T> {
    entries: BTreeMap<Box<str>, (T, u64)>,
    clock: u64,
}

impl<T: Clone> CompilationCache<T> {
    fn new() -> Self {
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
    fn a_cache_forgets_what_was_unused_for_longest() {
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

    #[test]
    fn a_huge_regular_expression_is_refused() {
        let mut tools = EvaluationResources::new([1; 32], 0);
        let mut error =
            |pattern: &str| match tools.compiled_regex(pattern, &mut FunctionLimits::default()) {
                Ok(_) => panic!("{pattern} is accepted"),
                Err(why) => why,
            };
        error(r"(\w{1000}){1000}");
        error(&"a".repeat(MAX_PATTERN_BYTES + 1));
        assert_eq!(&*error("(a"), "invalid regular expression: unclosed group");
    }

    #[test]
    fn snowflake_ids_grow_even_if_the_clock_does_not() {
        let mut tools = EvaluationResources::new([1; 32], 5);
        let mut last = 0;
        for at in 0..10_000 {
            let id = tools.ids.snowflake(1_690_599_987_495 - at / 5_000);
            assert!(id > last);
            assert_eq!(id >> 12 & 0x3ff, 5);
            last = id;
        }
    }
}
