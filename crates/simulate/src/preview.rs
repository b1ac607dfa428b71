//! The first messages of a simulation in order of time, without a network.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::message_sampler::{MessageMoment, MessageSampler};
use crate::plan::SimulationPlan;
use crate::random::RandomKey;
use crate::schedule::{DueSend, SendSchedule, first_delay_ns, interval_ns};
use crate::script::ScriptMessage;
use crate::state::DeviceState;
use crate::template::{NO_STAMP, RenderInput, RequestView, Template};

/// Messages that are made at most; those without a change are not printed.
const MAX_MESSAGES: usize = 1_000_000;
/// Devices of each fleet that a preview follows.
const MAX_DEVICES: u32 = 10_000;

struct PreviewDevice {
    step: u32,
    cells: Vec<f64>,
    /// For each send, the watched values of its last message.
    watched: Vec<Vec<u8>>,
}

/// Prints `count` messages as text, or as JSON lines.
pub(crate) fn print(
    plan: &SimulationPlan,
    count: usize,
    wall_ms: u64,
    as_json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut schedule = SendSchedule::default();
    let mut fleets: Vec<Vec<PreviewDevice>> = Vec::new();
    for fleet in &plan.fleets {
        let devices = (0..fleet.count.min(MAX_DEVICES)).map(|number| {
            let mut cells = vec![0.0; fleet.state.cells()];
            let key = fleet.key(plan.seed, fleet.first + number);
            fleet.state.initialize(key, &mut cells);
            PreviewDevice {
                step: 0,
                cells,
                watched: vec![Vec::new(); fleet.sends.len()],
            }
        });
        fleets.push(devices.collect());
        for (at, send) in fleet.sends.iter().enumerate() {
            let due = |device, at_ns| DueSend {
                at_ns,
                device,
                send: at as u16,
                fleet: fleet.number as u16,
            };
            if send.random_devices.is_some() {
                schedule.push(due(DueSend::ALL, 0));
                continue;
            }
            for number in 0..fleet.count.min(MAX_DEVICES) {
                let key = fleet.key(plan.seed, fleet.first + number);
                schedule.push(due(number, first_delay_ns(send, at as u16, key)));
            }
        }
    }
    let mut printer = PreviewPrinter {
        plan,
        sampler: MessageSampler::new(plan).map_err(io::Error::other)?,
        wall_ms,
        as_json,
        out,
        left: count,
    };
    for _ in 0..MAX_MESSAGES {
        if printer.left == 0 {
            break;
        }
        let Some(due) = schedule.pop_due(u64::MAX) else {
            break;
        };
        let fleet = &plan.fleets[usize::from(due.fleet)];
        let send = &fleet.sends[usize::from(due.send)];
        let devices = &mut fleets[usize::from(due.fleet)];
        let key = match due.device {
            DueSend::ALL => fleet.key(plan.seed, fleet.first),
            device => fleet.key(plan.seed, fleet.first + device),
        };
        match (due.device, send.random_devices) {
            (DueSend::ALL, Some(random)) => {
                let tick = due.at_ns / send.interval_ns;
                for draw in 0..u64::from(random) {
                    let pick = RandomKey::of_device(plan.seed, fleet.number, u32::MAX)
                        .purpose(u64::from(due.send))
                        .below(tick * u64::from(random) + draw, devices.len() as u64);
                    printer.message(due, pick as u32, &mut devices[pick as usize])?;
                    if printer.left == 0 {
                        break;
                    }
                }
            }
            (number, _) => printer.message(due, number, &mut devices[number as usize])?,
        }
        let interval = interval_ns(
            send,
            due.send,
            key,
            (due.at_ns / send.interval_ns) as u32,
            1.0,
        );
        schedule.push(DueSend {
            at_ns: due.at_ns + interval,
            ..due
        });
    }
    Ok(())
}

struct PreviewPrinter<'a> {
    plan: &'a SimulationPlan,
    sampler: MessageSampler<'a>,
    wall_ms: u64,
    as_json: bool,
    out: &'a mut dyn Write,
    left: usize,
}

impl PreviewPrinter<'_> {
    fn message(&mut self, due: DueSend, number: u32, device: &mut PreviewDevice) -> io::Result<()> {
        let fleet = &self.plan.fleets[usize::from(due.fleet)];
        let send = &fleet.sends[usize::from(due.send)];
        let index = fleet.first + number;
        let key = fleet.key(self.plan.seed, index);
        let input = RenderInput {
            index,
            gateway_index: fleet
                .gateway
                .as_ref()
                .map_or(0, |gateway| gateway.index_of(number)),
            device: DeviceState {
                key,
                step: device.step,
                elapsed_ns: due.at_ns,
                wall_ms: self.wall_ms + due.at_ns / 1_000_000,
                cells: &device.cells,
            },
            program: &fleet.state,
            request: RequestView::default(),
            stamp: &NO_STAMP,
        };
        let render = |template: &Template| {
            let mut text = Vec::new();
            template.render(&input, &mut text);
            text
        };
        let watched = send.watch.as_ref().map(render);
        let is_new = watched
            .as_ref()
            .is_none_or(|watched| *watched != device.watched[usize::from(due.send)]);
        if is_new {
            let id = String::from_utf8_lossy(&render(&fleet.id)).into_owned();
            let moment = MessageMoment {
                step: device.step,
                elapsed_ns: input.device.elapsed_ns,
                wall_ms: input.device.wall_ms,
                cells: &device.cells,
            };
            let message = self.sampler.message(
                usize::from(due.fleet),
                number,
                usize::from(due.send),
                &moment,
            );
            let message = message.map_err(io::Error::other)?;
            let seconds = due.at_ns as f64 / 1e9;
            let Some(ScriptMessage { topic, payload }) = message else {
                device.step += 1;
                fleet.state.advance(key, device.step, &mut device.cells);
                return Ok(());
            };
            if self.as_json {
                let payload = serde_json::from_str(&payload).unwrap_or(Value::String(payload));
                let line = json!({
                    "at_s": seconds, "fleet": fleet.name, "device": id, "topic": topic, "qos": send.qos,
                    "payload": payload,
                });
                writeln!(self.out, "{line}")?;
            } else {
                writeln!(self.out, "{seconds:>10.3} s  {id}  {topic}  {payload}")?;
            }
            self.left -= 1;
            if let Some(watched) = watched {
                device.watched[usize::from(due.send)] = watched;
            }
        }
        device.step += 1;
        fleet.state.advance(key, device.step, &mut device.cells);
        Ok(())
    }
}
