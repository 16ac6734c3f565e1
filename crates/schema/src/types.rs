//! The built-in types: a generated table of facts (`types/builtin.tbl`, written by `cargo xtask codegen`), embedded,
//! indexed at first use in one pass over its lines; each type is decoded into a [`Schema`] at its first lookup.
//!
//! Invariants: entries are sorted by full name; every entry parses (a test decodes them all); what is decoded stays for
//! the life of the process, bounded by the table's size.

use std::sync::OnceLock;

use crate::protobuf::{self, Slot};
use crate::schema::{Schema, SchemaRef};

mod parse;

pub use parse::Union;

static TEXT: &str = include_str!("types/builtin.tbl");

/// The meta package; its kinds (`Status`, `DeleteOptions`, ...) exist in every group-version.
pub(crate) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// One API package of the table.
struct Package {
    alias: &'static str,
    name: &'static str,
    /// Group and version of its kinds; none for helper packages.
    group_version: Option<(&'static str, &'static str)>,
    /// Where its types are in [`Table::entries`].
    types: std::ops::Range<usize>,
    /// Its enums: name, values separated by spaces.
    enums: Vec<(&'static str, &'static str)>,
}

struct Table {
    packages: Vec<Package>,
    entries: Vec<Entry>,
}

/// One built-in type.
pub struct Entry {
    package: usize,
    short: &'static str,
    body: &'static str,
    kind: bool,
    full: OnceLock<String>,
    schema: OnceLock<Schema>,
    slots: OnceLock<Box<[Slot]>>,
}

impl Entry {
    /// The full type name, "io.k8s.api.apps.v1.Deployment".
    pub fn name(&'static self) -> &'static str {
        self.full.get_or_init(|| {
            let package = table().packages.get(self.package).map_or("", |p| p.name);
            format!("{package}.{}", self.short)
        })
    }

    /// Go's name, "Deployment".
    pub fn short_name(&self) -> &'static str {
        self.short
    }

    /// The group, version and kind, if this is an API kind. Kinds of meta/v1 answer with the empty group.
    pub fn gvk(&self) -> Option<(&'static str, &'static str, &'static str)> {
        let (group, version) = table().packages.get(self.package)?.group_version?;
        self.kind.then_some((group, version, self.short))
    }

    /// The decoded schema (decoded at the first call).
    pub fn schema(&'static self) -> &'static Schema {
        self.schema.get_or_init(|| parse::schema(self).unwrap_or_default())
    }

    /// The fields by protobuf number (sorted at the first call).
    pub(crate) fn slots(&'static self) -> &'static [Slot] {
        self.slots.get_or_init(|| self.schema().properties.as_ref().map(protobuf::slots).unwrap_or_default())
    }

    /// Unions that the type declares (`x-kubernetes-unions`).
    pub fn unions(&self) -> Vec<Union> {
        parse::unions(self.body)
    }

    /// For types that define their own JSON form: the code in the table ("=Q").
    pub(crate) fn special(&self) -> Option<&'static str> {
        self.body.starts_with('=').then_some(self.body)
    }
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| index(TEXT))
}

fn index(text: &'static str) -> Table {
    let mut t = Table { packages: Vec::with_capacity(48), entries: Vec::with_capacity(1024) };
    for line in text.lines() {
        let mut words = line.split(' ');
        match line.as_bytes().first() {
            Some(b'@') => {
                let alias = words.next().unwrap_or("").trim_start_matches('@');
                let name = words.next().unwrap_or("");
                let group_version = words.next().and_then(|gv| gv.split_once('/'));
                let start = t.entries.len();
                t.packages.push(Package {
                    alias,
                    name,
                    group_version,
                    types: start..start,
                    enums: Vec::new(),
                });
            }
            Some(b'%') => {
                if let (Some(p), Some((name, values))) = (t.packages.last_mut(), line[1..].split_once(' ')) {
                    p.enums.push((name, values));
                }
            }
            Some(b'#') | None => {}
            Some(_) => {
                let Some(package) = t.packages.len().checked_sub(1) else { continue };
                let (name, body) = line.split_once(' ').unwrap_or((line, ""));
                let (short, kind) = name.strip_suffix('!').map_or((name, false), |n| (n, true));
                let (full, schema, slots) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
                t.entries.push(Entry { package, short, body, kind, full, schema, slots });
                t.packages[package].types.end = t.entries.len();
            }
        }
    }
    t
}

fn entry_in(package: &Package, short: &str) -> Option<&'static Entry> {
    let types = table().entries.get(package.types.clone())?;
    types.binary_search_by(|e| e.short.cmp(short)).ok().and_then(|i| types.get(i))
}

/// The entry of a full type name ("io.k8s.api.core.v1.Pod").
pub fn entry(name: &str) -> Option<&'static Entry> {
    let (package, short) = name.rsplit_once('.')?;
    entry_in_package(package, short)
}

/// The entry of a type by the full name of its package and Go's name.
pub(crate) fn entry_in_package(package: &str, short: &str) -> Option<&'static Entry> {
    let packages = &table().packages;
    let at = packages.binary_search_by(|p| p.name.cmp(package)).ok()?;
    entry_in(packages.get(at)?, short)
}

/// The schema of a full type name.
pub fn lookup(name: &str) -> Option<SchemaRef> {
    entry(name).map(SchemaRef::Named)
}

