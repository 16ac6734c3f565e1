//! CSIDrivers.

use super::rules::{GROUP, token_requests};
use crate::shared::{
    check, metadata, rules,
    table::{age, name},
    value::{Fields, ensure_object, put},
};
use kaji_meta::field::{Error, ErrorList, Path};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "AttachRequired",
        "boolean",
        0,
        "attachRequired indicates this CSI volume driver requires an attach operation (because it implements the CSI ControllerPublishVolume() method), and that the Kubernetes attach detach controller should call the attach volume interface which checks the volumeattachment status and waits until the volume is attached before proceeding to mounting. The CSI external-attacher coordinates with CSI volume driver and updates the volumeattachment status when the attach operation is complete. If the value is specified to false, the attach operation will be skipped. Otherwise the attach operation will be called.\n\nThis field is immutable.",
    ),
    Column::new(
        "PodInfoOnMount",
        "boolean",
        0,
        "podInfoOnMount indicates this CSI volume driver requires additional pod information (like podName, podUID, etc.) during mount operations, if set to true. If set to false, pod information will not be passed on mount. Default is false.\n\nThe CSI driver specifies podInfoOnMount as part of driver deployment. If true, Kubelet will pass pod information as VolumeContext in the CSI NodePublishVolume() calls. The CSI driver is responsible for parsing and validating the information passed in as VolumeContext.\n\nThe following VolumeContext will be passed if podInfoOnMount is set to true. This list might grow, but the prefix will be used. \"csi.storage.k8s.io/pod.name\": pod.Name \"csi.storage.k8s.io/pod.namespace\": pod.Namespace \"csi.storage.k8s.io/pod.uid\": string(pod.UID) \"csi.storage.k8s.io/ephemeral\": \"true\" if the volume is an ephemeral inline volume\n                                defined by a CSIVolumeSource, otherwise \"false\"\n\n\"csi.storage.k8s.io/ephemeral\" is a new feature in Kubernetes 1.16. It is only required for drivers which support both the \"Persistent\" and \"Ephemeral\" VolumeLifecycleMode. Other drivers can leave pod info disabled and/or ignore this field. As Kubernetes 1.15 doesn't support this field, drivers can only support one mode when deployed on such a cluster and the deployment determines which mode that is, for example via a command line parameter of the driver.\n\nThis field was immutable in Kubernetes < 1.29 and now is mutable.",
    ),
    Column::new(
        "StorageCapacity",
        "boolean",
        0,
        "storageCapacity indicates that the CSI volume driver wants pod scheduling to consider the storage capacity that the driver deployment will report by creating CSIStorageCapacity objects with capacity information, if set to true.\n\nThe check can be enabled immediately when deploying a driver. In that case, provisioning new volumes with late binding will pause until the driver deployment has published some suitable CSIStorageCapacity object.\n\nAlternatively, the driver can be deployed with the field unset or false and it can be flipped later when storage capacity information has been published.\n\nThis field was immutable in Kubernetes <= 1.22 and now is mutable.",
    ),
    Column::new(
        "TokenRequests",
        "string",
        0,
        "tokenRequests indicates the CSI driver needs pods' service account tokens it is mounting volume for to do necessary authentication. Kubelet will pass the tokens in VolumeContext in the CSI NodePublishVolume calls. The CSI driver should parse and validate the following VolumeContext: \"csi.storage.k8s.io/serviceAccount.tokens\": {\n  \"<audience>\": {\n    \"token\": <token>,\n    \"expirationTimestamp\": <expiration timestamp in RFC3339>,\n  },\n  ...\n}\n\nNote: Audience in each TokenRequest should be different and at most one token is empty string. To receive a new token after expiry, RequiresRepublish can be used to trigger NodePublishVolume periodically.",
    ),
    Column::new(
        "RequiresRepublish",
        "boolean",
        0,
        "requiresRepublish indicates the CSI driver wants `NodePublishVolume` being periodically called to reflect any possible change in the mounted volume. This field defaults to false.\n\nNote: After a successful initial NodePublishVolume call, subsequent calls to NodePublishVolume should only update the contents of the volume. New mount points will not be seen by a running container.",
    ),
    Column::new(
        "Modes",
        "string",
        0,
        "volumeLifecycleModes defines what kind of volumes this CSI volume driver supports. The default if the list is empty is \"Persistent\", which is the usage defined by the CSI specification and implemented in Kubernetes via the usual PV/PVC mechanism.\n\nThe other mode is \"Ephemeral\". In this mode, volumes are defined inline inside the pod spec with CSIVolumeSource and their lifecycle is tied to the lifecycle of that pod. A driver has to be aware of this because it is only going to get a NodePublishVolume call for such a volume.\n\nFor more information about implementing this mode, see https://kubernetes-csi.github.io/docs/ephemeral-local-volumes.html A driver can support one or more of these modes and more modes may be added in the future.\n\nThis field is beta. This field is immutable.",
    ),
    age_column(),
];

