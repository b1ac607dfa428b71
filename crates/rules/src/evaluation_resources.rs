//! Resources shared by the evaluations of one shard: random numbers, ids, compiled regular expressions and
//! time zones. All of them are bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compilation_cache::CompilationCache;
use crate::compiled_regex::{CompiledRegex, compile_regex};
use crate::function_limits::FunctionLimits;
#[cfg(feature = "jq")]
use crate::functions::jq::JqProgram;
use crate::random::Rng;
use crate::zone::Zone;

/// Resources of one shard.
pub struct EvaluationResources {
    pub rng: Rng,
    pub(crate) ids: IdGenerator,
    regexes: CompilationCache<Arc<CompiledRegex>>,
    zones: CompilationCache<Zone>,
    #[cfg(feature = "jq")]
    pub(crate) programs: CompilationCache<Arc<JqProgram>>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snowflake_ids_increase_even_if_the_clock_does_not() {
        let mut resources = EvaluationResources::new([1; 32], 5);
        let mut last = 0;
        for at in 0..10_000 {
            let id = resources.ids.snowflake(1_690_599_987_495 - at / 5_000);
            assert!(id > last);
            assert_eq!(id >> 12 & 0x3ff, 5);
            last = id;
        }
    }
}
