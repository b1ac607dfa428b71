//! Calls of the hooks of scripts, and what they ask for.

use std::cmp::Reverse;

use load_client::client_error::ClientError;
use mqtt::{Properties, QoS, SubscribeBuf, SubscriptionOptions, TopicLimits};

use super::Worker;
use super::device::ConnectionStage;
use crate::plan::FleetPlan;
use crate::script::{
    ConnectOptions, ScriptAction, ScriptDevice, ScriptError, ScriptHook, ScriptMessage,
    ScriptSandbox,
};

/// A longer payload of a script is refused, like one of a template.
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
const SCRIPT_FAILURE: &str = "script error";
/// Draw of a device's random key for the first call of its timer.
const TIMER_DRAW: u64 = u64::MAX >> 3;

fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("templates and values are UTF-8")
}

impl Worker<'_> {
    /// Loads the scripts of all fleets.
    pub(super) fn load_scripts(&mut self) -> Result<(), ScriptError> {
        for fleet in &self.plan.fleets {
            let seed = self.plan.seed.wrapping_add(self.thread as u64);
            let sandbox = fleet
                .script
                .as_ref()
                .map(|script| ScriptSandbox::new(&script.plan.source, seed));
            self.scripts.push(sandbox.transpose()?);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn has_hook(&self, device: usize, hook: ScriptHook) -> bool {
        let script = &self.fleet(device).script;
        script.as_ref().is_some_and(|script| script.plan.has(hook))
    }

    /// Lets a script change the credentials of a connection.
    pub(super) fn call_before_connect(
        &mut self,
        device: usize,
        options: ConnectOptions,
    ) -> ConnectOptions {
        if !self.has_hook(device, ScriptHook::Connect) {
            return options;
        }
        let changed = self.call_hook(device, ScriptHook::Connect, Some(&options));
        changed.and_then(|(changed, _)| changed).unwrap_or(options)
    }

    /// Tells a script that a device has connected, and begins its timer.
    pub(super) fn call_connected(&mut self, device: usize) -> Result<(), ClientError> {
        if self.has_hook(device, ScriptHook::Connected) {
            let called = self.call_hook::<()>(device, ScriptHook::Connected, None);
            self.follow_script(device, called.map(|(_, actions)| actions))?;
        }
        self.schedule_timer(device);
        Ok(())
    }

    /// Gives a script a message to a device.
    pub(super) fn call_message(
        &mut self,
        device: usize,
        topic: &str,
        payload: &[u8],
    ) -> Result<(), ClientError> {
        if !self.has_hook(device, ScriptHook::Message) {
            return Ok(());
        }
        let message = ScriptMessage {
            topic: topic.to_owned(),
            payload: String::from_utf8_lossy(payload).into_owned(),
        };
        let called = self.call_hook(device, ScriptHook::Message, Some(&message));
        self.follow_script(device, called.map(|(_, actions)| actions))
    }

    /// Lets a script change the message in the buffers; `false`: it is not to be sent.
    pub(super) fn call_send(&mut self, device: usize) -> Result<bool, ClientError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let message = ScriptMessage {
            topic: text(&self.topic),
            payload: text(&self.payload),
        };
        // The hook may publish other messages, which use the same buffers.
        let properties = std::mem::take(&mut self.properties);
        let Some((changed, actions)) = self.call_hook(device, ScriptHook::Send, Some(&message))
        else {
            return Ok(false);
        };
        self.follow_script(device, Some(actions))?;
        self.properties = properties;
        let Some(changed) = changed else {
            self.properties.clear();
            return Ok(false);
        };
        let is_sent = self.fill_buffers(device, changed.topic, changed.payload);
        if !is_sent {
            self.properties.clear();
        }
        Ok(is_sent)
    }

    /// Calls the timers that are due.
    pub(super) fn call_timers(&mut self) {
        while let Some(&Reverse((at_ns, device))) = self.timers.peek() {
            if at_ns > self.now_ns || self.is_paused {
                return;
            }
            self.timers.pop();
            let device = device as usize;
            let interval_ns = self
                .fleet(device)
                .script
                .as_ref()
                .and_then(|script| script.plan.timer_ns);
            let Some(interval_ns) = interval_ns else {
                continue;
            };
            // Missed intervals are not made up for.
            let next_ns = at_ns + interval_ns;
            let next_ns = if next_ns > self.now_ns {
                next_ns
            } else {
                self.now_ns + interval_ns
            };
            self.timers.push(Reverse((next_ns, device as u32)));
            if self.devices[device].stage != ConnectionStage::Ready {
                continue;
            }
            let called = self.call_hook::<()>(device, ScriptHook::Timer, None);
            if let Err(failure) = self.follow_script(device, called.map(|(_, actions)| actions)) {
                self.fail(device, &failure);
            }
        }
    }

    /// The first call of a timer is some time after the first connection, another one for each device.
    fn schedule_timer(&mut self, device: usize) {
        let interval_ns = self
            .fleet(device)
            .script
            .as_ref()
            .and_then(|script| script.plan.timer_ns);
        let entry = &mut self.devices[device];
        if let Some(interval_ns) = interval_ns
            && !entry.has_timer
        {
            entry.has_timer = true;
            let delay_ns = self
                .key(device)
                .between(TIMER_DRAW, 0.0, interval_ns as f64);
            self.timers
                .push(Reverse((self.now_ns + delay_ns as u64, device as u32)));
        }
    }

    /// Calls a hook of the script of a device; `None`: it failed, which is counted.
    fn call_hook<T: serde::Serialize + serde::de::DeserializeOwned>(
        &mut self,
        device: usize,
        hook: ScriptHook,
        argument: Option<&T>,
    ) -> Option<(Option<T>, Vec<ScriptAction>)> {
        let fleet: &FleetPlan = self.fleet(device);
        let script = fleet.script.as_ref()?;
        let (topic, payload) = (
            std::mem::take(&mut self.topic),
            std::mem::take(&mut self.payload),
        );
        self.render(device, &fleet.id, &script.state, Default::default());
        let (id, state) = (
            std::mem::replace(&mut self.topic, topic),
            std::mem::replace(&mut self.payload, payload),
        );
        let shown = ScriptDevice {
            number: self.position(device),
            index: self.index(device),
            id: utf8(&id),
            fleet: &fleet.name,
            messages: self.devices[device].step,
            state: utf8(&state),
            now: self.device_clock_ms(device),
        };
        let sandbox = self.scripts[usize::from(self.devices[device].fleet)].as_mut()?;
        match sandbox.call(hook, &shown, argument) {
            Ok(outcome) => Some((outcome.value, outcome.actions)),
            Err(error) => {
                self.count_script_error(device, &error.to_string());
                None
            }
        }
    }

    fn count_script_error(&mut self, device: usize, error: &str) {
        let id = self.render_text(&self.fleet(device).id, device);
        self.shared.log_failure(&id, SCRIPT_FAILURE, &error);
        let counts = self.counts();
        counts.script_errors += 1;
        counts
            .failures
            .record_other(SCRIPT_FAILURE, || format!("{id}: {error}"));
    }

    fn follow_script(
        &mut self,
        device: usize,
        actions: Option<Vec<ScriptAction>>,
    ) -> Result<(), ClientError> {
        for action in actions.into_iter().flatten() {
            match action {
                ScriptAction::Log { text } => {
                    let id = self.render_text(&self.fleet(device).id, device);
                    self.shared.log_line(format!("{id}: {text}"));
                }
                _ if self.devices[device].stage != ConnectionStage::Ready => {}
                ScriptAction::Publish { qos, .. } | ScriptAction::Subscribe { qos, .. }
                    if qos > 2 =>
                {
                    self.count_script_error(
                        device,
                        &format!("QoS {qos} does not exist; expected 0, 1 or 2"),
                    );
                }
                ScriptAction::Publish {
                    topic,
                    payload,
                    qos,
                    retain,
                } => {
                    let entry = &self.devices[device];
                    if entry.in_flight.len() >= self.fleet(device).max_in_flight {
                        self.counts().skipped += 1;
                    } else if self.fill_buffers(device, topic, payload) {
                        self.publish(device, qos, retain, self.now_ns)?;
                    }
                }
                ScriptAction::Subscribe { filter, qos } => self.subscribe(device, &filter, qos)?,
                ScriptAction::Disconnect {} => {
                    self.disconnect(device);
                    self.stay_away(device, self.now_ns);
                }
            }
        }
        Ok(())
    }

    /// Puts a message of a script into the buffers; `false`: it is no valid message, which is counted.
    fn fill_buffers(&mut self, device: usize, topic: String, payload: String) -> bool {
        if let Err(error) = mqtt::validate_topic_name(&topic, &TopicLimits::NONE) {
            self.count_script_error(
                device,
                &format!("the topic `{topic}` of a message: {error}"),
            );
            return false;
        }
        if payload.len() > MAX_PAYLOAD_BYTES {
            let error = format!(
                "a payload of {} bytes; at most {MAX_PAYLOAD_BYTES} are allowed",
                payload.len()
            );
            self.count_script_error(device, &error);
            return false;
        }
        self.topic = topic.into_bytes();
        self.payload = payload.into_bytes();
        true
    }

    fn subscribe(&mut self, device: usize, filter: &str, qos: u8) -> Result<(), ClientError> {
        // Shared subscriptions have filters with a prefix, which brokers check.
        let filters = filter
            .strip_prefix("$share/")
            .and_then(|rest| rest.split_once('/'));
        let checked = filters.map_or(filter, |(_, filter)| filter);
        if let Err(error) = mqtt::validate_topic_filter(checked, &TopicLimits::NONE) {
            self.count_script_error(device, &format!("the topic filter `{filter}`: {error}"));
            return Ok(());
        }
        let qos = match qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        };
        let mut packet = SubscribeBuf::new(self.devices[device].take_packet_id());
        packet.push(filter, SubscriptionOptions::new(qos));
        let version = self.version(device);
        self.append(device, |out| packet.encode(Properties::EMPTY, version, out))
    }
}
