//! ServiceCIDRs: the ranges cluster IPs come from.

use crate::shared::{
    check, metadata,
    net::check_cidr,
    rules,
    table::{age, name},
    value::{Fields, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation::parse_cidr_sloppy,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "CIDRs",
        "string",
        0,
        "CIDRs defines the IP blocks in CIDR notation (e.g. \"192.168.0.0/24\" or \"2001:db8::/64\") from which to assign service cluster IPs. Max of two CIDRs is allowed, one of each IP family. This field is immutable.",
    ),
    age_column(),
];

struct ServiceCidrs;

fn validate(spec: &Value) -> ErrorList {
    let (mut errs, path, cidrs) = (vec![], Path::new("spec").child("cidrs"), spec.list("cidrs"));
    if cidrs.is_empty() {
        return vec![Error::required(&path, "at least one CIDR required")];
    }
    if cidrs.len() > 2 {
        return vec![check::invalid_struct(
            &path,
            "io.k8s.api.networking.v1.ServiceCIDRSpec",
            spec,
            "may only hold up to 2 values",
        )];
    }
    for (i, c) in spec.strings("cidrs").enumerate() {
        errs.extend(check_cidr(&path.index(i), c));
    }
    let families: Vec<Option<bool>> =
        spec.strings("cidrs").map(|c| Some(parse_cidr_sloppy(c)?.0.is_ipv6())).collect();
    if families.len() == 2 && families[0] == families[1] && families[0].is_some() {
        let text = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errs.push(Error::invalid(&path, cidrs.to_vec(), text));
    }
    errs
}

impl Hooks for ServiceCidrs {
    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object.at("spec"))
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource == "status" {
            rules::keep_meta_on_status(new, old);
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            return errs;
        }
        let path = Path::new("spec").child("cidrs");
        let (n, o) = (new.at("spec").list("cidrs"), old.at("spec").list("cidrs"));
        match (o.len(), n.len()) {
            (a, b) if a == b || (a, b) == (1, 2) => {
                for (i, (x, _)) in n.iter().zip(o).enumerate().filter(|(_, (x, y))| x != y) {
                    errs.push(Error::invalid(&path.index(i), x.clone(), check::IMMUTABLE));
                }
                if a != b {
                    errs.extend(validate(new.at("spec")));
                }
            }
            _ => errs.push(Error::invalid(&path, n.to_vec(), check::IMMUTABLE)),
        }
        errs
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let cidrs: Vec<&str> = object.at("spec").strings("cidrs").collect();
        vec![name(object), cidrs.join(",").into(), age(object, now)]
    }
}

/// The definition of ServiceCIDRs.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "networking.k8s.io",
        "v1",
        "ServiceCIDR",
        "servicecidrs",
        Scope::Cluster,
        COLUMNS,
        ServiceCidrs,
    )
    .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, row, update_errors};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let of = |c: &[&str]| json!({"metadata": {"name": "s"}, "spec": {"cidrs": c}});
        let all = [
            create_errors(&def(), of(&[])),
            create_errors(&def(), of(&["10.0.0.0/8", "11.0.0.0/8"])),
            update_errors(&def(), "", of(&["11.0.0.0/8"]), of(&["10.0.0.0/8"])),
            update_errors(&def(), "", of(&["10.0.0.0/8", "fd00::/64"]), of(&["10.0.0.0/8"])),
        ];
        expect![[r#"
            spec.cidrs: Required value: at least one CIDR required
            spec.cidrs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64
            spec.cidrs[0]: Invalid value: "11.0.0.0/8": field is immutable
        "#]]
        .assert_eq(&all.join("\n"));
        assert_eq!(row(&def(), &of(&["10.0.0.0/8"])), "s | 10.0.0.0/8 | <unknown>");
    }
}
