//! Requests to devices, and their answers after a delay.

use std::cmp::{Ordering, Reverse};

use serde_json::Value;

use super::Worker;
use super::device::ConnectionStage;
use crate::definition::{Dialect, RequestKind};
use crate::plan::ResponsePlan;
use crate::template::RequestView;

/// Answers that wait in one thread; further requests are not answered.
const MAX_PENDING_ANSWERS: usize = 100_000;
/// Purpose of a device's random key from which outcomes are drawn; each response has its own.
const OUTCOME_PURPOSE: u64 = 3 << 32;

/// An answer that is due at a time.
#[derive(Debug)]
pub(super) struct PendingAnswer {
    pub(super) at_ns: u64,
    device: u32,
    /// Number of the response of the fleet.
    response: u16,
    is_failure: bool,
    request: Request,
}

/// What is kept of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Request {
    id: String,
    method: String,
    /// JSON.
    params: String,
    topic_end: String,
}

impl PartialEq for PendingAnswer {
    fn eq(&self, other: &Self) -> bool {
        self.at_ns == other.at_ns
    }
}

impl Eq for PendingAnswer {}

impl PartialOrd for PendingAnswer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingAnswer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_ns.cmp(&other.at_ns)
    }
}

impl Worker<'_> {
    /// Decides how a device responds to a message.
    pub(super) fn queue_answer(&mut self, device: usize, topic: &str, payload: &[u8]) {
        let fleet = self.fleet(device);
        let payload: Value = serde_json::from_slice(payload).unwrap_or_default();
        let found = fleet
            .responses
            .iter()
            .enumerate()
            .find_map(|(number, response)| {
                let filter = self.render_text(&response.filter, device);
                let is_ours = mqtt::filter_matches(&filter, topic);
                let request = is_ours.then(|| Request::read(response, topic, &payload))?;
                let is_method = response
                    .method
                    .as_ref()
                    .is_none_or(|method| *method == request.method);
                is_method.then_some((number, response, request))
            });
        let Some((number, response, request)) = found else {
            return;
        };
        self.counts().requests += 1;
        self.draws += 1;
        let key = self.key(device).purpose(OUTCOME_PURPOSE + number as u64);
        let draw = self.draws * 3;
        let is_silent =
            key.unit(draw) < response.silent || self.answers.len() >= MAX_PENDING_ANSWERS;
        if is_silent || response.answer.is_none() {
            self.counts().unanswered += u64::from(response.answer.is_some());
            return;
        }
        let (from, to) = (response.delay.from.ns as f64, response.delay.to.ns as f64);
        self.answers.push(Reverse(PendingAnswer {
            at_ns: self.now_ns + key.between(draw + 1, from, to) as u64,
            device: device as u32,
            response: number as u16,
            is_failure: key.unit(draw + 2) < response.failure,
            request,
        }));
    }

    /// Sends the answers that are due.
    pub(super) fn send_answers(&mut self) {
        while self
            .answers
            .peek()
            .is_some_and(|answer| answer.0.at_ns <= self.now_ns)
        {
            let Some(Reverse(answer)) = self.answers.pop() else {
                return;
            };
            let device = answer.device as usize;
            if self.devices[device].stage != ConnectionStage::Ready {
                continue;
            }
            let fleet = self.fleet(device);
            let response = &fleet.responses[usize::from(answer.response)];
            let Some(plan) = &response.answer else {
                continue;
            };
            let payload = if answer.is_failure {
                &plan.failure
            } else {
                &plan.success
            };
            self.render(device, &plan.topic, payload, answer.request.view());
            let qos = fleet.subscription_qos;
            match self.publish(device, qos, false, answer.at_ns) {
                Ok(()) => {
                    let counts = self.counts();
                    counts.answers += 1;
                    counts.failed_answers += u64::from(answer.is_failure);
                }
                Err(failure) => self.fail(device, &failure),
            }
        }
    }
}

impl Request {
    /// Reads what a response may need.
    fn read(response: &ResponsePlan, topic: &str, payload: &Value) -> Self {
        let topic_end = topic.rsplit('/').next().unwrap_or_default().to_owned();
        let text = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let (id, method, params) = match (response.dialect, response.kind) {
            (Dialect::Jetlinks, RequestKind::Read | RequestKind::Write) => (
                text(&payload["messageId"]),
                String::new(),
                &payload["properties"],
            ),
            (Dialect::Jetlinks, _) => {
                let method = match text(&payload["functionId"]) {
                    method if method.is_empty() => text(&payload["function"]),
                    method => method,
                };
                (text(&payload["messageId"]), method, &payload["inputs"])
            }
            (Dialect::Raw, _) => (text(&payload["id"]), text(&payload["method"]), payload),
            (Dialect::Thingsboard | Dialect::Tidegate, _) => (
                topic_end.clone(),
                text(&payload["method"]),
                &payload["params"],
            ),
        };
        Self {
            id,
            method,
            params: params.to_string(),
            topic_end,
        }
    }

    fn view(&self) -> RequestView<'_> {
        RequestView {
            id: &self.id,
            method: &self.method,
            params: &self.params,
            topic_end: &self.topic_end,
        }
    }
}
