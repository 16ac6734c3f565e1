//! Values of the downward API: fields of the pod and resources of its containers.
//! Source: upstream's `fieldpath` and `api/v1/resource`.

use super::core::{Container, Pod, ResourceFieldSelector};
use super::model;
use std::collections::BTreeMap;

/// A field of the pod.
///
/// # Errors
/// For a path that is none.
pub fn field(pod: &Pod, path: &str) -> Result<String, String> {
    let labels = pod.metadata.labels.as_ref();
    let annotations = pod.metadata.annotations.as_ref();
    if let Some((base, key)) = path.strip_suffix("']").and_then(|p| p.split_once("['")) {
        let map = match base {
            "metadata.labels" => labels,
            "metadata.annotations" => annotations,
            _ => return Err(format!("invalid fieldPath {path} with subscript '{key}'")),
        };
        return Ok(map.and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => model::name(pod).to_owned(),
        "metadata.namespace" => model::namespace(pod).to_owned(),
        "metadata.uid" => model::uid(pod).to_owned(),
        "metadata.labels" => lines(labels),
        "metadata.annotations" => lines(annotations),
        _ => return Err(format!("unsupported fieldPath: {path}")),
    })
}

/// One `name="value"` a line, by name.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let line = |(name, value): (&String, &String)| format!("{name}={}", kaji_meta::text::quote(value));
    map.into_iter().flatten().map(line).collect::<Vec<_>>().join("\n")
}

/// What limits default to that a container does not set: the pod's own limits, else what the node has.
#[must_use]
pub fn default_limits(pod: &Pod, mut allocatable: BTreeMap<String, i64>) -> BTreeMap<String, i64> {
    let of_pod = model::limits(model::spec(pod).resources.as_ref());
    let cpu = ("cpu", model::milli(of_pod, "cpu"));
    let memory = ("memory", model::whole(of_pod, "memory"));
    for (name, limit) in [cpu, memory] {
        if let (Some(known), Some(limit)) = (allocatable.get_mut(name), limit.filter(|limit| *limit > 0)) {
            *known = limit;
        }
    }
    allocatable
}

/// A request or limit of a container, divided and rounded up. A limit that is not set is that of `allocatable`
/// ([`default_limits`]), which is in thousandths for `cpu`.
///
/// # Errors
/// For a resource that is none.
pub fn resource(
    container: &Container,
    selector: &ResourceFieldSelector,
    allocatable: &BTreeMap<String, i64>,
) -> Result<String, String> {
    let unsupported = || format!("unsupported container resource : {}", selector.resource);
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let amounts = match list {
        "limits" => model::limits(container.resources.as_ref()),
        "requests" => model::requests(container.resources.as_ref()),
        _ => return Err(unsupported()),
    };
    let divisor = selector.divisor.as_ref().map(model::quantity).filter(|d| !d.is_zero());
    let node = || if list == "limits" { allocatable.get(name).copied() } else { None };
    let (amount, divisor) = match name {
        "cpu" => {
            let amount = model::milli(amounts, name).filter(|a| *a > 0).or_else(node).unwrap_or(0);
            (amount, divisor.map_or(1000, |d| d.milli_value()))
        }
        "memory" | "ephemeral-storage" => {
            let amount = model::whole(amounts, name).filter(|a| *a > 0).or_else(node).unwrap_or(0);
            (amount, divisor.map_or(1, |d| d.value()))
        }
        _ if name.starts_with("hugepages-") => {
            (model::whole(amounts, name).unwrap_or(0), divisor.map_or(1, |d| d.value()))
        }
        _ => return Err(unsupported()),
    };
    let divisor = divisor.max(1);
    Ok(((amount + divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_default_to_the_pods_and_then_to_the_nodes() {
        let resources = json!({"limits": {"cpu": "500m", "hugepages-2Mi": "4Mi"}});
        let container = json!({"name": "c", "resources": {"limits": {"memory": "1Ki"}}});
        let spec = json!({"resources": resources, "containers": [container, {"name": "plain"}]});
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        let node = [("cpu", 2000), ("memory", 4096), ("ephemeral-storage", 7)];
        let limits = default_limits(&pod, node.map(|(name, amount)| (name.to_owned(), amount)).into());
        let shown = ["limits.cpu", "limits.memory", "limits.ephemeral-storage", "requests.cpu"].map(|name| {
            let divisor = if name == "limits.cpu" { json!("1m") } else { json!("1") };
            let selector: ResourceFieldSelector =
                serde_json::from_value(json!({"resource": name, "divisor": divisor})).unwrap();
            let of = |at: usize| resource(&model::containers(&pod)[at], &selector, &limits).unwrap();
            format!("{name} {} {}", of(0), of(1))
        });
        expect_test::expect![[r#"
            limits.cpu 500 500
            limits.memory 1024 4096
            limits.ephemeral-storage 7 7
            requests.cpu 0 0"#]]
        .assert_eq(&shown.join("\n"));
    }
}
