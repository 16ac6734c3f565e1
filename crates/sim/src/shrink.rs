//! Finds few faults that still break a law: delta debugging over the numbers of the faults that came about.
//!
//! Invariant: what is returned was run, and failed.

use std::collections::BTreeSet;

/// Removes ever smaller parts of `faults` while `fails` holds of the rest, with at most `tries` runs.
pub fn shrink(
    faults: BTreeSet<u64>,
    mut tries: u32,
    mut fails: impl FnMut(BTreeSet<u64>) -> bool,
) -> BTreeSet<u64> {
    let mut kept: Vec<u64> = faults.into_iter().collect();
    let mut part = kept.len().div_ceil(2);
    while part > 0 {
        let mut from = 0;
        while from < kept.len() {
            if tries == 0 {
                return kept.into_iter().collect();
            }
            tries -= 1;
            let rest: Vec<u64> = kept
                .iter()
                .enumerate()
                .filter(|(i, _)| *i < from || *i >= from + part)
                .map(|(_, n)| *n)
                .collect();
            if fails(rest.iter().copied().collect()) {
                kept = rest;
            } else {
                from += part;
            }
        }
        part = if part == 1 { 0 } else { part.div_ceil(2) };
    }
    kept.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_the_faults_that_matter(all in prop::collection::btree_set(0_u64..200, 1..60), picks in prop::collection::vec(any::<prop::sample::Index>(), 1..4)) {
            let numbers: Vec<u64> = all.iter().copied().collect();
            let needed: BTreeSet<u64> = picks.iter().map(|pick| numbers[pick.index(numbers.len())]).collect();
            let found = shrink(all, 100_000, |rest| needed.is_subset(&rest));
            prop_assert_eq!(found, needed);
        }
    }

    #[test]
    fn stops_after_so_many_tries() {
        let all: BTreeSet<u64> = (0..100).collect();
        let mut runs = 0;
        let found = shrink(all.clone(), 7, |_| {
            runs += 1;
            false
        });
        assert_eq!(found, all);
        assert_eq!(runs, 7);
    }
}
