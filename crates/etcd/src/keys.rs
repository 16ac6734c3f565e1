//! Keys of this program to etcd's and back.
//!
//! Here a key is `/registry/<group or core>/<plural>/[<namespace>/]<name>`; upstream's layout leaves the group out for built-in
//! resources (`/registry/pods/…`), and has a few historical names (`/registry/minions/…`, `/registry/services/specs/…`). The
//! table of built-in resources comes from their definitions; a custom resource has the same key in both layouts.
//!
//! Invariants: the mapping is one to one; a key of etcd that is no resource's (upstream's allocators and leases of servers) is
//! in no range and in no watch; keys of one resource have the same order in both layouts.

use kaji_store::StoreError;
use std::collections::HashMap;

/// What keys of resources begin with here, and in etcd unless configured otherwise.
pub const ROOT: &str = "/registry";

/// A table of resources that cannot be mapped one to one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyMapError {
    /// Two resources would share their keys.
    #[error("the resources {first} and {second} have the same storage prefix")]
    Shared {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// A prefix of a form that no resource has.
    #[error("{0:?} is not a storage prefix")]
    Malformed(String),
}

/// A half-open interval of etcd's keys; an empty end stands for the one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The first key.
    pub start: Vec<u8>,
    /// The first one beyond.
    pub end: Vec<u8>,
}

/// The mapping.
#[derive(Clone, Debug)]
pub struct KeyMap {
    /// What etcd's keys begin with, without a slash at the end.
    root: String,
    layout: Layout,
}

#[derive(Clone, Debug)]
enum Layout {
    /// Keys as they are, below the root.
    Plain,
    /// By resource: `core/pods` to `pods`, and back.
    Resources { to: HashMap<String, String>, from: HashMap<String, String> },
}

impl KeyMap {
    /// All keys as they are, below a root: for stores that hold no resources.
    #[must_use]
    pub fn plain(root: &str) -> KeyMap {
        KeyMap { root: root.to_owned(), layout: Layout::Plain }
    }

    /// Keys of resources below upstream's `--etcd-prefix`. The table has `core/pods` and `pods` for a built-in resource.
    ///
    /// # Errors
    /// For a table that is not one to one.
    pub fn resources(
        root: &str,
        table: impl IntoIterator<Item = (String, String)>,
    ) -> Result<KeyMap, KeyMapError> {
        let (mut to, mut from) = (HashMap::new(), HashMap::<String, String>::new());
        for (resource, prefix) in table {
            let segments = |text: &str| text.split('/').filter(|part| !part.is_empty()).count();
            let slashes = prefix.matches('/').count();
            if resource.matches('/').count() != 1 || segments(&resource) != 2 {
                return Err(KeyMapError::Malformed(resource));
            }
            if slashes > 1 || segments(&prefix) != slashes + 1 {
                return Err(KeyMapError::Malformed(prefix));
            }
            if let Some(first) = from.insert(prefix.clone(), resource.clone()) {
                return Err(KeyMapError::Shared { first, second: resource });
            }
            to.insert(resource, prefix);
        }
        let root = match root.trim_matches('/') {
            "" => String::new(),
            inner => format!("/{inner}"),
        };
        Ok(KeyMap { root, layout: Layout::Resources { to, from } })
    }

    /// A key that no object has, but below the root: for reads that are about etcd itself.
    #[must_use]
    pub fn health(&self) -> Vec<u8> {
        format!("{}/health", self.root).into_bytes()
    }

    /// etcd's key of a key here.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a key that is no resource's.
    pub fn key(&self, key: &str) -> Result<String, StoreError> {
        if let Layout::Plain = self.layout {
            return Ok(format!("{}{key}", self.root));
        }
        let (prefix, rest) = self.split(key).ok_or_else(|| unmapped(key))?;
        Ok(format!("{}/{prefix}/{rest}", self.root))
    }

