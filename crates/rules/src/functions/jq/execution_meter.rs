//! Limits of a jq program: steps, memory and stack. jaq has no limits of its own and its iterators cannot
//! always return an error, so exceeding a limit unwinds the stack to a catch in the caller.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[derive(Clone, Copy)]
pub(super) struct JqLimits {
    pub(super) steps: u64,
    /// Maximum size of one value, where shared parts count as often as they occur.
    pub(super) max_bytes: usize,
}

/// Maximum nesting of arrays and objects.
pub(super) const MAX_DEPTH: u32 = 128;
/// Maximum use of the thread's stack.
const MAX_STACK_BYTES: usize = 512 << 10;

/// The limit that stopped a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    Steps,
    Bytes,
    Depth,
    Stack,
}

/// The reason why a program was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbortError {
    Stopped(StopReason),
    /// The interpreter panicked.
    Panicked,
}

/// Runs interpreter code that may panic. The code accesses only its own values, which are dropped during
/// unwinding.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, AbortError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|thrown| match thrown.downcast::<StopReason>() {
        Ok(stop) => AbortError::Stopped(*stop),
        Err(_) => AbortError::Panicked,
    })
}

struct ExecutionMeter {
    steps_left: Cell<u64>,
    max_bytes: Cell<usize>,
    stack_base: Cell<usize>,
}

thread_local! {
    // Thread-local, because operators on values have no other access to the limits.
    static METER: ExecutionMeter = const { ExecutionMeter { steps_left: Cell::new(0), max_bytes: Cell::new(0), stack_base: Cell::new(0) } };
}

/// Runs code that calls [`count_steps`] and [`count_bytes`]. Also returns the number of steps.
pub(super) fn run_bounded<T>(
    limits: JqLimits,
    run: impl FnOnce() -> T,
) -> (Result<T, AbortError>, u64) {
    METER.with(|meter| {
        meter.steps_left.set(limits.steps);
        meter.max_bytes.set(limits.max_bytes);
        meter.stack_base.set(stack_address());
    });
    let result = catch_panic(run);
    let left = match result {
        Err(AbortError::Stopped(StopReason::Steps)) => 0,
        _ => METER.with(|meter| meter.steps_left.get()),
    };
    (result, limits.steps - left)
}

fn stop_execution(why: StopReason) -> ! {
    // Not a panic: no message is printed and no panic hook runs.
    resume_unwind(Box::new(why))
}

/// Counts steps, and checks the depth of the stack.
pub(super) fn count_steps(count: u64) {
    METER.with(|meter| {
        match meter.steps_left.get().checked_sub(count) {
            Some(left) => meter.steps_left.set(left),
            None => stop_execution(StopReason::Steps),
        }
        if meter.stack_base.get().abs_diff(stack_address()) > MAX_STACK_BYTES {
            stop_execution(StopReason::Stack);
        }
    });
}

/// Checks the size of a value in bytes.
pub(super) fn check_bytes(count: usize) {
    if count > METER.with(|meter| meter.max_bytes.get()) {
        stop_execution(StopReason::Bytes);
    }
}

/// Like [`check_bytes`], but also counts steps for creating the value.
pub(super) fn count_bytes(count: usize) {
    check_bytes(count);
    count_steps(1 + count as u64 / 64);
}

pub(super) fn check_depth(depth: u32) {
    if depth > MAX_DEPTH {
        stop_execution(StopReason::Depth);
    }
}

#[inline(never)]
fn stack_address() -> usize {
    let here = 0_u8;
    std::hint::black_box(&raw const here) as usize
}
