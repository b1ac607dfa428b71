//! Device actions: write telemetry, raise and clear alarms.

use rules::{CompileOptions, Rule};

use crate::action_error::{ActionError, invalid_value};
use crate::action_input::ActionInput;
use crate::definition::{AlarmActionDefinition, TelemetryActionDefinition};
use crate::definition_error::RuleDefinitionError;
use crate::ports::{DeviceAlarm, DevicePortOutcome, DeviceTelemetry, Severity};
use crate::producer_context::ProducerContext;
use crate::rule_lineage::RuleLineage;
use crate::template::{ActionTemplate, FixedOrTemplate, render};

pub(crate) struct DeviceTelemetryAction {
    device: ActionTemplate,
    /// `None`: the timestamp of the event.
    timestamp: Option<ActionTemplate>,
}

pub(crate) struct DeviceAlarmAction {
    device: ActionTemplate,
    name: ActionTemplate,
    severity: FixedOrTemplate<Severity>,
    is_cleared: FixedOrTemplate<bool>,
    /// `None`: the output as JSON.
    details: Option<ActionTemplate>,
}

impl DeviceTelemetryAction {
    pub(crate) fn compile(
        action: &TelemetryActionDefinition,
        options: &CompileOptions,
        path: &str,
    ) -> Result<Self, RuleDefinitionError> {
        let compile = |field: &str, text: &str| {
            ActionTemplate::compile(text, options, &format!("{path}.{field}"))
        };
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

    pub(crate) fn run<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        stage: &mut ProducerContext,
    ) -> Result<(), ActionError> {
        let (mut device, mut text) = (Vec::new(), Vec::new());
        let device_id = render_device_id(&self.device, made, stage, &mut device)?;
        let timestamp_ms = match &self.timestamp {
            None => made.view.event().timestamp_ms,
            Some(template) => {
                let text = render(template, made, &mut stage.stateless_state, &mut text)?;
                let ms = text.trim().parse();
                ms.map_err(|_| invalid_value("timestamp", text, "milliseconds since 1970"))?
            }
        };
        let telemetry = DeviceTelemetry {
            device_id,
            timestamp_ms,
            values: made.output.columns,
            rule: made.rule.name,
            tag: next_tag(made)?,
        };
        let producer = stage.producer as u16;
        let given = match stage.device_port() {
            Some(devices) => devices.write_telemetry(producer, &telemetry),
            None => return Err(ActionError::NoDevices),
        };
        handle_outcome(given, stage)
    }
}

impl DeviceAlarmAction {
    pub(crate) fn compile(
        action: &AlarmActionDefinition,
        options: &CompileOptions,
        path: &str,
    ) -> Result<Self, RuleDefinitionError> {
        let compile = |field: &str, text: &str| {
            ActionTemplate::compile(text, options, &format!("{path}.{field}"))
        };
        let severity = compile("severity", &action.severity)?;
        let severity = match severity.constant().map(Severity::parse) {
            None => FixedOrTemplate::Template(severity),
            Some(Some(severity)) => FixedOrTemplate::Fixed(severity),
            Some(None) => {
                let detail = format!("expected {SEVERITIES}, or a template");
                return Err(RuleDefinitionError::new(format!("{path}.severity"), detail));
            }
        };
        let clear = compile("clear", &action.clear)?;
        Ok(Self {
            device: compile("device", &action.device)?,
            name: compile("name", &action.name)?,
            severity,
            is_cleared: match clear.constant() {
                Some(text) => FixedOrTemplate::Fixed(text == "true"),
                None => FixedOrTemplate::Template(clear),
            },
            details: action
                .details
                .as_deref()
                .map(|text| {
                    ActionTemplate::compile_content(text, options, &format!("{path}.details"))
                })
                .transpose()?,
        })
    }

    pub(crate) fn unknown_names(&self, rule: &Rule) -> Vec<String> {
        let templates = [&self.device, &self.name].into_iter().chain(&self.details);
        templates
            .flat_map(|template| template.unknown_names(rule))
            .collect()
    }

