//! Which endpoints go into which slice, with as few writes as possible.
//!
//! Invariants: every wanted endpoint ends up in exactly one slice, no slice has more than the limit, and a slice is
//! changed only if one of its endpoints is, or if it takes in what is left over.

use kaji_runtime::objects::{Endpoint, EndpointSlice};
use std::{collections::BTreeSet, sync::Arc};

/// One slice as it should be: members are numbers of wanted endpoints.
#[derive(Debug)]
pub struct Packed<'a> {
    /// The slice that is there; `None` for one to be created.
    pub slice: Option<&'a Arc<EndpointSlice>>,
    /// What it should hold. Nothing: the slice is to be deleted, unless it is unchanged.
    pub members: Vec<usize>,
    /// Members that are new here or that differ from what the slice says about them.
    pub news: Vec<usize>,
    /// How many of its endpoints are still wanted here.
    pub kept: usize,
    /// Whether its endpoints change.
    pub changed: bool,
}

/// Distributes the `wanted` endpoints. `locate` finds an existing endpoint among the wanted, and says whether it is as
/// it should be. An endpoint in two slices stays in the first one of `existing`.
pub fn pack<'a>(
    existing: &[&'a Arc<EndpointSlice>],
    mut wanted: BTreeSet<usize>,
    limit: usize,
    locate: impl Fn(&Endpoint) -> Option<(usize, bool)>,
) -> Vec<Packed<'a>> {
    let mut packed: Vec<Packed<'a>> = existing
        .iter()
        .map(|slice| {
            let (mut members, mut news) = (Vec::with_capacity(slice.endpoints.len()), vec![]);
            for (number, same) in slice.endpoints.iter().filter_map(&locate) {
                if wanted.remove(&number) {
                    members.push(number);
                    if !same {
                        news.push(number);
                    }
                }
            }
            let changed = !news.is_empty() || members.len() != slice.endpoints.len();
            Packed { slice: Some(slice), kept: members.len(), members, news, changed }
        })
        .collect();
    // Those that are written anyway take in what they can, the fullest first.
    let mut open: Vec<usize> =
        (0..packed.len()).filter(|i| packed[*i].changed && !packed[*i].members.is_empty()).collect();
    open.sort_by_key(|i| std::cmp::Reverse(packed[*i].members.len()));
    for i in open {
        packed[i].fill(&mut wanted, limit);
    }
    while !wanted.is_empty() {
        let fits = (0..packed.len())
            .filter(|i| !packed[*i].changed && packed[*i].members.len() + wanted.len() <= limit)
            .max_by_key(|i| packed[*i].members.len());
        let i = fits.unwrap_or_else(|| {
            packed.push(Packed { slice: None, members: vec![], news: vec![], kept: 0, changed: true });
            packed.len() - 1
        });
        packed[i].fill(&mut wanted, limit);
    }
    packed
}

impl Packed<'_> {
    /// Whether its slice has lost all endpoints.
    pub fn vanishes(&self) -> bool {
        self.members.is_empty() && self.changed
    }

    fn fill(&mut self, left: &mut BTreeSet<usize>, limit: usize) {
        while self.members.len() < limit
            && let Some(number) = left.pop_first()
        {
            self.members.push(number);
            self.news.push(number);
            self.changed = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::{Random, SeededRandom};
    use kaji_runtime::Meta;
    use std::collections::HashSet;

    fn slice(name: usize, numbers: &[usize]) -> Arc<EndpointSlice> {
        let endpoint = |n: &usize| Endpoint { addresses: vec![n.to_string()], ..Endpoint::default() };
        Arc::new(EndpointSlice {
            metadata: Meta { name: name.to_string(), ..Meta::default() },
            endpoints: numbers.iter().map(endpoint).collect(),
            ..EndpointSlice::default()
        })
    }

    fn number(endpoint: &Endpoint) -> usize {
        endpoint.addresses[0].parse().unwrap()
    }

    /// What became of the slices: `name: members`, in order; `=` for unchanged ones.
    fn text(packed: &[Packed<'_>]) -> String {
        let line = |p: &Packed<'_>| {
            let name = p.slice.map_or("new", |s| s.metadata.name.as_str());
            format!("{name}{} {:?}", if p.changed { ":" } else { "=" }, p.members)
        };
        packed.iter().map(line).collect::<Vec<_>>().join(", ")
    }

    fn run(existing: &[&[usize]], wanted: impl IntoIterator<Item = usize>) -> String {
        let slices: Vec<_> = existing.iter().enumerate().map(|(i, n)| slice(i, n)).collect();
        text(&pack(&slices.iter().collect::<Vec<_>>(), wanted.into_iter().collect(), 3, |e| {
            Some((number(e), true))
        }))
    }

    #[test]
    fn writes_few_slices() {
        // One slice is enough for what is left over, the fullest that has room.
        assert_eq!(run(&[&[1], &[2, 3]], 1..=4), "0= [1], 1: [2, 3, 4]");
        // Too much for any unchanged slice: a new one.
        assert_eq!(run(&[&[1, 2]], 1..=4), "0= [1, 2], new: [3, 4]");
        // A slice that is written anyway takes it.
        assert_eq!(run(&[&[1, 9], &[2, 3]], [1, 2, 3, 4, 5]), "0: [1, 4, 5], 1= [2, 3]");
        // Nothing is left of a slice.
        assert_eq!(run(&[&[8, 9], &[2, 3]], [2, 3]), "0: [], 1= [2, 3]");
        // Two slices with the same endpoint: the first keeps it.
        assert_eq!(run(&[&[1], &[1, 2]], [1, 2]), "0= [1], 1: [2]");
    }

    #[test]
    fn puts_every_endpoint_into_one_slice() {
        let random = SeededRandom::new(7);
        let below = |n: usize| usize::try_from(random.u64() % n as u64).unwrap();
        for _ in 0..500 {
            let slices: Vec<_> = (0..below(6))
                .map(|i| slice(i, &(0..below(5)).map(|_| below(20)).collect::<Vec<_>>()))
                .collect();
            let wanted: BTreeSet<usize> = (0..below(25)).map(|_| below(20)).collect();
            let found =
                |e: &Endpoint| wanted.contains(&number(e)).then(|| (number(e), !number(e).is_multiple_of(7)));
            let packed = pack(&slices.iter().collect::<Vec<_>>(), wanted.clone(), 4, found);
            let members: Vec<usize> = packed.iter().flat_map(|p| p.members.clone()).collect();
            assert_eq!(members.len(), wanted.len());
            assert_eq!(members.iter().copied().collect::<BTreeSet<_>>(), wanted);
            for p in packed {
                assert!(p.members.len() <= 4 || p.slice.is_some_and(|s| s.endpoints.len() > 4));
                let before: Option<Vec<usize>> = p.slice.map(|s| s.endpoints.iter().map(number).collect());
                let same = before.as_ref() == Some(&p.members) && p.news.is_empty();
                assert_eq!(p.changed, !same);
                let old: HashSet<usize> = before.into_iter().flatten().collect();
                assert!(p.members.iter().all(|m| old.contains(m) || p.news.contains(m)));
            }
        }
    }
}
