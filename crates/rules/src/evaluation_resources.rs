//! Resources shared by the evaluations of one shard: random numbers, ids, compiled regular expressions and
//! time zones. All of them are bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::function_context::FunctionLimits;
use crate::random::Rng;
use crate::zone::Zone;

/// Maximum number of cached compilations of one kind; the least recently used one is evicted first.
const MAX_CACHED: usize = 256;
/// Maximum length of a regular expression.
const MAX_PATTERN_BYTES: usize = 4 << 10;
/// Maximum memory of a compiled regular expression.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Resources of one shard.
pub struct EvaluationResources {
    pub rng: Rng,
    pub(crate) ids: IdGenerator,
    regexes: CompilationCache<Arc<CompiledRegex>>,
    zones: CompilationCache<Zone>,
    #[cfg(feature = "jq")]
    pub(crate) programs: CompilationCache<Arc<crate::functions::jq::JqProgram>>,
    /// The variables that `getenv` may read.
    environment: Environment,
}

/// Environment variables of the node by name. A variable that is not set has an empty value.
pub type Environment = Arc<BTreeMap<Box<str>, Box<str>>>;

impl EvaluationResources {
    /// `node` distinguishes the snowflake ids of different shards and nodes; only its lower 10 bits are used.
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

    /// Allows `getenv` to read exactly these variables.
    #[must_use]
    pub fn with_environment(mut self, environment: Environment) -> EvaluationResources {
        self.environment = environment;
        self
    }

    pub(crate) fn environment_variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(|value| &**value)
    }

    /// A compiled expression. A compilation that is not in the cache is counted.
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

    /// Takes the cache of compiled expressions, to lend it to a jq program.
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
    /// Upper bound of its memory. The time per byte of text grows with it.
    size_bytes: usize,
}

impl CompiledRegex {
    /// Cost of matching a text of this length. Most expressions take a nanosecond per byte, but in the worst
    /// case all states are visited for every byte.
    pub(crate) fn matching_cost(&self, text_bytes: usize) -> u64 {
        self.size_bytes as u64 * text_bytes as u64
    }
}

/// Size classes of compiled expressions.
const REGEX_SIZES: [usize; 5] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, MAX_REGEX_BYTES];

/// Compiles an expression of limited length and size.
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
    // Uses the smallest sufficient size class. Other errors are the same in every class.
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
            // The last line states the error; the lines before it show the position.
            let text = error.to_string();
            let why = text.lines().last().unwrap_or_default();
            let why = why.trim_start_matches("error: ");
            format!("invalid regular expression: {why}").into()
        })
}

/// State of the generators of increasing ids.
pub(crate) struct IdGenerator {
    node: u64,
    /// Milliseconds and counter of the last snowflake id.
    last: u64,
    /// Milliseconds and counter of the last version 7 UUID.
    last_uuid: u64,
}

/// 2010-11-04T01:42:54.657Z, the epoch of snowflake ids in milliseconds.
const SNOWFLAKE_EPOCH_MS: u64 = 1_288_834_974_657;

impl IdGenerator {
    /// Layout: 41 bits of milliseconds, 10 bits of node, 12 bits of counter. Every id is greater than the
    /// last: a millisecond with more than 4096 ids, or a clock that went back, borrows from the future.
    pub(crate) fn snowflake(&mut self, now_ms: u64) -> i64 {
        let now = now_ms.saturating_sub(SNOWFLAKE_EPOCH_MS) << 12;
        self.last = now.max(self.last + 1);
        let (ms, count) = (self.last >> 12, self.last & 0xfff);
        ((ms & 0x1ff_ffff_ffff) << 22 | self.node << 12 | count) as i64
    }

    /// Returns 48 bits of milliseconds and a 12-bit counter. Every result is greater than the last.
    pub(crate) fn uuid_v7(&mut self, now_ms: u64) -> (u64, u64) {
        self.last_uuid = (now_ms << 12).max(self.last_uuid + 1);
        (
            self.last_uuid >> 12 & 0xffff_ffff_ffff,
            self.last_uuid & 0xfff,
        )
    }
}

/// Compilations by their source text.
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

    #[test]
    fn a_huge_regular_expression_is_rejected() {
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
    fn snowflake_ids_increase_even_if_the_clock_does_not() {
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
