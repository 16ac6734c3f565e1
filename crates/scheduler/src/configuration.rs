//! What the scheduler is started with: profiles, extenders, backoffs, how many nodes are enough, and what concerns the process; of a
//! `KubeSchedulerConfiguration`.
//!
//! Invariants:
//! - What a file says is in force, or the file is refused; for fields of the process that can have no effect there is a warning.
//! - Fields are known and have values of their types at every depth (`fields`), before anything else is looked at.
//! - A profile has one plugin that orders the queue, the same in all profiles, and one that binds at least.
//!
//! Source: Kubernetes, "Scheduler Configuration" (`kubescheduler.config.k8s.io/v1`).

mod fields;
mod process;
#[cfg(test)]
mod tests;

pub use process::{ClientConnection, LeaderElection, ProcessConfiguration};

use crate::{
    extenders::{self, Extenders},
    framework::{Points, Profile, ProfileConfig, profile::Weighted},
    plugins::{
        self, Entry,
        arguments::{items, number, text},
    },
    scheduling_queue::Backoffs,
};
use kaji_meta::{
    Features, Path, TypeMeta,
    field::{self, Error, ErrorList},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};

const KIND: &str = "KubeSchedulerConfiguration";
const GROUP: &str = "kubescheduler.config.k8s.io";
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
            kaji_files::yaml::decode(text).map_err(|e| ConfigurationError::Unreadable(e.to_string()))?;
        if let Err(error) = TypeMeta::of(&raw).expect(KIND, &[VERSION]) {
            return invalid(format!("{error}: expected {KIND} of {VERSION}"));
        }
        fields::check(&raw).map_err(ConfigurationError::Invalid)?;
        Self::of(&raw, features)
    }

    fn of(raw: &Value, features: Features) -> Result<Self, ConfigurationError> {
        let process = ProcessConfiguration::parse(raw)?;
        let extenders = extenders::parse(&raw["extenders"]).and_then(Extenders::new);
        let extenders = extenders.map_err(ConfigurationError::Invalid)?;
        let percentage = percentage(raw, &Path::root())?;
        let backoffs = backoffs(raw)?;
        let given: Vec<&Value> = items(&raw["profiles"]).collect();
        let list = if given.is_empty() { vec![&Value::Null] } else { given };
        let mut profiles: Vec<Profile> = vec![];
        for (place, raw) in list.iter().copied().enumerate() {
            let path = Path::new("profiles").index(place);
            let name = match &raw["schedulerName"] {
                Value::Null if list.len() == 1 => "default-scheduler",
                name => name.as_str().unwrap_or_default(),
            };
            if name.is_empty() {
                return invalid(Error::required(&path.child("schedulerName"), "").to_string());
            }
            let config = ProfileConfig {
                scheduler_name: name.to_owned(),
                percentage_of_nodes_to_score: self::percentage(raw, &path)?.or(percentage),
            };
            let mut profile = profile(raw, config, (&path, features), &extenders.ignored_resources())?;
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
    let seconds = |key: &str, default: i64| match number(raw, key, default) {
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

/// `percentageOfNodesToScore` of the configuration, or of a profile.
fn percentage(raw: &Value, path: &Path) -> Result<Option<u32>, ConfigurationError> {
    const FIELD: &str = "percentageOfNodesToScore";
    match raw[FIELD].as_i64() {
        None => Ok(None),
        Some(percent @ 0..=100) => Ok(u32::try_from(percent).ok()),
        Some(percent) => {
            invalid(Error::invalid(&path.child(FIELD), percent, "not in valid range [0-100]").to_string())
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
    config: ProfileConfig,
    (path, features): (&Path, Features),
    ignored: &[&str],
) -> Result<Profile, ConfigurationError> {
    let mut args = arguments(&raw["pluginConfig"], &path.child("pluginConfig"), features)?;
    let fit = args.get(FIT).map_or(Value::Null, |args| (*args).clone());
    let fit = ignoring(fit, ignored);
    if !ignored.is_empty() {
        args.insert(FIT, &fit);
    }
    let sets = &raw["plugins"];
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
    check(&chosen, &config.scheduler_name)?;
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
    let wrong = match &entry.arguments {
        None if !args.is_null() => format!("plugin {} takes no arguments", entry.name),
        // The arguments of all others are looked at before any plugin is made, as upstream's are.
        Some(arguments) if entry.name == FIT => field::aggregate(&(arguments.validate)(args, &Path::root())),
        _ => String::new(),
    };
    if !wrong.is_empty() {
        return invalid(format!("initializing plugin {:?}: {wrong}", entry.name));
    }
    Ok(Chosen { entry, weight: entry.weight, points: (entry.build)(args) })
}

/// The arguments of plugins, by the plugins' names: valid, but for those of [`FIT`].
fn arguments<'a>(
    raw: &'a Value,
    path: &Path,
    features: Features,
) -> Result<BTreeMap<&'a str, &'a Value>, ConfigurationError> {
    let (mut args, mut errors) = (BTreeMap::new(), ErrorList::new());
    for (place, raw) in items(raw).enumerate() {
        let (entry, path) = (entry(text(raw, "name"), features)?, path.index(place));
        if args.insert(entry.name, &raw["args"]).is_some() {
            errors.push(Error::duplicate(&path, entry.name));
        }
        if let Some(arguments) = entry.arguments.as_ref().filter(|_| entry.name != FIT) {
            errors.extend((arguments.validate)(&raw["args"], &path.child("args")));
        }
    }
    if errors.is_empty() { Ok(args) } else { invalid(field::aggregate(&errors)) }
}

fn disabled(set: &Value, name: &str) -> bool {
    let mut list = items(&set["disabled"]).map(|plugin| text(plugin, "name"));
    list.any(|disabled| disabled == name || disabled == "*")
}

fn enabled(set: &Value) -> impl Iterator<Item = (&str, Option<i64>)> {
    items(&set["enabled"]).map(|plugin| {
        let weight = plugin["weight"].as_i64().filter(|weight| *weight != 0);
        (text(plugin, "name"), weight)
    })
}
