//! What the scheduler is started with: profiles, extenders, backoffs, how many nodes are enough, and what concerns the process; of a
//! `KubeSchedulerConfiguration`.
//!
//! Invariants:
//! - What a file says is in force, or the file is refused; for fields of the process that can have no effect there is a warning.
//! - A profile has one plugin that orders the queue, the same in all profiles, and one that binds at least.
//!
//! Source: Kubernetes, "Scheduler Configuration" (`kubescheduler.config.k8s.io/v1`).

mod process;
#[cfg(test)]
mod tests;

pub use process::{ClientConnection, LeaderElection, ProcessConfiguration};

use crate::{
    extenders::{self, Extenders},
    framework::{Points, Profile, ProfileConfig, profile::Weighted},
    plugins::{self, Entry},
    scheduling_queue::Backoffs,
};
use kaji_meta::{Features, TypeMeta};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

const KIND: &str = "KubeSchedulerConfiguration";
const VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConfigurationError {
    /// It is no YAML.
    #[error("the scheduler configuration cannot be read: {0}")]
    Unreadable(String),
    /// It is not understood, or contradicts itself.
    #[error("the scheduler configuration is invalid: {0}")]
    Invalid(String),
}

fn invalid<T>(text: impl Into<String>) -> Result<T, ConfigurationError> {
    Err(ConfigurationError::Invalid(text.into()))
}

/// A configuration.
#[derive(Debug)]
pub struct Configuration {
    /// One for each scheduler name.
    pub profiles: Vec<Profile>,
    /// Servers that have a say in decisions.
    pub extenders: Extenders,
    /// What concerns the process.
    pub process: ProcessConfiguration,
    /// Of pods after failed attempts.
    pub backoffs: Backoffs,
    /// The feature gates.
    pub features: Features,
}

/// The extension points, as a configuration names them.
const POINTS: [&str; 12] = [
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
];

/// Points of placements of groups of pods. They are fields of every complete file, and no plugin is there to be enabled.
const PLACEMENT_POINTS: [&str; 2] = ["placementGenerate", "placementScore"];

impl Configuration {
    /// Upstream's default: one profile with all plugins that the gates allow.
    ///
    /// # Errors
    /// None that a test would not have found.
    pub fn new(features: Features) -> Result<Self, ConfigurationError> {
        Self::of(&Value::Null, features)
    }

    /// Of a file's text, or the default without one.
    ///
    /// # Errors
    /// If it is not understood as a whole.
    pub fn of_file(text: Option<&str>, features: Features) -> Result<Self, ConfigurationError> {
        text.map_or_else(|| Self::new(features), |text| Self::parse(text, features))
    }

    /// Of a file's text, in YAML or JSON.
    ///
    /// # Errors
    /// If it is not understood as a whole.
    pub fn parse(text: &str, features: Features) -> Result<Self, ConfigurationError> {
        let raw: Value =
            serde_saphyr::from_str(text).map_err(|e| ConfigurationError::Unreadable(e.to_string()))?;
        if let Err(error) = TypeMeta::of(&raw).expect(KIND, &[VERSION]) {
            return invalid(format!("{error}: expected {KIND} of {VERSION}"));
        }
        Self::of(&raw, features)
    }

    fn of(raw: &Value, features: Features) -> Result<Self, ConfigurationError> {
        const KNOWN: &[&str] = &[
            "apiVersion",
            "clientConnection",
            "delayCacheUntilActive",
            "enableContentionProfiling",
            "enableProfiling",
            "extenders",
            "kind",
            "leaderElection",
            "parallelism",
            "percentageOfNodesToScore",
            "podInitialBackoffSeconds",
            "podMaxBackoffSeconds",
            "profiles",
        ];
        only_known(raw, KNOWN, "")?;
        let process = ProcessConfiguration::parse(raw)?;
        let extenders = extenders::parse(&raw["extenders"]).and_then(Extenders::new);
        let extenders = extenders.map_err(ConfigurationError::Invalid)?;
        let percentage = percentage(raw)?;
        let backoffs = backoffs(raw)?;
        let none = [Value::Null];
        let list = match &raw["profiles"] {
            Value::Null => &none[..],
            Value::Array(list) => list,
            _ => return invalid("profiles: must be a list"),
        };
        if list.is_empty() {
            return invalid("profiles: Required value");
        }
        let mut profiles: Vec<Profile> = vec![];
        for raw in list {
            let mut profile = profile(raw, percentage, features, &extenders.ignored_resources())?;
            if !extenders.is_empty() {
                profile = profile.extended();
            }
            let name = &profile.config.scheduler_name;
            if profiles.iter().any(|other| other.config.scheduler_name == *name) {
                return invalid(format!("duplicate profile with scheduler name {name:?}"));
            }
            profiles.push(profile);
        }
        Ok(Configuration { profiles, extenders, process, backoffs, features })
    }
}

