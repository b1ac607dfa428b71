//! Requests to devices, and their answers after a delay.

use std::cmp::Reverse;

use serde_json::Value;

use super::Worker;
use super::device::ConnectionStage;
use super::pending_answer::{PendingAnswer, Request};
use crate::definition::{FaultKind, RequestKind};

/// Answers that wait in one thread; further requests are not answered.
const MAX_PENDING_ANSWERS: usize = 100_000;
/// Purpose of a device's random key from which outcomes are drawn; each response has its own.
const OUTCOME_PURPOSE: u64 = 3 << 32;

impl Worker<'_> {
    /// Decides how a device responds to a message.
    pub(super) fn queue_answer(&mut self, device: usize, topic: &str, payload: &[u8]) {
        let fleet = self.fleet(device);
        if fleet.responses.is_empty() && fleet.child_fleets.is_empty() {
            return;
        }
        let payload: Value = serde_json::from_slice(payload).unwrap_or_default();
        if let Some(child) = self.find_child(device, topic, &payload) {
            self.queue_device_answer(child, topic, &payload);
        } else {
            self.queue_device_answer(device, topic, &payload);
        }
    }

    fn queue_device_answer(&mut self, device: usize, topic: &str, payload: &Value) {
        let fleet = self.fleet(device);
        if self.has_fault(device, FaultKind::Silence) {
            return;
        }
        let found = fleet
            .responses
            .iter()
            .enumerate()
            .find_map(|(number, response)| {
                let filter = self.render_text(&response.filter, device);
                let is_ours = mqtt::filter_matches(&filter, topic);
                let request = is_ours.then(|| Request::read(response, topic, payload))?;
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
            key.unit(draw) < response.silent || self.pending_answers() >= MAX_PENDING_ANSWERS;
        if is_silent || response.answer.is_none() {
            self.counts().unanswered += u64::from(response.answer.is_some());
            return;
        }
        let (from, to) = (response.delay.from.ns as f64, response.delay.to.ns as f64);
        let delay_ns = key.between(draw + 1, from, to) as u64;
        let answer = PendingAnswer {
            at_ns: self.now_ns + delay_ns,
            device: device as u32,
            response: number as u16,
            is_failure: key.unit(draw + 2) < response.failure,
            request,
        };
        match response.kind == RequestKind::File && !answer.is_failure {
            true => self.begin_download(device, answer, delay_ns),
            false => self.answers.push(Reverse(answer)),
        }
    }

    /// Answers that wait for their time or a download.
    fn pending_answers(&self) -> usize {
        self.answers.len() + self.downloads.len()
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
                Err(failure) => self.fail(self.carrier(device), &failure),
            }
        }
    }
}
