//! Compiles the script of a fleet, and checks its limits.

use std::path::Path;

use crate::definition::{DefinitionError, ScriptDefinition};
use crate::plan::FleetScript;
use crate::script::{ScriptLimits, ScriptPlan, ScriptSource};
use crate::state::StateProgram;
use crate::template::Template;

const MAX_SCRIPT_BYTES: u64 = 1 << 20;
const STEPS: std::ops::RangeInclusive<u64> = 10_000..=1_000_000_000;
const MEMORY_MIB: std::ops::RangeInclusive<u32> = 1..=4096;
/// A thread has a stack of 2 MiB.
const STACK_KIB: std::ops::RangeInclusive<u32> = 64..=1024;
/// More often, a timer is a send.
const MIN_TIMER_NS: u64 = 1_000_000;

/// `path` is that of the table, `folder` that of the simulation file. An error is added to `errors`.
pub(crate) fn compile(
    definition: &ScriptDefinition,
    path: &str,
    folder: &Path,
    state: &StateProgram,
    errors: &mut Vec<DefinitionError>,
) -> Option<FleetScript> {
    let mut error = |field: &str, message: String| {
        errors.push(DefinitionError::new(format!("{path}.{field}"), message));
    };
    let mut is_valid = true;
    let mut check = |is_in_range: bool, field: &str, message: String| {
        if !is_in_range {
            is_valid = false;
            error(field, message);
        }
    };
    let (steps, memory, stack) = (
        definition.max_steps,
        definition.max_memory_mib,
        definition.max_stack_kib,
    );
    check(
        STEPS.contains(&steps),
        "max_steps",
        format!(
            "expected {} to {}, found {steps}",
            STEPS.start(),
            STEPS.end()
        ),
    );
    check(
        MEMORY_MIB.contains(&memory),
        "max_memory_mib",
        format!(
            "expected {} to {}, found {memory}",
            MEMORY_MIB.start(),
            MEMORY_MIB.end()
        ),
    );
    check(
        STACK_KIB.contains(&stack),
        "max_stack_kib",
        format!(
            "expected {} to {}, found {stack}",
            STACK_KIB.start(),
            STACK_KIB.end()
        ),
    );
    check(
        definition
            .timer
            .is_none_or(|timer| timer.ns >= MIN_TIMER_NS),
        "timer",
        "must be at least 1 ms".to_owned(),
    );
    if !is_valid {
        return None;
    }
    let (file, text) = match read_source(definition, path, folder) {
        Ok(found) => found,
        Err((field, message)) => {
            error(field, message);
            return None;
        }
    };
    let limits = ScriptLimits {
        max_steps: steps,
        max_memory_bytes: memory as usize * 1024 * 1024,
        max_stack_bytes: stack as usize * 1024,
    };
    let timer_ns = definition.timer.map(|timer| timer.ns);
    let source = ScriptSource { file, text, limits };
    let mut values = Template::default();
    values.push_object(state, 0..state.names().len());
    match ScriptPlan::compile(source, timer_ns) {
        Ok(plan) => Some(FleetScript {
            plan,
            state: values,
        }),
        Err(message) => {
            let field = if definition.file.is_some() {
                "file"
            } else {
                "text"
            };
            error(field, message);
            None
        }
    }
}

/// The name and the text of the script, or the field that is wrong.
fn read_source(
    definition: &ScriptDefinition,
    path: &str,
    folder: &Path,
) -> Result<(String, String), (&'static str, String)> {
    match (&definition.file, &definition.text) {
        (None, Some(text)) => Ok((path.to_owned(), text.clone())),
        (Some(file), None) => {
            let name = file.display().to_string();
            let found = folder.join(file);
            let size = std::fs::metadata(&found).map(|metadata| metadata.len());
            match size {
                Ok(bytes) if bytes > MAX_SCRIPT_BYTES => Err((
                    "file",
                    format!("{name} has {bytes} bytes; at most {MAX_SCRIPT_BYTES} are allowed"),
                )),
                _ => std::fs::read_to_string(&found)
                    .map(|text| (name.clone(), text))
                    .map_err(|error| ("file", format!("cannot read {name}: {error}"))),
            }
        }
        _ => Err(("file", "expected either `file` or `text`".to_owned())),
    }
}
