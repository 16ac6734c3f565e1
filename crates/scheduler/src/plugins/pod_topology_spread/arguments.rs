//! What is valid in the plugin's arguments: the constraints that pods without any get.

use crate::{
    plugins::arguments::{Arguments, items, number, text},
    strict::{Field, Kind, TEXT, TEXTS},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation::validate_label_name,
};
use serde_json::Value;

/// Fields of the arguments.
pub const CONSTRAINTS: &str = "defaultConstraints";
pub const TYPE: &str = "defaultingType";
/// The constraints are those of the arguments, instead of upstream's own.
pub const LIST: &str = "List";
const SYSTEM: &str = "System";

const ACTIONS: [&str; 2] = ["DoNotSchedule", "ScheduleAnyway"];

const REQUIREMENT: Kind = Kind::Object(
    "v1.LabelSelectorRequirement",
    &[("key", TEXT), ("operator", Kind::Text("v1.LabelSelectorOperator")), ("values", TEXTS)],
);
const SELECTOR: &[Field] = &[("matchLabels", Kind::Labels), ("matchExpressions", Kind::List(&REQUIREMENT))];
const POLICY: Kind = Kind::Text("v1.NodeInclusionPolicy");
const CONSTRAINT: &[Field] = &[
    ("maxSkew", Kind::Int32),
    ("topologyKey", TEXT),
    ("whenUnsatisfiable", Kind::Text("v1.UnsatisfiableConstraintAction")),
    ("labelSelector", Kind::Object("v1.LabelSelector", SELECTOR)),
    ("minDomains", Kind::Int32),
    ("nodeAffinityPolicy", POLICY),
    ("nodeTaintsPolicy", POLICY),
    ("matchLabelKeys", TEXTS),
];

/// The arguments.
pub const ARGUMENTS: Arguments = Arguments {
    fields: &[
        (CONSTRAINTS, Kind::List(&Kind::Object("v1.TopologySpreadConstraint", CONSTRAINT))),
        (TYPE, Kind::Text("v1.PodTopologySpreadConstraintsDefaulting")),
    ],
    validate,
};

fn validate(args: &Value, path: &Path) -> ErrorList {
    let constraints: Vec<&Value> = items(&args[CONSTRAINTS]).collect();
    let mut errors = vec![];
    let type_path = path.child(TYPE);
    match text(args, TYPE) {
        "" | SYSTEM if !constraints.is_empty() => {
            errors.push(Error::invalid(&type_path, SYSTEM, "when .defaultConstraints are not empty"));
        }
        "" | SYSTEM | LIST => {}
        other => errors.push(Error::not_supported(&type_path, other, &[SYSTEM, LIST])),
    }
    let path = path.child(CONSTRAINTS);
    for (place, constraint) in constraints.iter().enumerate() {
        let path = path.index(place);
        errors.extend(of_constraint(constraint, &path));
        let same = |raw: &Value| {
            ["topologyKey", "whenUnsatisfiable"].iter().all(|f| text(raw, f) == text(constraint, f))
        };
        if constraints[..place].iter().copied().any(same) {
            let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
            errors.push(Error::duplicate(&path, format!("{{{key}, {action}}}")));
        }
    }
    errors
}

fn of_constraint(constraint: &Value, path: &Path) -> ErrorList {
    let mut errors = vec![];
    let skew = number(constraint, "maxSkew", 0);
    if skew <= 0 {
        errors.push(Error::invalid(&path.child("maxSkew"), skew, "not in valid range (0, inf)"));
    }
    let key_path = path.child("topologyKey");
    match text(constraint, "topologyKey") {
        "" => errors.push(Error::required(&key_path, "can not be empty")),
        key => errors.extend(validate_label_name(key, &key_path)),
    }
    let action_path = path.child("whenUnsatisfiable");
    match text(constraint, "whenUnsatisfiable") {
        "" => errors.push(Error::required(&action_path, "can not be empty")),
        action if ACTIONS.contains(&action) => {}
        action => errors.push(Error::not_supported(&action_path, action, &ACTIONS)),
    }
    if !constraint["labelSelector"].is_null() {
        let why = "constraint must not define a selector, as they deduced for each pod";
        errors.push(Error::forbidden(&path.child("labelSelector"), why));
    }
    errors
}
