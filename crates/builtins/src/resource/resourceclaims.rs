//! ResourceClaims.

use super::{
    beta_versions,
    permissions::{Permissions, admin_access, admin_access_of_status},
    rules::{
        GROUP, MAX_CONFIGS, claim, default_claim, driver, drop_disabled, limited, opaque, pool, reference,
        references, request_names, unique,
    },
};
use crate::{
    Deps,
    shared::{
        check,
        disabled::{self, Feature},
        metadata,
        net::check_interface_address,
        rules,
        table::{age, name},
        value::{Fields, ensure_object, put},
    },
};
use kaji_meta::{
    Status,
    field::{Error, ErrorList, Path},
    object, semantic_equal,
};
use kaji_resource::{
    BoxFuture, Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column,
};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new("State", "string", 0, "A summary of the current state (allocated, pending, reserved, etc.)."),
    age_column(),
];

const MAX_RESERVED: usize = 256;
const MAX_RESULTS: usize = 32;
const MAX_CONDITIONS: usize = 8;
/// Bytes of what a driver says about a device.
const MAX_DATA: usize = 10 << 10;
const MAX_ADDRESSES: usize = 16;
const MAX_INTERFACE_NAME: usize = 256;
const MAX_HARDWARE_ADDRESS: usize = 128;
/// Features that are off, with their fields in the status.
const OFF_IN_STATUS: [Feature; 1] = [
    // DRAOptionalNodeOperations
    &[&["allocation", "devices", "results", "skipNodeOperations"]],
];

struct ResourceClaims(Permissions);

fn consumer(errs: &mut ErrorList, path: &Path, c: &Value) {
    for f in ["resource", "name", "uid"] {
        check::required(errs, &path.child(f), c.text(f));
    }
}

fn reserved(errs: &mut ErrorList, new: &Value, old: &Value) {
    let (path, list) = (Path::new("status").child("reservedFor"), new.at("status").list("reservedFor"));
    limited(errs, &path, list, MAX_RESERVED);
    for (i, c) in list.iter().enumerate() {
        consumer(errs, &path.index(i), c);
        if list[..i].iter().any(|o| o.text("uid") == c.text("uid")) {
            errs.push(Error::duplicate(&path.index(i).child("uid"), c.text("uid")));
        }
    }
    let status = new.at("status");
    if list.is_empty() {
        return;
    }
    if !status.has("allocation") {
        errs.push(Error::forbidden(&path, "may not be specified when `allocated` is not set"));
    } else if object::deletion_timestamp(new).is_some() {
        let before = old.at("status").list("reservedFor");
        let added = list.iter().any(|c| !before.iter().any(|o| o.text("uid") == c.text("uid")));
        if added {
            errs.push(Error::forbidden(
                &path,
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
            ));
        }
    }
}

fn allocation(errs: &mut ErrorList, new: &Value, old: &Value) {
    let (path, a) = (Path::new("status").child("allocation"), new.at("status").at("allocation"));
    let before = old.at("status").at("allocation");
    if !before.is_null() && !a.is_null() {
        check::immutable_struct(errs, &path, "io.k8s.api.resource.v1.AllocationResult", a, before);
        return;
    }
    if a.is_null() {
        return;
    }
    let (at, results) = (path.child("devices").child("results"), a.at("devices").list("results"));
    limited(errs, &at, results, MAX_RESULTS);
    let known = request_names(new.at("spec"));
    for (i, r) in results.iter().enumerate() {
        let at = at.index(i);
        reference(errs, &at.child("request"), r.text("request"), &known);
        driver(errs, &at.child("driver"), r.text("driver"));
        pool(errs, &at.child("pool"), r.text("pool"));
        check::dns_label(errs, &at.child("device"), r.text("device"));
        super::rules::binding_conditions(errs, &at, r);
        share_id(errs, &at, r);
    }
    let (at, configs) = (path.child("devices").child("config"), a.at("devices").list("config"));
    // Those of the claim, and those of its class.
    limited(errs, &at, configs, 2 * MAX_CONFIGS);
    for (i, config) in configs.iter().enumerate() {
        let at = at.index(i);
        check::required_one_of(errs, &at.child("source"), config.text("source"), &["FromClaim", "FromClass"]);
        references(errs, &at.child("requests"), config, &known);
        opaque(errs, &at, config);
    }
    if a.has("nodeSelector") {
        super::rules::node_selector(errs, &path.child("nodeSelector"), a.at("nodeSelector"), false);
    }
}

