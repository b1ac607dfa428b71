//! Memory of this process, where it contains the devices and their node.

use load_client::host::ProcessMeter;
use serde::{Deserialize, Serialize};

/// Resident memory at the end of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PhaseMemory {
    pub(crate) resident_bytes: u64,
    /// Before the first phase, with the node and without devices.
    before_bytes: u64,
}

impl PhaseMemory {
    /// What each of so many devices takes, with its connection at both ends and its session.
    pub(crate) fn bytes_per_device(self, devices: u64) -> Option<f64> {
        let grown = self.resident_bytes.saturating_sub(self.before_bytes);
        (devices > 0).then(|| grown as f64 / devices as f64)
    }
}

#[derive(Debug)]
pub(super) struct ProcessMemory {
    meter: ProcessMeter,
    before_bytes: u64,
}

impl ProcessMemory {
    /// Before devices are simulated.
    pub(super) fn begin() -> anyhow::Result<Self> {
        let mut meter = ProcessMeter::new(std::process::id())?;
        let before_bytes = meter.read()?.resident_bytes;
        Ok(Self {
            meter,
            before_bytes,
        })
    }

    pub(super) fn read(&mut self) -> anyhow::Result<PhaseMemory> {
        Ok(PhaseMemory {
            resident_bytes: self.meter.read()?.resident_bytes,
            before_bytes: self.before_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_share_what_was_added() {
        let memory = PhaseMemory {
            resident_bytes: 5000,
            before_bytes: 1000,
        };
        assert_eq!(memory.bytes_per_device(4), Some(1000.0));
        assert_eq!(memory.bytes_per_device(0), None);
    }
}
