//! Fields behind features that are off by default are dropped on write, unless the stored object uses them already.
//!
//! Source: upstream's `pkg/api/pod/util.go` of 1.37.

use super::CONTAINER_LISTS;
use crate::shared::{
    Fields,
    disabled::{self, Feature},
    value::{drop_field, list_mut, object_mut},
};
use kaji_meta::Features;
use serde_json::Value;

/// Features with fields in the items of these lists of a pod spec.
const IN_LISTS: [(&[&str], Feature); 5] = [
    (&CONTAINER_LISTS, GRPC_CONTAINER_PROBE_TLS),
    (&CONTAINER_LISTS, H2C_CONTAINER_PROBE),
    // VolumeBindMountOptions
    (&CONTAINER_LISTS, &[&["volumeMounts", "bindMountOptions"]]),
    // EmptyDirVolumeMode
    (&["volumes"], &[&["emptyDir", "mode"]]),
    (&["volumes"], ATOMIC_WRITE_VOLUME_USER_FIELDS),
];

const GRPC_CONTAINER_PROBE_TLS: Feature = &[
    &["livenessProbe", "grpc", "mode"],
    &["readinessProbe", "grpc", "mode"],
    &["startupProbe", "grpc", "mode"],
];

const H2C_CONTAINER_PROBE: Feature = &[
    &["livenessProbe", "httpGet", "protocol"],
    &["readinessProbe", "httpGet", "protocol"],
    &["startupProbe", "httpGet", "protocol"],
    &["lifecycle", "postStart", "httpGet", "protocol"],
    &["lifecycle", "preStop", "httpGet", "protocol"],
];

const ATOMIC_WRITE_VOLUME_USER_FIELDS: Feature = &[
    &["secret", "defaultUser"],
    &["secret", "items", "user"],
    &["configMap", "defaultUser"],
    &["configMap", "items", "user"],
    &["downwardAPI", "defaultUser"],
    &["downwardAPI", "items", "user"],
    &["projected", "defaultUser"],
    &["projected", "sources", "secret", "items", "user"],
    &["projected", "sources", "configMap", "items", "user"],
    &["projected", "sources", "downwardAPI", "items", "user"],
    &["projected", "sources", "serviceAccountToken", "user"],
    &["projected", "sources", "clusterTrustBundle", "user"],
    &["projected", "sources", "podCertificate", "user"],
];

/// Features with fields in the spec itself.
const IN_SPEC: [Feature; 1] = [
    // EvictionRequestAPI
    &[&["evictionResponders"]],
];

const GENERIC_WORKLOAD: [Feature; 1] = [&[&["schedulingGroup"]]];

/// Features with fields in a pod's status.
const IN_STATUS: [Feature; 3] = [
    // ImageVolumeWithDigest
    &[
        &["containerStatuses", "volumeMounts", "volumeStatus"],
        &["initContainerStatuses", "volumeMounts", "volumeStatus"],
        &["ephemeralContainerStatuses", "volumeMounts", "volumeStatus"],
    ],
    // DRANodeAllocatableResources
    &[&["nodeAllocatableResourceClaimStatuses"]],
    // CSIVolumeHealth
    &[&["volumeHealth"]],
];

fn uses(spec: &Value, lists: &[&str], feature: Feature) -> bool {
    lists.iter().flat_map(|list| spec.list(list)).any(|item| disabled::uses(item, feature))
}

/// ContainerStopSignals: a lifecycle goes with the signal if there is nothing else in it.
fn drop_stop_signals(spec: &mut Value, old: &Value) {
    let signals = |s: &Value| {
        CONTAINER_LISTS.iter().flat_map(|l| s.list(l)).any(|c| c.at("lifecycle").has("stopSignal"))
    };
    if signals(old) {
        return;
    }
    for list in CONTAINER_LISTS {
        for c in list_mut(spec, list) {
            if let Some(l) = object_mut(c, "lifecycle").filter(|l| l.has("stopSignal")) {
                drop_field(l, "stopSignal");
                if l.as_object().is_some_and(|m| m.is_empty()) {
                    drop_field(c, "lifecycle");
                }
            }
        }
    }
}

/// Drops disabled fields of a pod spec.
pub fn disabled_fields(features: Features, spec: &mut Value, old: Option<&Value>) {
    let old = old.unwrap_or(&Value::Null);
    drop_stop_signals(spec, old);
    for (lists, feature) in IN_LISTS {
        if uses(spec, lists, feature) && !uses(old, lists, feature) {
            for list in lists {
                list_mut(spec, list).iter_mut().for_each(|item| disabled::strip(item, feature));
            }
        }
    }
    disabled::drop_fields(spec, old, &IN_SPEC);
    if !features.generic_workload {
        disabled::drop_fields(spec, old, &GENERIC_WORKLOAD);
    }
}

/// Drops disabled fields of the pod template at `path` below an object.
pub fn of_template(features: Features, object: &mut Value, path: &[&str], old: Option<&Value>) {
    let Some(template) = path.iter().try_fold(object, |v, k| v.get_mut(*k)) else { return };
    let old = old.map(|o| path.iter().fold(o, |v, k| v.at(k)).at("spec"));
    if let Some(spec) = object_mut(template, "spec") {
        disabled_fields(features, spec, old);
    }
}

