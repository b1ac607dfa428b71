//! How hash tables are seeded, and numbers that are chosen at random. In the tests of this crate, both depend on a number that a
//! simulation sets, so that a run can be repeated: a node may act in the order of a table.

#[cfg(not(test))]
pub(crate) use foldhash::fast::RandomState;
/// The key of hashes that are the same in the whole process.
#[cfg(not(test))]
pub(crate) type ProcessHashState = std::hash::RandomState;

/// A random number other than 0, which no earlier run of the node has used.
#[cfg(not(test))]
pub(crate) fn random_number() -> u64 {
    use std::hash::BuildHasher as _;
    std::hash::RandomState::new().hash_one(0).max(1)
}

#[cfg(test)]
pub(crate) use repeatable::{ProcessHashState, RandomState, random_number, set_seed};

#[cfg(test)]
mod repeatable {
    use std::cell::Cell;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

    use foldhash::fast::{FixedState, FoldHasher};

    thread_local! {
        /// The seed of the simulation on this thread, if there is one, and how many numbers were chosen.
        static SEED: Cell<(Option<u64>, u64)> = const { Cell::new((None, 0)) };
    }

    pub(crate) type ProcessHashState = BuildHasherDefault<DefaultHasher>;

    /// What follows on this thread can be repeated by setting the same seed.
    pub(crate) fn set_seed(seed: u64) {
        SEED.set((Some(seed), 0));
    }

    pub(crate) fn random_number() -> u64 {
        let (seed, count) = SEED.get();
        SEED.set((seed, count + 1));
        let number = match seed {
            Some(seed) => ProcessHashState::default().hash_one((seed, count)),
            None => std::hash::RandomState::new().hash_one(count),
        };
        number.max(1)
    }

    #[derive(Debug, Clone)]
    pub(crate) struct RandomState(FixedState);

    impl Default for RandomState {
        fn default() -> Self {
            Self(FixedState::with_seed(random_number()))
        }
    }

    impl BuildHasher for RandomState {
        type Hasher = FoldHasher<'static>;

        fn build_hasher(&self) -> Self::Hasher {
            self.0.build_hasher()
        }
    }
}
