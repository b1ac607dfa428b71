//! Random numbers for rules: xoshiro256++, seeded from outside. Good for ids and sampling, not for secrets.

#[derive(Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates a generator. Seed it with 32 bytes from the operating system for unique ids; tests use a fixed
    /// seed.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Rng {
        let mut state = [0; 4];
        for (word, bytes) in state.iter_mut().zip(seed.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes"));
        }
        if state == [0; 4] {
            // The all-zero state is a fixed point of the generator.
            state = [0x9e37_79b9_7f4a_7c15, 1, 2, 3];
        }
        Rng { state }
    }

    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A uniformly distributed number from 0 (inclusive) to `end` (exclusive). `end` must not be 0.
    pub fn next_below(&mut self, end: u64) -> u64 {
        let mut product = u128::from(self.next_u64()) * u128::from(end);
        let threshold = end.wrapping_neg() % end;
        while (product as u64) < threshold {
            product = u128::from(self.next_u64()) * u128::from(end);
        }
        (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range_and_cover_it() {
        let mut rng = Rng::new([0; 32]);
        let mut seen = [0_u32; 7];
        for _ in 0..7_000 {
            seen[rng.next_below(7) as usize] += 1;
            assert!((0.0..1.0).contains(&rng.next_f64()));
        }
        assert!(
            seen.iter().all(|count| (800..1200).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn the_seed_decides() {
        let numbers = |seed| {
            let mut rng = Rng::new([seed; 32]);
            (rng.next_u64(), rng.next_u64())
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }
}
