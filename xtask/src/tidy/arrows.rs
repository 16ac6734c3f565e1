//! Dependencies between the workspace's crates point down the list in `ORDER` only; ARCHITECTURE.md shows the same list.
//!
//! Development dependencies follow the same order, but for the crate of test helpers, which has no dependency on any
//! other crate and may be used by all.

use super::TidyError;
use serde_json::Value;
use std::{path::Path, process::Command};

/// Crates from top to bottom; arrows point down only.
const ORDER: &[&str] = &[
    "xtask",
    "example-database",
    "example-list",
    "example-webapp",
    "kaji-testenv",
    "kaji",
    "kaji-operator-test",
    "kaji-components",
    "kaji-controlplane",
    "kaji-storage",
    "kaji-node",
    "kaji-envtest",
    "kaji-sim",
    "kaji-access",
    "kaji-options",
    "kaji-clusters",
    "kaji-console-proxy",
    "kaji-explain",
    "kaji-controllers",
    "kaji-scheduler",
    "kaji-kubelet",
    "kaji-proxy",
    "kaji-dns",
    "kaji-cri",
    "kaji-streaming",
    "kaji-runtime",
    "kaji-oci",
    "kaji-images",
    "kaji-network",
    "kaji-netfilter",
    "kaji-containers",
    "kaji-server",
    "kaji-aggregator",
    "kaji-apiextensions",
    "kaji-admission",
    "kaji-history",
    "kaji-engine",
    "kaji-builtins",
    "kaji-flowcontrol",
    "kaji-audit",
    "kaji-refusals",
    "kaji-auth",
    "kaji-outbound",
    "kaji-quota",
    "kaji-resource-metrics",
    "kaji-resource",
    "kaji-schema",
    "kaji-cel",
    "kaji-encryption",
    "kaji-etcd",
    "kaji-store",
    "kaji-console",
    "kaji-csi",
    "kaji-traces",
    "kaji-grpc",
    "kaji-files",
    "kaji-decisions",
    "kaji-exposition",
    "kaji-meta",
    "kaji-testing",
];

/// Arrows that would point down but must not exist: the engine names no kind; loops reach the API through its client; the crate
/// of the program has nothing to do with formats, protocols and the kernel.
const FORBIDDEN: &[(&str, &str)] = &[
    ("kaji", "base64"),
    ("kaji", "hyper"),
    ("kaji", "prometheus-client"),
    ("kaji", "prost"),
    ("kaji", "serde"),
    ("kaji", "serde-saphyr"),
    ("kaji", "sha2"),
    ("kaji", "tokio-rustls"),
    ("kaji", "tower"),
    ("kaji", "kaji-containers"),
    ("kaji", "kaji-dns"),
    ("kaji", "kaji-etcd"),
    ("kaji", "kaji-netfilter"),
    ("kaji", "kaji-network"),
    ("kaji", "kaji-proxy"),
    ("kaji-engine", "kaji-builtins"),
    ("kaji-server", "kaji-builtins"),
    ("kaji-server", "kaji-admission"),
    ("kaji-admission", "kaji-builtins"),
    ("kaji-auth", "kaji-store"),
    ("kaji-apiextensions", "kaji-builtins"),
    ("kaji-controllers", "kaji-scheduler"),
    ("kaji-controllers", "kaji-kubelet"),
    ("kaji-scheduler", "kaji-kubelet"),
    ("kaji-components", "kaji-engine"),
    ("kaji-node", "kaji-engine"),
    ("kaji-runtime", "kaji-server"),
    ("kaji-runtime", "kaji-engine"),
    ("kaji-controllers", "kaji-engine"),
    ("kaji-controllers", "kaji-server"),
    ("kaji-scheduler", "kaji-engine"),
    ("kaji-scheduler", "kaji-server"),
    ("kaji-kubelet", "kaji-engine"),
    ("kaji-kubelet", "kaji-oci"),
    ("kaji-kubelet", "kaji-cri"),
    ("kaji-kubelet", "kaji-network"),
    ("kaji-kubelet", "kaji-images"),
    ("kaji-schema", "kaji-store"),
    ("kaji-cel", "kaji-store"),
    ("kaji-resource", "kaji-store"),
    ("kaji-builtins", "kaji-store"),
];

