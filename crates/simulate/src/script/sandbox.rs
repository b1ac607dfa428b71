//! Runs one script with limits of steps, memory and stack.
//!
//! The context has the objects of the language that work on their own. There are no modules, no timers, no
//! buffers, and no functions of the host but a digest and random numbers.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use md5::{Digest as _, Md5};
use rquickjs::context::{EvalOptions, intrinsic};
use rquickjs::{CatchResultExt as _, CaughtError, Context, Ctx, Function, Persistent, Runtime};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::hook::{ScriptDevice, ScriptHook, ScriptOutcome};
use super::position::line_in;
use crate::random::RandomKey;

const PRELUDE: &str = include_str!("prelude.js");
const PRELUDE_NAME: &str = "prelude.js";
/// The engine reports after about so many loops and calls.
const STEPS_PER_REPORT: u64 = 10_000;
/// Actions that one call of a hook may ask for.
const MAX_ACTIONS: u32 = 1000;
/// Callbacks of promises that run after one call of a hook; their actions are ignored.
const MAX_CALLBACKS: usize = 1000;
/// A longer description of an error is cut.
const MAX_MESSAGE_CHARACTERS: usize = 300;

type Intrinsics = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::MapSet,
    // Async functions leak memory without it.
    intrinsic::Promise,
);

/// What a script may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScriptLimits {
    /// Loops and calls of functions of one call of a hook, in units of 10,000.
    pub(crate) max_steps: u64,
    /// Memory of the script on each thread, with the attributes of all devices.
    pub(crate) max_memory_bytes: usize,
    pub(crate) max_stack_bytes: usize,
}

/// A script and its limits.
#[derive(Clone, Debug)]
pub(crate) struct ScriptSource {
    /// As written, for errors.
    pub(crate) file: String,
    pub(crate) text: String,
    pub(crate) limits: ScriptLimits,
}

