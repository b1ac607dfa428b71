//! Scripts of fleets, in JavaScript: hooks that change connections and messages, without access to the host.
//!
//! [`hook`] is the interface to the worker, [`sandbox`] runs one script with limits, and [`position`] finds where it failed.
//! `prelude.js` is evaluated before each script and defines what it may use.

mod hook;
mod position;
mod sandbox;
#[cfg(test)]
mod tests;

pub(crate) use hook::{ConnectOptions, ScriptAction, ScriptDevice, ScriptHook, ScriptMessage};
pub(crate) use sandbox::{ScriptError, ScriptLimits, ScriptSandbox, ScriptSource};

/// A script of a fleet, and the hooks that it has.
#[derive(Clone, Debug)]
pub(crate) struct ScriptPlan {
    pub(crate) source: ScriptSource,
    hooks: Vec<ScriptHook>,
    /// Interval of `onTimer`.
    pub(crate) timer_ns: Option<u64>,
}

impl ScriptPlan {
    /// Runs the script once, which detects errors of syntax and finds its hooks.
    pub(crate) fn compile(source: ScriptSource, timer_ns: Option<u64>) -> Result<Self, String> {
        let sandbox = ScriptSandbox::new(&source, 0).map_err(|error| error.to_string())?;
        let mut plan = Self {
            source,
            hooks: Vec::new(),
            timer_ns,
        };
        plan.hooks = ScriptHook::ALL
            .into_iter()
            .filter(|hook| sandbox.defines(*hook))
            .collect();
        if plan.hooks.is_empty() {
            let names = ScriptHook::ALL.map(ScriptHook::name).join(", ");
            return Err(format!(
                "{}: defines no hook; expected a function with one of the names {names}",
                plan.source.file
            ));
        }
        match (plan.has(ScriptHook::Timer), timer_ns) {
            (true, None) => Err(format!(
                "{}: defines onTimer; set its interval with `timer`",
                plan.source.file
            )),
            (false, Some(_)) => Err(format!(
                "{}: `timer` is set, but the script defines no function onTimer",
                plan.source.file
            )),
            _ => Ok(plan),
        }
    }

    #[inline]
    pub(crate) fn has(&self, hook: ScriptHook) -> bool {
        self.hooks.contains(&hook)
    }
}