/// What cargo has to say about the workspace.
pub fn metadata(root: &Path) -> Result<Value, TidyError> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .map_err(|e| TidyError::Metadata(e.to_string()))?;
    if !output.status.success() {
        return Err(TidyError::Metadata(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| TidyError::Metadata(e.to_string()))
}

/// Complaints about dependencies.
pub fn complaints(metadata: &Value) -> Vec<String> {
    let rank = |name: &str| ORDER.iter().position(|n| *n == name);
    let mut complaints = vec![];
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(from) = rank(name) else {
            complaints.push(format!("{name} is missing in the order of crates (xtask/src/tidy/arrows.rs)"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let development = dependency["kind"] == "dev";
            if rank(to).is_some_and(|to| to <= from) || (!development && FORBIDDEN.contains(&(name, to))) {
                complaints.push(format!("{name} must not depend on {to}"));
            }
        }
    }
    complaints
}

/// Complaints about a page on architecture that lists other crates than `ORDER`, or lists them in another order.
pub fn page(architecture: &str) -> Vec<String> {
    let section = architecture.split("\n## Crates\n").nth(1).unwrap_or_default();
    let listed = section.split("```").nth(1).unwrap_or_default().lines();
    let listed: Vec<&str> = listed.filter_map(|line| line.split_whitespace().next()).collect();
    let mut order: Vec<&str> = ORDER
        .iter()
        .map(|name| if name.starts_with("example-") { "examples" } else { short(name) })
        .collect();
    order.dedup();
    let differs = (0..order.len().max(listed.len())).find(|i| order.get(*i) != listed.get(*i));
    let shown = |names: &[&str], i: usize| names.get(i).copied().unwrap_or("nothing").to_owned();
    let complaint = |i: usize| {
        let (page, order) = (shown(&listed, i), shown(&order, i));
        format!(
            "ARCHITECTURE.md lists {page} where the order of crates (xtask/src/tidy/arrows.rs) has {order}"
        )
    };
    differs.map(complaint).into_iter().collect()
}

fn short(name: &'static str) -> &'static str {
    name.strip_prefix("kaji-").unwrap_or(name)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A page that lists the crates.
    pub fn good_page() -> String {
        let lines: Vec<String> = ORDER.iter().map(|name| format!("{}  what it is", short(name))).collect();
        let examples = |line: &String| line.starts_with("example-");
        let others = lines.iter().filter(|line| !examples(line) && !line.starts_with("xtask")).cloned();
        let all = ["xtask  tools".to_owned(), "examples  of operators".to_owned()].into_iter().chain(others);
        format!("# A\n\n## Crates\n\n```\n{}\n```\n", all.collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn rejects_a_page_with_other_crates() {
        assert_eq!(page(&good_page()), [""; 0]);
        let swapped = good_page().replace("kaji  what", "x  what");
        assert_eq!(
            page(&swapped),
            ["ARCHITECTURE.md lists x where the order of crates (xtask/src/tidy/arrows.rs) has kaji"]
        );
        assert!(page("").len() == 1 && page(&good_page().replace("testing  what it is\n", "")).len() == 1);
    }

    #[test]
    fn rejects_upward_and_forbidden_dependencies_and_unlisted_crates() {
        let bad = serde_json::json!({"packages": [
            {"name": "kaji-meta", "dependencies": [{"name": "kaji-store", "kind": null}]},
            {"name": "kaji-engine", "dependencies": [{"name": "kaji-builtins", "kind": null}]},
            {"name": "kaji-new", "dependencies": []},
        ]});
        assert_eq!(complaints(&bad).len(), 3);
    }
}