/// Devices that report status must be among the allocated ones.
fn devices(errs: &mut ErrorList, new: &Value) {
    let (path, list) = (Path::new("status").child("devices"), new.at("status").list("devices"));
    // Each share of a device is one of its own.
    let key = |d: &Value| ["driver", "pool", "device", "shareID"].map(|f| d.text(f).to_owned());
    let allocated: Vec<_> =
        new.at("status").at("allocation").at("devices").list("results").iter().map(key).collect();
    for (i, d) in list.iter().enumerate() {
        let at = path.index(i);
        if list[..i].iter().any(|o| key(o) == key(d)) {
            errs.push(Error::duplicate(&at, d.clone()));
        }
        driver(errs, &at.child("driver"), d.text("driver"));
        pool(errs, &at.child("pool"), d.text("pool"));
        check::dns_label(errs, &at.child("device"), d.text("device"));
        share_id(errs, &at, d);
        let id = key(d);
        if !allocated.contains(&id) {
            let [driver, pool, device, share] = id.map(Value::from);
            let shown = format!(r#"{{"Driver":{driver},"Pool":{pool},"Device":{device},"ShareID":{share}}}"#);
            let text = "must be an allocated device in the claim";
            errs.push(Error::invalid(&at, Value::Null, text).showing(shown));
        }
        let conditions = at.child("conditions");
        limited(errs, &conditions, d.list("conditions"), MAX_CONDITIONS);
        errs.extend(kaji_meta::validation::validate_conditions(d.at("conditions"), &conditions));
        data(errs, &at.child("data"), d.at("data"));
        network_data(errs, &at.child("networkData"), d.at("networkData"));
    }
}

fn share_id(errs: &mut ErrorList, path: &Path, owner: &Value) {
    let Some(id) = owner.opt_text("shareID") else { return };
    let at = path.child("shareID");
    if let Err(why) = parse_uuid(id) {
        errs.push(Error::invalid(&at, id, format!("error validating uid: {why}")));
    } else if id.len() != 36 || id.to_lowercase() != id {
        let text = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters";
        errs.push(Error::invalid(&at, id, text));
    }
}

/// Whether upstream's library parses the text as a UUID: in any of the forms that it knows, hyphens or none, a prefix or braces.
/// Source: `Validate` of `github.com/google/uuid`.
fn parse_uuid(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    let hyphenated = match bytes.len() {
        32 | 36 => bytes,
        45 if bytes[..9].eq_ignore_ascii_case(b"urn:uuid:") => &bytes[9..],
        45 => {
            return Err(format!(
                "invalid urn prefix: {}",
                kaji_meta::text::quote(&String::from_utf8_lossy(&bytes[..9]))
            ));
        }
        38 if bytes.starts_with(b"{") && bytes.ends_with(b"}") => &bytes[1..37],
        38 => return Err("invalid bracketed UUID format".to_owned()),
        length => return Err(format!("invalid UUID length: {length}")),
    };
    let hyphens = [8, 13, 18, 23];
    let fits = |(i, b): (usize, &u8)| match hyphenated.len() == 36 && hyphens.contains(&i) {
        true => *b == b'-',
        false => b.is_ascii_hexdigit(),
    };
    match hyphenated.iter().enumerate().all(fits) {
        true => Ok(()),
        false => Err("invalid UUID format".to_owned()),
    }
}

/// What a driver says about its device: any object of limited size.
fn data(errs: &mut ErrorList, path: &Path, data: &Value) {
    if data.is_null() {
        return;
    }
    if data.to_string().len() > MAX_DATA {
        errs.push(Error::too_long(path, "", MAX_DATA));
    } else if !data.is_object() {
        errs.push(Error::invalid(path, "<value omitted>", "must be a valid JSON object"));
    }
}

fn network_data(errs: &mut ErrorList, path: &Path, data: &Value) {
    for (field, most) in [("interfaceName", MAX_INTERFACE_NAME), ("hardwareAddress", MAX_HARDWARE_ADDRESS)] {
        if data.text(field).len() > most {
            errs.push(Error::too_long(&path.child(field), "", most));
        }
    }
    let at = path.child("ips");
    if !limited(errs, &at, data.list("ips"), MAX_ADDRESSES) {
        return;
    }
    let addresses: Vec<&str> = data.strings("ips").collect();
    for (i, address) in addresses.iter().enumerate() {
        errs.extend(check_interface_address(&at.index(i), address));
    }
    unique(errs, &at, &addresses, "");
}

impl Hooks for ResourceClaims {
    fn default(&self, version: &str, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec") {
            default_claim(version, spec);
        }
    }

    fn convert(&self, object: &mut Value, from: &str, to: &str) -> Result<(), Status> {
        if let Some(spec) = object.get_mut("spec") {
            beta_versions::convert_claim(spec, from, to);
        }
        Ok(())
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
        if let Some(spec) = object.get_mut("spec") {
            drop_disabled(spec, &Value::Null);
        }
    }

    fn validate_create(&self, ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = vec![];
        admin_access(&mut errs, ctx, object.at("spec").at("devices").list("requests"));
        claim(&mut errs, &Path::new("spec"), object.at("spec"));
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource != "status" {
            if let Some(spec) = new.get_mut("spec") {
                drop_disabled(spec, old.at("spec"));
            }
            return;
        }
        rules::keep_meta_on_status(new, old);
        // Without its allocation, a device has nothing to report.
        // Each share of a device is one of its own.
        let key = |d: &Value| ["driver", "pool", "device", "shareID"].map(|f| d.text(f).to_owned());
        let of = |v: &Value| -> Vec<_> {
            v.at("status").at("allocation").at("devices").list("results").iter().map(key).collect()
        };
        let (now, before) = (of(new), of(old));
        let status = ensure_object(new, "status");
        let kept: Vec<Value> = status
            .list("devices")
            .iter()
            .filter(|d| !before.contains(&key(d)) || now.contains(&key(d)))
            .cloned()
            .collect();
        if kept.len() != status.list("devices").len() {
            put(status, "devices", kept);
        }
        disabled::drop_fields(status, old.at("status"), &OFF_IN_STATUS);
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            if !semantic_equal(new.at("status"), old.at("status")) {
                admin_access_of_status(&mut errs, ctx, new, old);
                reserved(&mut errs, new, old);
                allocation(&mut errs, new, old);
                devices(&mut errs, new);
            }
            return errs;
        }
        let ty = "io.k8s.api.resource.v1.ResourceClaimSpec";
        check::immutable_struct(&mut errs, &Path::new("spec"), ty, new.at("spec"), old.at("spec"));
        errs
    }

    /// Upstream asks while it validates; the answer is the same.
    fn permit<'a>(
        &'a self,
        ctx: &'a Ctx<'a>,
        new: &'a Value,
        old: Option<&'a Value>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match old.filter(|_| ctx.subresource == "status") {
                Some(old) => self.0.status(ctx, new, old).await,
                None => Ok(()),
            }
        })
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let (deleted, status) = (object::deletion_timestamp(object).is_some(), object.at("status"));
        let mut states = vec![];
        if deleted {
            states.push("deleted");
        }
        if status.has("allocation") {
            states.push("allocated");
            if !status.list("reservedFor").is_empty() {
                states.push("reserved");
            }
        } else if !deleted {
            states.push("pending");
        }
        vec![name(object), states.join(",").into(), age(object, now)]
    }
}

