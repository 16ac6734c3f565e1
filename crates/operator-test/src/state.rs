//! The state of a cluster, made comparable: what differs between any two runs is left out or replaced by what it stands for.
//!
//! - Left out: uids, resourceVersions, generations, managed fields, what only the server's own parts write (events, leases).
//! - Replaced: times, addresses, uids, and generated names, wherever they stand.
//! - Sorted: lists of which the order means nothing.
//! - What differs between two runs without faults becomes a [`Mask`].
//!
//! Invariant: two states with the same objects, but for what is named here, are equal.

use crate::{
    api::{Api, ApiError, ResourceType, text},
    scenario::Ignore,
};
use serde::Serialize;
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Groups and resources without a part in the state.
const LEFT_OUT: [&str; 11] = [
    "events",
    "events.events.k8s.io",
    "leases.coordination.k8s.io",
    "leasecandidates.coordination.k8s.io",
    "endpoints",
    "ipaddresses.networking.k8s.io",
    "componentstatuses",
    "nodes",
    "csinodes.storage.k8s.io",
    "nodes.metrics.k8s.io",
    "pods.metrics.k8s.io",
];
const METADATA_LEFT_OUT: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "selfLink",
    "deletionGracePeriodSeconds",
];
/// Lists of which the order means nothing, by resource.
const UNORDERED: [(&str, &str); 1] = [("endpointslices.discovery.k8s.io", "endpoints")];
/// Differences that are listed.
const LISTED: usize = 20;
/// Longest value in a difference.
const LONGEST: usize = 120;

/// Objects as they are listed.
pub type Objects = Vec<(String, Value)>;

/// An object, or those of one generated name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    /// `deployments.apps`
    pub resource: String,
    /// Of namespaced resources.
    pub namespace: String,
    /// With `*` for the generated part.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Key { resource, namespace, name } = self;
        match namespace.as_str() {
            "" => write!(f, "{resource} {name}"),
            namespace => write!(f, "{resource} {namespace}/{name}"),
        }
    }
}

/// The leaves of an object by their paths.
type Leaves = BTreeMap<String, String>;

/// A comparable state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State(BTreeMap<Key, Vec<Leaves>>);

/// What is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    objects: BTreeSet<Key>,
    /// By resource.
    fields: BTreeSet<(String, String)>,
    ignore: Vec<Ignore>,
}

/// Reads all objects.
///
/// # Errors
/// When one of the lists is refused.
pub async fn objects(api: &Api) -> Result<Objects, ApiError> {
    let resources: Vec<ResourceType> = api.resources().await?;
    let mut all = Vec::new();
    // What the server of this program computes is about objects, and none.
    let is_part = |resource: &&ResourceType| {
        resource.listed
            && !resource.group.ends_with("kaji.dev")
            && !LEFT_OUT.contains(&resource.full_name().as_str())
    };
    for resource in resources.iter().filter(is_part) {
        // A definition may have gone in between, and its objects with it.
        let Some(list) = api.find(&resource.path("", "")).await? else { continue };
        let Value::Object(mut list) = list else { continue };
        let Some(Value::Array(items)) = list.remove("items") else { continue };
        all.extend(items.into_iter().map(|item| (resource.full_name(), item)));
    }
    Ok(all)
}

/// Objects of which all owners are gone.
#[must_use]
pub fn orphans(objects: &Objects) -> Vec<String> {
    // Nodes are no part of the state, and own objects.
    let uids: BTreeSet<&str> = objects.iter().filter_map(|(_, o)| o["metadata"]["uid"].as_str()).collect();
    let is_orphan = |object: &Value| {
        let owners = object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        let known = |owner: &Value| owner["kind"] == "Node" || uids.contains(text(owner, "/uid").as_str());
        !owners.is_empty() && !owners.iter().any(known)
    };
    let found = objects.iter().filter(|(_, object)| is_orphan(object));
    found.map(|(resource, object)| key(resource, object).to_string()).collect()
}

