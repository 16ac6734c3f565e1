//! NetworkPolicies.

use crate::shared::{
    check, metadata,
    net::{Cidr, check_legacy_cidr, cidr_warnings},
    rules,
    table::{age, name, selector},
    value::{Fields, ensure_object, list_mut, put},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, age_column, name_column};
use serde_json::Value;

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Pod-Selector",
        "string",
        0,
        "podSelector selects the pods to which this NetworkPolicy object applies. The array of rules is applied to any pods selected by this field. An empty selector matches all pods in the policy's namespace. Multiple network policies can select the same set of pods. In this case, the ingress rules for each are combined additively. This field is optional. If it is not specified, it defaults to an empty selector.",
    ),
    age_column(),
];

/// Directions, and the field that holds their peers.
const DIRECTIONS: &[(&str, &str)] = &[("ingress", "from"), ("egress", "to")];

struct NetworkPolicies;

fn port(errs: &mut ErrorList, path: &Path, p: &Value) {
    if let Some(protocol) = p.opt_text("protocol") {
        check::one_of(errs, &path.child("protocol"), protocol, &["TCP", "UDP", "SCTP"]);
    }
    let end = p.opt_int("endPort");
    let at = path.child("endPort");
    match (p.at("port"), end) {
        (Value::Null, Some(e)) => {
            errs.push(Error::invalid(&at, e, "may not be specified when `port` is not specified"));
        }
        (Value::Null, None) => {}
        (Value::String(s), end) => {
            if let Some(e) = end {
                errs.push(Error::invalid(&at, e, "may not be specified when `port` is non-numeric"));
            }
            check::each(errs, &path.child("port"), s.as_str(), validation::is_valid_port_name(s));
        }
        (n, end) => {
            let n = n.as_i64().unwrap_or(0);
            rules::port_number(errs, &path.child("port"), n);
            if let Some(e) = end {
                if e < n {
                    errs.push(Error::invalid(&at, n, "must be greater than or equal to `port`"));
                }
                rules::port_number(errs, &at, e);
            }
        }
    }
}

fn ip_block(errs: &mut ErrorList, path: &Path, block: &Value, known: &[&str]) {
    let cidr = block.text("cidr");
    if cidr.is_empty() {
        errs.push(Error::required(&path.child("cidr"), ""));
        return;
    }
    errs.extend(check_legacy_cidr(&path.child("cidr"), cidr, known));
    let Some(outer) = Cidr::parse_sloppy(cidr) else { return };
    for (i, except) in block.strings("except").enumerate() {
        let at = path.child("except").index(i);
        errs.extend(check_legacy_cidr(&at, except, known));
        if let Some(inner) = Cidr::parse_sloppy(except)
            && (!outer.contains(inner.address) || outer.bits >= inner.bits)
        {
            errs.push(Error::invalid(&at, except, "must be a strict subset of `cidr`"));
        }
    }
}

fn peer(errs: &mut ErrorList, path: &Path, peer: &Value, known: &[&str]) {
    let mut count = 0;
    for field in ["podSelector", "namespaceSelector"].into_iter().filter(|f| peer.has(f)) {
        count += 1;
        errs.extend(validation::validate_label_selector(peer.at(field), &path.child(field)));
    }
    if peer.has("ipBlock") {
        ip_block(errs, &path.child("ipBlock"), peer.at("ipBlock"), known);
        rules::frozen(errs, path, count == 0, "may not specify both ipBlock and another peer");
    } else if count == 0 {
        errs.push(Error::required(path, "must specify a peer"));
    }
}

