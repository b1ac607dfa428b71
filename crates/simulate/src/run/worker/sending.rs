//! Messages that devices send on their own.

use load_client::client_failure::ClientFailure;
use mqtt::{Packet, Properties, Publish, QoS};

use super::Worker;
use super::device::{ConnectionStage, InFlightMessage};
use crate::definition::FaultKind;
use crate::plan::SendPlan;
use crate::random::RandomKey;
use crate::schedule::{DueSend, interval_ns};
use crate::state::DeviceState;
use crate::template::{RenderInput, RequestView, Template};

/// Messages of a device that are not acknowledged; more are not sent.
const MAX_IN_FLIGHT: usize = 100;
/// Messages of the schedule that are sent before connections are looked after again.
const MAX_SENDS_PER_TURN: usize = 10_000;

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
        let is_busy = entry.in_flight.len() >= MAX_IN_FLIGHT
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
            self.render(device, &send.topic, &send.payload, RequestView::default());
            if self.has_fault(device, FaultKind::InvalidPayload) {
                self.payload.truncate(self.payload.len() / 2);
            }
            self.publish(device, send.qos, send.retain, due.at_ns)
        } else {
            Ok(())
        };
        self.advance(device);
        if let Err(failure) = outcome {
            self.fail(device, &failure);
        }
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
        let fleet = self.fleet(device);
        let part = &self.fleets[usize::from(self.devices[device].fleet)];
        let cells = fleet.state.cells();
        let at = (device - part.first_device) * cells;
        let input = RenderInput {
            index: self.index(device),
            device: DeviceState {
                key: self.key(device),
                step: self.devices[device].step,
                elapsed_ns: self.now_ns.saturating_sub(self.run_start_ns),
                wall_ms: self.device_clock_ms(device),
                cells: &part.cells[at..at + cells],
            },
            program: &fleet.state,
            request,
        };
        self.topic.clear();
        self.payload.clear();
        topic.render(&input, &mut self.topic);
        payload.render(&input, &mut self.payload);
    }

    /// Adds the message in the buffers to the outbox of a device.
    pub(super) fn publish(
        &mut self,
        device: usize,
        qos: u8,
        retain: bool,
        due_ns: u64,
    ) -> Result<(), ClientFailure> {
        let version = self.access.version;
        let entry = &mut self.devices[device];
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
        let (topic, payload) = (
            std::mem::take(&mut self.topic),
            std::mem::take(&mut self.payload),
        );
        let packet = Packet::Publish(Publish {
            dup: false,
            qos,
            retain,
            topic: std::str::from_utf8(&topic).expect("templates and values are UTF-8"),
            packet_id,
            properties: Properties::EMPTY,
            payload: &payload,
        });
        let appended = self.append(device, |out| packet.encode(version, out));
        (self.topic, self.payload) = (topic, payload);
        appended?;
        let bytes = self.payload.len() as u64;
        let counts = self.counts();
        counts.sent += 1;
        counts.sent_bytes += bytes;
        Ok(())
    }
}