fn key(resource: &str, object: &Value) -> Key {
    let (name, prefix) = (text(object, "/metadata/name"), text(object, "/metadata/generateName"));
    let name = if prefix.is_empty() { name } else { format!("{prefix}*") };
    Key { resource: resource.to_owned(), namespace: text(object, "/metadata/namespace"), name }
}

fn leaves_of(value: &Value, generated: &BTreeMap<String, String>) -> Leaves {
    let mut leaves = Leaves::new();
    flatten(value, String::new(), generated, &mut leaves);
    leaves
}

impl State {
    /// That of these objects.
    #[must_use]
    pub fn of(objects: &Objects) -> State {
        let generated: BTreeMap<String, String> = objects
            .iter()
            .filter(|(_, object)| object["metadata"]["generateName"].is_string())
            .map(|(resource, object)| (text(object, "/metadata/name"), key(resource, object).name))
            .collect();
        let mut state = State::default();
        for (resource, object) in objects {
            let mut object = object.clone();
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                METADATA_LEFT_OUT.iter().for_each(|field| drop(metadata.remove(*field)));
            }
            for (_, list) in UNORDERED.iter().filter(|(of, _)| of == resource) {
                if let Some(Value::Array(items)) = object.get_mut(list) {
                    items.sort_by_cached_key(|item| leaves_of(item, &generated));
                }
            }
            let leaves = leaves_of(&object, &generated);
            state.0.entry(key(resource, &object)).or_default().push(leaves);
        }
        state
    }

    /// What is in one state only.
    #[must_use]
    pub fn mask(&self, other: &State, ignore: &[Ignore]) -> Mask {
        let mut mask = Mask { ignore: ignore.to_vec(), ..Mask::default() };
        let keys: BTreeSet<&Key> = self.0.keys().chain(other.0.keys()).collect();
        for key in keys {
            match (self.0.get(key).map(Vec::as_slice), other.0.get(key).map(Vec::as_slice)) {
                (Some([one]), Some([two])) => {
                    let paths = one.keys().chain(two.keys()).filter(|path| one.get(*path) != two.get(*path));
                    mask.fields.extend(paths.map(|path| (key.resource.clone(), path.clone())));
                }
                (Some(one), Some(two)) if one.len() == two.len() => {
                    let (one, two) = (columns(one), columns(two));
                    let paths = one.keys().chain(two.keys()).filter(|path| one.get(*path) != two.get(*path));
                    mask.fields.extend(paths.map(|path| (key.resource.clone(), (*path).to_owned())));
                }
                _ => drop(mask.objects.insert(key.clone())),
            }
        }
        mask
    }

    /// How this state differs from the one that it should be; nothing if it does not.
    #[must_use]
    pub fn differences(&self, reference: &State, mask: &Mask) -> Vec<String> {
        let mut differences = Vec::new();
        let keys: BTreeSet<&Key> = self.0.keys().chain(reference.0.keys()).collect();
        for key in keys.into_iter().filter(|key| !mask.hides(key)) {
            let (is, should) = (self.masked(key, mask), reference.masked(key, mask));
            if is == should {
                continue;
            }
            match (is.as_slice(), should.as_slice()) {
                ([is], [should]) => fields(key, is, should, &mut differences),
                ([], _) => differences.push(format!("{key} is missing")),
                (_, []) => differences.push(format!("{key} should not be there")),
                _ if is.len() == should.len() => differences.push(format!("{key}: another content")),
                _ => differences.push(format!("{key}: {} objects, not {}", is.len(), should.len())),
            }
        }
        let more = differences.len().saturating_sub(LISTED);
        differences.truncate(LISTED);
        if more > 0 {
            differences.push(format!("and {more} more"));
        }
        differences
    }

    fn masked(&self, key: &Key, mask: &Mask) -> Vec<Leaves> {
        let objects = self.0.get(key).map(Vec::as_slice).unwrap_or_default();
        let shown = |leaves: &Leaves| {
            let shown = leaves.iter().filter(|(path, _)| !mask.hides_field(&key.resource, path));
            shown.map(|(path, value)| (path.clone(), value.clone())).collect::<Leaves>()
        };
        let mut objects: Vec<Leaves> = objects.iter().map(shown).collect();
        objects.sort();
        objects
    }
}