    /// The key here of one of etcd's; `None` for one that is no resource's.
    #[must_use]
    pub fn name(&self, key: &[u8]) -> Option<String> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(self.root.as_str())?;
        let Layout::Resources { to, from } = &self.layout else { return Some(rest.to_owned()) };
        let rest = rest.strip_prefix('/')?;
        let first = rest.find('/')?;
        let second = rest[first + 1..].find('/').map(|at| first + 1 + at);
        for end in [Some(first), second].into_iter().flatten() {
            if let Some(resource) = from.get(&rest[..end]) {
                return Some(format!("{ROOT}/{resource}{}", &rest[end..]));
            }
        }
        let resource = &rest[..second?];
        (is_custom(resource) && !to.contains_key(resource)).then(|| format!("{ROOT}/{rest}"))
    }

    /// etcd's prefix for a resource's key, and what comes after the resource.
    fn split<'a>(&'a self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let Layout::Resources { to, from } = &self.layout else { return None };
        let rest = key.strip_prefix(ROOT)?.strip_prefix('/')?;
        let first = rest.find('/')?;
        let end = first + 1 + rest[first + 1..].find('/')?;
        let (resource, rest) = (&rest[..end], &rest[end + 1..]);
        match to.get(resource) {
            Some(prefix) => Some((prefix, rest)),
            None => (is_custom(resource) && !from.contains_key(resource)).then_some((resource, rest)),
        }
    }

    /// etcd's interval of one here, as [`kaji_store::Range`] has it: of one resource, or of everything.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for an interval that is neither.
    pub fn interval(&self, start: &str, end: &str) -> Result<Interval, StoreError> {
        if end.is_empty() {
            return Ok(Interval { start: self.key(start)?.into_bytes(), end: vec![] });
        }
        if let Layout::Plain = self.layout {
            let below = |key: &str| format!("{}{key}", self.root).into_bytes();
            return Ok(Interval { start: below(start), end: below(end) });
        }
        let to_the_end = *end >= *beyond(&format!("{ROOT}/"));
        let Some((prefix, rest)) = self.split(start) else {
            let all = format!("{}/", self.root);
            if start <= &*format!("{ROOT}/") && to_the_end {
                return Ok(Interval { end: beyond(&all).into_bytes(), start: all.into_bytes() });
            }
            return Err(unmapped(start));
        };
        let of_resource = &start[..start.len() - rest.len()];
        let first = format!("{}/{prefix}/{rest}", self.root).into_bytes();
        let end = if let Some(rest) = end.strip_prefix(of_resource) {
            format!("{}/{prefix}/{rest}", self.root)
        } else if end == beyond(of_resource) {
            beyond(&format!("{}/{prefix}/", self.root))
        } else if to_the_end {
            // What comes after a key in etcd's order, of all resources.
            beyond(&format!("{}/", self.root))
        } else {
            return Err(unmapped(end));
        };
        Ok(Interval { start: first, end: end.into_bytes() })
    }
}

/// The first string after all that begin with a prefix, which ends with a slash.
fn beyond(prefix: &str) -> String {
    format!("{}0", prefix.trim_end_matches('/'))
}

/// Groups of custom resources have dots, which tells them from upstream's prefixes without groups.
fn is_custom(resource: &str) -> bool {
    resource.split('/').next().is_some_and(|group| group.contains('.'))
}