/// A script that cannot be loaded, or a call of a hook that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptError {
    file: String,
    line: Option<u32>,
    /// `None`: while the script was loaded.
    hook: Option<ScriptHook>,
    message: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(hook) = self.hook {
            write!(f, ": {}", hook.name())?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for ScriptError {}

/// A script that is loaded. It belongs to one thread.
pub(crate) struct ScriptSandbox {
    // Before the context, to which it refers.
    call: Persistent<Function<'static>>,
    context: Context,
    /// Reports of the engine in the current call, and whether they were too many.
    reports: Rc<Cell<u64>>,
    limits: ScriptLimits,
    file: String,
}

impl fmt::Debug for ScriptSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptSandbox")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl ScriptSandbox {
    /// Loads a script; `seed` is that of its random numbers.
    pub(crate) fn new(source: &ScriptSource, seed: u64) -> Result<Self, ScriptError> {
        let failed = |error: &dyn fmt::Display| ScriptError {
            file: source.file.clone(),
            line: None,
            hook: None,
            message: format!("the script engine cannot start: {error}"),
        };
        let runtime = Runtime::new().map_err(|error| failed(&error))?;
        runtime.set_memory_limit(source.limits.max_memory_bytes);
        runtime.set_max_stack_size(source.limits.max_stack_bytes);
        let reports = Rc::new(Cell::new(0));
        let max_reports = (source.limits.max_steps / STEPS_PER_REPORT).max(1);
        runtime.set_interrupt_handler(Some(Box::new({
            let reports = reports.clone();
            move || {
                reports.set(reports.get() + 1);
                reports.get() > max_reports
            }
        })));
        let context = Context::custom::<Intrinsics>(&runtime).map_err(|error| failed(&error))?;
        let loaded = context.with(|ctx| {
            let call = load_prelude(&ctx, seed).map_err(|error| error.to_string())?;
            let options = named(&source.file);
            // The result of the script is of no interest.
            let loaded: Result<rquickjs::Value<'_>, _> = ctx
                .eval_with_options(source.text.as_str(), options)
                .catch(&ctx);
            match loaded {
                Ok(_) => Ok(Ok(call)),
                Err(error) => Ok(Err(describe(&error, &source.file))),
            }
        });
        let loaded = loaded.map_err(|error: String| failed(&error))?;
        let is_exhausted = reports.get() > max_reports;
        let call = loaded.map_err(|(line, message)| ScriptError {
            file: source.file.clone(),
            line,
            hook: None,
            message: source.limits.explain(message, is_exhausted),
        })?;
        Ok(Self {
            call,
            context,
            reports,
            limits: source.limits,
            file: source.file.clone(),
        })
    }

    /// Whether the script defines a function with the name of the hook.
    pub(crate) fn defines(&self, hook: ScriptHook) -> bool {
        self.context
            .with(|ctx| ctx.globals().get::<_, Function<'_>>(hook.name()).is_ok())
    }

    /// Calls a hook with a device and an argument, which the hook may change.
    pub(crate) fn call<T: Serialize + DeserializeOwned>(
        &mut self,
        hook: ScriptHook,
        device: &ScriptDevice<'_>,
        argument: Option<&T>,
    ) -> Result<ScriptOutcome<T>, ScriptError> {
        let device = serde_json::to_string(device).expect("a device is JSON");
        let argument =
            argument.map(|argument| serde_json::to_string(argument).expect("an argument is JSON"));
        self.reports.set(0);
        let called = self.context.with(|ctx| {
            let call = self
                .call
                .clone()
                .restore(&ctx)
                .map_err(|error| (None, error.to_string()))?;
            let result: Result<String, _> = call.call((hook.name(), device, argument)).catch(&ctx);
            result.map_err(|error| describe(&error, &self.file))
        });
        let is_exhausted = self.reports.get() > (self.limits.max_steps / STEPS_PER_REPORT).max(1);
        // Otherwise they would take memory until the end of the run.
        for _ in 0..MAX_CALLBACKS {
            if let Ok(false) = self.context.runtime().execute_pending_job() {
                break;
            }
        }
        let error = |(line, message): (Option<u32>, String)| ScriptError {
            file: self.file.clone(),
            line,
            hook: Some(hook),
            message: self.limits.explain(message, is_exhausted),
        };
        let result = called.map_err(&error)?;
        serde_json::from_str(&result).map_err(|wrong| {
            error((
                None,
                format!("wrong fields of a message or an action: {wrong}"),
            ))
        })
    }
}

fn named(file: &str) -> EvalOptions {
    let mut options = EvalOptions::default();
    options.filename = Some(file.to_owned());
    options
}

fn load_prelude(ctx: &Ctx<'_>, seed: u64) -> rquickjs::Result<Persistent<Function<'static>>> {
    let prelude: Function<'_> = ctx.eval_with_options(PRELUDE, named(PRELUDE_NAME))?;
    let digest = Function::new(ctx.clone(), |text: String| {
        let digest = Md5::digest(text.as_bytes());
        digest
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    })?;
    let (key, draws) = (RandomKey::of_device(seed, u32::MAX, u32::MAX), Cell::new(0));
    let random = Function::new(ctx.clone(), move || {
        draws.set(draws.get() + 1);
        key.unit(draws.get())
    })?;
    let call: Function<'_> = prelude.call((random, digest, MAX_ACTIONS))?;
    Ok(Persistent::save(ctx, call))
}

/// The line and the message of what a script has thrown.
fn describe(error: &CaughtError<'_>, file: &str) -> (Option<u32>, String) {
    match error {
        CaughtError::Exception(exception) => {
            let name: Option<String> = exception.as_object().get("name").ok();
            let message = exception.message().unwrap_or_default();
            let message = match name {
                Some(name) if !message.is_empty() => format!("{name}: {message}"),
                name => name.unwrap_or(message),
            };
            (
                line_in(file, &exception.stack().unwrap_or_default()),
                message,
            )
        }
        // The engine throws this if no memory is left for an error.
        CaughtError::Value(value) if value.is_null() => (None, "out of memory".to_owned()),
        CaughtError::Value(value) => {
            let text = value
                .clone()
                .into_string()
                .and_then(|text| text.to_string().ok());
            let text = text.unwrap_or_else(|| format!("a value of type {}", value.type_name()));
            (None, format!("it has thrown {text}"))
        }
        CaughtError::Error(error) => (None, error.to_string()),
    }
}

impl ScriptLimits {
    /// Names the limit that was reached, with its setting.
    fn explain(&self, message: String, is_exhausted: bool) -> String {
        let message = message.replace(char::is_control, " ");
        if is_exhausted {
            return format!(
                "ended after {} steps; is there an endless loop? `max_steps` allows more",
                self.max_steps
            );
        }
        if message.contains("out of memory") {
            return format!(
                "needs more than {} bytes of memory; `max_memory_mib` allows more",
                self.max_memory_bytes
            );
        }
        if message.contains("stack size exceeded") || message.contains("stack overflow") {
            return format!(
                "needs more than {} bytes of stack; is a recursion endless? `max_stack_kib` allows more",
                self.max_stack_bytes
            );
        }
        match message.char_indices().nth(MAX_MESSAGE_CHARACTERS) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message,
        }
    }
}
