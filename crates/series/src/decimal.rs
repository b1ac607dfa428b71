//! Floats as short decimals: most sensors send values such as `23.6`, which is the float nearest to 236 / 10.
//!
//! The division of two integers, below 2^53 and a power of ten below 10^22, is rounded once, as parsing
//! `23.6` is. If it yields the same bits again, the integer and the scale represent the float.

/// Maximum number of decimal places.
pub(crate) const MAX_SCALE: u8 = 15;

pub(crate) const POWERS: [f64; 16] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
];

pub(crate) const INT_POWERS: [i64; 16] = {
    let mut powers = [1; 16];
    let mut at = 1;
    while at < 16 {
        powers[at] = powers[at - 1] * 10;
        at += 1;
    }
    powers
};

const LIMIT: f64 = (1_u64 << 53) as f64;

/// Adding this rounds a float of less than 2^51 to an integer.
const ROUND: f64 = (3_u64 << 51) as f64;

/// The integer that represents this float at this scale, if there is one.
#[inline]
pub(crate) fn scale(value: f64, scale: u8) -> Option<i64> {
    let power = POWERS[usize::from(scale & 15)];
    let scaled = value * power;
    let rounded = if scaled.abs() < ROUND / 4.0 {
        (scaled + ROUND) - ROUND
    } else {
        scaled.round()
    };
    // NaN and infinities fail here.
    let is_small = rounded.abs() < LIMIT;
    let number = rounded as i64;
    // A comparison of bits distinguishes -0.0 from 0.0.
    let is_same = (number as f64 / power).to_bits() == value.to_bits();
    (is_small && is_same).then_some(number)
}

/// Converts the integer back to the float.
#[inline]
pub(crate) fn unscale(number: i64, scale: u8) -> f64 {
    number as f64 / POWERS[usize::from(scale & 15)]
}

/// The smallest scale at which this float is an integer.
pub(crate) fn find_scale(value: f64) -> Option<(u8, i64)> {
    if !value.is_finite() {
        return None;
    }
    // An integer at one scale is an integer at all larger ones, as long as it is small enough. Checking the
    // largest of these first rejects most floats at once; only two larger scales remain to be checked.
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i64 - 1022;
    // The most places with which it is below 2^49; 1233 / 4096 is a little less than log10(2).
    let small = ((49 - exponent).clamp(0, 50) * 1233 / 4096).min(i64::from(MAX_SCALE)) as u8;
    let from = match scale(value, small) {
        Some(_) => 0,
        None => small + 1,
    };
    (from..=MAX_SCALE.min(small + 3)).find_map(|at| scale(value, at).map(|number| (at, number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_decimals_are_found() {
        assert_eq!(find_scale(23.6), Some((1, 236)));
        assert_eq!(find_scale(-0.001), Some((3, -1)));
        assert_eq!(find_scale(1e15), Some((0, 1_000_000_000_000_000)));
        for value in [
            f64::NAN,
            f64::INFINITY,
            -0.0,
            1.0 / 3.0,
            f64::MIN_POSITIVE,
            f64::MAX,
        ] {
            assert_eq!(find_scale(value), None, "{value}");
        }
    }

    proptest! {
        #[test]
        fn the_smallest_scale_is_found(bits in any::<u64>(), number in -9_007_199_254_740_991_i64..9_007_199_254_740_991, shift in 0..53_u32, places in 0..=15_u8) {
            for value in [f64::from_bits(bits), unscale(number >> shift, places)] {
                let all = (0..=MAX_SCALE).find_map(|at| scale(value, at).map(|number| (at, number)));
                prop_assert_eq!(find_scale(value), all.filter(|_| value.is_finite()));
            }
        }

        #[test]
        fn found_decimals_are_the_same_float(bits in any::<u64>(), number in -10_000_000_i64..10_000_000, places in 0..=15_u8) {
            for value in [f64::from_bits(bits), unscale(number, places)] {
                if let Some((at, number)) = find_scale(value) {
                    prop_assert_eq!(unscale(number, at).to_bits(), value.to_bits());
                }
            }
            prop_assert!(find_scale(unscale(number, places)).is_some());
        }
    }
}
