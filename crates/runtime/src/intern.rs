//! Hash-consing: a value that many objects have (the labels of ten thousand replicas, the name of a node) is kept once.
//!
//! Invariants:
//! - Two equal [`Shared`] values made while one of them exists are the same allocation.
//! - A table refers weakly to its values. A shard is swept when it has doubled since the last sweep, so that dead entries
//!   never outnumber live ones by more than a constant.

use foldhash::quality::RandomState;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    ops::Deref,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak},
};

/// Locks of a table: informers decode side by side.
const SHARDS: usize = 16;
/// Below so many entries a shard is not swept.
const SMALL: usize = 64;

/// The hash of a key that is a hash itself.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0.rotate_left(8) ^ u64::from(*b));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

struct Shard<T> {
    /// By hash.
    values: HashMap<u64, Vec<Weak<T>>, BuildHasherDefault<Hashed>>,
    entries: usize,
    sweep_at: usize,
}

/// The live values of a type.
pub struct Table<T> {
    hasher: RandomState,
    shards: [Mutex<Shard<T>>; SHARDS],
    /// The default value, once it was asked for: decoding begins with it.
    default: OnceLock<Arc<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        let shard = |_| Mutex::new(Shard { values: HashMap::default(), entries: 0, sweep_at: SMALL });
        Table { hasher: RandomState::default(), shards: std::array::from_fn(shard), default: OnceLock::new() }
    }
}

impl<T> Shard<T> {
    fn sweep(&mut self) {
        self.values.retain(|_, values| {
            values.retain(|value| value.strong_count() > 0);
            !values.is_empty()
        });
        self.entries = self.values.values().map(Vec::len).sum();
        self.sweep_at = (2 * self.entries).max(SMALL);
    }
}

impl<T: Eq + Hash> Table<T> {
    fn intern(&self, value: T) -> Arc<T> {
        let hash = self.hasher.hash_one(&value);
        let shard = &self.shards[usize::try_from(hash % SHARDS as u64).unwrap_or_default()];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = shard.values.get(&hash)
            && let Some(found) = same.iter().filter_map(Weak::upgrade).find(|other| **other == value)
        {
            return found;
        }
        if shard.entries >= shard.sweep_at {
            shard.sweep();
        }
        let value = Arc::new(value);
        shard.values.entry(hash).or_default().push(Arc::downgrade(&value));
        shard.entries += 1;
        value
    }

    /// Live values.
    #[cfg(test)]
    fn len(&self) -> usize {
        let count = |shard: &Mutex<Shard<T>>| shard.lock().unwrap_or_else(PoisonError::into_inner).entries;
        self.shards.iter().map(count).sum()
    }
}

/// A type of which equal values are kept once.
pub trait Share: Eq + Hash + Send + Sync + 'static {
    /// The table of its values.
    fn table() -> &'static Table<Self>
    where
        Self: Sized;
}

/// Gives types a table.
macro_rules! share {
    ($($ty:ty),* $(,)?) => {
        $(impl $crate::intern::Share for $ty {
            fn table() -> &'static $crate::intern::Table<Self> {
                static TABLE: std::sync::LazyLock<$crate::intern::Table<$ty>> = std::sync::LazyLock::new(Default::default);
                &TABLE
            }
        })*
    };
}
pub(crate) use share;

share!(Box<str>, BTreeMap<String, String>);

/// A value that is kept once for all that have it.
pub struct Shared<T: Share>(Arc<T>);

impl<T: Share> Shared<T> {
    /// The value, or an equal one that exists.
    pub fn new(value: T) -> Self {
        Shared(T::table().intern(value))
    }

    /// Replaces the value by a changed copy; the others that have it keep the former.
    pub fn modify(&mut self, change: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        let mut value = T::clone(&self.0);
        change(&mut value);
        *self = Shared::new(value);
    }
}

impl<T: Share> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0.clone())
    }
}

impl<T: Share + Default> Default for Shared<T> {
    fn default() -> Self {
        let table = T::table();
        Shared(table.default.get_or_init(|| table.intern(T::default())).clone())
    }
}

impl<T: Share> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Share> From<T> for Shared<T> {
    fn from(value: T) -> Self {
        Shared::new(value)
    }
}

impl<T: Share> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T: Share> Eq for Shared<T> {}

impl<T: Share> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T: Share + fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'a, T: Share> IntoIterator for &'a Shared<T>
where
    &'a T: IntoIterator,
{
    type Item = <&'a T as IntoIterator>::Item;
    type IntoIter = <&'a T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (&*self.0).into_iter()
    }
}

impl<'de, T: Share + Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        T::deserialize(d).map(Shared::new)
    }
}

impl<T: Share + Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

/// A short text that many objects have: the type of a condition, the name of a node.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Text(Shared<Box<str>>);

impl Text {
    /// As a slice.
    pub fn as_str(&self) -> &str {
        self
    }
}

impl Default for Text {
    fn default() -> Self {
        static EMPTY: LazyLock<Text> = LazyLock::new(|| Text(Shared::new(Box::default())));
        EMPTY.clone()
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        if text.is_empty() { Text::default() } else { Text(Shared::new(text.into())) }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        **self == **other
    }
}

impl PartialEq<Text> for str {
    fn eq(&self, other: &Text) -> bool {
        *self == **other
    }
}

impl PartialEq<Text> for &str {
    fn eq(&self, other: &Text) -> bool {
        **self == **other
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        **self == **other
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        str::cmp(self, other)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(d).map(|text| Text::from(&*text))
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Eq, Hash)]
    struct Number(usize);

    share!(Number);

    #[test]
    fn equal_values_share_one_allocation_and_dead_ones_are_swept() {
        let first = Shared::new(Number(1));
        assert!(Arc::ptr_eq(&first.0, &Shared::new(Number(1)).0));
        assert!(first == Shared::new(Number(1)) && first != Shared::new(Number(2)));
        for n in 0..100_000 {
            drop(Shared::new(Number(n)));
        }
        assert!(Number::table().len() <= SHARDS * (SMALL + 1), "{}", Number::table().len());
        let live: Vec<_> = (0..10_000).map(|n| Shared::new(Number(n))).collect();
        let again: Vec<_> = (0..10_000).map(|n| Shared::new(Number(n))).collect();
        assert!(live.iter().zip(&again).all(|(a, b)| Arc::ptr_eq(&a.0, &b.0)));
    }

    #[test]
    fn text_reads_as_a_string() {
        let text: Text = serde_json::from_str("\"a\\u0062\"").unwrap();
        assert_eq!(text, "ab");
        assert_eq!("ab", text);
        assert_eq!(text, *"ab");
        assert_eq!(format!("{text:>4}|{text:?}"), "  ab|\"ab\"");
        assert_eq!(serde_json::to_string(&text).unwrap(), "\"ab\"");
        assert_eq!(Text::default(), Text::from(""));
    }
}
