//! PriorityLevelConfigurations.

use super::{fixed, flowschemas::condition_types};
use crate::shared::{
    check, metadata,
    table::{age, name},
    value::{Fields, copy_field, default_int, put, set_default},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, semantic_equal,
};
use kaji_resource::{Column, Ctx, Hooks, ResourceDef, Scope, SubresourceDef, age_column, name_column};
use serde_json::{Value, json};

const COLUMNS: &[Column] = &[
    name_column(),
    Column::new(
        "Type",
        "string",
        0,
        "`type` indicates whether this priority level is subject to limitation on request execution.  A value of `\"Exempt\"` means that requests of this priority level are not subject to a limit (and thus are never queued) and do not detract from the capacity made available to other priority levels.  A value of `\"Limited\"` means that (a) requests of this priority level _are_ subject to limits and (b) some of the server's limited capacity is made available exclusively to this priority level. Required.",
    ),
    Column::new(
        "NominalConcurrencyShares",
        "string",
        0,
        "`nominalConcurrencyShares` (NCS) contributes to the computation of the NominalConcurrencyLimit (NominalCL) of this level. This is the number of execution seats available at this priority level. This is used both for requests dispatched from this priority level as well as requests dispatched from other priority levels borrowing seats from this level. The server's concurrency limit (ServerCL) is divided among the Limited priority levels in proportion to their NCS values:\n\nNominalCL(i)  = ceil( ServerCL * NCS(i) / sum_ncs ) sum_ncs = sum[priority level k] NCS(k)\n\nBigger numbers mean a larger nominal concurrency limit, at the expense of every other priority level.\n\nIf not specified, this field defaults to a value of 30.\n\nSetting this field to zero supports the construction of a \"jail\" for this priority level that is used to hold some request(s)",
    ),
    Column::new(
        "Queues",
        "string",
        0,
        "`queues` is the number of queues for this priority level. The queues exist independently at each apiserver. The value must be positive.  Setting it to 1 effectively precludes shufflesharding and thus makes the distinguisher method of associated flow schemas irrelevant.  This field has a default value of 64.",
    ),
    Column::new(
        "HandSize",
        "string",
        0,
        "`handSize` is a small positive number that configures the shuffle sharding of requests into queues.  When enqueuing a request at this priority level the request's flow identifier (a string pair) is hashed and the hash value is used to shuffle the list of queues and deal a hand of the size specified here.  The request is put into one of the shortest queues in that hand. `handSize` must be no larger than `queues`, and should be significantly smaller (so that a few heavy flows do not saturate most of the queues).  See the user-facing documentation for more extensive guidance on setting this field.  This field has a default value of 8.",
    ),
    Column::new(
        "QueueLengthLimit",
        "string",
        0,
        "`queueLengthLimit` is the maximum number of requests allowed to be waiting in a given queue of this priority level at a time; excess requests are rejected.  This value must be positive.  If not specified, it will be defaulted to 50.",
    ),
    age_column(),
];

const MAX_QUEUES: i64 = 10_000_000;
/// Bits of the hash that requests are dealt to queues by.
const MAX_HASH_BITS: i64 = 60;
const PRESERVE_ZERO: &str = "flowcontrol.k8s.io/preserve-zero-concurrency-shares";

struct PriorityLevels;

/// How many hash bits dealing a hand from a deck takes.
fn entropy_bits(deck: i64, hand: i64) -> i64 {
    let bits: f64 = (0..hand).map(|i| ((deck - i) as f64).log2()).sum();
    bits.ceil() as i64
}