/// The values at each path of several objects, whatever their order.
fn columns(objects: &[Leaves]) -> BTreeMap<&str, Vec<&str>> {
    let mut columns: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, value) in objects.iter().flatten() {
        columns.entry(path).or_default().push(value);
    }
    columns.values_mut().for_each(|values| values.sort_unstable());
    columns
}

impl Mask {
    /// Joins with another one.
    pub fn extend(&mut self, other: Mask) {
        self.objects.extend(other.objects);
        self.fields.extend(other.fields);
    }

    /// The objects and fields that differ by themselves.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let fields = self.fields.iter().map(|(resource, path)| format!("{path} of {resource}"));
        self.objects.iter().map(ToString::to_string).chain(fields).collect()
    }

    /// How many objects and fields differ by themselves.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len() + self.fields.len()
    }

    /// Whether nothing does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn hides(&self, key: &Key) -> bool {
        let ignored = |ignore: &Ignore| ignore.path.is_empty() && ignore.resource == key.resource;
        self.objects.contains(key) || self.ignore.iter().any(ignored)
    }

    fn hides_field(&self, resource: &str, path: &str) -> bool {
        let ignored = |ignore: &Ignore| {
            !ignore.path.is_empty() && ignore.resource == resource && path.starts_with(&ignore.path)
        };
        self.fields.contains(&(resource.to_owned(), path.to_owned())) || self.ignore.iter().any(ignored)
    }
}

fn fields(key: &Key, is: &Leaves, should: &Leaves, differences: &mut Vec<String>) {
    let paths: BTreeSet<&String> = is.keys().chain(should.keys()).collect();
    for path in paths {
        let shown = |leaves: &Leaves| match leaves.get(path) {
            Some(value) if value.len() > LONGEST => value.chars().take(LONGEST).chain(['…']).collect(),
            Some(value) => value.clone(),
            None => "absent".to_owned(),
        };
        if is.get(path) != should.get(path) {
            differences.push(format!("{key} {path}: {}, not {}", shown(is), shown(should)));
        }
    }
}

fn flatten(value: &Value, path: String, generated: &BTreeMap<String, String>, leaves: &mut Leaves) {
    match value {
        Value::Object(fields) => flatten_fields(fields, &path, generated, leaves),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                flatten(item, format!("{path}[{i}]"), generated, leaves);
            }
        }
        Value::String(text) => drop(leaves.insert(path, comparable(text, generated))),
        other => drop(leaves.insert(path, other.to_string())),
    }
}

fn flatten_fields(
    fields: &Map<String, Value>,
    path: &str,
    generated: &BTreeMap<String, String>,
    leaves: &mut Leaves,
) {
    for (name, value) in fields {
        // It follows the generation, which counts changes.
        if name == "observedGeneration" {
            continue;
        }
        flatten(value, format!("{path}.{name}"), generated, leaves);
    }
}

fn comparable(text: &str, generated: &BTreeMap<String, String>) -> String {
    if let Some(name) = generated.get(text) {
        return name.clone();
    }
    let starts_as_time = text.len() >= 20 && text.as_bytes().get(10) == Some(&b'T');
    if starts_as_time && text.parse::<jiff::Timestamp>().is_ok() {
        return "<time>".to_owned();
    }
    if text.parse::<IpAddr>().is_ok() {
        return "<address>".to_owned();
    }
    if is_uid(text) {
        return "<uid>".to_owned();
    }
    format!("{text:?}")
}

fn is_uid(text: &str) -> bool {
    let shape = |(i, byte): (usize, u8)| match i {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(shape)
}

#[cfg(test)]
mod tests;
