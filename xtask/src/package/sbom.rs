//! The bill of materials: CycloneDX 1.6 in JSON, of what is compiled into the program for a target.

use super::{Error, LICENSE, NAME, Release, Target, output};
use crate::cargo;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    path::Path,
};

/// What `cargo metadata` says.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// None for what is linked; `build` and `dev` for others.
    kind: Option<String>,
}

/// Writes the bill.
///
/// # Errors
/// When cargo fails.
pub fn write(release: &Release, root: &Path, target: &Target) -> Result<(), Error> {
    let text = output(cargo().current_dir(root).args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        target.triple,
    ]))?;
    let metadata: Metadata =
        serde_json::from_str(&text).map_err(|e| Error::Format("cargo metadata", e.to_string()))?;
    let bill = bill(release, &metadata);
    release.write(&format!("{NAME}-{}.cdx.json", release.version), format!("{bill:#}\n").as_bytes())
}

fn bill(release: &Release, metadata: &Metadata) -> Value {
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (&*package.id, package)).collect();
    let nodes: BTreeMap<&str, &Node> = metadata.resolve.nodes.iter().map(|node| (&*node.id, node)).collect();
    let linked = |node: &Node| -> BTreeSet<String> {
        let deps = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        deps.map(|dep| dep.pkg.clone()).collect()
    };
    let program = metadata.packages.iter().find(|package| package.name == NAME && package.source.is_none());
    let mut open: Vec<String> = program.iter().map(|package| package.id.clone()).collect();
    let mut dependencies = BTreeMap::new();
    while let Some(id) = open.pop() {
        if let Entry::Vacant(entry) = dependencies.entry(id) {
            let next = nodes.get(&**entry.key()).map(|node| linked(node)).unwrap_or_default();
            open.extend(next.iter().cloned());
            entry.insert(next);
        }
    }
    let reference = |id: &str| packages.get(id).map_or_else(String::new, |package| purl(package));
    let components: Vec<Value> = dependencies
        .keys()
        .filter_map(|id| packages.get(&**id))
        .filter(|p| p.name != NAME)
        .map(|p| component(p))
        .collect();
    let edges: Vec<Value> = dependencies
        .iter()
        .map(|(id, next)| json!({"ref": reference(id), "dependsOn": next.iter().map(|id| reference(id)).collect::<Vec<_>>()}))
        .collect();
    let time = jiff::Timestamp::from_second(release.time.into())
        .map_or_else(|_| String::new(), |time| time.to_string());
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {
            "timestamp": time,
            "component": {
                "type": "application", "name": NAME, "version": release.version, "licenses": [{"expression": LICENSE}],
                "bom-ref": program.map(purl),
            },
        },
        "components": components,
        "dependencies": edges,
    })
}

fn component(package: &Package) -> Value {
    // Old manifests separate licences by a slash.
    let license = package.license.as_deref().unwrap_or("NOASSERTION").replace('/', " OR ");
    json!({
        "type": "library", "name": package.name, "version": package.version, "purl": purl(package), "bom-ref": purl(package),
        "licenses": [{"expression": license}],
    })
}

fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}
