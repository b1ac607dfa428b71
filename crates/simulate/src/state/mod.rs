//! Values of simulated devices: generators compiled from their definitions.
//!
//! A value is a function of the device's random key, of the number of messages made so far (its step) and of time. Only
//! walks, counters and booleans with a memory keep a number for each device, in a cell of [`StateProgram::cells`].

mod generator;
mod replay;
mod route;
mod state_value;
mod street_map;
#[cfg(test)]
mod tests;

pub(crate) use replay::ReplaySources;
pub(crate) use state_value::{Component, DeviceState, StateValue};

use crate::definition::{DefinitionError, StateDefinition};
use crate::random::RandomKey;
use generator::Generator;

/// Most values of a fleet.
const MAX_VALUES: usize = 1000;

/// The compiled values of a fleet.
#[derive(Debug, Default)]
pub(crate) struct StateProgram {
    names: Vec<String>,
    generators: Vec<Generator>,
    /// Cell of each generator, if it has one.
    cell_of: Vec<Option<u16>>,
    cells: usize,
}

impl StateProgram {
    /// Compiles the values of a fleet; `path` is that of the table, `folder` that of the simulation file.
    pub(crate) fn compile<'d>(
        definitions: impl Iterator<Item = (&'d String, &'d StateDefinition)>,
        path: &str,
        sources: &ReplaySources<'_>,
        errors: &mut Vec<DefinitionError>,
    ) -> Self {
        let mut program = Self::default();
        for (name, definition) in definitions {
            let path = format!("{path}.{name}");
            if !is_name(name) {
                errors.push(DefinitionError::new(
                    path,
                    "expected a name of letters, digits and `_` that begins with a letter",
                ));
                continue;
            }
            match Generator::compile(definition, sources) {
                Ok(generator) => {
                    let cell = generator.has_cell().then_some(program.cells as u16);
                    program.cells += usize::from(cell.is_some());
                    program.cell_of.push(cell);
                    program.names.push(name.clone());
                    program.generators.push(generator);
                }
                Err((field, message)) => {
                    let path = if field.is_empty() {
                        path
                    } else {
                        format!("{path}.{field}")
                    };
                    errors.push(DefinitionError::new(path, message));
                }
            }
        }
        if program.names.len() > MAX_VALUES {
            errors.push(DefinitionError::new(
                path,
                format!(
                    "{} values; a fleet has at most {MAX_VALUES}",
                    program.names.len()
                ),
            ));
        }
        program
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The number of a value.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known == name)
    }

    /// Whether the value is a position with components.
    pub(crate) fn is_position(&self, value: usize) -> bool {
        matches!(self.generators[value], Generator::Route(_))
    }

    /// Cells of a device.
    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    /// Sets the cells of a device to their first values.
    pub(crate) fn initialize(&self, key: RandomKey, cells: &mut [f64]) {
        for (number, generator) in self.generators.iter().enumerate() {
            if let Some(cell) = self.cell_of[number] {
                cells[usize::from(cell)] = generator.first_cell(key.purpose(number as u64));
            }
        }
    }

    /// Advances the cells of a device to its step `step`.
    #[inline]
    pub(crate) fn advance(&self, key: RandomKey, step: u32, cells: &mut [f64]) {
        if self.cells == 0 {
            return;
        }
        for (number, generator) in self.generators.iter().enumerate() {
            if let Some(cell) = self.cell_of[number] {
                let cell = &mut cells[usize::from(cell)];
                *cell = generator.next_cell(*cell, key.purpose(number as u64), step);
            }
        }
    }

    /// A value of a device.
    #[inline]
    pub(crate) fn value(
        &self,
        number: usize,
        component: Component,
        device: &DeviceState<'_>,
    ) -> StateValue<'_> {
        let cell = self.cell_of[number].map_or(0.0, |cell| device.cells[usize::from(cell)]);
        self.generators[number].value(component, cell, device, device.key.purpose(number as u64))
    }
}

fn is_name(text: &str) -> bool {
    let mut letters = text.bytes();
    letters
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
}
