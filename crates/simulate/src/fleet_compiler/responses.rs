//! What the devices of a fleet answer to requests.

use super::FleetCompiler;
use crate::definition::{RequestKind, ResponseDefinition};
use crate::device_protocol::request_form;
use crate::gateway_protocol::child_request_form;
use crate::plan::{AnswerPlan, ResponsePlan};
use crate::template::{Template, TemplateScope};

/// Method of commands that name a file.
const FILE_METHOD: &str = "download";

impl FleetCompiler<'_> {
    /// A response, and the filter that the connection subscribes to for it.
    pub(super) fn compile_response(
        &mut self,
        at: usize,
        response: &ResponseDefinition,
        scope: &TemplateScope<'_>,
    ) -> Option<(ResponsePlan, String)> {
        let field = |name: &str| format!("on[{at}].{name}");
        let of_answer = TemplateScope {
            is_response: true,
            ..*scope
        };
        if response.kind == RequestKind::Topic {
            return self.compile_topic_response(at, response, scope);
        }
        let form = match scope.gateway {
            None => request_form(self.protocol, response.kind).map(|form| {
                let filter = form.filter.clone();
                (form, filter)
            }),
            Some(_) => child_request_form(self.protocol, response.kind),
        };
        let (form, subscription) = match form {
            Ok(form) => form,
            Err(message) => {
                self.error(&field("kind"), message);
                return None;
            }
        };
        let topic = response.answer_topic.as_ref().unwrap_or(&form.answer_topic);
        let payload = |text: &str| format!("{}{text}{}", form.front, form.back);
        let success = payload(response.answer.as_deref().unwrap_or(form.success));
        let failure = match response.kind {
            RequestKind::File => form
                .failure
                .replace(
                    "simulated failure",
                    "the file cannot be downloaded or is damaged",
                )
                .replace("\"simulated\"", "\"download\""),
            _ => form.failure.to_owned(),
        };
        let answer = (!topic.is_empty()).then(|| AnswerPlan {
            topic: self.template(&field("answer_topic"), topic, &of_answer),
            success: self.template(&field("answer"), &success, &of_answer),
            failure: self.template(&field("answer"), &payload(&failure), &of_answer),
        });
        let method = match response.kind {
            RequestKind::File => Some(FILE_METHOD),
            _ => form.method,
        };
        let method = response.method.clone().or(method.map(str::to_owned));
        let filter = self.template(&field("topic"), &form.filter, scope);
        let plan = self.response_plan(response, scope, (filter, method, answer));
        Some((plan, subscription))
    }

    /// A response to messages on any topic.
    fn compile_topic_response(
        &mut self,
        at: usize,
        response: &ResponseDefinition,
        scope: &TemplateScope<'_>,
    ) -> Option<(ResponsePlan, String)> {
        let field = |name: &str| format!("on[{at}].{name}");
        let of_answer = TemplateScope {
            is_response: true,
            ..*scope
        };
        if scope.gateway.is_some() {
            self.error(
                &field("kind"),
                "devices with a `gateway` respond to requests of their protocol only",
            );
            return None;
        }
        let Some(topic) = &response.topic else {
            self.error(&field("topic"), "`kind = \"topic\"` needs a topic filter");
            return None;
        };
        let answer = match (&response.answer_topic, &response.answer) {
            (Some(topic), Some(answer)) => {
                let payload = self.template(&field("answer"), answer, &of_answer);
                Some(AnswerPlan {
                    topic: self.template(&field("answer_topic"), topic, &of_answer),
                    success: payload.clone(),
                    failure: payload,
                })
            }
            (None, None) => None,
            _ => {
                self.error(
                    &format!("on[{at}]"),
                    "`answer_topic` and `answer` belong together",
                );
                None
            }
        };
        let filter = self.template(&field("topic"), topic, scope);
        let method = response.method.clone();
        let plan = self.response_plan(response, scope, (filter, method, answer));
        Some((plan, topic.clone()))
    }

    fn response_plan(
        &self,
        response: &ResponseDefinition,
        scope: &TemplateScope<'_>,
        (filter, method, answer): (Template, Option<String>, Option<AnswerPlan>),
    ) -> ResponsePlan {
        ResponsePlan {
            kind: response.kind,
            protocol: self.protocol,
            is_child: scope.gateway.is_some(),
            filter,
            method,
            delay: response.delay,
            silent: response.silent.0,
            failure: response.failure.0,
            answer,
        }
    }
}