/// Every IP block with its path.
fn blocks(object: &Value) -> impl Iterator<Item = (Path, &Value)> {
    DIRECTIONS.iter().flat_map(move |(direction, peers)| {
        let rules = object.at("spec").list(direction).iter().enumerate();
        rules.flat_map(move |(i, rule)| {
            let path = Path::new("spec").child(direction).index(i).child(peers);
            let all = rule.list(peers).iter().enumerate().filter(|(_, p)| p.has("ipBlock"));
            all.map(move |(j, p)| (path.index(j).child("ipBlock"), p.at("ipBlock")))
        })
    })
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    let known: Vec<&str> = old
        .into_iter()
        .flat_map(|o| blocks(o).map(|(_, b)| b))
        .flat_map(|b| std::iter::once(b.text("cidr")).chain(b.strings("except")))
        .collect();
    errs.extend(validation::validate_label_selector(spec.at("podSelector"), &path.child("podSelector")));
    for (direction, peers) in DIRECTIONS {
        for (i, rule) in spec.list(direction).iter().enumerate() {
            let at = path.child(direction).index(i);
            for (j, p) in rule.list("ports").iter().enumerate() {
                port(&mut errs, &at.child("ports").index(j), p);
            }
            for (j, p) in rule.list(peers).iter().enumerate() {
                peer(&mut errs, &at.child(peers).index(j), p, &known);
            }
        }
    }
    let (types, at) = (spec.list("policyTypes"), path.child("policyTypes"));
    if types.len() > 2 {
        errs.push(Error::invalid(&at, types.to_vec(), "may not specify more than two policyTypes"));
        return errs;
    }
    for (i, ty) in spec.strings("policyTypes").enumerate() {
        check::one_of(&mut errs, &at.index(i), ty, &["Ingress", "Egress"]);
    }
    errs
}

impl Hooks for NetworkPolicies {
    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        for (direction, _) in DIRECTIONS {
            for rule in list_mut(spec, direction) {
                list_mut(rule, "ports")
                    .iter_mut()
                    .for_each(|p| rules::default_opt_text(p, "protocol", "TCP"));
            }
        }
        if spec.list("policyTypes").is_empty() {
            let mut types = vec![Value::from("Ingress")];
            if !spec.list("egress").is_empty() {
                types.push("Egress".into());
            }
            put(spec, "policyTypes", types);
        }
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object, None)
    }

    fn validate_update(&self, _ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        validate(new, Some(old))
    }

    fn warnings(&self, _ctx: &Ctx<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut all = vec![];
        for (path, block) in blocks(new) {
            all.extend(cidr_warnings(&path.child("cidr"), block.text("cidr")));
            for (i, except) in block.strings("except").enumerate() {
                all.extend(cidr_warnings(&path.child("except").index(i), except));
            }
        }
        all
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![name(object), selector(object.at("spec").at("podSelector")).into(), age(object, now)]
    }
}

/// The definition of NetworkPolicies.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
        Scope::Namespaced,
        COLUMNS,
        NetworkPolicies,
    )
    .optional_to_start()
    .metadata_checks(&[metadata::UPDATE], &[metadata::UPDATE])
    .short(&["netpol"])
    .with_generation()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row};
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        expect![[r#"
            {
              "spec": {
                "egress": [
                  {
                    "ports": [
                      {
                        "port": 53,
                        "protocol": "TCP"
                      }
                    ]
                  }
                ],
                "policyTypes": [
                  "Ingress",
                  "Egress"
                ]
              }
            }"#]]
        .assert_eq(&created(&def(), json!({"spec": {"egress": [{"ports": [{"port": 53}]}]}})));
        let bad = json!({"spec": {"podSelector": {}, "policyTypes": ["x"], "ingress": [{
            "ports": [{"endPort": 1}, {"port": "a", "endPort": 1}, {"port": 5, "endPort": 1}],
            "from": [{}, {"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}]}]}});
        expect![[r#"
            spec.ingress[0].ports[0].endPort: Invalid value: 1: may not be specified when `port` is not specified
            spec.ingress[0].ports[1].endPort: Invalid value: 1: may not be specified when `port` is non-numeric
            spec.ingress[0].ports[2].endPort: Invalid value: 5: must be greater than or equal to `port`
            spec.ingress[0].from[0]: Required value: must specify a peer
            spec.ingress[0].from[1].ipBlock.except[0]: Invalid value: "11.0.0.0/16": must be a strict subset of `cidr`
            spec.ingress[0].from[1]: Forbidden: may not specify both ipBlock and another peer
            spec.policyTypes[0]: Unsupported value: "x": supported values: "Ingress", "Egress""#]]
        .assert_eq(&create_errors(&def(), bad));
        let p = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {"matchLabels": {"a": "b"}}}});
        assert_eq!(row(&def(), &p), "p | a=b | <unknown>");
    }
}