struct CsiDrivers;

impl Hooks for CsiDrivers {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        rules::default_flag(spec, "attachRequired", true);
        let off = [
            "podInfoOnMount",
            "storageCapacity",
            "requiresRepublish",
            "seLinuxMount",
            "preventPodSchedulingIfMissing",
        ];
        for f in off {
            rules::default_flag(spec, f, false);
        }
        rules::default_opt_text(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if spec.list("volumeLifecycleModes").is_empty() {
            put(spec, "volumeLifecycleModes", json!(["Persistent"]));
        }
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
        if let Some(p) = spec.opt_text("fsGroupPolicy") {
            check::one_of(
                &mut errs,
                &path.child("fsGroupPolicy"),
                p,
                &["File", "None", "ReadWriteOnceWithFSType"],
            );
        }
        token_requests(&mut errs, &path.child("tokenRequests"), spec.list("tokenRequests"));
        for mode in spec.strings("volumeLifecycleModes") {
            check::one_of(&mut errs, &path.child("volumeLifecycleModes"), mode, &["Persistent", "Ephemeral"]);
        }
        if let Some(s) = spec.opt_int("nodeAllocatableUpdatePeriodSeconds").filter(|s| *s < 10) {
            let at = path.child("nodeAllocatableUpdatePeriodSeconds");
            errs.push(Error::invalid(&at, s, "must be greater than or equal to 10 seconds"));
        }
        if let Some(b) = spec.opt_flag("serviceAccountTokenInSecrets")
            && spec.list("tokenRequests").is_empty()
        {
            let text = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
            errs.push(Error::invalid(&path.child("serviceAccountTokenInSecrets"), b, text));
        }
        errs
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = self.validate_create(ctx, new);
        let (n, o, path) = (new.at("spec"), old.at("spec"), Path::new("spec"));
        // Upstream misspells the first field's name.
        for (f, shown) in
            [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
        {
            check::immutable(&mut errs, &path.child(shown), n.at(f), o.at(f));
        }
        errs
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let spec = new.at("spec");
        if old.is_some_and(|o| o.at("spec").at("tokenRequests") == spec.at("tokenRequests")) {
            return vec![];
        }
        if spec.list("tokenRequests").is_empty() || spec.has("serviceAccountTokenInSecrets") {
            return vec![];
        }
        vec!["spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes".into()]
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let spec = object.at("spec");
        let audiences: Vec<&str> = spec.list("tokenRequests").iter().map(|t| t.text("audience")).collect();
        let audiences = if spec.has("tokenRequests") { audiences.join(",") } else { "<unset>".into() };
        let modes: Vec<&str> = spec.strings("volumeLifecycleModes").collect();
        vec![
            name(object),
            spec.opt_flag("attachRequired").unwrap_or(true).into(),
            spec.flag("podInfoOnMount").into(),
            spec.flag("storageCapacity").into(),
            audiences.into(),
            spec.flag("requiresRepublish").into(),
            (if modes.is_empty() { "<none>".to_owned() } else { modes.join(",") }).into(),
            age(object, now),
        ]
    }
}

/// The definition of CSIDrivers.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(GROUP, "v1", "CSIDriver", "csidrivers", Scope::Cluster, COLUMNS, CsiDrivers)
        .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
        .return_deleted_object()
        .conditional_update_only()
        .with_generation_of_changes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row};
    use expect_test::expect;

    #[test]
    fn names_are_subdomains_and_may_be_generated() {
        let name = def().validate_name;
        assert!(name("driver-", true).is_empty() && name(&"x".repeat(70), false).is_empty());
        assert!(!name("driver-", false).is_empty() && !name("A.b", false).is_empty());
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        expect![[r#"
            {
              "spec": {
                "attachRequired": true,
                "fsGroupPolicy": "ReadWriteOnceWithFSType",
                "podInfoOnMount": false,
                "preventPodSchedulingIfMissing": false,
                "requiresRepublish": false,
                "seLinuxMount": false,
                "storageCapacity": false,
                "volumeLifecycleModes": [
                  "Persistent"
                ]
              }
            }"#]]
        .assert_eq(&created(&def(), json!({"spec": {}})));
        let bad = json!({"spec": {"fsGroupPolicy": "x", "tokenRequests": [{"audience": "a", "expirationSeconds": 1}, {"audience": "a"}]}});
        expect![[r#"
            spec.fsGroupPolicy: Unsupported value: "x": supported values: "File", "None", "ReadWriteOnceWithFSType"
            spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes
            spec.tokenRequests[1].audience: Duplicate value: "a""#]]
        .assert_eq(&create_errors(&def(), bad));
        assert_eq!(
            row(&def(), &json!({"metadata": {"name": "d"}})),
            "d | true | false | false | <unset> | false | <none> | <unknown>"
        );
    }
}
