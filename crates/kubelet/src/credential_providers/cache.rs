//! What plug-ins have answered, until it ends.
//!
//! Invariant: an entry past its end is never given out; the number of entries is bounded.

use jiff::Timestamp;
use kaji_containers::RegistryAuth;
use std::collections::{BTreeMap, HashMap};

/// Entries that are kept.
const MOST: usize = 1024;

type Credentials = BTreeMap<String, RegistryAuth>;

/// Credentials by what they are for (an image, a registry, everything) and by the service account that they are of.
#[derive(Default)]
pub(super) struct Cache(HashMap<(String, String), (Credentials, Timestamp)>);

impl Cache {
    /// The first of several keys that there is an entry for.
    pub(super) fn get(&self, keys: &[&str], owner: &str, now: Timestamp) -> Option<Credentials> {
        let found = keys.iter().filter_map(|key| self.0.get(&((*key).to_owned(), owner.to_owned())));
        found.filter(|(_, until)| now <= *until).map(|(credentials, _)| credentials.clone()).next()
    }

    /// Keeps an answer until a time.
    pub(super) fn insert(
        &mut self,
        key: &str,
        owner: &str,
        credentials: Credentials,
        (now, until): (Timestamp, Timestamp),
    ) {
        if self.0.len() >= MOST {
            self.0.retain(|_, (_, until)| now <= *until);
        }
        if self.0.len() >= MOST {
            // The one that ends first; there is one, for there are many.
            let first = self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| key.clone());
            first.and_then(|key| self.0.remove(&key));
        }
        self.0.insert((key.to_owned(), owner.to_owned()), (credentials, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_and_belong_to_one_account() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut cache = Cache::default();
        let of = |user: &str| {
            Credentials::from([(
                "x".to_owned(),
                RegistryAuth { username: user.into(), ..Default::default() },
            )])
        };
        cache.insert("registry", "a", of("one"), (at(0), at(10)));
        let users = |cache: &Cache, owner: &str, second: i64| {
            cache.get(&["image", "registry"], owner, at(second)).map(|found| found["x"].username.clone())
        };
        assert_eq!(users(&cache, "a", 10).as_deref(), Some("one"));
        assert_eq!(users(&cache, "a", 11), None);
        assert_eq!(users(&cache, "b", 1), None);
        cache.insert("image", "a", of("two"), (at(1), at(5)));
        assert_eq!(users(&cache, "a", 2).as_deref(), Some("two"));
        assert_eq!(users(&cache, "a", 6).as_deref(), Some("one"));
        for index in 0..3 * MOST {
            cache.insert(&index.to_string(), "", of("many"), (at(20), at(30)));
        }
        assert_eq!(cache.0.len(), MOST);
    }
}