    pub(crate) fn run<'a>(
        &'a self,
        made: &ActionInput<'_, 'a>,
        stage: &mut ProducerContext,
    ) -> Result<(), ActionError> {
        let (mut device, mut name, mut text) = (Vec::new(), Vec::new(), Vec::new());
        let device_id = render_device_id(&self.device, made, stage, &mut device)?;
        self.name
            .render_name("name", made, &mut stage.stateless_state, &mut name)?;
        let name =
            std::str::from_utf8(&name).map_err(|_| invalid_value("name", "bytes", "text"))?;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(invalid_value("name", name, "a text of 1 to 256 bytes"));
        }
        let severity = match &self.severity {
            FixedOrTemplate::Fixed(severity) => *severity,
            FixedOrTemplate::Template(template) => {
                let text = render(template, made, &mut stage.stateless_state, &mut text)?;
                Severity::parse(text.trim())
                    .ok_or_else(|| invalid_value("severity", text, SEVERITIES))?
            }
        };
        let is_cleared = match &self.is_cleared {
            FixedOrTemplate::Fixed(is_cleared) => *is_cleared,
            FixedOrTemplate::Template(template) => {
                match render(template, made, &mut stage.stateless_state, &mut text)?.trim() {
                    "true" | "1" => true,
                    "false" | "0" | "" | "null" | "undefined" => false,
                    other => return Err(invalid_value("clear", other, "true or false")),
                }
            }
        };
        text.clear();
        let details = match &self.details {
            Some(template) => render(template, made, &mut stage.stateless_state, &mut text)?,
            None => {
                made.output.write_json(&mut text);
                // JSON is always UTF-8.
                std::str::from_utf8(&text).unwrap_or_default()
            }
        };
        let alarm = DeviceAlarm {
            device_id,
            name,
            severity,
            is_cleared,
            timestamp_ms: made.view.event().timestamp_ms,
            details,
            rule: made.rule.name,
            tag: next_tag(made)?,
        };
        let producer = stage.producer as u16;
        let given = match stage.device_port() {
            Some(devices) => devices.write_alarm(producer, &alarm),
            None => return Err(ActionError::NoDevices),
        };
        handle_outcome(given, stage)
    }
}

const SEVERITIES: &str = "CRITICAL, MAJOR, MINOR, WARNING or INDETERMINATE";
const MAX_NAME_BYTES: usize = 256;

fn render_device_id<'t, 'a>(
    template: &'a ActionTemplate,
    made: &ActionInput<'_, 'a>,
    stage: &mut ProducerContext,
    text: &'t mut Vec<u8>,
) -> Result<&'t str, ActionError> {
    text.clear();
    template.render_name("device", made, &mut stage.stateless_state, text)?;
    match std::str::from_utf8(text) {
        Ok("") => Err(invalid_value("device", "", "the id of a device")),
        Ok(device_id) => Ok(device_id),
        Err(_) => Err(invalid_value("device", "bytes", "text")),
    }
}

/// The tag of events that result from this action: one level deeper.
fn next_tag(made: &ActionInput<'_, '_>) -> Result<u64, ActionError> {
    let depth = made.lineage.depth().saturating_add(1);
    if made.lineage != RuleLineage::NO_REPUBLISH && depth > made.rule.max_republish_depth {
        return Err(ActionError::RepublishTooDeep(depth));
    }
    Ok(match made.lineage {
        RuleLineage::NO_REPUBLISH => RuleLineage::NO_REPUBLISH.0,
        _ => RuleLineage::new(depth, made.rule.serial).0,
    })
}

fn handle_outcome(
    given: DevicePortOutcome,
    stage: &mut ProducerContext,
) -> Result<(), ActionError> {
    match given {
        DevicePortOutcome::Accepted => stage.record_device_write(),
        DevicePortOutcome::Full => {
            stage.record_device_write();
            stage.set_devices_full();
        }
        DevicePortOutcome::Rejected(why) => return Err(ActionError::Rejected(why)),
    }
    Ok(())
}
