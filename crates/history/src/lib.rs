//! The history of objects: every revision with the request that made it, in an archive beside the store.
//!
//! The store forgets its history after minutes (compaction, 410); the archive keeps it by age and bytes, and changes nothing of that.
//!
//! - `record`: one revision as bytes. `active`: the file that is appended to. `segment`: finished files, compressed and indexed.
//!   `archive`: all files: appending, retention, reading, purging. `changes`: pages of what changed, of all objects.
//! - `recorder`: follows the store's events and joins them with the requests that made them.
//! - `machine`: changes that are left out because only a machine's clock is in them. `redact`: what is not kept in the clear.
//! - `revisions`, `purges`: the kinds of `history.kaji.dev/v1alpha1`.
//!
//! Invariants:
//! - No write waits for the archive: the recorder follows the store as a watch does, and is served from the store's history when it
//!   is late. What it misses even so is a gap, with its revisions, in the history of every object.
//! - What a damaged file held is a gap as well, and is logged.
//! - Values of Secrets, and of kinds that the store encrypts, are never in the archive: a keyed hash stands for each.
//! - The history of an object is shown to users that may get the object, and to no others.

mod active;
mod archive;
mod changes;
mod machine;
mod purges;
mod record;
mod recorder;
mod redact;
mod revisions;
mod segment;

pub use archive::{Archive, ArchiveError, Found, Limits, Purged, erase, erase_below};
pub use changes::{Changes, Window};
pub use kaji_engine::Attribution;
pub use machine::only_heartbeat;
pub use record::{Change, Record};
pub use recorder::{History, HistoryOptions, Sources};
pub use redact::{Redaction, Redactor};

use kaji_auth::Authorizer;
use kaji_resource::ResourceDef;
use std::sync::Arc;

/// The directory of the archive in a data directory.
pub const DIR: &str = "history";
/// The group.
pub const GROUP: &str = "history.kaji.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// The resource of revisions.
pub const REVISIONS: &str = "revisions";
/// The resource of purges.
pub const PURGES: &str = "purges";

/// The kinds of the group.
pub fn defs(history: &Arc<History>, authorizer: &Arc<dyn Authorizer>) -> Vec<ResourceDef> {
    vec![revisions::def(history, authorizer), purges::def(history)]
}

/// The key of an object, as the engine has it in the store.
fn key_of(group: &str, resource: &str, namespace: &str, name: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    match namespace {
        "" => format!("/registry/{group}/{resource}/{name}"),
        namespace => format!("/registry/{group}/{resource}/{namespace}/{name}"),
    }
}

/// Group, resource, namespace and name of a key; `None` for keys of no object.
fn parts_of(key: &str) -> Option<[&str; 4]> {
    let mut parts = key.strip_prefix("/registry/")?.splitn(4, '/');
    let (group, resource, third, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next());
    let group = if group == "core" { "" } else { group };
    Some(match name {
        Some(name) => [group, resource, third, name],
        None => [group, resource, "", third],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_objects() {
        for parts in [["", "nodes", "", "n"], ["", "pods", "d", "p"], ["apps", "deployments", "d", "web"]] {
            let [group, resource, namespace, name] = parts;
            assert_eq!(parts_of(&key_of(group, resource, namespace, name)), Some(parts));
        }
        assert_eq!(parts_of("/other/x"), None);
    }
}
