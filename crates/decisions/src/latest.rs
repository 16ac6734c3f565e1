//! The latest entries of a memory, each with the time order of its last change, within a limit of bytes.
//!
//! Invariant: `bytes` is the sum of the sizes of what is kept.

use std::collections::{BTreeMap, HashMap};

struct Kept<T> {
    id: u64,
    size: usize,
    entry: T,
}

/// Entries by their ids, the latest last.
pub struct Latest<T> {
    entries: BTreeMap<u64, Kept<T>>,
    /// Where the entry of an id is.
    places: HashMap<u64, u64>,
    next: u64,
    bytes: usize,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Latest { entries: BTreeMap::new(), places: HashMap::new(), next: 0, bytes: 0 }
    }
}

impl<T> Latest<T> {
    /// Removes the entry of an id.
    pub fn remove(&mut self, id: u64) -> Option<T> {
        let kept = self.entries.remove(&self.places.remove(&id)?)?;
        self.bytes -= kept.size;
        Some(kept.entry)
    }

    /// Keeps an entry as the latest, in place of the former one of its id. The oldest ones go, until no more than `most` bytes are
    /// kept.
    pub fn put(&mut self, id: u64, size: usize, entry: T, most: usize) {
        self.remove(id);
        self.bytes += size;
        self.places.insert(id, self.next);
        self.entries.insert(self.next, Kept { id, size, entry });
        self.next += 1;
        while self.bytes > most {
            let Some((_, oldest)) = self.entries.first_key_value() else { break };
            let id = oldest.id;
            self.remove(id);
        }
    }

    /// What is kept, the latest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.values().rev().map(|kept| &kept.entry)
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Cuts a text to a number of bytes.
pub fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
        text.truncate(end);
        text.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_limit_holds_and_the_oldest_go_first(
            steps in proptest::collection::vec((0..20_u64, 0..500_usize, any::<bool>()), 0..200)
        ) {
            let (mut latest, mut model) = (Latest::default(), Vec::<(u64, usize)>::new());
            for (id, size, removes) in steps {
                model.retain(|(other, _)| *other != id);
                if removes {
                    latest.remove(id);
                } else {
                    latest.put(id, size, (id, size), 2_000);
                    model.push((id, size));
                    while model.iter().map(|(_, size)| size).sum::<usize>() > 2_000 {
                        model.remove(0);
                    }
                }
                prop_assert_eq!(latest.iter().copied().collect::<Vec<_>>(), model.iter().rev().copied().collect::<Vec<_>>());
                prop_assert_eq!(latest.bytes, model.iter().map(|(_, size)| size).sum::<usize>());
                prop_assert_eq!(latest.places.len(), model.len());
            }
        }
    }
}
