//! The messages that the devices of a fleet send by themselves.

use super::FleetCompiler;
use crate::definition::{SendDefinition, SendKind};
use crate::device_protocol::message_form;
use crate::gateway_protocol::child_message_form;
use crate::plan::SendPlan;
use crate::state::StateProgram;
use crate::suggestion::unknown_name;
use crate::template::{Template, TemplateScope};

impl FleetCompiler<'_> {
    pub(super) fn compile_send(
        &mut self,
        at: usize,
        send: &SendDefinition,
        scope: &TemplateScope<'_>,
        state: &StateProgram,
    ) -> SendPlan {
        let field = |name: &str| format!("send[{at}].{name}");
        if send.every.ns == 0 {
            self.error(&field("every"), "must be above 0");
        }
        if send.jitter >= send.every && send.jitter.ns > 0 {
            self.error(&field("jitter"), "must be shorter than `every`");
        }
        let qos = send.qos.unwrap_or(self.fleet.qos);
        self.check_qos(&field("qos"), qos);
        let qos = match send.kind {
            // Acknowledged by the response.
            Some(SendKind::Request) => 1,
            _ => self.effective_qos(qos),
        };
        if send.random_devices == Some(0) {
            self.error(&field("random_devices"), "must be at least 1");
        }
        let values = self.value_numbers(&field("values"), &send.values, state);
        let watch = (!send.on_change.is_empty()).then(|| {
            let numbers = self.value_numbers(&field("on_change"), &send.on_change, state);
            let mut watch = Template::default();
            watch.push_object(state, numbers.into_iter());
            watch
        });
        let (topic, payload) = self.compile_message(at, send, scope, (state, values));
        SendPlan {
            interval_ns: send.every.ns.max(1),
            jitter_ns: send.jitter.ns,
            start: send.start,
            random_devices: send.random_devices,
            watch,
            topic,
            payload,
            qos,
            retain: send.retain,
            is_telemetry: send.kind == Some(SendKind::Telemetry) && send.payload.is_none(),
        }
    }

    fn value_numbers(&mut self, field: &str, names: &[String], state: &StateProgram) -> Vec<usize> {
        let mut numbers = Vec::new();
        for name in names {
            match state.find(name) {
                Some(number) => numbers.push(number),
                None => {
                    let known = state.names().iter().map(String::as_str);
                    self.error(field, unknown_name("value", name, known));
                }
            }
        }
        numbers
    }

    fn compile_message(
        &mut self,
        at: usize,
        send: &SendDefinition,
        scope: &TemplateScope<'_>,
        (state, values): (&StateProgram, Vec<usize>),
    ) -> (Template, Template) {
        let field = |name: &str| format!("send[{at}].{name}");
        let Some(kind) = send.kind else {
            let (Some(topic), Some(payload)) = (&send.topic, &send.payload) else {
                self.error(
                    &format!("send[{at}]"),
                    "expected `topic` and `payload`, or `kind`",
                );
                return Default::default();
            };
            let topic = self.template(&field("topic"), topic, scope);
            return (topic, self.template(&field("payload"), payload, scope));
        };
        if (kind == SendKind::Request) != send.request.is_some() {
            self.error(
                &field("request"),
                "the kind `request` has the type of a request, and no other kind has one",
            );
        }
        let event = send.event.as_deref().unwrap_or_default();
        if (kind == SendKind::Event) == event.is_empty() {
            self.error(
                &field("event"),
                "the kind `event` has the name of an event, and no other kind has one",
            );
        }
        let form = match scope.gateway {
            None => message_form(self.protocol, kind),
            Some(_) => child_message_form(self.protocol, kind),
        };
        let form = match form {
            Ok(form) => form,
            Err(message) => {
                self.error(&field("kind"), message);
                return Default::default();
            }
        };
        let scope = TemplateScope { event, ..*scope };
        let topic = self.template(
            &field("topic"),
            send.topic.as_deref().unwrap_or(&form.topic),
            &scope,
        );
        if let Some(request) = &send.request {
            let parameters = send.payload.as_deref().unwrap_or("{}");
            let payload = format!(
                "{{\"requestType\":{},\"params\":{parameters}}}",
                serde_json::Value::from(request.as_str())
            );
            return (topic, self.template(&field("payload"), &payload, &scope));
        }
        if let Some(payload) = &send.payload {
            return (topic, self.template(&field("payload"), payload, &scope));
        }
        if state.names().is_empty() {
            self.error(
                &field("kind"),
                "the fleet has no values to send; add a table `state`",
            );
        }
        let mut payload = self.template(&field("kind"), form.front, &scope);
        let all = 0..state.names().len();
        if values.is_empty() {
            payload.push_object(state, all);
        } else {
            payload.push_object(state, values.into_iter());
        }
        payload.push_text(form.back);
        (topic, payload)
    }
}