/// Drops disabled fields of a pod's status.
pub fn of_status(status: &mut Value, old: &Value) {
    disabled::drop_fields(status, old, &IN_STATUS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{core::pods::def, shared::testing::TestContext};
    use serde_json::json;

    /// A pod spec with each field of the features that are off, or with none of them.
    fn spec(on: bool) -> Value {
        let with = |mut value: Value, field: &str, given: Value| {
            if on {
                value[field] = given;
            }
            value
        };
        let grpc = || json!({"grpc": with(json!({"port": 1}), "mode", "TLS".into())});
        let http = || json!({"httpGet": with(json!({"port": 1}), "protocol", "HTTP2".into())});
        let lifecycle = with(json!({"postStart": http(), "preStop": http()}), "stopSignal", "SIGINT".into());
        let mount = with(json!({"name": "v", "mountPath": "/v"}), "bindMountOptions", json!(["noexec"]));
        let container = |probe: Value| {
            json!({"name": "c", "image": "i", "livenessProbe": probe, "readinessProbe": probe, "startupProbe": probe,
                "lifecycle": lifecycle, "volumeMounts": [mount]})
        };
        let item = || with(json!({"path": "p"}), "user", 1.into());
        let files = || with(json!({"items": [item()]}), "defaultUser", 1.into());
        let list = || json!({"items": [item()]});
        let sources = json!([{"secret": list()}, {"configMap": list()}, {"downwardAPI": list()},
            {"serviceAccountToken": item()}, {"clusterTrustBundle": item()}, {"podCertificate": item()}]);
        let volumes = json!([{"name": "v", "emptyDir": with(json!({}), "mode", 0o700.into())}, {"name": "s", "secret": files()},
            {"name": "m", "configMap": files()}, {"name": "d", "downwardAPI": files()},
            {"name": "p", "projected": with(json!({"sources": sources}), "defaultUser", 1.into())}]);
        let spec = json!({"initContainers": [container(grpc())], "containers": [container(http()), container(grpc())],
            "ephemeralContainers": [container(http())], "volumes": volumes});
        let spec = with(spec, "evictionResponders", json!([{"name": "a", "priority": 1}]));
        with(spec, "schedulingGroup", json!({"podGroupName": "g"}))
    }

    fn dropped(old: Option<&Value>) -> Value {
        let mut new = spec(true);
        disabled_fields(Features::default(), &mut new, old);
        new
    }

    #[test]
    fn specs_lose_disabled_fields() {
        assert_eq!(dropped(None), spec(false));
        assert_eq!(dropped(Some(&spec(false))), spec(false));
        let mut signal = json!({"containers": [{"name": "c", "lifecycle": {"stopSignal": "SIGINT"}}]});
        disabled_fields(Features::default(), &mut signal, None);
        assert_eq!(signal, json!({"containers": [{"name": "c"}]}));
        let (test, sent) = (TestContext::default(), json!({"metadata": {"name": "p"}}));
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec(true)});
        def().hooks.prepare_create(&test.ctx(&sent, "", "v1"), &mut pod);
        assert_eq!(pod["spec"], spec(false));
        let mut object = json!({"spec": {"template": {"spec": spec(true)}}});
        of_template(Features::default(), &mut object, &["spec", "template"], None);
        assert_eq!(object["spec"]["template"]["spec"], spec(false));
    }

    #[test]
    fn specs_keep_the_fields_of_features_that_are_in_use() {
        assert_eq!(dropped(Some(&spec(true))), spec(true));
        let probe = json!({"httpGet": {"protocol": "HTTP1"}});
        let old =
            json!({"initContainers": [{"startupProbe": probe}], "volumes": [{"emptyDir": {"mode": 1}}]});
        let mut expected = spec(false);
        for (list, i) in
            [("initContainers", 0_usize), ("containers", 0), ("containers", 1), ("ephemeralContainers", 0)]
        {
            let container = &mut expected[list][i];
            for hook in ["postStart", "preStop"] {
                container["lifecycle"][hook]["httpGet"]["protocol"] = "HTTP2".into();
            }
            for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
                if container[probe]["httpGet"].is_object() {
                    container[probe]["httpGet"]["protocol"] = "HTTP2".into();
                }
            }
        }
        expected["volumes"][0]["emptyDir"]["mode"] = 0o700.into();
        assert_eq!(dropped(Some(&old)), expected);
        let mut grouped = spec(true);
        disabled_fields(Features::ALL, &mut grouped, None);
        assert_eq!(grouped["schedulingGroup"], json!({"podGroupName": "g"}));
    }

    #[test]
    fn statuses_lose_disabled_fields_unless_they_are_in_use() {
        let containers = |mount: Value| json!([{"name": "c", "volumeMounts": [mount]}]);
        let plain = || json!({"name": "v", "mountPath": "/v"});
        let digest =
            || json!({"name": "v", "mountPath": "/v", "volumeStatus": {"image": {"imageRef": "i@sha256:1"}}});
        let pod =
            |status: Value| json!({"metadata": {"name": "p"}, "spec": {"containers": []}, "status": status});
        let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
        let full = || {
            let mut status = json!({"phase": "Running", "nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "c"}],
                "volumeHealth": [{"name": "v"}]});
            lists.iter().for_each(|list| status[*list] = containers(digest()));
            status
        };
        let updated = |old: Value| {
            let (test, old) = (TestContext::default(), pod(old));
            let mut new = pod(full());
            let sent = new.clone();
            def().hooks.prepare_update(&test.ctx(&sent, "status", "v1"), &mut new, &old);
            new["status"].take()
        };
        let mut bare = json!({"phase": "Running"});
        lists.iter().for_each(|list| bare[*list] = containers(plain()));
        assert_eq!(updated(json!({"phase": "Pending"})), bare);
        assert_eq!(updated(full()), full());
        bare["volumeHealth"] = json!([{"name": "v"}]);
        assert_eq!(updated(json!({"volumeHealth": [{"name": "w"}]})), bare);
    }
}
