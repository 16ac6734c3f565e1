//! Names of API groups, versions, kinds and resources, and their textual forms.
//!
//! The empty group is the core ("legacy") group; it never shows up in a textual form.

use std::fmt;

/// A group and a version, e.g. `apps/v1`; the core group prints as just `v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// API group; empty for the core group.
    pub group: String,
    /// API version, e.g. `v1beta1`.
    pub version: String,
}

/// A kind in a group, at no particular version. Prints as `Deployment.apps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, e.g. `Deployment`.
    pub kind: String,
}

/// A resource in a group, at no particular version. Prints as `deployments.apps`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural lower-case resource name, e.g. `deployments`.
    pub resource: String,
}

/// A kind at one version of its group. Prints as `apps/v1, Kind=Deployment`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// A resource at one version of its group. Prints as `apps/v1, Resource=deployments`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural lower-case resource name.
    pub resource: String,
}

/// An `apiVersion` with more than one slash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected GroupVersion string: {0}")]
pub struct ParseGroupVersionError(pub String);

/// The `apiVersion` and `kind` of an object or of a configuration file, as they are given; `""` for one that is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeMeta<'a> {
    /// `v1` or `group/version`.
    pub api_version: &'a str,
    /// Kind.
    pub kind: &'a str,
}

/// A kind that is not one of those that are expected. The text is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no kind {kind:?} is registered for version {api_version:?}")]
pub struct UnregisteredKind {
    /// The kind that was given.
    pub kind: String,
    /// The `apiVersion` that was given.
    pub api_version: String,
}

impl<'a> TypeMeta<'a> {
    /// What a value says of itself.
    pub fn of(value: &'a serde_json::Value) -> Self {
        let text = |field: &str| value.get(field).and_then(|text| text.as_str()).unwrap_or_default();
        TypeMeta { api_version: text("apiVersion"), kind: text("kind") }
    }

    /// Checks that it is a kind at one of some versions.
    ///
    /// # Errors
    /// It is another kind, or at another version.
    pub fn expect(self, kind: &str, api_versions: &[&str]) -> Result<(), UnregisteredKind> {
        if self.kind == kind && api_versions.contains(&self.api_version) {
            return Ok(());
        }
        Err(self.unregistered())
    }

    /// The error for one that is not expected.
    pub fn unregistered(self) -> UnregisteredKind {
        UnregisteredKind { kind: self.kind.to_owned(), api_version: self.api_version.to_owned() }
    }
}

/// `group/version`, or only the version for the core group.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// `name.group`, or only the name for the core group.
fn write_qualified(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    f.write_str(name)?;
    if !group.is_empty() {
        write!(f, ".{group}")?;
    }
    Ok(())
}

impl GroupVersion {
    /// Makes a group-version from its parts.
    pub fn new(group: impl Into<String>, version: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into() }
    }

    /// Parses an `apiVersion`: `v1` or `group/version`. The empty string and `/` give the empty value.
    ///
    /// # Errors
    /// More than one slash.
    pub fn parse(s: &str) -> Result<Self, ParseGroupVersionError> {
        let (group, version) = split_api_version(s).ok_or_else(|| ParseGroupVersionError(s.to_owned()))?;
        Ok(Self::new(group, version))
    }

    /// The `apiVersion` that objects of this group-version carry.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// Whether both parts are empty.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty() && self.version.is_empty()
    }
}

/// Splits an `apiVersion` into group and version without allocating; `None` if it has more than one slash.
pub fn split_api_version(s: &str) -> Option<(&str, &str)> {
    match s.split_once('/') {
        None => Some(("", s)),
        Some((_, version)) if version.contains('/') => None,
        Some(parts) => Some(parts),
    }
}

impl GroupKind {
    /// Makes a group-kind from its parts.
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { group: group.into(), kind: kind.into() }
    }

    /// Parses `Kind` or `Kind.group`; every string is accepted.
    pub fn parse(s: &str) -> Self {
        let (kind, group) = s.split_once('.').unwrap_or((s, ""));
        Self::new(group, kind)
    }

    /// This kind at a version.
    pub fn with_version(&self, version: impl Into<String>) -> GroupVersionKind {
        GroupVersionKind::new(self.group.clone(), version, self.kind.clone())
    }

    /// Whether both parts are empty.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty() && self.kind.is_empty()
    }
}

impl GroupResource {
    /// Makes a group-resource from its parts.
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }

    /// Parses `resource` or `resource.group`; every string is accepted.
    pub fn parse(s: &str) -> Self {
        let (resource, group) = s.split_once('.').unwrap_or((s, ""));
        Self::new(group, resource)
    }

    /// This resource at a version.
    pub fn with_version(&self, version: impl Into<String>) -> GroupVersionResource {
        GroupVersionResource::new(self.group.clone(), version, self.resource.clone())
    }

    /// Whether both parts are empty.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty() && self.resource.is_empty()
    }
}

