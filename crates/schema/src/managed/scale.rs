//! Managers of the scale subresource: entries are shown and written in terms of `autoscaling/v1` Scale, and kept in
//! terms of the scaled object.

use serde_json::Value;

use super::entry::{self, Entry, Identity, Operation};
use crate::fieldset::{FieldSet, Tree, ops};

const SCALE_VERSION: &str = "autoscaling/v1";

/// Where each version of the scaled kind keeps its replicas: `("apps/v1", Some(&["spec", "replicas"]))`. `None` for
/// versions without scale; entries of versions that are not listed are dropped.
pub type ScalePaths<'a> = &'a [(&'a str, Option<&'a [&'a str]>)];

fn path_of<'a>(paths: ScalePaths<'a>, api_version: &str) -> Option<Option<&'a [&'a str]>> {
    paths.iter().find(|(v, _)| *v == api_version).map(|(_, path)| *path)
}

fn has(fields: &Tree, path: &[&str]) -> bool {
    let path: Vec<String> = path.iter().map(|n| format!("f:{n}")).collect();
    ops::contains(fields, path.iter().map(String::as_str))
}

fn replicas_in_scale() -> Tree {
    FieldSet::from_paths(&[&["spec", "replicas"]]).0
}

/// The managedFields of the Scale of an object with these managedFields (null if it has none).
///
/// # Errors
/// The text of what is wrong with the entries.
pub fn scale_to_subresource(parent: &Value, paths: ScalePaths<'_>) -> Result<Value, String> {
    let mut out = Vec::new();
    for entry in entry::decode(parent)? {
        let Some(Some(path)) = path_of(paths, entry.api_version()) else { continue };
        if has(entry.fields(), path) {
            let id = Identity { api_version: SCALE_VERSION, ..entry.id() };
            out.push(Entry::new(id, entry.time(), replicas_in_scale()));
        }
    }
    Ok(entry::encode(out).unwrap_or_default())
}

/// The managedFields of the object at `api_version` after its Scale was written with the managedFields `scale`:
/// replicas belong to the managers that the Scale names, all other fields keep theirs.
///
/// # Errors
/// The text of what is wrong with the entries.
pub fn scale_to_parent(
    parent: &Value,
    scale: &Value,
    api_version: &str,
    paths: ScalePaths<'_>,
) -> Result<Value, String> {
    let mut scale: Vec<Option<Entry>> = entry::decode(scale)?.into_iter().map(Some).collect();
    let known = entry::by_key(&scale.iter().flatten().cloned().collect::<Vec<_>>());
    let parents = entry::decode(parent)?;
    let mut out = Vec::new();
    for mut entry in parents {
        let Some(path) = path_of(paths, entry.api_version()) else { continue };
        let Some(path) = path.filter(|path| has(entry.fields(), path)) else {
            out.push(entry);
            continue;
        };
        match known.get(&entry.id().key()).and_then(|at| scale.get_mut(*at)?.take()) {
            Some(_) => {}
            // Another manager set them through the Scale.
            None => ops::subtract(entry.fields_mut(), &FieldSet::from_paths(&[path]).0),
        }
        out.push(entry);
    }
    let here = path_of(paths, api_version).flatten();
    let mut written = entry::by_key(&out);
    for entry in scale.iter().flatten().filter(|e| has(e.fields(), &["spec", "replicas"])) {
        let Some(path) = here else { continue };
        let id = Identity { api_version, ..entry.id() };
        // The time is the parent's for that manager, of which there is none: upstream leaves it out.
        let new = Entry::new(id, None, FieldSet::from_paths(&[path]).0);
        let update = id.operation == Operation::Update;
        match written.get(&id.key()).filter(|_| update).and_then(|at| out.get_mut(*at)) {
            Some(old) => ops::union(old.fields_mut(), new.fields()),
            None => {
                written.insert(id.key(), out.len());
                out.push(new);
            }
        }
    }
    Ok(entry::encode(out).unwrap_or_default())
}
