//! Actions on devices: telemetry kept, alarms raised and cleared.

use rules::{Options, Rule};

use crate::action::{Choice, Failure, Made, filled, not};
use crate::bound::{Bound, Lineage};
use crate::definition::{AlarmAction, TelemetryAction};
use crate::error::Invalid;
use crate::outlet::{Alarm, Given, Severity, Telemetry};
use crate::stage::Stage;
use crate::template::Template;

pub(crate) struct OfTelemetry {
    device: Template,
    /// `None`: the event's.
    timestamp: Option<Template>,
}

pub(crate) struct OfAlarm {
    device: Template,
    name: Template,
    severity: Choice<Severity>,
    is_cleared: Choice<bool>,
    /// `None`: the output as JSON.
    details: Option<Template>,
}

impl OfTelemetry {
    pub(crate) fn bind(
        action: &TelemetryAction,
        options: &Options,
        path: &str,
    ) -> Result<Self, Invalid> {
        let compile =
            |field: &str, text: &str| Template::compile(text, options, &format!("{path}.{field}"));
        let timestamp = action.timestamp.as_deref();
        Ok(Self {
            device: compile("device", &action.device)?,
            timestamp: timestamp
                .map(|text| compile("timestamp", text))
                .transpose()?,
        })
    }

    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        let templates = std::iter::once(&self.device).chain(&self.timestamp);
        templates
            .flat_map(|template| template.unknown_names(rule))
            .collect()
    }

    pub(crate) fn perform<'a>(
        &'a self,
        bound: &'a Bound,
        made: &Made<'_, 'a>,
        stage: &mut Stage,
    ) -> Result<(), Failure> {
        let (mut device, mut text) = (Vec::new(), Vec::new());
        let device_id = device_of(&self.device, made, stage, &mut device)?;
        let timestamp_ms = match &self.timestamp {
            None => made.view.event().timestamp_ms,
            Some(template) => {
                let text = filled(template, made, &mut stage.spare, &mut text)?;
                let ms = text.trim().parse();
                ms.map_err(|_| not("timestamp", text, "milliseconds since 1970"))?
            }
        };
        let telemetry = Telemetry {
            device_id,
            timestamp_ms,
            values: made.output.columns,
            rule: &bound.name,
            tag: tag_of(bound, made)?,
        };
        let lane = stage.lane as u16;
        let given = match stage.devices() {
            Some(devices) => devices.telemetry(lane, &telemetry),
            None => return Err(Failure::NoDevices),
        };
        settle(given, stage)
    }
}

impl OfAlarm {
    pub(crate) fn bind(
        action: &AlarmAction,
        options: &Options,
        path: &str,
    ) -> Result<Self, Invalid> {
        let compile =
            |field: &str, text: &str| Template::compile(text, options, &format!("{path}.{field}"));
        let severity = compile("severity", &action.severity)?;
        let severity = match severity.constant().map(Severity::parse) {
            None => Choice::Filled(severity),
            Some(Some(severity)) => Choice::Fixed(severity),
            Some(None) => {
                let detail = format!("expected {SEVERITIES}, or a template");
                return Err(Invalid::new(format!("{path}.severity"), detail));
            }
        };
        let clear = compile("clear", &action.clear)?;
        Ok(Self {
            device: compile("device", &action.device)?,
            name: compile("name", &action.name)?,
            severity,
            is_cleared: match clear.constant() {
                Some(text) => Choice::Fixed(text == "true"),
                None => Choice::Filled(clear),
            },
            details: action
                .details
                .as_deref()
                .map(|text| Template::compile_content(text, options, &format!("{path}.details")))
                .transpose()?,
        })
    }

    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        let templates = [&self.device, &self.name].into_iter().chain(&self.details);
        templates
            .flat_map(|template| template.unknown_names(rule))
            .collect()
    }

    pub(crate) fn perform<'a>(
        &'a self,
        bound: &'a Bound,
        made: &Made<'_, 'a>,
        stage: &mut Stage,
    ) -> Result<(), Failure> {
        let (mut device, mut name, mut text) = (Vec::new(), Vec::new(), Vec::new());
        let device_id = device_of(&self.device, made, stage, &mut device)?;
        self.name
            .fill_name("name", made, &mut stage.spare, &mut name)?;
        let name = std::str::from_utf8(&name).map_err(|_| not("name", "bytes", "text"))?;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(not("name", name, "a text of 1 to 256 bytes"));
        }
        let severity = match &self.severity {
            Choice::Fixed(severity) => *severity,
            Choice::Filled(template) => {
                let text = filled(template, made, &mut stage.spare, &mut text)?;
                Severity::parse(text.trim()).ok_or_else(|| not("severity", text, SEVERITIES))?
            }
        };
        let is_cleared = match &self.is_cleared {
            Choice::Fixed(is_cleared) => *is_cleared,
            Choice::Filled(template) => {
                match filled(template, made, &mut stage.spare, &mut text)?.trim() {
                    "true" | "1" => true,
                    "false" | "0" | "" | "null" | "undefined" => false,
                    other => return Err(not("clear", other, "true or false")),
                }
            }
        };
        text.clear();
        let details = match &self.details {
            Some(template) => filled(template, made, &mut stage.spare, &mut text)?,
            None => {
                made.output.write_json(&mut text);
                // JSON is text.
                std::str::from_utf8(&text).unwrap_or_default()
            }
        };
        let alarm = Alarm {
            device_id,
            name,
            severity,
            is_cleared,
            timestamp_ms: made.view.event().timestamp_ms,
            details,
            rule: &bound.name,
            tag: tag_of(bound, made)?,
        };
        let lane = stage.lane as u16;
        let given = match stage.devices() {
            Some(devices) => devices.alarm(lane, &alarm),
            None => return Err(Failure::NoDevices),
        };
        settle(given, stage)
    }
}

const SEVERITIES: &str = "CRITICAL, MAJOR, MINOR, WARNING or INDETERMINATE";
const MAX_NAME_BYTES: usize = 256;

fn device_of<'t, 'a>(
    template: &'a Template,
    made: &Made<'_, 'a>,
    stage: &mut Stage,
    text: &'t mut Vec<u8>,
) -> Result<&'t str, Failure> {
    text.clear();
    template.fill_name("device", made, &mut stage.spare, text)?;
    match std::str::from_utf8(text) {
        Ok("") => Err(not("device", "", "the id of a device")),
        Ok(device_id) => Ok(device_id),
        Err(_) => Err(not("device", "bytes", "text")),
    }
}

/// What is told of it in turn is a level deeper.
fn tag_of(bound: &Bound, made: &Made<'_, '_>) -> Result<u64, Failure> {
    let depth = made.lineage.depth().saturating_add(1);
    if made.lineage != Lineage::END && depth > bound.max_republish_depth {
        return Err(Failure::TooDeep(depth));
    }
    Ok(match made.lineage {
        Lineage::END => Lineage::END.0,
        _ => Lineage::new(depth, bound.serial).0,
    })
}

fn settle(given: Given, stage: &mut Stage) -> Result<(), Failure> {
    match given {
        Given::Taken => stage.note_given(),
        Given::Full => {
            stage.note_given();
            stage.note_devices_full();
        }
        Given::Refused(why) => return Err(Failure::Refused(why)),
    }
    Ok(())
}
