//! The rule engine: connects the rule language to the hooks of the broker.
//!
//! [`Engine`] compiles the rules of a node and gives every shard the same immutable index of them. It is replaced as a
//! whole when a rule changes. Shards evaluate rules where events happen. Outputs are published, logged or handed to a
//! [`SinkPort`]. One thread owns the windows of all rules and all shards.

mod action;
mod action_error;
mod action_input;
mod bridge_events;
mod counters;
mod definition;
mod definition_error;
mod device_actions;
mod device_events;
mod engine;
mod engine_shared;
mod evaluation;
mod evaluation_context;
mod fallback;
mod field_reader;
mod file_events;
mod message_rules;
mod ports;
mod producer_context;
mod recent_error;
mod relay_events;
mod republish;
mod rule_hooks;
mod rule_json;
mod rule_lineage;
mod rule_metrics;
mod rule_test;
mod rule_test_outcome;
mod running_rule;
mod saved_state;
mod schema;
mod settings;
mod template;
mod test_event;
mod trace;
mod trace_record;
mod trace_watchers;
mod window_queue;
mod window_queue_level;
mod window_worker;

pub use bridge_events::BridgeMessage;
pub use counters::{RuleCounter, RuleTotals};
pub use definition::{
    ActionDefinition, ActionKind, AlarmActionDefinition, RULE_KIND, RepublishDefinition,
    RuleDefinition, RuleLimits, TelemetryActionDefinition, WindowLimits,
};
pub use definition_error::RuleDefinitionError;
pub use device_events::{DeviceEvent, DeviceEventKind};
pub use engine::{Engine, RuleCondition, RuleStatus};
pub use fallback::FailedRow;
pub use file_events::FileReceived;
pub use ports::{
    DeviceAlarm, DevicePort, DevicePortOutcome, DeviceTelemetry, OutputRow, OutputRowOrigin,
    Severity, SinkId, SinkPort, SinkPortOutcome,
};
pub use recent_error::RuleFailure;
pub use rule_json::RuleJson;
pub use rule_test_outcome::{
    ComparedOperand, CountedValues, RuleTestOutcome, TestedWindow, WindowTimeSource,
};
pub use saved_state::{RULE_STATE_KIND, WINDOW_KIND};
pub use settings::RuleEngineSettings;
pub use test_event::{TestEvent, TestEventInput};
pub use trace_record::TraceRecord;

#[cfg(test)]
mod tests;
