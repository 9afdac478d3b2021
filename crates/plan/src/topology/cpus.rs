//! Sets of processors: the kernel's masks and lists.
//!
//! *Invariant:* no set holds a processor past [`CPUS_MOST`], so that no text makes a large one.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Serialize, Serializer};

/// Processors of a machine.
pub const CPUS_MOST: u32 = 1 << 14;

/// A set of processors, printed as the kernel's lists are: `0-31,64-95`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// From a mask such as `000000ff,ffff0000`: groups of 8 digits, the highest first. What is no
    /// mask is no processor.
    #[must_use]
    pub fn from_mask(text: &str) -> Self {
        let mut cpus = BTreeSet::new();
        for (group, digits) in (0_u32..).zip(text.trim().rsplit(',')) {
            let Ok(bits) = u32::from_str_radix(digits.trim(), 16) else { continue };
            if group >= CPUS_MOST / 32 {
                break;
            }
            cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| 32 * group + bit));
        }
        Self(cpus)
    }

    /// From a list such as `0-31,64-95`. What is no list is no processor.
    #[must_use]
    pub fn from_list(text: &str) -> Self {
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>())
            {
                cpus.extend(first..=last.min(CPUS_MOST - 1));
            }
        }
        Self(cpus)
    }

    /// The kernel's mask of the set, which NCCL writes as `affinity`.
    #[must_use]
    pub fn mask(&self) -> String {
        let groups = self.0.last().map_or(1, |last| last / 32 + 1);
        let group = |group: u32| {
            let bits = self.0.range(32 * group..32 * (group + 1));
            format!("{:08x}", bits.fold(0_u32, |mask, cpu| mask | 1 << (cpu % 32)))
        };
        (0..groups).rev().map(group).collect::<Vec<_>>().join(",")
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Whether a processor is in it.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().filter(|cpu| *cpu < CPUS_MOST).collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => runs.push((*cpu, *cpu)),
            }
        }
        let word = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.pad(&runs.iter().map(word).collect::<Vec<_>>().join(","))
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_lists_are_the_same_sets() {
        let set = CpuSet::from_mask("00000000,ffffffff,00000000,ffffffff");
        assert_eq!(set.to_string(), "0-31,64-95");
        assert_eq!(set, CpuSet::from_list("0-31,64-95"));
        assert_eq!(CpuSet::from_mask(&set.mask()), set);
        assert_eq!(set.mask(), "ffffffff,00000000,ffffffff");
        assert_eq!(CpuSet::from_list("3\n").to_string(), "3");
        assert_eq!((set.len(), set.contains(64), set.contains(32)), (64, true, false));
    }

    #[test]
    fn no_text_makes_a_large_set() {
        assert!(CpuSet::from_list("0-4294967295").len() <= CPUS_MOST as usize);
        assert!(CpuSet::from_mask(&"ffffffff,".repeat(100_000)).len() <= CPUS_MOST as usize);
        assert!(CpuSet::from_list("x,-,5-2").is_empty() && CpuSet::default().mask() == "00000000");
    }
}
