//! Random numbers as a function of what they are for: the same seed makes the same fleet on any number of threads.
//!
//! A generator with a state would take memory per device and make values depend on the order in which devices are
//! visited. SplitMix64's finaliser passes the usual statistical tests for this use, and its results are the same in every version.

/// Identifies one device of a simulation in draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RandomKey(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl RandomKey {
    /// The key of device `index` of the fleet with this number.
    pub(crate) fn of_device(seed: u64, fleet: u32, index: u32) -> Self {
        let device = u64::from(fleet) << 32 | u64::from(index);
        Self(mix(
            mix(seed.wrapping_add(GOLDEN)) ^ device.wrapping_mul(GOLDEN)
        ))
    }

    /// The key of a purpose of this device, such as one of its values.
    #[inline]
    pub(crate) fn purpose(self, number: u64) -> Self {
        Self(mix(self.0 ^ (number + 1).wrapping_mul(GOLDEN)))
    }

    /// 64 random bits; `step` counts the draws of this key.
    #[inline]
    pub(crate) fn bits(self, step: u64) -> u64 {
        mix(self.0.wrapping_add((step + 1).wrapping_mul(GOLDEN)))
    }

    /// A number from 0 to less than 1.
    #[inline]
    pub(crate) fn unit(self, step: u64) -> f64 {
        (self.bits(step) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A number from `from` to less than `to`; `from` if they are equal.
    #[inline]
    pub(crate) fn between(self, step: u64, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit(step)
    }

    /// A whole number below `end`; 0 if `end` is 0.
    #[inline]
    pub(crate) fn below(self, step: u64, end: u64) -> u64 {
        ((u128::from(self.bits(step)) * u128::from(end)) >> 64) as u64
    }

    /// A number of the normal distribution with mean 0 and deviation 1 (Box and Muller).
    #[inline]
    pub(crate) fn gauss(self, step: u64) -> f64 {
        let (a, b) = (self.unit(2 * step), self.unit(2 * step + 1));
        (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN_DRAWS: [u64; 2] = [0x47c4_508a_6fcc_1d3e, 0xe93f_fc95_8fb9_4e22];

    #[test]
    fn draws_have_the_distribution_that_they_claim() {
        let key = RandomKey::of_device(1, 2, 3).purpose(4);
        let count = 100_000;
        let mean = (0..count).map(|step| key.unit(step)).sum::<f64>() / count as f64;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let squares: f64 = (0..count).map(|step| key.gauss(step).powi(2)).sum();
        assert!((squares / count as f64 - 1.0).abs() < 0.03);
        let mut dice = [0; 6];
        for step in 0..60_000 {
            dice[key.below(step, 6) as usize] += 1;
        }
        assert!(
            dice.iter().all(|&count| (9_500..10_500).contains(&count)),
            "{dice:?}"
        );
    }

    #[test]
    fn devices_fleets_and_seeds_have_their_own_numbers() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..10 {
            for fleet in 0..10 {
                for device in 0..100 {
                    let key = RandomKey::of_device(seed, fleet, device);
                    assert!(seen.insert(key.purpose(0).bits(0)));
                    assert!(seen.insert(key.purpose(1).bits(0)));
                }
            }
        }
        // The same in every version: simulations are repeated by their seed.
        let key = RandomKey::of_device(1, 0, 0).purpose(0);
        assert_eq!([key.bits(0), key.bits(1)], GOLDEN_DRAWS);
    }
}
