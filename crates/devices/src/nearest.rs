//! The double that is nearest to a decimal, without a detour over its text.

/// 10^0 to 10^22, the powers that a double has exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// Powers of five that 63 bits hold.
const FIVES: [u64; 28] = {
    let mut fives = [1; 28];
    let mut at = 1;
    while at < 28 {
        fives[at] = fives[at - 1] * 5;
        at += 1;
    }
    fives
};

/// The double nearest to `mantissa` times ten to this power; `None` if that is not as easily said.
#[inline]
pub(crate) fn nearest(mantissa: u64, power: i64) -> Option<f64> {
    if mantissa <= 1 << 53 && (-22..=22).contains(&power) {
        // Both factors are exact, so that one rounding is all there is.
        let factor = POWERS[power.unsigned_abs() as usize];
        return Some(match power < 0 {
            true => mantissa as f64 / factor,
            false => mantissa as f64 * factor,
        });
    }
    let five = *FIVES.get(usize::try_from(-power).ok()?)?;
    (mantissa != 0).then(|| divide(mantissa, five, -power as i32))
}

/// `mantissa` by 5^places by 2^places: a quotient of 63 or 64 bits, whose rest says how it is rounded to 53.
fn divide(mantissa: u64, five: u64, places: i32) -> f64 {
    let zeros = mantissa.leading_zeros();
    let len = 64 - five.leading_zeros();
    let dividend = u128::from(mantissa << zeros) << (len - 1);
    let quotient = (dividend / u128::from(five)) as u64;
    // Its low half has all of it: it is less than `five`.
    let rest = (dividend as u64).wrapping_sub(quotient.wrapping_mul(five));
    let unused = 64 - quotient.leading_zeros() - 53;
    let (kept, cut, half) = (
        quotient >> unused,
        quotient & ((1 << unused) - 1),
        1_u64 << (unused - 1),
    );
    let is_up = cut > half || (cut == half && (rest > 0 || kept & 1 == 1));
    // Far from the least and the largest doubles, so that this is exact.
    let exponent = unused as i32 - (len as i32 - 1) - zeros as i32 - places;
    let scale = f64::from_bits(((1023 + exponent) as u64) << 52);
    (kept + u64::from(is_up)) as f64 * scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ties_go_to_the_even_one() {
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
            let found = nearest(mantissa, power).unwrap_or_default();
            assert_eq!(found.to_bits(), expected.to_bits(), "{mantissa}e{power}");
        }
        assert_eq!(nearest(u64::MAX, 1), None);
        assert_eq!(nearest(u64::MAX, -28), None);
    }

    proptest! {
        #[test]
        fn it_is_what_the_text_says(mantissa in any::<u64>(), shift in 0..64_u32, power in -30..30_i64) {
            let mantissa = mantissa >> shift;
            if let Some(found) = nearest(mantissa, power) {
                let expected: f64 = format!("{mantissa}e{power}").parse().unwrap();
                prop_assert_eq!(found.to_bits(), expected.to_bits());
            }
        }
    }
}
