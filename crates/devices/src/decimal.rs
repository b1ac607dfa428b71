//! Computes the double nearest to a decimal without parsing its text.

/// 10^0 to 10^22, the powers of ten that a double represents exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// Maximum number of decimal places handled here: smaller powers of five fit into 63 bits.
const MAX_PLACES: usize = 27;

/// 5^-1 to 5^-27, each scaled by a power of two to 128 bits and rounded up.
const FIFTHS: [u128; MAX_PLACES + 1] = {
    let mut fifths = [0; MAX_PLACES + 1];
    let (mut places, mut five) = (1, 1_u128);
    while places <= MAX_PLACES {
        five *= 5;
        let bits = 128 - five.leading_zeros();
        // Divides 2^(bits + 127) by 5^places, 64 bits of the quotient at a time.
        let dividend = 1_u128 << (bits + 63);
        let (high, rest) = (dividend / five, dividend % five);
        fifths[places] = ((high << 64) | ((rest << 64) / five)) + 1;
        places += 1;
    }
    fifths
};

/// Returns the double nearest to `mantissa` times ten to this power, or `None` if the fast path does not apply.
#[inline]
pub(crate) fn nearest_double(mantissa: u64, power: i64) -> Option<f64> {
    if mantissa <= 1 << 53 && (-22..=22).contains(&power) {
        // Both factors are exact, so there is a single rounding.
        let factor = POWERS[power.unsigned_abs() as usize];
        return Some(match power < 0 {
            true => mantissa as f64 / factor,
            false => mantissa as f64 * factor,
        });
    }
    let places = usize::try_from(-power).ok()?;
    match places {
        0 => Some(mantissa as f64),
        _ if mantissa == 0 => None,
        _ => Some(times_fifths(mantissa, *FIFTHS.get(places)?, places as i32)),
    }
}

/// Divides `mantissa` by 10^places by multiplying with the reciprocal (Lemire, Number Parsing at a Gigabyte per
/// Second, 2021). 64 bits of the reciprocal nearly always decide the rounding; 128 bits always do for this number of
/// places.
#[inline]
fn times_fifths(mantissa: u64, fifths: u128, places: i32) -> f64 {
    /// Bits of a double including the hidden one, one bit to round by, and one that the product may lack.
    const WANTED: u32 = 55;
    let zeros = mantissa.leading_zeros();
    let factor = u128::from(mantissa << zeros);
    let mut product = factor * (fifths >> 64);
    let high = (product >> 64) as u64;
    if high & (u64::MAX >> WANTED) == u64::MAX >> WANTED {
        // The remaining bits of the reciprocal can carry into the upper half.
        product += (factor * u128::from(fifths as u64)) >> 64;
    }
    let (high, low) = ((product >> 64) as u64, product as u64);
    // The product has 127 or 128 bits.
    let upper = (high >> 63) as u32;
    let unused = upper + 64 - WANTED;
    let mut kept = high >> unused;
    // A tie between two doubles, which is possible with few places only, rounds to even.
    let is_half = low <= 1 && places <= 4 && kept & 0b11 == 1 && kept << unused == high;
    kept &= !u64::from(is_half);
    let rounded = (kept + (kept & 1)) >> 1;
    // Number of bits of 5^places: places times log2(5), for which 16 bits of precision are enough.
    let bits = ((places * 152_170) >> 16) + 1;
    let exponent = unused as i32 + 2 - zeros as i32 - bits - places;
    let scale = f64::from_bits(((1023 + exponent) as u64) << 52);
    // Both factors are exact and far from the smallest and the largest double.
    rounded as f64 * scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_round_to_even() {
        // 2^53 + 1 and 2^53 + 3 lie between two doubles.
        for (mantissa, power) in [
            (90_071_992_547_409_930, -1),
            (90_071_992_547_409_950, -1),
            (90_071_992_547_409_931, -1),
            (u64::MAX, 0),
            (u64::MAX, -27),
            (1, -27),
            (0, -27),
        ] {
            let expected: f64 = format!("{mantissa}e{power}").parse().unwrap();
            let found = nearest_double(mantissa, power).unwrap_or_default();
            assert_eq!(found.to_bits(), expected.to_bits(), "{mantissa}e{power}");
        }
        assert_eq!(nearest_double(u64::MAX, 1), None);
        assert_eq!(nearest_double(u64::MAX, -28), None);
    }

    proptest! {
        #[test]
        fn halfway_rounds_to_even(double in 1_u64 << 52..1 << 53, places in 1..5_u32, off in -1..2_i64) {
            // One bit more than a double has, times 2^places.
            let mantissa = (2 * double + 1) * 5_u64.pow(places);
            let mantissa = mantissa.checked_add_signed(off).unwrap();
            let expected: f64 = format!("{mantissa}e-{places}").parse().unwrap();
            let found = nearest_double(mantissa, -i64::from(places));
            prop_assert_eq!(found.map(f64::to_bits), Some(expected.to_bits()));
        }

        #[test]
        fn results_match_the_parsed_text(mantissa in any::<u64>(), shift in 0..64_u32, power in -30..30_i64) {
            let mantissa = mantissa >> shift;
            if let Some(found) = nearest_double(mantissa, power) {
                let expected: f64 = format!("{mantissa}e{power}").parse().unwrap();
                prop_assert_eq!(found.to_bits(), expected.to_bits());
            }
        }
    }
}
