//! Messages that devices send on their own.

use load_client::client_error::ClientError;
use load_client::payload_stamp::{PayloadStamp, TEXT_BYTES};
use mqtt::{Packet, Property, Publish, QoS};

use super::super::storage_sampler::StorageSample;
use super::Worker;
use super::device::{ConnectionStage, InFlightMessage};
use crate::definition::{FaultKind, FleetTransport};
use crate::plan::SendPlan;
use crate::random::RandomKey;
use crate::schedule::{DueSend, interval_ns};
use crate::script::ScriptHook;
use crate::state::DeviceState;
use crate::template::{NO_STAMP, RenderInput, RequestView, Template};

/// Messages of the schedule that are sent before connections are looked after again.
const MAX_SENDS_PER_TURN: usize = 10_000;

/// User property with the stamp of a verified message.
const STAMP_PROPERTY: &str = "tidegate-stamp";
/// Messages that the thread would send later than this after they were due are left out.
const MAX_DELAY_NS: u64 = 1_000_000_000;

impl Worker<'_> {
    /// Sends what is due.
    pub(super) fn send_due(&mut self) {
        if self.load == 0.0 {
            return;
        }
        for _ in 0..MAX_SENDS_PER_TURN {
            let Some(due) = self.schedule.pop_due(self.now_ns) else {
                return;
            };
            let fleet = &self.plan.fleets[usize::from(due.fleet)];
            let send = &fleet.sends[usize::from(due.send)];
            let (key, step) = match (due.device, send.random_devices) {
                (DueSend::ALL, Some(count)) => {
                    self.send_random(due, count);
                    (fleet.key(self.plan.seed, fleet.first), self.draws as u32)
                }
                (device, _) => {
                    let device = device as usize;
                    self.send_message(device, due);
                    (self.key(device), self.devices[device].step)
                }
            };
            let interval_ns = interval_ns(send, due.send, key, step, self.load);
            // After a long stall, intervals begin anew instead of being made up for all at once.
            let next_ns = due.at_ns + interval_ns;
            let at_ns = if next_ns + MAX_DELAY_NS > self.now_ns {
                next_ns
            } else {
                let messages = send.random_devices.map_or(1, |count| {
                    super::share(count, self.thread, self.access.threads).len() as u64
                });
                self.counts().missed += (self.now_ns - next_ns) / interval_ns * messages;
                self.now_ns + interval_ns
            };
            self.schedule.push(DueSend { at_ns, ..due });
        }
    }

    /// Lets random devices of a fleet send, this thread's part of `count`.
    fn send_random(&mut self, due: DueSend, count: u32) {
        let part = super::share(count, self.thread, self.access.threads).len();
        let (first, devices) = {
            let fleet = &self.fleets[usize::from(due.fleet)];
            (fleet.first_device, fleet.count)
        };
        let key = RandomKey::of_device(self.plan.seed, u32::from(due.fleet), u32::MAX)
            .purpose(self.thread as u64)
            .purpose(u64::from(due.send));
        for _ in 0..part {
            self.draws += 1;
            let device = first + key.below(self.draws, u64::from(devices)) as usize;
            let is_offline = self.devices[device].stage != ConnectionStage::Ready;
            self.counts().offline += u64::from(is_offline);
            self.send_message(device, due);
        }
    }

    /// At the begin of a phase: each device sends each of its messages so many times.
    pub(super) fn send_burst(&mut self) {
        let burst = self.plan.phases[self.phase].burst;
        for device in 0..self.devices.len() * usize::from(burst > 0) {
            for number in 0..self.fleet(device).sends.len() {
                for _ in 0..burst {
                    let due = DueSend {
                        at_ns: self.now_ns,
                        device: device as u32,
                        send: number as u16,
                        fleet: self.devices[device].fleet,
                    };
                    self.send_message(device, due);
                }
            }
        }
    }

    fn send_message(&mut self, device: usize, due: DueSend) {
        let entry = &self.devices[device];
        if entry.stage != ConnectionStage::Ready || self.has_fault(device, FaultKind::Silence) {
            return;
        }
        let carrier = self.carrier(device);
        let entry = &self.devices[carrier];
        let is_busy = entry.in_flight.len() >= self.fleet(carrier).max_in_flight
            || entry
                .transport
                .as_ref()
                .is_none_or(|transport| transport.has_backlog());
        if is_busy {
            self.counts().skipped += 1;
            return;
        }
        let send = &self.plan.fleets[usize::from(due.fleet)].sends[usize::from(due.send)];
        let is_new = self.has_change(device, due, send);
        let outcome = if is_new {
            let is_verified = self.render_message(device, send, due.at_ns);
            let is_sent = match self.has_hook(device, ScriptHook::Send) {
                true => self.call_send(device),
                false => Ok(true),
            };
            let published = match is_sent {
                Ok(true) => self.publish(device, send.qos, send.retain, due.at_ns),
                Ok(false) => {
                    self.advance(device);
                    return;
                }
                Err(failure) => Err(failure),
            };
            self.devices[device].verified += u32::from(is_verified && published.is_ok());
            if send.is_telemetry
                && self.devices[device].fault == 0
                && let Some(sampler) = self.shared.storage_sampler()
            {
                sampler.offer(|| StorageSample {
                    device: self.render_text(&self.fleet(device).id, device),
                    ts_ms: self.wall_ms,
                    due_ns: due.at_ns,
                });
            }
            published
        } else {
            Ok(())
        };
        self.advance(device);
        if let Err(failure) = outcome {
            self.fail(carrier, &failure);
        }
    }

    /// Writes topic and payload of a message to the buffers; returns whether it has a stamp and is verified.
    fn render_message(&mut self, device: usize, send: &SendPlan, due_ns: u64) -> bool {
        let request = RequestView::default();
        let is_invalid = self.has_fault(device, FaultKind::InvalidPayload);
        let Some(verification) = self.plan.verification.as_ref().filter(|_| !is_invalid) else {
            self.render(device, &send.topic, &send.payload, request);
            if is_invalid {
                self.payload.truncate(self.payload.len() / 2);
            }
            return false;
        };
        self.render(device, &send.topic, &Template::default(), request);
        let topic = std::str::from_utf8(&self.topic).expect("templates and values are UTF-8");
        let is_in_payload = send.payload.has_stamp();
        let is_verified =
            (is_in_payload || self.sends_properties(device)) && verification.includes(topic);
        if !is_verified {
            self.render(device, &send.topic, &send.payload, request);
            return false;
        }
        let stamp = PayloadStamp {
            run: self.shared.run_id(),
            publisher: self.position(device),
            sequence: u64::from(self.devices[device].verified),
            sent_ns: due_ns,
        }
        .to_text();
        self.payload.clear();
        let mut payload = std::mem::take(&mut self.payload);
        let input = self.render_input(device, request, &stamp);
        send.payload.render(&input, &mut payload);
        self.payload = payload;
        if !is_in_payload {
            let stamp = std::str::from_utf8(&stamp).expect("a stamp is ASCII");
            self.properties
                .push(Property::UserProperty(STAMP_PROPERTY, stamp));
        }
        true
    }

    /// Whether stamps may be properties: other protocols than MQTT have none.
    fn sends_properties(&self, device: usize) -> bool {
        self.fleet(device).transport == FleetTransport::Mqtt
            && self
                .plan
                .verification
                .as_ref()
                .is_some_and(|verification| verification.uses_properties)
    }

    /// Whether a watched value differs from the last message; `true` without watched values.
    fn has_change(&mut self, device: usize, due: DueSend, send: &SendPlan) -> bool {
        let Some(watch) = &send.watch else {
            return true;
        };
        let sends = &self.plan.fleets[usize::from(due.fleet)].sends[..usize::from(due.send)];
        let position = sends.iter().filter(|send| send.watch.is_some()).count();
        self.render(device, &Template::default(), watch, RequestView::default());
        // FNV-1a; 0 means that nothing was sent yet.
        let hash = self
            .payload
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        let hash = hash.max(1);
        let fleet = &mut self.fleets[usize::from(due.fleet)];
        let at = (device - fleet.first_device) * fleet.watches + position;
        std::mem::replace(&mut fleet.watched[at], hash) != hash
    }

    fn advance(&mut self, device: usize) {
        let (fleet, key) = (self.fleet(device), self.key(device));
        let entry = &mut self.devices[device];
        entry.step = entry.step.wrapping_add(1);
        let part = &mut self.fleets[usize::from(entry.fleet)];
        let cells = fleet.state.cells();
        let at = (device - part.first_device) * cells;
        fleet
            .state
            .advance(key, entry.step, &mut part.cells[at..at + cells]);
    }

    /// Writes topic and payload of a message to the buffers.
    pub(super) fn render(
        &mut self,
        device: usize,
        topic: &Template,
        payload: &Template,
        request: RequestView<'_>,
    ) {
        // Taken out so that the buffers and the state of the device can be borrowed side by side.
        let mut buffers = (
            std::mem::take(&mut self.topic),
            std::mem::take(&mut self.payload),
        );
        buffers.0.clear();
        buffers.1.clear();
        let input = self.render_input(device, request, &NO_STAMP);
        topic.render(&input, &mut buffers.0);
        payload.render(&input, &mut buffers.1);
        (self.topic, self.payload) = buffers;
    }

    /// What the texts of a device depend on now.
    #[inline]
    pub(super) fn render_input<'r>(
        &'r self,
        device: usize,
        request: RequestView<'r>,
        stamp: &'r [u8; TEXT_BYTES],
    ) -> RenderInput<'r> {
        let fleet = self.fleet(device);
        let part = &self.fleets[usize::from(self.devices[device].fleet)];
        let cells = fleet.state.cells();
        let at = (device - part.first_device) * cells;
        RenderInput {
            index: self.index(device),
            gateway_index: fleet
                .gateway
                .as_ref()
                .map_or(0, |gateway| gateway.index_of(self.devices[device].number)),
            device: DeviceState {
                key: self.key(device),
                step: self.devices[device].step,
                elapsed_ns: self.now_ns.saturating_sub(self.run_start_ns),
                wall_ms: self.device_clock_ms(device),
                cells: &part.cells[at..at + cells],
            },
            program: &fleet.state,
            request,
            stamp,
        }
    }

    /// Adds the message in the buffers to the outbox of a device or its gateway, and empties the properties.
    pub(super) fn publish(
        &mut self,
        device: usize,
        qos: u8,
        retain: bool,
        due_ns: u64,
    ) -> Result<(), ClientError> {
        let carrier = self.carrier(device);
        let version = self.version(carrier);
        let entry = &mut self.devices[carrier];
        let qos = match qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        };
        let packet_id = if qos == QoS::AtMostOnce {
            0
        } else {
            entry.take_packet_id()
        };
        if packet_id != 0 {
            entry.in_flight.push(InFlightMessage { packet_id, due_ns });
        }
        // Taken out so that the buffers and the outbox of the device can be borrowed side by side.
        let (topic, payload, mut properties) = (
            std::mem::take(&mut self.topic),
            std::mem::take(&mut self.payload),
            std::mem::take(&mut self.properties),
        );
        let packet = Packet::Publish(Publish {
            dup: false,
            qos,
            retain,
            topic: std::str::from_utf8(&topic).expect("templates and values are UTF-8"),
            packet_id,
            properties: properties.as_properties(),
            payload: &payload,
        });
        let appended = self.append(carrier, |out| packet.encode(version, out));
        properties.clear();
        (self.topic, self.payload, self.properties) = (topic, payload, properties);
        appended?;
        let bytes = self.payload.len() as u64;
        let counts = self.counts();
        counts.sent += 1;
        counts.sent_bytes += bytes;
        Ok(())
    }
}