/// The entry of an API kind. `DeleteOptions` and `WatchEvent` exist in every group and version.
pub fn entry_for_gvk(group: &str, version: &str, kind: &str) -> Option<&'static Entry> {
    let everywhere = matches!(kind, "DeleteOptions" | "WatchEvent");
    let mut packages = table().packages.iter().filter(|p| match p.group_version {
        _ if everywhere => p.name == META,
        Some(gv) => gv == (group, version),
        None => false,
    });
    packages.find_map(|p| entry_in(p, kind).filter(|e| e.kind))
}

/// The schema of an API kind.
pub fn for_gvk(group: &str, version: &str, kind: &str) -> Option<SchemaRef> {
    entry_for_gvk(group, version, kind).map(SchemaRef::Named)
}

/// The full type name of an API kind.
pub fn type_name_for_gvk(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    entry_for_gvk(group, version, kind).map(Entry::name)
}

/// All entries, by full name.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    table().entries.iter()
}

/// All full type names, sorted.
pub fn names() -> impl Iterator<Item = &'static str> {
    entries().map(Entry::name)
}

/// The values of a string enum, by its full name ("io.k8s.api.core.v1.Protocol"); empty if it is none.
pub fn enum_values(name: &str) -> impl Iterator<Item = &'static str> {
    let values = name.rsplit_once('.').and_then(|(package, short)| {
        let packages = &table().packages;
        let at = packages.binary_search_by(|p| p.name.cmp(package)).ok()?;
        packages.get(at)?.enums.iter().find(|(n, _)| *n == short).map(|(_, v)| *v)
    });
    values.unwrap_or("").split_ascii_whitespace()
}

/// Resolves a name as written in the table from within `package`: `Name` or `alias/Name`.
fn resolve(package: usize, name: &str) -> Option<&'static Entry> {
    let packages = &table().packages;
    match name.split_once('/') {
        Some((alias, short)) => entry_in(packages.iter().find(|p| p.alias == alias)?, short),
        None => entry_in(packages.get(package)?, name),
    }
}

/// The full name of `alias/Name`.
pub(crate) fn aliased(name: &str) -> String {
    full_name(0, name)
}

/// The full name of `Name` or `alias/Name`; packages that are not in the table keep their alias.
fn full_name(package: usize, name: &str) -> String {
    let packages = &table().packages;
    match name.split_once('/') {
        Some((alias, short)) => {
            let package = packages.iter().find(|p| p.alias == alias).map_or(alias, |p| p.name);
            format!("{package}.{short}")
        }
        None => format!("{}.{name}", packages.get(package).map_or("", |p| p.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{ListKind, MapKind, Omit, Type};

    #[test]
    fn every_entry_decodes_and_is_sorted() {
        let mut last = String::new();
        for e in entries() {
            parse::schema(e).unwrap_or_else(|err| panic!("{}: {err}", e.name()));
            assert!(last.as_str() < e.name(), "{last} {}", e.name());
            last = e.name().to_string();
            assert!(std::ptr::eq(entry(e.name()).unwrap(), e));
            if let Some((g, v, k)) = e.gvk() {
                assert!(std::ptr::eq(entry_for_gvk(g, v, k).unwrap(), e), "{g} {v} {k}");
            }
        }
        assert!(entries().count() > 860);
    }

    #[test]
    fn knows_the_fields_of_a_pod_spec() {
        let pod = for_gvk("", "v1", "Pod").unwrap();
        let spec = &pod.property("spec").unwrap().schema;
        assert_eq!(spec.short_name(), "PodSpec");
        let containers = spec.property("containers").unwrap();
        assert_eq!((containers.number, containers.omit), (2, Omit::Never));
        assert_eq!(containers.schema.list, ListKind::Map { keys: Box::new(["name".into()]) });
        assert!(containers.schema.patch_strategy.merge);
        assert_eq!(containers.schema.merge_key.as_deref(), Some("name"));
        assert_eq!(spec.child("nodeSelector").unwrap().map, MapKind::Atomic);
        let port = &containers.schema.items.as_ref().unwrap().child("ports").unwrap().items.clone().unwrap();
        assert_eq!(port.child("protocol").unwrap().default.as_deref(), Some(&serde_json::json!("TCP")));
        assert_eq!(
            enum_values(port.child("protocol").unwrap().name.unwrap()).collect::<Vec<_>>(),
            ["SCTP", "TCP", "UDP"]
        );
    }

    #[test]
    fn resolves_inlined_and_recursive_types() {
        let volume = lookup("io.k8s.api.core.v1.Volume").unwrap();
        let p = volume.property("hostPath").unwrap();
        assert_eq!((p.outer, p.number, p.pointer), ([2, 0], 1, true));
        let props =
            lookup("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").unwrap();
        assert_eq!(props.child("items").unwrap().ty, Type::SchemaOr);
        assert_eq!(
            props.child("properties").unwrap().additional.as_ref().unwrap().short_name(),
            "JSONSchemaProps"
        );
        let strategy = for_gvk("apps", "v1", "Deployment").unwrap();
        let strategy = strategy.child("spec").unwrap().child("strategy").unwrap().clone();
        assert!(strategy.patch_strategy.retain_keys);
        assert_eq!(strategy.short_name(), "DeploymentStrategy");
        let extra = lookup("io.k8s.api.authentication.v1.UserInfo").unwrap();
        assert!(extra.child("extra").unwrap().additional.as_ref().unwrap().wrapped);
        assert_eq!(
            type_name_for_gvk("apps", "v1", "DeleteOptions").unwrap(),
            "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
        );
        assert_eq!(for_gvk("apps", "v1", "Pod"), None);
    }
}