fn backoffs(raw: &Value) -> Result<Backoffs, ConfigurationError> {
    let seconds = |key: &str, default: i64| match number(raw, key)?.unwrap_or(default) {
        seconds if seconds > 0 => Ok(seconds.unsigned_abs()),
        seconds => invalid(format!("{key}: Invalid value: {seconds}: must be greater than 0")),
    };
    let (first, last) = (seconds("podInitialBackoffSeconds", 1)?, seconds("podMaxBackoffSeconds", 10)?);
    if last < first {
        return invalid(format!(
            "podMaxBackoffSeconds: Invalid value: {last}: must be greater than or equal to PodInitialBackoffSeconds"
        ));
    }
    Ok(Backoffs { initial: Duration::from_secs(first), max: Duration::from_secs(last) })
}

/// A whole number, if the field is there.
fn number(raw: &Value, key: &str) -> Result<Option<i64>, ConfigurationError> {
    match &raw[key] {
        Value::Null => Ok(None),
        value => match value.as_i64() {
            Some(number) => Ok(Some(number)),
            None => invalid(format!("{key}: {value} is no whole number")),
        },
    }
}

fn only_known(raw: &Value, known: &[&str], path: &str) -> Result<(), ConfigurationError> {
    let unknown = raw.as_object().and_then(|raw| raw.keys().find(|key| !known.contains(&key.as_str())));
    unknown.map_or(Ok(()), |key| invalid(format!("{path}{key}: this scheduler does not support the field")))
}

fn percentage(raw: &Value) -> Result<Option<u32>, ConfigurationError> {
    match number(raw, "percentageOfNodesToScore")? {
        None => Ok(None),
        Some(percent @ 0..=100) => Ok(u32::try_from(percent).ok()),
        Some(percent) => {
            invalid(format!("percentageOfNodesToScore: Invalid value: {percent}: not in valid range [0-100]"))
        }
    }
}

/// A plugin of a profile that is being made.
struct Chosen {
    entry: &'static Entry,
    weight: i64,
    points: Points,
}

fn profile(
    raw: &Value,
    default_percentage: Option<u32>,
    features: Features,
    ignored: &[&str],
) -> Result<Profile, ConfigurationError> {
    only_known(
        raw,
        &["schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig"],
        "profiles[].",
    )?;
    let scheduler_name = raw["schedulerName"].as_str().unwrap_or("default-scheduler").to_owned();
    let mut args = arguments(&raw["pluginConfig"], features)?;
    let fit = args.get(FIT).map_or(Value::Null, |args| (*args).clone());
    let fit = ignoring(fit, ignored);
    if !ignored.is_empty() {
        args.insert(FIT, &fit);
    }
    let sets = &raw["plugins"];
    let known: Vec<&str> = POINTS.iter().copied().chain(["multiPoint"]).chain(PLACEMENT_POINTS).collect();
    only_known(sets, &known, "profiles[].plugins.")?;
    for point in PLACEMENT_POINTS {
        if let Some((name, _)) = enabled(&sets[point]).next() {
            entry(name, features)?;
            return invalid(format!("plugin {name:?} does not extend {} plugin", point_name(point)));
        }
    }
    let mut chosen = vec![];
    for entry in plugins::available(features) {
        if !disabled(&sets["multiPoint"], entry.name) {
            chosen.push(choose(entry, &args)?);
        }
    }
    for (name, weight) in enabled(&sets["multiPoint"]) {
        let at = chosen.iter().position(|c| c.entry.name == name);
        let at = match at {
            Some(at) => at,
            None => {
                chosen.push(choose(entry(name, features)?, &args)?);
                chosen.len() - 1
            }
        };
        chosen[at].weight = weight.unwrap_or(chosen[at].weight);
    }
    for point in POINTS {
        adjust(&mut chosen, point, &sets[point], (&args, features))?;
    }
    check(&chosen, &scheduler_name)?;
    let percentage_of_nodes_to_score = percentage(raw)?.or(default_percentage);
    let config = ProfileConfig { scheduler_name, percentage_of_nodes_to_score };
    let chosen = chosen.into_iter().filter(|c| !c.points.is_empty());
    Ok(Profile::new(config, chosen.map(|c| Weighted { points: c.points, weight: c.weight }).collect()))
}

