//! A small seeded generator (xoshiro256++, seeded by SplitMix64): recorded seeds stay valid,
//! whatever happens to other people's crates.

/// A generator of numbers that look random and follow from the seed alone.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The generator of this seed.
    #[must_use]
    pub fn new(mut seed: u64) -> Self {
        Self(std::array::from_fn(|_| {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = seed;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let bits = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        bits
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// Whether something happens that happens `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let index = self.below(of.len() as u64);
        of[usize::try_from(index).expect("an index")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation of xoshiro256++ gives these for the state 1, 2, 3, 4.
    #[test]
    fn agrees_with_the_reference() {
        let mut random = Random([1, 2, 3, 4]);
        let first = [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386];
        assert_eq!(first, std::array::from_fn(|_| random.bits()));
    }

    #[test]
    fn a_seed_stays_valid() {
        assert_eq!(Random::new(0).0[0], 0xe220_a839_7b1d_cdaf);
        assert_ne!(Random::new(1).bits(), Random::new(2).bits());
    }
}
