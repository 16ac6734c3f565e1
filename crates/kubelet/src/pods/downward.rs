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

/// A request or limit of a container, divided and rounded up. A limit that is not set is what the node has; `allocatable` is
/// in thousandths for `cpu`.
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