/// The plugin that looks at resources.
const FIT: &str = "NodeResourcesFit";

/// The plugin's arguments, with the resources that extenders see to in place of the ones that it would ignore.
fn ignoring(mut args: Value, ignored: &[&str]) -> Value {
    if args.is_null() {
        args = json!({});
    }
    if let Some(args) = args.as_object_mut() {
        args.insert("ignoredResources".to_owned(), json!(ignored));
    }
    args
}

/// Enables and disables plugins at one extension point.
fn adjust(
    chosen: &mut Vec<Chosen>,
    point: &str,
    set: &Value,
    (args, features): (&BTreeMap<&str, &Value>, Features),
) -> Result<(), ConfigurationError> {
    let name_of_point = point_name(point);
    for plugin in chosen.iter_mut().filter(|c| disabled(set, c.entry.name)) {
        plugin.points = plugin.points.clone().without(&name_of_point);
    }
    for (name, weight) in enabled(set) {
        let whole = choose(entry(name, features)?, args)?;
        if !whole.points.names().contains(&name_of_point.as_str()) {
            return invalid(format!("plugin {name:?} does not extend {name_of_point} plugin"));
        }
        match chosen.iter_mut().find(|c| c.entry.name == name) {
            Some(plugin) => {
                plugin.weight = weight.unwrap_or(plugin.weight);
                let mut points = whole.points;
                for other in points.names() {
                    if other != name_of_point && !plugin.points.names().contains(&other) {
                        points = points.without(other);
                    }
                }
                plugin.points = points;
            }
            None => {
                let mut points = whole.points;
                for other in points.names().into_iter().filter(|other| *other != name_of_point) {
                    points = points.without(other);
                }
                chosen.push(Chosen { entry: whole.entry, weight: weight.unwrap_or(whole.weight), points });
            }
        }
    }
    Ok(())
}

/// `preFilter` is the point `PreFilter`.
fn point_name(point: &str) -> String {
    point[..1].to_uppercase() + &point[1..]
}

fn check(chosen: &[Chosen], scheduler_name: &str) -> Result<(), ConfigurationError> {
    let with = |point: &str| chosen.iter().filter(|c| c.points.names().contains(&point)).count();
    match with("QueueSort") {
        1 => {}
        sorts => {
            return invalid(format!(
                "only one queue sort plugin required for profile with scheduler name {scheduler_name:?}, but got {sorts}"
            ));
        }
    }
    if with("Bind") == 0 {
        return invalid(format!(
            "at least one bind plugin is needed for profile with scheduler name {scheduler_name:?}"
        ));
    }
    match chosen.iter().find(|c| c.points.score.is_some() && !(1..=1000).contains(&c.weight)) {
        Some(c) => invalid(format!("score plugin {:?} has invalid weight {}", c.entry.name, c.weight)),
        None => Ok(()),
    }
}

fn entry(name: &str, features: Features) -> Result<&'static Entry, ConfigurationError> {
    match plugins::available(features).find(|entry| entry.name == name) {
        Some(entry) => Ok(entry),
        None => invalid(format!("plugin {name:?} does not exist")),
    }
}

fn choose(entry: &'static Entry, args: &BTreeMap<&str, &Value>) -> Result<Chosen, ConfigurationError> {
    let args = args.get(entry.name).copied().unwrap_or(&Value::Null);
    match (entry.build)(args) {
        Ok(points) => Ok(Chosen { entry, weight: entry.weight, points }),
        Err(error) => invalid(format!("initializing plugin {:?}: {error}", entry.name)),
    }
}

fn arguments(raw: &Value, features: Features) -> Result<BTreeMap<&str, &Value>, ConfigurationError> {
    let mut args = BTreeMap::new();
    for raw in raw.as_array().into_iter().flatten() {
        let name = entry(raw["name"].as_str().unwrap_or_default(), features)?.name;
        if args.insert(name, &raw["args"]).is_some() {
            return invalid(format!("repeated config for plugin {name}"));
        }
    }
    Ok(args)
}

fn disabled(set: &Value, name: &str) -> bool {
    let list = set["disabled"].as_array().into_iter().flatten();
    list.filter_map(|plugin| plugin["name"].as_str()).any(|disabled| disabled == name || disabled == "*")
}

fn enabled(set: &Value) -> impl Iterator<Item = (&str, Option<i64>)> {
    let list = set["enabled"].as_array().into_iter().flatten();
    list.filter_map(|plugin| {
        let weight = plugin["weight"].as_i64().filter(|weight| *weight != 0);
        Some((plugin["name"].as_str()?, weight))
    })
}
