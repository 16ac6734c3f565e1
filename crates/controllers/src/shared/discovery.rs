//! What the API server serves: every resource of every group version, as discovery lists it.
//!
//! Invariant: a group version that cannot be read is reported, never passed off as empty.

use futures_util::{StreamExt, stream};
use kaji_meta::gvk::api_version;
use kaji_runtime::{Client, Error, client::Target};
use serde::Deserialize;
use std::collections::HashMap;

/// Group versions read at once.
const PARALLEL: usize = 8;

/// One resource of one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// `""` for core.
    pub group: String,
    /// `v1`
    pub version: String,
    /// Plural.
    pub resource: String,
    /// Kind.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// What may be done with it.
    pub verbs: Vec<String>,
}

impl Resource {
    /// `apps/v1`
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// `deployments.apps`; of core, the plural alone.
    pub fn group_resource(&self) -> String {
        match self.group.as_str() {
            "" => self.resource.clone(),
            group => format!("{}.{group}", self.resource),
        }
    }

    /// Whether all these verbs are supported.
    pub fn supports(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|v| self.verbs.iter().any(|have| have == v))
    }

    /// Where its objects are; the namespace counts only for namespaced resources.
    pub fn target(&self, namespace: &str, name: &str) -> Target {
        Target {
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
            namespace: if self.namespaced { namespace.into() } else { String::new() },
            name: name.into(),
            subresource: String::new(),
        }
    }
}

/// All that is served.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    /// Every resource of every version, without subresources. Versions of a group are in order of preference.
    pub resources: Vec<Resource>,
    /// Group versions that could not be read, and why.
    pub failed: Vec<(String, String)>,
}

impl Discovered {
    /// Each resource once, in its group's preferred version if it is there, else in the first that has it.
    pub fn preferred(&self) -> Vec<Resource> {
        let mut seen = std::collections::HashSet::new();
        self.resources.iter().filter(|r| seen.insert((&r.group, &r.resource))).cloned().collect()
    }

    /// Resources by apiVersion and kind.
    pub fn by_kind(&self) -> HashMap<(String, String), Resource> {
        self.resources.iter().rev().map(|r| ((r.api_version(), r.kind.clone()), r.clone())).collect()
    }