/// The definition of ResourceClaims.
pub fn def(deps: &Deps) -> ResourceDef {
    ResourceDef::builtin(
        GROUP,
        "v1",
        "ResourceClaim",
        "resourceclaims",
        Scope::Namespaced,
        COLUMNS,
        ResourceClaims(Permissions(deps.authorizer.clone())),
    )
    .metadata_checks(&[metadata::WHOLE, metadata::UPDATE], &[metadata::UPDATE])
    .return_deleted_object()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, deps, row, update, update_errors};
    use expect_test::expect;

    fn claim() -> Value {
        json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "g"}}]}}})
    }

    #[test]
    fn fields_of_features_that_are_off_are_dropped() {
        let def = def(&deps());
        let plain: Value = serde_json::from_str(&created(&def, claim())).unwrap();
        let mut derived = plain.clone();
        derived["spec"]["devices"]["requests"][0]["exactly"]["derivedAttributes"] =
            json!([{"name": "a/b", "expression": "1"}]);
        let made: Value = serde_json::from_str(&created(&def, derived.clone())).unwrap();
        assert_eq!(made, plain);
        assert_eq!(update(&def, "", derived.clone(), plain.clone()), (plain.clone(), String::new()));
        assert_eq!(update(&def, "", derived.clone(), derived.clone()), (derived, String::new()));
        let allocated = |skips: bool| {
            let mut claim = plain.clone();
            let mut result = json!({"request": "gpu", "driver": "d.io", "pool": "p", "device": "x"});
            if skips {
                result["skipNodeOperations"] = json!(["x"]);
            }
            claim["status"] = json!({"allocation": {"devices": {"results": [result]}}});
            claim
        };
        assert_eq!(update(&def, "status", allocated(true), plain.clone()), (allocated(false), String::new()));
        assert_eq!(update(&def, "status", allocated(true), allocated(true)).0, allocated(true));
    }

    #[test]
    fn references_and_attributes_are_checked() {
        let mut claim = claim();
        claim["spec"]["devices"]["constraints"] = json!([
            {"requests": ["gpu", "UPPER", "a/b/c", "gpu/x"], "matchAttribute": "model"},
            {"distinctAttribute": "example.com/model/x"},
            {"matchAttribute": "/x"}]);
        claim["spec"]["devices"]["config"] =
            json!([{"requests": ["x.y/z"], "opaque": {"driver": "d.io", "parameters": {}}}]);
        expect![[r#"
            spec.devices.constraints[0].requests[1]: Invalid value: "UPPER": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
            spec.devices.constraints[0].requests[1]: Invalid value: "UPPER": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'
            spec.devices.constraints[0].requests[2]: Invalid value: "a/b/c": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'
            spec.devices.constraints[0].requests[3]: Invalid value: "gpu/x": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'
            spec.devices.constraints[0].matchAttribute: Invalid value: "model": a fully qualified name must be a domain and a name separated by a slash
            spec.devices.constraints[2].matchAttribute: Invalid value: "": the domain must not be empty
            spec.devices.config[0].requests[0]: Invalid value: "x.y": must not contain dots
            spec.devices.config[0].requests[0]: Invalid value: "x.y/z": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#]].assert_eq(&create_errors(&def(&deps()), claim));
    }

    #[test]
    fn reports_are_about_shares_that_are_allocated() {
        let of = |share: &str| json!({"driver": "d.io", "pool": "p", "device": "x", "shareID": share});
        let [one, two] = ["f25d3e62-0000-4000-8000-000000000001", "f25d3e62-0000-4000-8000-000000000002"];
        let claim = |reported: [&str; 2]| json!({"status": {"allocation": {"devices": {"results": [of(one), of(two)]}}, "devices": reported.map(of)}});
        let errors = |reported| {
            let mut errs = vec![];
            devices(&mut errs, &claim(reported));
            errs.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(errors([one, two]), "");
        expect![[r#"status.devices[1]: Invalid value: {"Driver":"d.io","Pool":"p","Device":"x","ShareID":"f25d3e62-0000-4000-8000-000000000003"}: must be an allocated device in the claim"#]].assert_eq(&errors([one, "f25d3e62-0000-4000-8000-000000000003"]));
        expect![[r#"status.devices[1]: Duplicate value: {"device":"x","driver":"d.io","pool":"p","shareID":"f25d3e62-0000-4000-8000-000000000001"}"#]].assert_eq(&errors([one, one]));
    }

    #[test]
    fn configurations_of_an_allocation_are_checked() {
        let mut new = claim();
        new["status"] = json!({"allocation": {"devices": {"config": [
            {"source": "FromClass", "requests": ["gpu"], "opaque": {"driver": "d.io", "parameters": {}}},
            {"source": "FromNowhere"}, {"requests": ["other"], "opaque": {"driver": "d.io", "parameters": {}}}]}}});
        expect![[r#"
            status.allocation.devices.config[1].source: Unsupported value: "FromNowhere": supported values: "FromClaim", "FromClass"
            status.allocation.devices.config[1].opaque: Required value
            status.allocation.devices.config[2].source: Required value
            status.allocation.devices.config[2].requests[0]: Invalid value: "other": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"#]].assert_eq(&update_errors(&def(&deps()), "status", new, claim()));
    }

    #[test]
    fn share_ids_are_lowercase_uuids() {
        for (id, want) in [
            ("f25d3e62-0000-4000-8000-000000000001", ""),
            ("x", "error validating uid: invalid UUID length: 1"),
            ("f25d3e6200004000800000000000000g", "error validating uid: invalid UUID format"),
            ("f25d3e62.0000-4000-8000-000000000001", "error validating uid: invalid UUID format"),
            ("[f25d3e62-0000-4000-8000-000000000001]", "error validating uid: invalid bracketed UUID format"),
            (
                "urn:oid:xf25d3e62-0000-4000-8000-000000000001",
                "error validating uid: invalid urn prefix: \"urn:oid:x\"",
            ),
            ("f25d3e62000040008000000000000001", "uid must be in RFC 4122"),
            ("{f25d3e62-0000-4000-8000-000000000001}", "uid must be in RFC 4122"),
            ("F25D3E62-0000-4000-8000-000000000001", "uid must be in RFC 4122"),
        ] {
            let mut errs = vec![];
            share_id(&mut errs, &Path::new("r"), &json!({"shareID": id}));
            let shown = errs.iter().map(ToString::to_string).collect::<String>();
            assert_eq!(shown.is_empty(), want.is_empty(), "{id}: {shown}");
            assert!(shown.contains(want), "{id}: {shown}");
        }
    }

    #[test]
    fn reports_about_devices_are_checked() {
        let result = json!({"request": "r", "driver": "d.io", "pool": "p", "device": "x", "bindingConditions": ["a"], "shareID": "X"});
        let device = json!({"driver": "d.io", "pool": "p", "device": "x", "data": [1], "networkData": {
            "interfaceName": "i".repeat(257), "hardwareAddress": "h".repeat(129),
            "ips": ["10.0.0.1/24", "10.0.0.1", "010.0.0.1/24", "2001:DB8::1/64", "10.0.0.1/24"]}});
        let mut errs = vec![];
        let claim =
            json!({"status": {"allocation": {"devices": {"results": [result]}}, "devices": [device]}});
        devices(&mut errs, &claim);
        share_id(&mut errs, &Path::new("r"), &result);
        super::super::rules::binding_conditions(&mut errs, &Path::new("r"), &result);
        let shown: Vec<String> = errs.iter().map(ToString::to_string).collect();
        expect![[r#"
            status.devices[0]: Invalid value: {"Driver":"d.io","Pool":"p","Device":"x","ShareID":""}: must be an allocated device in the claim
            status.devices[0].data: Invalid value: "<value omitted>": must be a valid JSON object
            status.devices[0].networkData.interfaceName: Too long: may not be more than 256 bytes
            status.devices[0].networkData.hardwareAddress: Too long: may not be more than 128 bytes
            status.devices[0].networkData.ips[1]: Invalid value: "10.0.0.1": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)
            status.devices[0].networkData.ips[2]: Invalid value: "010.0.0.1/24": must be in canonical form ("10.0.0.1/24")
            status.devices[0].networkData.ips[3]: Invalid value: "2001:DB8::1/64": must be in canonical form ("2001:db8::1/64")
            status.devices[0].networkData.ips[4]: Duplicate value: "10.0.0.1/24"
            r.shareID: Invalid value: "X": error validating uid: invalid UUID length: 1
            r.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions"#]].assert_eq(&shown.join("\n"));
    }

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        expect![[r#"
            {
              "metadata": {
                "name": "c"
              },
              "spec": {
                "devices": {
                  "requests": [
                    {
                      "exactly": {
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "deviceClassName": "g"
                      },
                      "name": "gpu"
                    }
                  ]
                }
              },
              "status": {}
            }"#]]
        .assert_eq(&created(&def(&deps()), claim()));
        assert_eq!(create_errors(&def(&deps()), claim()), "");
        let bad = json!({"spec": {"devices": {"requests": [{"name": "a"}, {"name": "a", "exactly": {"allocationMode": "All", "count": 2}}],
            "constraints": [{"requests": ["x"]}], "config": [{}]}}});
        expect![[r#"
            spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required
            spec.devices.requests[1].exactly.deviceClassName: Required value
            spec.devices.requests[1].exactly.count: Invalid value: 2: must not be specified when allocationMode is 'All'
            spec.devices.requests[1]: Duplicate value: "a"
            spec.devices.constraints[0].requests[0]: Invalid value: "x": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'
            spec.devices.constraints[0]: Required value: exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set
            spec.devices.config[0].opaque: Required value"#]]
        .assert_eq(&create_errors(&def(&deps()), bad));
        assert_eq!(row(&def(&deps()), &claim()), "c | pending | <unknown>");
    }

    #[test]
    fn rejects_invalid_changes_of_the_status() {
        let mut new = claim();
        new["status"] = json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "1"}]});
        assert_eq!(
            update_errors(&def(&deps()), "status", new.clone(), claim()),
            "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
        );
        new["status"]["allocation"] = json!({"devices": {"results": [{"request": "gpu", "driver": "d.io", "pool": "p", "device": "x"}]}});
        assert_eq!(update_errors(&def(&deps()), "status", new.clone(), claim()), "");
        assert_eq!(row(&def(&deps()), &new), "c | allocated,reserved | <unknown>");
    }
}
