//! The `resize` subresource: cpu and memory of containers and of the pod as a whole, in place (KEP-1287, KEP-5419).

use super::{is_sidecar, resources, update, validate};
use crate::shared::{
    Fields,
    value::{copy_field, drop_field, ensure_object, list_mut, put},
};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    semantic_equal,
};
use serde_json::Value;

/// Keeps of the update what a resize may change, and completes the resources of the pod as a whole.
pub fn prepare(new: &mut Value, old: &Value) {
    narrow(new, old);
    update::keep_pod_level(new, old);
    resources::default_pod_level(ensure_object(new, "spec"));
}

/// Added, removed or renamed containers stay, for validation to refuse.
fn narrow(new: &mut Value, old: &Value) {
    let same_names = |list: &str| {
        let names =
            |v: &Value| v.at("spec").list(list).iter().map(|c| c.text("name").to_owned()).collect::<Vec<_>>();
        names(new) == names(old)
    };
    if !same_names("containers") || !same_names("initContainers") {
        return;
    }
    let spec = update::reset_to_old(new, old);
    let kept = ensure_object(new, "spec");
    copy_field(kept, &spec, "resources");
    for list in ["containers", "initContainers"] {
        for (c, n) in list_mut(kept, list).iter_mut().zip(spec.list(list)) {
            copy_field(c, n, "resources");
            copy_field(c, n, "resizePolicy");
        }
    }
}

/// Upstream's `ValidatePodResize`, without ObjectMeta.
pub fn validate(errs: &mut ErrorList, new: &Value, old: &Value) {
    if old.at("metadata").at("annotations").has(validate::annotations::MIRROR) {
        errs.push(Error::forbidden(&Path::root(), "static pods cannot be resized"));
        return;
    }
    let path = Path::new("spec");
    let (n, o) = (new.at("spec"), old.at("spec"));
    if o.at("os").text("name") == "windows" {
        errs.push(Error::forbidden(&Path::root(), "windows pods cannot be resized"));
        return;
    }
    validate::pod(errs, new);
    let was = old.at("status").opt_text("qosClass").unwrap_or_else(|| resources::qos_class(o));
    if was != resources::qos_class(n) {
        let text = "Pod QOS Class may not change as a result of resizing";
        errs.push(Error::invalid(&path, new.at("status").text("qosClass"), text));
    }
    let running = old.at("status").list("containerStatuses").iter().find(|c| c.at("state").has("running"));
    if running.is_some_and(|c| !c.has("resources")) {
        errs.push(Error::forbidden(&path, "Pod running on node without support for resize"));
    }
    let mut munged = n.clone();
    pod_level(errs, &path, n, o, &mut munged);
    if !old.at("status").list("nodeAllocatableResourceClaimStatuses").is_empty() {
        errs.push(Error::forbidden(&path, "pods with node allocatable resource claims cannot be resized"));
    }
    if !same_containers(errs, &path, n, o) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (i, (c, before)) in n.list(list).iter().zip(o.list(list)).enumerate() {
            let path = path.child(list).index(i).child("resources");
            for what in ["requests", "limits"] {
                if removed(c.at("resources").at(what), before.at("resources").at(what)) {
                    let text = format!("resource {what} cannot be removed");
                    errs.push(Error::forbidden(&path.child(what), text));
                }
            }
        }
    }
    only_cpu_and_memory(errs, &path, o, &mut munged);
    if errs.is_empty() && !semantic_equal(&munged, o) {
        errs.push(Error::forbidden(&path, "only cpu and memory resources are mutable"));
    }
}

fn same_containers(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value) -> bool {
    let before = errs.len();
    for list in ["containers", "initContainers"] {
        let path = path.child(list);
        if new.list(list).len() != old.list(list).len() {
            let text = format!("{list} may not be added or removed on resize");
            errs.push(Error::forbidden(&path, text));
            continue;
        }
        for (i, (n, o)) in new.list(list).iter().zip(old.list(list)).enumerate() {
            if n.text("name") != o.text("name") {
                let text = format!("{list} may not be renamed or reordered on resize");
                errs.push(Error::forbidden(&path.index(i).child("name"), text));
            }
        }
    }
    errs.len() == before
}

fn is_set(resources: &Value) -> bool {
    ["requests", "limits"].iter().any(|l| resources.map(l).is_some_and(|m| !m.is_empty()))
}

