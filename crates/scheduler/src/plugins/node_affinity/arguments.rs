//! What is valid in the plugin's arguments: the affinity that they add.
//!
//! Source: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`.

use crate::{
    plugins::arguments::{Arguments, items, number, text},
    strict::{Field, Kind, TEXT, TEXTS},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    labels::{Operator, check_requirement},
};
use serde_json::Value;

/// The field of the arguments.
pub const ADDED: &str = "addedAffinity";
/// Fields of the affinity.
pub const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
pub const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

const REQUIREMENTS: Kind = Kind::List(&Kind::Object(
    "v1.NodeSelectorRequirement",
    &[("key", TEXT), ("operator", Kind::Text("v1.NodeSelectorOperator")), ("values", TEXTS)],
));
const TERM: Kind =
    Kind::Object("v1.NodeSelectorTerm", &[("matchExpressions", REQUIREMENTS), ("matchFields", REQUIREMENTS)]);
const PREFERENCE: Kind =
    Kind::Object("v1.PreferredSchedulingTerm", &[("weight", Kind::Int32), ("preference", TERM)]);
const AFFINITY: &[Field] = &[
    (REQUIRED, Kind::Object("v1.NodeSelector", &[("nodeSelectorTerms", Kind::List(&TERM))])),
    (PREFERRED, Kind::List(&PREFERENCE)),
];

/// The arguments.
pub const ARGUMENTS: Arguments =
    Arguments { fields: &[(ADDED, Kind::Object("v1.NodeAffinity", AFFINITY))], validate };

const OPERATORS: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
const FIELD_OPERATORS: [&str; 2] = ["In", "NotIn"];

fn validate(args: &Value, path: &Path) -> ErrorList {
    let (added, path) = (&args[ADDED], path.child(ADDED));
    let terms = path.child(REQUIRED).child("nodeSelectorTerms");
    let required = items(&added[REQUIRED]["nodeSelectorTerms"]).enumerate();
    let mut errors: ErrorList =
        required.flat_map(|(place, term)| of_term(term, &terms.index(place))).collect();
    let terms = path.child(PREFERRED);
    for (place, preferred) in items(&added[PREFERRED]).enumerate() {
        // One without weight is left out.
        if number(preferred, "weight", 0) != 0 {
            errors.extend(of_term(&preferred["preference"], &terms.index(place)));
        }
    }
    errors
}

fn of_term(term: &Value, path: &Path) -> ErrorList {
    let (labels, fields) = (path.child("matchExpressions"), path.child("matchFields"));
    let of_labels = items(&term["matchExpressions"]).enumerate();
    let of_fields = items(&term["matchFields"]).enumerate();
    let of_labels = of_labels.flat_map(|(place, raw)| of_label(raw, &labels.index(place)));
    of_labels.chain(of_fields.flat_map(|(place, raw)| of_field(raw, &fields.index(place)))).collect()
}

fn of_label(raw: &Value, path: &Path) -> ErrorList {
    let operator = match text(raw, "operator") {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::GreaterThan,
        "Lt" => Operator::LessThan,
        other => return vec![Error::not_supported(&path.child("operator"), other, &OPERATORS)],
    };
    let values = &raw["values"];
    let given: Vec<String> = items(values).map(|v| v.as_str().unwrap_or_default().to_owned()).collect();
    check_requirement(path, text(raw, "key"), operator, &given, || values.clone())
}

fn of_field(raw: &Value, path: &Path) -> ErrorList {
    let (operator, values) = (text(raw, "operator"), &raw["values"]);
    if !FIELD_OPERATORS.contains(&operator) {
        return vec![Error::not_supported(&path.child("operator"), operator, &FIELD_OPERATORS)];
    }
    match items(values).count() {
        1 => vec![],
        _ => vec![Error::invalid(&path.child("values"), values.clone(), "must have one element")],
    }
}