    /// What upstream's client says about the failures, sorted.
    pub fn failure(&self) -> Option<String> {
        let mut failed: Vec<String> =
            self.failed.iter().map(|(gv, error)| format!("{gv}: {error}")).collect();
        failed.sort();
        (!failed.is_empty())
            .then(|| format!("unable to retrieve the complete list of server APIs: {}", failed.join(", ")))
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Versions {
    versions: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Group {
    name: String,
    versions: Vec<GroupVersion>,
    preferred_version: GroupVersion,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct GroupVersion {
    version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Resources {
    resources: Vec<ApiResource>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ApiResource {
    name: String,
    kind: String,
    namespaced: bool,
    verbs: Vec<String>,
    storage_version_hash: String,
}

/// A resource that was looked up by its name.
#[derive(Clone, Debug)]
pub struct Found {
    /// In the first version that has it.
    pub resource: Resource,
    /// Tells in which version the server stores it; `""` if it does not say.
    pub storage_version_hash: String,
}

/// The versions of a group, the preferred one first; `None` for a group that is not served.
///
/// # Errors
/// Discovery of the group cannot be read.
pub async fn versions(client: &Client, group: &str) -> Result<Option<Vec<String>>, Error> {
    if group.is_empty() {
        return client.get::<Versions>("/api").await.map(|core| Some(core.versions));
    }
    let Some(mut group) = present(client.get::<Group>(&format!("/apis/{group}")).await)? else {
        return Ok(None);
    };
    let preferred = group.preferred_version.version;
    group.versions.sort_by_key(|v| v.version != preferred);
    Ok(Some(group.versions.into_iter().map(|v| v.version).collect()))
}

/// Looks one resource up, in its group's preferred version if it is there.
///
/// # Errors
/// Discovery of the group or of one of its versions cannot be read.
pub async fn find(client: &Client, group: &str, name: &str) -> Result<Option<Found>, Error> {
    find_where(client, group, |r| r.name == name).await
}

/// Looks up the resource that serves a kind, in its group's preferred version if it is there.
///
/// # Errors
/// Discovery of the group or of one of its versions cannot be read.
pub async fn find_kind(client: &Client, group: &str, kind: &str) -> Result<Option<Resource>, Error> {
    let found = find_where(client, group, |r| r.kind == kind && !r.name.contains('/')).await?;
    Ok(found.map(|found| found.resource))
}

/// What upstream's client says about a kind that is not served.
pub fn no_kind(group: &str, kind: &str) -> String {
    let quote = kaji_meta::text::quote;
    format!("no matches for kind {} in group {}", quote(kind), quote(group))
}

async fn find_where(
    client: &Client,
    group: &str,
    wanted: impl Fn(&ApiResource) -> bool,
) -> Result<Option<Found>, Error> {
    for version in versions(client, group).await?.unwrap_or_default() {
        let list = client.get::<Resources>(&path(group, &version)).await;
        // A version may be removed between the two calls.
        let Some(list) = present(list)? else { continue };
        if let Some(mut r) = list.resources.into_iter().find(&wanted) {
            let storage_version_hash = std::mem::take(&mut r.storage_version_hash);
            return Ok(Some(Found { resource: r.of(group, &version), storage_version_hash }));
        }
    }
    Ok(None)
}

fn present<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn path(group: &str, version: &str) -> String {
    match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    }
}

impl ApiResource {
    fn of(self, group: &str, version: &str) -> Resource {
        Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: self.name,
            kind: self.kind,
            namespaced: self.namespaced,
            verbs: self.verbs,
        }
    }
}

/// Reads discovery.
///
/// # Errors
/// The list of groups itself cannot be read. Failures of single group versions are in the answer.
pub async fn discover(client: &Client) -> Result<Discovered, Error> {
    let core: Versions = client.get("/api").await?;
    let groups: Groups = client.get("/apis").await?;
    let mut versions: Vec<(String, String)> = core.versions.into_iter().map(|v| (String::new(), v)).collect();
    for mut group in groups.groups {
        let preferred = group.preferred_version.version;
        // Stable, so the others stay in the order of the server's preference.
        group.versions.sort_by_key(|v| v.version != preferred);
        versions.extend(group.versions.into_iter().map(|v| (group.name.clone(), v.version)));
    }
    let read = |(group, version): (String, String)| async move {
        let list = client.get::<Resources>(&path(&group, &version)).await;
        (group, version, list)
    };
    let lists: Vec<_> = stream::iter(versions).map(read).buffered(PARALLEL).collect().await;
    let mut found = Discovered::default();
    for (group, version, list) in lists {
        match list {
            Ok(list) => {
                let whole = list.resources.into_iter().filter(|r| !r.name.contains('/'));
                found.resources.extend(whole.map(|r| r.of(&group, &version)));
            }
            // The version was removed between the two calls.
            Err(error) if error.not_found() => {}
            Err(error) => found.failed.push((api_version(&group, &version), error.to_string())),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_each_resource_once() {
        let resource = |group: &str, version: &str, resource: &str| Resource {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            kind: "K".into(),
            ..Resource::default()
        };
        let found = Discovered {
            resources: vec![
                resource("a", "v2", "x"),
                resource("a", "v1", "x"),
                resource("a", "v1", "old"),
                resource("", "v1", "x"),
            ],
            failed: vec![("b/v1".into(), "down".into()), ("a/v3".into(), "broken".into())],
        };
        let names: Vec<String> =
            found.preferred().iter().map(|r| format!("{}.{}", r.resource, r.api_version())).collect();
        assert_eq!(names, ["x.a/v2", "old.a/v1", "x.v1"]);
        assert_eq!(
            found.failure().unwrap(),
            "unable to retrieve the complete list of server APIs: a/v3: broken, b/v1: down"
        );
        assert_eq!(found.by_kind().len(), 3);
    }
}
