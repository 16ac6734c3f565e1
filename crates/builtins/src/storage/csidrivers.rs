//! CSIDrivers.

use super::rules::{GROUP, token_requests};
use crate::shared::{
    check, rules,
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
        "attachRequired indicates this CSI volume driver requires an attach operation (because it implements the CSI ControllerPublishVolume() method), and that the Kubernetes attach detach controller should call the attach volume interface which checks the volumeattachment status and waits until the volume is attached before proceeding to mounting.",
    ),
    Column::new(
        "PodInfoOnMount",
        "boolean",
        0,
        "podInfoOnMount indicates this CSI volume driver requires additional pod information (like podName, podUID, etc.) during mount operations, if set to true. If set to false, pod information will not be passed on mount. Default is false.",
    ),
    Column::new(
        "StorageCapacity",
        "boolean",
        0,
        "storageCapacity indicates that the CSI volume driver wants pod scheduling to consider the storage capacity that the driver deployment will report by creating CSIStorageCapacity objects with capacity information, if set to true.",
    ),
    Column::new(
        "TokenRequests",
        "string",
        0,
        "tokenRequests indicates the CSI driver needs pods' service account tokens it is mounting volume for to do necessary authentication.",
    ),
    Column::new(
        "RequiresRepublish",
        "boolean",
        0,
        "requiresRepublish indicates the CSI driver wants `NodePublishVolume` being periodically called to reflect any possible change in the mounted volume. This field defaults to false.",
    ),
    Column::new(
        "Modes",
        "string",
        0,
        "volumeLifecycleModes defines what kind of volumes this CSI volume driver supports. The default if the list is empty is \"Persistent\".",
    ),
    age_column(),
];

struct CsiDrivers;

impl Hooks for CsiDrivers {
    fn returns_deleted_object(&self) -> bool {
        true
    }

    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        rules::default_flag(spec, "attachRequired", true);
        for f in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
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

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let spec = new.at("spec");
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
    fn rules_and_row() {
        expect![[r#"
            {
              "spec": {
                "attachRequired": true,
                "fsGroupPolicy": "ReadWriteOnceWithFSType",
                "podInfoOnMount": false,
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
