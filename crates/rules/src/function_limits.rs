//! Limits of function calls, per call or per evaluation.

/// Limits of function calls, per call or per evaluation.
#[derive(Clone, Copy, Debug)]
pub struct FunctionLimits {
    /// Maximum length of a text or byte string created by a function.
    pub max_output_bytes: usize,
    /// Maximum number of items of an array or map created by a function.
    pub max_items: usize,
    /// Maximum number of steps of all jq programs in one evaluation together; 10,000 steps take about a
    /// millisecond.
    pub max_jq_steps: u64,
    /// Remaining jq steps.
    pub jq_steps: u64,
    /// Remaining compilations of regular expressions and jq programs that are not cached.
    pub compilations: u32,
    /// Steps of the call in addition to those for its arguments and its result.
    pub extra_steps: u32,
}

/// Default of `rules.max_jq_steps`: a shard serves other clients again after about 5 ms.
pub(crate) const MAX_JQ_STEPS: u64 = 50_000;
/// A statement has at most 256 items, so a statement with constant patterns never needs more for long.
const MAX_COMPILATIONS: u32 = 32;

impl FunctionLimits {
    /// Limits of one evaluation.
    pub(crate) fn new(max_output_bytes: usize, max_jq_steps: u64) -> Self {
        FunctionLimits {
            max_output_bytes,
            max_jq_steps,
            jq_steps: max_jq_steps,
            ..FunctionLimits::default()
        }
    }

    /// Counts a compilation whose text may come from the event.
    pub(crate) fn count_compilation(&mut self) -> Result<(), Box<str>> {
        match self.compilations.checked_sub(1) {
            Some(left) => {
                self.compilations = left;
                Ok(())
            }
            None => Err(format!(
                "one event may use at most {MAX_COMPILATIONS} new regular expressions and jq programs"
            )
            .into()),
        }
    }
}

impl Default for FunctionLimits {
    fn default() -> Self {
        FunctionLimits {
            max_output_bytes: 1 << 20,
            max_items: 100_000,
            max_jq_steps: MAX_JQ_STEPS,
            jq_steps: MAX_JQ_STEPS,
            compilations: MAX_COMPILATIONS,
            extra_steps: 0,
        }
    }
}