fn pod_level(errs: &mut ErrorList, path: &Path, new: &Value, old: &Value, munged: &mut Value) {
    let (n, o) = (new.at("resources"), old.at("resources"));
    if !is_set(n) && !is_set(o) {
        return;
    }
    let at = path.child("resources");
    if !o.is_null() && n.is_null() {
        errs.push(Error::forbidden(&at, "pod-level resources cannot be removed"));
        return;
    }
    if !o.is_null() {
        for what in ["requests", "limits"] {
            if removed(n.at(what), o.at(what)) {
                let text = format!("pod-level resource {what} cannot be removed");
                errs.push(Error::forbidden(&at.child(what), text));
            }
        }
    }
    restore(munged, old);
    if !semantic_equal(munged.at("resources"), o) {
        errs.push(Error::forbidden(path, "only cpu and memory resources are mutable at pod-level"));
    }
}

/// Whether a resource of the old list is not in the new one.
fn removed(new: &Value, old: &Value) -> bool {
    old.as_object().is_some_and(|o| o.keys().any(|k| !new.has(k)))
}

/// Puts cpu and memory of `holder.resources` back to what they were.
fn restore(holder: &mut Value, old: &Value) {
    let resources = ensure_object(holder, "resources");
    for what in ["requests", "limits"] {
        let before = old.at("resources").at(what);
        let list = ensure_object(resources, what);
        for name in ["cpu", "memory"] {
            copy_field(list, before, name);
        }
        if list.as_object().is_some_and(|l| l.is_empty()) {
            drop_field(resources, what);
        }
    }
}

fn only_cpu_and_memory(errs: &mut ErrorList, path: &Path, old: &Value, munged: &mut Value) {
    for (list, text) in [
        ("containers", "only cpu and memory resources are mutable"),
        ("initContainers", "only cpu and memory resources for init or sidecar containers are mutable"),
    ] {
        for (i, (c, o)) in list_mut(munged, list).iter_mut().zip(old.list(list)).enumerate() {
            let at = if list == "containers" { path.clone() } else { path.child(list).index(i) };
            let changed = !semantic_equal(c, o);
            restore(c, o);
            if !semantic_equal(c, o) {
                errs.push(Error::forbidden(&at, text));
            }
            let restarts =
                c.list("resizePolicy").iter().filter(|p| p.text("restartPolicy") == "RestartContainer");
            if list == "initContainers" && changed && !is_sidecar(c) {
                let text =
                    "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                errs.extend(restarts.map(|_| Error::forbidden(&at, text)));
            }
            // Claims are compared above; cpu and memory alone must not make the specs differ.
            put(c, "resources", o.get_field("resources").cloned().unwrap_or_else(update::empty));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        core::pods::def,
        shared::testing::{update, update_errors},
    };
    use serde_json::{Value, json};

    /// Upstream refused it up to 1.36 (kubernetes/kubernetes#138641).
    #[test]
    fn containers_with_claims_are_resized_and_keep_them() {
        let pod = |cpu: &str, claims: Value| {
            let resources = json!({"requests": {"cpu": cpu}, "claims": claims});
            json!({"metadata": {"name": "p", "namespace": "default"},
                "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}],
                    "containers": [{"name": "c", "image": "i", "resources": resources}]}})
        };
        let old = pod("1", json!([{"name": "gpu"}]));
        assert_eq!(update_errors(&def(), "resize", pod("2", json!([{"name": "gpu"}])), old.clone()), "");
        assert_eq!(
            update_errors(&def(), "resize", pod("2", json!([])), old),
            "spec: Forbidden: only cpu and memory resources are mutable"
        );
    }

    /// A client that knows nothing of the field sends none, and one that sets a part gets the rest.
    #[test]
    fn resources_of_the_pod_as_a_whole_are_kept_and_completed() {
        let pod = |resources: Value| {
            let limits = json!({"cpu": "1", "memory": "1Gi"});
            json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {"resources": resources,
                "containers": [{"name": "c", "image": "i", "resources": {"requests": limits, "limits": limits}}]}})
        };
        let whole =
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        let resources = |subresource: &str, new: Value, old: Value| {
            let (updated, errors) = update(&def(), subresource, new, old);
            assert_eq!(errors, "");
            updated["spec"]["resources"].clone()
        };
        for subresource in ["", "resize"] {
            assert_eq!(resources(subresource, pod(Value::Null), pod(whole.clone())), whole, "{subresource}");
        }
        let mut new = pod(json!({"requests": {"cpu": "1"}}));
        super::prepare(&mut new, &pod(Value::Null));
        assert_eq!(new["spec"]["resources"], whole);
    }
}