fn queuing(errs: &mut ErrorList, path: &Path, q: &Value) {
    let (limit, queues, hand) = (q.int("queueLengthLimit"), q.int("queues"), q.int("handSize"));
    let mut bad =
        |field: &str, value: i64, text: &str| errs.push(Error::invalid(&path.child(field), value, text));
    if limit <= 0 {
        bad("queueLengthLimit", limit, "must be positive");
    }
    if queues <= 0 {
        bad("queues", queues, "must be positive");
    } else if queues > MAX_QUEUES {
        bad("queues", queues, &format!("must not be greater than {MAX_QUEUES}"));
    }
    if hand <= 0 {
        bad("handSize", hand, "must be positive");
    } else if hand > queues {
        bad("handSize", hand, &format!("should not be greater than queues ({queues})"));
    } else if hand > MAX_HASH_BITS || entropy_bits(queues, hand) > MAX_HASH_BITS {
        let text = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_HASH_BITS}"
        );
        bad("handSize", hand, &text);
    }
}

fn limited(errs: &mut ErrorList, path: &Path, l: &Value) {
    let shares = l.int("nominalConcurrencyShares");
    if shares < 0 {
        errs.push(Error::invalid(
            &path.child("nominalConcurrencyShares"),
            shares,
            "must be a non-negative integer",
        ));
    }
    let (response, at) = (l.at("limitResponse"), path.child("limitResponse"));
    let q = at.child("queuing");
    match response.text("type") {
        "Reject" => {
            if response.has("queuing") {
                let text = "must be nil if limited.limitResponse.type is not Limited";
                errs.push(Error::forbidden(&q, text));
            }
        }
        "Queue" if response.has("queuing") => queuing(errs, &q, response.at("queuing")),
        "Queue" => {
            let text = "must not be empty if limited.limitResponse.type is Limited";
            errs.push(Error::required(&q, text));
        }
        other => errs.push(Error::not_supported(&at.child("type"), other, &["Queue", "Reject"])),
    }
    lendable(errs, path, l);
    if let Some(n) = l.opt_int("borrowingLimitPercent").filter(|n| *n < 0) {
        let text = "if specified, must be a non-negative integer";
        errs.push(Error::invalid(&path.child("borrowingLimitPercent"), n, text));
    }
}

fn lendable(errs: &mut ErrorList, path: &Path, v: &Value) {
    if let Some(n) = v.opt_int("lendablePercent").filter(|n| !(0..=100).contains(n)) {
        errs.push(Error::invalid(&path.child("lendablePercent"), n, "must be between 0 and 100, inclusive"));
    }
}

fn validate(object: &Value) -> ErrorList {
    let (mut errs, spec, path) = (vec![], object.at("spec"), Path::new("spec"));
    let (name, ty) = (object::name(object), spec.text("type"));
    if object::annotation(object, PRESERVE_ZERO).is_some() {
        let at = Path::new("metadata").child("annotations");
        errs.push(Error::forbidden(&at, format!("annotation '{PRESERVE_ZERO}' is forbidden")));
    }
    if (name == "exempt") != (ty == "Exempt") {
        let text = "must be 'Exempt' if and only if `name` is 'exempt'";
        errs.push(Error::invalid(&path.child("type"), ty, text));
    }
    match ty {
        "Exempt" => {
            let (e, at) = (spec.at("exempt"), path.child("exempt"));
            if spec.has("limited") {
                errs.push(Error::forbidden(&path.child("limited"), "must be nil if the type is not Limited"));
            }
            if let Some(n) = e.opt_int("nominalConcurrencyShares").filter(|n| *n < 0) {
                errs.push(Error::invalid(
                    &at.child("nominalConcurrencyShares"),
                    n,
                    "must be a non-negative integer",
                ));
            }
            lendable(&mut errs, &at, e);
        }
        "Limited" => {
            if spec.has("exempt") {
                errs.push(Error::forbidden(&path.child("exempt"), "must be nil if the type is Limited"));
            }
            if spec.has("limited") {
                limited(&mut errs, &path.child("limited"), spec.at("limited"));
            } else {
                errs.push(Error::required(&path.child("limited"), "must not be empty when type is Limited"));
            }
        }
        other => errs.push(Error::not_supported(&path.child("type"), other, &["Exempt", "Limited"])),
    }
    if let Some(fixed) = fixed::priority_level(name) {
        let (mut have, mut text) = (spec.clone(), format!("spec of '{name}' must equal the fixed value"));
        if name == "exempt" {
            copy_field(&mut have, &fixed, "exempt");
            text = format!("spec of '{name}' except the 'spec.exempt' field must equal the fixed value");
        }
        check_fixed(&mut errs, &path, spec, semantic_equal(&have, &fixed), &text);
    }
    errs
}

