//! The ids of users and groups that this process's user namespace has.
//!
//! Invariant: read once; a program that enters another user namespace is executed anew there.

use std::{fs, io, path::Path, sync::OnceLock};

/// The ids that a user namespace has, as ranges of first id and length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIds {
    users: Vec<(u32, u32)>,
    groups: Vec<(u32, u32)>,
    sets_groups: bool,
}

impl NamespaceIds {
    /// Those of this process.
    pub fn own() -> &'static NamespaceIds {
        static OWN: OnceLock<NamespaceIds> = OnceLock::new();
        OWN.get_or_init(|| {
            let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
            NamespaceIds::parse(&read("uid_map"), &read("gid_map"), &read("setgroups"))
        })
    }

    /// From the texts of `uid_map`, `gid_map` and `setgroups`. Kernels without user namespaces have no such files, and all ids.
    #[must_use]
    pub fn parse(users: &str, groups: &str, setgroups: &str) -> NamespaceIds {
        NamespaceIds { users: ranges(users), groups: ranges(groups), sets_groups: setgroups.trim() != "deny" }
    }

    /// Whether it has all ids, as the namespace has that a machine starts with.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.users == [(0, u32::MAX)]
    }

    /// Whether files can belong to the user.
    #[must_use]
    pub fn has_user(&self, id: u32) -> bool {
        has(&self.users, id)
    }

    /// Whether files can belong to the group.
    #[must_use]
    pub fn has_group(&self, id: u32) -> bool {
        has(&self.groups, id)
    }

    /// Refuses ids that it does not have.
    ///
    /// # Errors
    /// The first one.
    pub fn check(&self, user: Option<u32>, group: Option<u32>) -> Result<(), MissingId> {
        if let Some(id) = user.filter(|id| !self.has_user(*id)) {
            return Err(MissingId { kind: "user", id, file: "/etc/subuid" });
        }
        match group.filter(|id| !self.has_group(*id)) {
            Some(id) => Err(MissingId { kind: "group", id, file: "/etc/subgid" }),
            None => Ok(()),
        }
    }

    /// Whether processes can have supplementary groups.
    #[must_use]
    pub fn sets_groups(&self) -> bool {
        self.sets_groups
    }
}

/// An id that processes and files cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {id} does not exist in this node's user namespace: {file} gives too few ids, or none")]
pub struct MissingId {
    kind: &'static str,
    id: u32,
    file: &'static str,
}

/// Gives a file to a user, a group, or both.
///
/// # Errors
/// Ids that the user namespace of this process does not have, and those of the system.
pub fn chown(path: &Path, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    NamespaceIds::own().check(user, group).map_err(io::Error::other)?;
    std::os::unix::fs::chown(path, user, group)
}

fn has(ranges: &[(u32, u32)], id: u32) -> bool {
    ranges.iter().any(|(first, length)| id.checked_sub(*first).is_some_and(|offset| offset < *length))
}

/// Lines of first id, first id outside, length.
fn ranges(text: &str) -> Vec<(u32, u32)> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace().map(|field| field.parse().ok());
        let first = fields.next()??;
        Some((first, fields.nth(1)??))
    };
    match text.lines().filter_map(line).collect::<Vec<_>>() {
        none if none.is_empty() => vec![(0, u32::MAX)],
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_after_the_own_id() {
        let map = "         0       1000          1\n         1     100000      65536\n";
        let ids = NamespaceIds::parse(map, "0 1000 1\n", "deny\n");
        assert!(!ids.is_whole() && !ids.sets_groups());
        assert_eq!([0, 1, 65_536, 65_537].map(|id| ids.has_user(id)), [true, true, true, false]);
        assert_eq!([0, 1].map(|id| ids.has_group(id)), [true, false]);
        assert_eq!(ids.check(Some(1000), Some(0)), Ok(()));
        let refused =
            [ids.check(Some(70_000), None), ids.check(None, Some(33))].map(|r| r.unwrap_err().to_string());
        assert!(refused[0].starts_with("user 70000 ") && refused[1].contains("/etc/subgid"), "{refused:?}");
    }

    #[test]
    fn the_first_namespace_has_all() {
        let map = "         0          0 4294967295\n";
        for map in [map, ""] {
            let ids = NamespaceIds::parse(map, map, "allow\n");
            assert!(ids.is_whole() && ids.sets_groups() && ids.has_group(4_294_967_294));
        }
    }
}