impl GroupVersionKind {
    /// Makes a group-version-kind from its parts.
    pub fn new(group: impl Into<String>, version: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// From an object's `apiVersion` and `kind`. An `apiVersion` that does not parse leaves group and version empty.
    pub fn from_api_version(api_version: &str, kind: impl Into<String>) -> Self {
        let (group, version) = split_api_version(api_version).unwrap_or(("", ""));
        Self::new(group, version, kind)
    }

    /// The kind of a JSON object, from its `apiVersion` and `kind`; `None` when `kind` is missing or empty.
    pub fn of(object: &serde_json::Value) -> Option<Self> {
        let kind = object.get("kind")?.as_str().filter(|k| !k.is_empty())?;
        let api_version = object.get("apiVersion").and_then(|v| v.as_str()).unwrap_or("");
        Some(Self::from_api_version(api_version, kind))
    }

    /// The `apiVersion` that objects of this kind carry.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// Without the version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.group.clone(), self.kind.clone())
    }

    /// Without the kind.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(self.group.clone(), self.version.clone())
    }

    /// Whether all parts are empty.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty() && self.version.is_empty() && self.kind.is_empty()
    }
}

impl GroupVersionResource {
    /// Makes a group-version-resource from its parts.
    pub fn new(group: impl Into<String>, version: impl Into<String>, resource: impl Into<String>) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }

    /// The `apiVersion` of this resource's group-version.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    /// Without the version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.clone(), self.resource.clone())
    }

    /// Without the resource.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(self.group.clone(), self.version.clone())
    }

    /// Whether all parts are empty.
    pub fn is_empty(&self) -> bool {
        self.group.is_empty() && self.version.is_empty() && self.resource.is_empty()
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        f.write_str(&self.version)
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.kind, &self.group)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_qualified(f, &self.resource, &self.group)
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

/// Kubernetes' order of versions, the greatest first in lists: GA before beta before alpha, then higher numbers; anything
/// else last.
pub fn version_rank(version: &str) -> (u8, u32, u32) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    let split = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, suffix) = rest.split_at(split);
    let Ok(major) = major.parse::<u32>() else { return (0, 0, 0) };
    let minor = |s: &str| s.parse::<u32>().ok();
    if suffix.is_empty() {
        (3, major, 0)
    } else if let Some(n) = suffix.strip_prefix("beta").and_then(minor) {
        (2, major, n)
    } else if let Some(n) = suffix.strip_prefix("alpha").and_then(minor) {
        (1, major, n)
    } else {
        (0, 0, 0)
    }
}

/// The same as an order of any two versions; those that are not Kubernetes' are ordered by text, the first one greatest.
pub fn compare_versions(a: &str, b: &str) -> std::cmp::Ordering {
    version_rank(a).cmp(&version_rank(b)).then_with(|| b.cmp(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_textual_forms() {
        assert_eq!(GroupResource::new("apps", "deployments").to_string(), "deployments.apps");
        assert_eq!(GroupResource::new("", "pods").to_string(), "pods");
        assert_eq!(GroupKind::new("apps", "Deployment").to_string(), "Deployment.apps");
        assert_eq!(GroupVersion::new("", "v1").to_string(), "v1");
        assert_eq!(GroupVersion::new("apps", "v1").api_version(), "apps/v1");
        assert_eq!(GroupVersionKind::new("", "v1", "Event").to_string(), "/v1, Kind=Event");
        assert_eq!(GroupVersionResource::new("apps", "v1", "x").to_string(), "apps/v1, Resource=x");
    }

    #[test]
    fn parses_api_versions() {
        assert_eq!(GroupVersion::parse("v1"), Ok(GroupVersion::new("", "v1")));
        assert_eq!(GroupVersion::parse("apps/v1"), Ok(GroupVersion::new("apps", "v1")));
        assert_eq!(GroupVersion::parse(""), Ok(GroupVersion::default()));
        assert_eq!(GroupVersion::parse("/"), Ok(GroupVersion::default()));
        assert_eq!(
            GroupVersion::parse("a/b/c").map_err(|e| e.to_string()),
            Err("unexpected GroupVersion string: a/b/c".into())
        );
        assert_eq!(GroupKind::parse("Deployment.apps"), GroupKind::new("apps", "Deployment"));
        assert_eq!(GroupResource::parse("a.b.c"), GroupResource::new("b.c", "a"));
    }

    #[test]
    fn rejects_kinds_and_versions_that_are_not_expected() {
        let file = serde_json::json!({"apiVersion": "a.io/v1", "kind": "Config"});
        let meta = TypeMeta::of(&file);
        assert_eq!(meta.expect("Config", &["a.io/v2", "a.io/v1"]), Ok(()));
        let refusal = |meta: TypeMeta<'_>, kind| meta.expect(kind, &["a.io/v2"]).unwrap_err().to_string();
        assert_eq!(refusal(meta, "Config"), r#"no kind "Config" is registered for version "a.io/v1""#);
        assert!(meta.expect("Other", &["a.io/v1"]).is_err());
        let empty = TypeMeta::of(&serde_json::Value::Null);
        assert_eq!(refusal(empty, "Config"), r#"no kind "" is registered for version """#);
    }

    #[test]
    fn versions_are_ordered_as_kubernetes_orders_them() {
        let mut versions =
            ["foo1", "v1alpha1", "v2", "v11beta2", "v10", "v1", "v12alpha1", "v11alpha2", "foo10", "v3beta1"];
        versions.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha1", "foo1", "foo10"]
        );
    }
}