fn check_fixed(errs: &mut ErrorList, path: &Path, spec: &Value, same: bool, text: &str) {
    if !same {
        let ty = "io.k8s.api.flowcontrol.v1.PriorityLevelConfigurationSpec";
        errs.push(check::invalid_struct(path, ty, spec, text));
    }
}

impl Hooks for PriorityLevels {
    fn default(&self, _version: &str, object: &mut Value) {
        let Some(spec) = object.get_mut("spec") else { return };
        if let Some(e) = spec.get_mut("exempt").filter(|v| v.is_object()) {
            set_default(e, "nominalConcurrencyShares", || 0.into());
            set_default(e, "lendablePercent", || 0.into());
        }
        if let Some(l) = spec.get_mut("limited").filter(|v| v.is_object()) {
            set_default(l, "nominalConcurrencyShares", || 30.into());
            set_default(l, "lendablePercent", || 0.into());
            if let Some(q) = l.pointer_mut("/limitResponse/queuing").filter(|v| v.is_object()) {
                default_int(q, "handSize", 8);
                default_int(q, "queues", 64);
                default_int(q, "queueLengthLimit", 50);
            }
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        validate(object)
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        fixed::keep_meta(ctx, new, old);
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, _old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            condition_types(&mut errs, new);
            return errs;
        }
        validate(new)
    }

    fn reset_fields(&self, _version: &str, subresource: &str) -> &'static [&'static [&'static str]] {
        crate::shared::rules::resets_metadata(subresource)
    }

    fn row(&self, _version: &str, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let l = object.at("spec").at("limited");
        let q = l.at("limitResponse").at("queuing");
        let cell = |v: &Value, f: &str| v.get_field(f).cloned().unwrap_or_else(|| "<none>".into());
        vec![
            name(object),
            object.at("spec").text("type").into(),
            cell(l, "nominalConcurrencyShares"),
            cell(q, "queues"),
            cell(q, "handSize"),
            cell(q, "queueLengthLimit"),
            age(object, now),
        ]
    }
}

/// The definition of PriorityLevelConfigurations.
pub fn def() -> ResourceDef {
    ResourceDef::builtin(
        fixed::GROUP,
        "v1",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
        Scope::Cluster,
        COLUMNS,
        PriorityLevels,
    )
    .metadata_checks(&[metadata::WHOLE], &[])
    .with_generation()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::{create_errors, created, row};
    use expect_test::expect;

    #[test]
    fn rejects_invalid_fields_and_prints_a_row() {
        let of = |spec: Value| json!({"metadata": {"name": "p"}, "spec": spec});
        let queue =
            of(json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}));
        let text = created(&def(), queue);
        let made: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(row(&def(), &made), "p | Limited | 30 | 64 | 8 | 50 | <unknown>");
        let all = [
            create_errors(&def(), made),
            create_errors(&def(), of(json!({"type": "Exempt"}))),
            create_errors(&def(), of(json!({"type": "Limited"}))),
            create_errors(
                &def(),
                of(
                    json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"handSize": 20, "queues": 100}}}}),
                ),
            ),
            create_errors(
                &def(),
                json!({"metadata": {"name": "exempt"}, "spec": fixed::priority_level("exempt")}),
            ),
        ];
        expect![[r#"

            spec.type: Invalid value: "Exempt": must be 'Exempt' if and only if `name` is 'exempt'
            spec.limited: Required value: must not be empty when type is Limited
            spec.limited.limitResponse.queuing.handSize: Invalid value: 20: required entropy bits of deckSize 100 and handSize 20 should not be greater than 60
        "#]]
        .assert_eq(&all.join("\n"));
    }
}
