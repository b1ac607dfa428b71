//! Faults: at their times, devices lose connections, fall silent, stop reading or send wrong data.

use std::cmp::Reverse;

use super::Worker;
use super::device::ConnectionStage;
use crate::definition::FaultKind;
use crate::phase_plan::FaultPlan;
use crate::random::RandomKey;

/// Purposes of random keys: which devices, and where a region begins.
const FAULT_PURPOSE: u64 = 4 << 32;

impl Worker<'_> {
    /// Plans the faults of the phase that begins.
    pub(super) fn plan_faults(&mut self) {
        self.faults.clear();
        self.fault_ends.clear();
        for device in 0..self.devices.len() {
            if self.devices[device].fault > 0 {
                self.end_fault(device);
            }
        }
        for (number, fault) in self.plan.phases[self.phase].faults.iter().enumerate() {
            self.faults
                .push(Reverse((self.phase_start_ns + fault.after_ns, number)));
        }
    }

    /// Begins and ends the faults that are due.
    pub(super) fn apply_faults(&mut self) {
        while let Some(&Reverse((at_ns, device))) = self.fault_ends.peek() {
            if at_ns > self.now_ns {
                break;
            }
            self.fault_ends.pop();
            if self.devices[device as usize].fault_until_ns == at_ns {
                self.end_fault(device as usize);
            }
        }
        while let Some(&Reverse((at_ns, number))) = self.faults.peek() {
            if at_ns > self.now_ns {
                return;
            }
            self.faults.pop();
            let fault = &self.plan.phases[self.phase].faults[number];
            self.begin_fault(number, fault);
            if let Some(every_ns) = fault.every_ns {
                self.faults.push(Reverse((at_ns + every_ns, number)));
            }
        }
    }

    fn begin_fault(&mut self, number: usize, fault: &FaultPlan) {
        self.draws += 1;
        for fleet in 0..self.fleets.len() {
            let is_unaffected =
                self.plan.fleets[fleet].gateway.is_some() && fault.kind.is_of_connection();
            if is_unaffected || fault.fleet.is_some_and(|only| only != fleet) {
                continue;
            }
            let (first, count) = (self.fleets[fleet].first_device, self.fleets[fleet].count);
            let affected = (f64::from(count) * fault.devices).round() as u64;
            let key = RandomKey::of_device(self.plan.seed, fleet as u32, u32::MAX)
                .purpose(FAULT_PURPOSE + self.thread as u64);
            let start = key.below(self.draws, u64::from(count));
            // Every n-th device from a random one on is as good as a random choice, and exact.
            let stride = if fault.is_region {
                1
            } else {
                coprime_stride(u64::from(count))
            };
            for position in 0..affected {
                let device = first + ((start + position * stride) % u64::from(count)) as usize;
                if self.devices[device].stage == ConnectionStage::Ready {
                    self.counts().faults += 1;
                    self.affect(device, number, fault);
                }
            }
        }
    }

    fn affect(&mut self, device: usize, number: usize, fault: &FaultPlan) {
        let until_ns = self.now_ns + fault.duration_ns;
        match fault.kind {
            FaultKind::Disconnect => {
                self.disconnect(device);
                self.stay_away(device, until_ns);
            }
            FaultKind::Close => {
                self.close(device);
                self.stay_away(device, until_ns);
            }
            FaultKind::Abort => {
                if let Some(transport) = &self.devices[device].transport {
                    // The connection is closed in any case.
                    let _ = transport.reset_on_close();
                }
                self.close(device);
                self.stay_away(device, until_ns);
            }
            FaultKind::Silence
            | FaultKind::SlowReader
            | FaultKind::InvalidPayload
            | FaultKind::ClockOffset => {
                let entry = &mut self.devices[device];
                entry.fault = number as u16 + 1;
                entry.fault_until_ns = until_ns;
                self.fault_ends.push(Reverse((until_ns, device as u32)));
            }
        }
    }

    /// The device returns some time after the outage.
    pub(super) fn stay_away(&mut self, device: usize, until_ns: u64) {
        let is_gone = !self.reconnect(device).enabled;
        let entry = &mut self.devices[device];
        entry.lost_ns = until_ns;
        entry.is_gone = is_gone;
        self.plan_return(device, until_ns);
    }

    fn end_fault(&mut self, device: usize) {
        let entry = &mut self.devices[device];
        entry.fault = 0;
        if entry.stage != ConnectionStage::Ready {
            return;
        }
        // What arrived meanwhile causes no further event.
        if let Err(failure) = self.on_readable(device) {
            self.fail(device, &failure);
        }
    }

    /// The fault that a device has now.
    #[inline]
    pub(super) fn fault(&self, device: usize) -> Option<&FaultPlan> {
        let number = usize::from(self.devices[device].fault).checked_sub(1)?;
        self.plan.phases[self.phase].faults.get(number)
    }

    #[inline]
    pub(super) fn has_fault(&self, device: usize, kind: FaultKind) -> bool {
        self.devices[device].fault > 0 && self.fault(device).is_some_and(|fault| fault.kind == kind)
    }

    /// Whether the device does not read now.
    #[inline]
    pub(super) fn is_not_reading(&self, device: usize) -> bool {
        self.has_fault(device, FaultKind::Silence) || self.has_fault(device, FaultKind::SlowReader)
    }

    /// Milliseconds since 1970 by the clock of a device.
    #[inline]
    pub(super) fn device_clock_ms(&self, device: usize) -> u64 {
        match self.fault(device) {
            Some(fault) if fault.kind == FaultKind::ClockOffset => {
                self.wall_ms.saturating_add_signed(fault.offset_ms)
            }
            _ => self.wall_ms,
        }
    }
}

/// A step through `count` positions that visits each, and is no small part of them.
fn coprime_stride(count: u64) -> u64 {
    let mut stride = (count as f64 * 0.618) as u64 | 1;
    while stride > 1 && greatest_common_divisor(stride, count) > 1 {
        stride += 2;
    }
    stride.max(1)
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_visit_each_position_once() {
        for count in 1..500 {
            let stride = coprime_stride(count);
            let mut visited: Vec<u64> = (0..count).map(|at| at * stride % count).collect();
            visited.sort_unstable();
            visited.dedup();
            assert_eq!(visited.len() as u64, count);
        }
    }
}
