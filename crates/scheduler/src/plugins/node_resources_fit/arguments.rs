//! What is valid in the plugin's arguments.

use super::strategy::weighted_resources;
use crate::{
    plugins::{
        arguments::{Arguments, RESOURCES, SHAPE, items, text},
        shape,
    },
    strict::{Field, Kind, TEXTS},
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    validation::validate_label_name,
};
use serde_json::Value;

/// Fields of the arguments.
pub const IGNORED: &str = "ignoredResources";
pub const IGNORED_GROUPS: &str = "ignoredResourceGroups";
pub const STRATEGY: &str = "scoringStrategy";

const RATIO: &str = "RequestedToCapacityRatio";
const TYPES: [&str; 3] = ["LeastAllocated", "MostAllocated", RATIO];

const STRATEGY_FIELDS: &[Field] = &[
    ("type", Kind::Text("v1.ScoringStrategyType")),
    ("resources", RESOURCES),
    ("requestedToCapacityRatio", Kind::Object("v1.RequestedToCapacityRatioParam", &[("shape", SHAPE)])),
];

/// The arguments.
pub const ARGUMENTS: Arguments = Arguments {
    fields: &[
        (IGNORED, TEXTS),
        (IGNORED_GROUPS, TEXTS),
        (STRATEGY, Kind::Object("v1.ScoringStrategy", STRATEGY_FIELDS)),
    ],
    validate,
};

fn validate(args: &Value, path: &Path) -> ErrorList {
    let mut errors = vec![];
    for (path, name) in names(args, IGNORED, path) {
        errors.extend(validate_label_name(name, &path));
    }
    for (path, group) in names(args, IGNORED_GROUPS, path) {
        if group.contains('/') {
            errors.push(Error::invalid(&path, group, "resource group name can't contain '/'"));
        }
        errors.extend(validate_label_name(group, &path));
    }
    if !args[STRATEGY].is_null() {
        errors.extend(of_strategy(&args[STRATEGY], &path.child(STRATEGY)));
    }
    errors
}

/// The names in a list, with their paths.
fn names<'a>(args: &'a Value, field: &str, path: &Path) -> Vec<(Path, &'a str)> {
    let path = path.child(field);
    let names = items(&args[field]).map(|name| name.as_str().unwrap_or_default());
    names.enumerate().map(|(place, name)| (path.index(place), name)).collect()
}

fn of_strategy(strategy: &Value, path: &Path) -> ErrorList {
    let mut errors = vec![];
    let kind = text(strategy, "type");
    if !TYPES.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, &TYPES));
    }
    for (place, (name, weight)) in weighted_resources(&strategy["resources"]).into_iter().enumerate() {
        if !(1..=100).contains(&weight) {
            let path = path.child("resources").index(place).child("weight");
            let why = format!("resource weight of {name} not in valid range (0, 100]");
            errors.push(Error::invalid(&path, weight, why));
        }
    }
    let path = path.child("requestedToCapacityRatio");
    match &strategy["requestedToCapacityRatio"] {
        Value::Null if kind == RATIO => {
            let why = "must be specified when type is RequestedToCapacityRatio";
            errors.push(Error::required(&path, why));
        }
        Value::Null => {}
        ratio if kind == RATIO => errors.extend(shape::validate(&ratio["shape"], &path.child("shape"))),
        _ => {
            let why = "must be nil when type is not RequestedToCapacityRatio";
            errors.push(Error::forbidden(&path, why));
        }
    }
    errors
}