fn unmapped(key: &str) -> StoreError {
    StoreError::Invalid(format!("{key:?} is not the key of a resource"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: [(&str, &str); 8] = [
        ("core/pods", "pods"),
        ("core/nodes", "minions"),
        ("core/services", "services/specs"),
        ("core/endpoints", "services/endpoints"),
        ("core/replicationcontrollers", "controllers"),
        ("apps/deployments", "deployments"),
        ("networking.k8s.io/ingresses", "ingress"),
        ("apiregistration.k8s.io/apiservices", "apiregistration.k8s.io/apiservices"),
    ];

    fn map() -> KeyMap {
        let table = TABLE.map(|(resource, prefix)| (resource.to_owned(), prefix.to_owned()));
        KeyMap::resources("/registry", table).unwrap()
    }

    #[test]
    fn keys_of_upstream() {
        for (here, there) in [
            ("/registry/core/pods/ns/a", "/registry/pods/ns/a"),
            ("/registry/core/nodes/a", "/registry/minions/a"),
            ("/registry/core/services/ns/a", "/registry/services/specs/ns/a"),
            ("/registry/core/endpoints/ns/a", "/registry/services/endpoints/ns/a"),
            ("/registry/networking.k8s.io/ingresses/ns/a", "/registry/ingress/ns/a"),
            (
                "/registry/apiregistration.k8s.io/apiservices/v1.",
                "/registry/apiregistration.k8s.io/apiservices/v1.",
            ),
            ("/registry/example.com/pods/ns/a", "/registry/example.com/pods/ns/a"),
        ] {
            assert_eq!(map().key(here).unwrap(), there);
            assert_eq!(map().name(there.as_bytes()).as_deref(), Some(here));
        }
        for foreign in
            ["/registry/masterleases/10.0.0.1", "/registry/ranges/serviceips", "/registry/core/pods/a/b"]
        {
            assert_eq!(map().name(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(map().name(b"compact_rev_key"), None);
        assert_eq!(map().name(b"/registry/networking.k8s.io/ingresses/ns/a"), None);
        assert!(map().key("/registry/core/unknown/a").is_err());
        let other = KeyMap::resources("other/", []).unwrap();
        assert_eq!(other.key("/registry/a.b/cs/d").unwrap(), "/other/a.b/cs/d");
    }

    #[test]
    fn intervals() {
        let text = |start: &str, end: &str| {
            let Interval { start, end } = map().interval(start, end).unwrap();
            format!("{} {}", String::from_utf8(start).unwrap(), String::from_utf8(end).unwrap())
        };
        assert_eq!(text("/registry/core/pods/", "/registry/core/pods0"), "/registry/pods/ /registry/pods0");
        assert_eq!(
            text("/registry/core/pods/a/", "/registry/core/pods/a0"),
            "/registry/pods/a/ /registry/pods/a0"
        );
        assert_eq!(
            text("/registry/core/pods/a/b\0", "/registry/core/pods0"),
            "/registry/pods/a/b\0 /registry/pods0"
        );
        assert_eq!(text("/", "0"), "/registry/ /registry0");
        assert_eq!(text("/registry/core/nodes/a\0", "0"), "/registry/minions/a\0 /registry0");
        assert!(map().interval("/registry/core/pods/", "/registry/core/services/a").is_err());
        assert!(map().interval("/x", "/y").is_err());
    }

    #[test]
    fn tables_that_are_not_one_to_one() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let shared = KeyMap::resources("/registry", [pair("core/a", "a"), pair("b/a", "a")]);
        assert!(matches!(shared, Err(KeyMapError::Shared { .. })));
        for (a, b) in [("a", "a"), ("a/b", ""), ("a/b", "a/b/c"), ("a/b", "/a"), ("/a", "a")] {
            assert!(matches!(KeyMap::resources("/registry", [pair(a, b)]), Err(KeyMapError::Malformed(_))));
        }
    }

    proptest! {
        #[test]
        fn every_key_comes_back(
            resource in prop_oneof![
                proptest::sample::select(TABLE.map(|(resource, _)| resource.to_owned()).to_vec()),
                "[a-c]{1,2}\\.[a-c]{1,2}/(pods|specs|[a-c]{1,2})",
            ],
            name in "[a-c]{1,2}(/[a-c\u{10FFFF}]{0,2})?",
        ) {
            let map = map();
            let key = format!("/registry/{resource}/{name}");
            let there = map.key(&key).unwrap();
            prop_assert_eq!(map.name(there.as_bytes()), Some(key));
        }

        #[test]
        fn every_key_of_etcd_that_is_a_resources_goes_back(
            there in "/registry/(pods|minions|services|core|specs|a\\.b|networking\\.k8s\\.io)(/(specs|pods|ingresses|c)){0,2}(/[a-c]{1,2}){0,2}",
        ) {
            let map = map();
            if let Some(key) = map.name(there.as_bytes()) {
                prop_assert_eq!(map.key(&key).unwrap(), there);
            }
        }

        #[test]
        fn keys_of_a_resource_keep_their_order(a in "[a-c/]{1,4}", b in "[a-c/]{1,4}") {
            let map = map();
            let (x, y) = (format!("/registry/core/services/{a}"), format!("/registry/core/services/{b}"));
            prop_assert_eq!(map.key(&x).unwrap().cmp(&map.key(&y).unwrap()), x.cmp(&y));
        }
    }
}
