//! Partitions: devices are spread over them by their number, and each is written independently.

use crate::point::DeviceNo;

/// Number of partitions. Workers that divide devices with [`partition_of`] do not contend for a partition.
pub const PARTITION_COUNT: usize = 8;
const _: () = assert!(PARTITION_COUNT.is_power_of_two());

/// The partition of a device. Consecutive numbers are in different partitions, and so are numbers with a
/// constant step, such as every eighth.
#[inline]
pub fn partition_of(device: DeviceNo) -> usize {
    // The devices of one index are each in another partition.
    let turned = DeviceNo(index_in_partition(device)).spread();
    (device.0 ^ turned) as usize % PARTITION_COUNT
}

pub(crate) fn index_in_partition(device: DeviceNo) -> u32 {
    device.0 / PARTITION_COUNT as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn devices_have_distinct_positions_in_a_partition() {
        let places: HashSet<_> = (0..100_000)
            .map(|no| (partition_of(DeviceNo(no)), index_in_partition(DeviceNo(no))))
            .collect();
        assert_eq!(places.len(), 100_000);
    }

    #[test]
    fn numbers_with_a_step_are_in_all_partitions() {
        for step in [1, 2, 8, 20, 64, 1000, 4096] {
            let used: HashSet<_> = (0..1000)
                .map(|at| partition_of(DeviceNo(at * step)))
                .collect();
            assert_eq!(used.len(), PARTITION_COUNT, "by {step}");
        }
    }
}
