//! The fields of a `KubeSchedulerConfiguration`, of which a file has no others.
//!
//! Source: `k8s.io/kube-scheduler/config/v1`, `k8s.io/component-base/config/v1alpha1`.

use super::{GROUP, KIND, VERSION};
use crate::{
    plugins::{
        PLUGINS,
        arguments::{items, text},
    },
    strict::{self, Field, Kind, TEXT},
};
use kaji_meta::TypeMeta;
use serde_json::Value;

const LEADER_ELECTION: &[Field] = &[
    ("leaderElect", Kind::Bool),
    ("leaseDuration", Kind::Duration),
    ("renewDeadline", Kind::Duration),
    ("retryPeriod", Kind::Duration),
    ("resourceLock", TEXT),
    ("resourceName", TEXT),
    ("resourceNamespace", TEXT),
];

const CLIENT_CONNECTION: &[Field] = &[
    ("kubeconfig", TEXT),
    ("acceptContentTypes", TEXT),
    ("contentType", TEXT),
    ("qps", Kind::Float32),
    ("burst", Kind::Int32),
];

const PLUGIN: Kind = Kind::Object("v1.Plugin", &[("name", TEXT), ("weight", Kind::Int32)]);
const LIST: Kind = Kind::List(&PLUGIN);
const SET: Kind = Kind::Object("v1.PluginSet", &[("enabled", LIST), ("disabled", LIST)]);
const SETS: &[Field] = &[
    ("preEnqueue", SET),
    ("queueSort", SET),
    ("preFilter", SET),
    ("filter", SET),
    ("postFilter", SET),
    ("preScore", SET),
    ("score", SET),
    ("reserve", SET),
    ("permit", SET),
    ("preBind", SET),
    ("bind", SET),
    ("postBind", SET),
    ("multiPoint", SET),
    ("placementGenerate", SET),
    ("placementScore", SET),
];

const PLUGIN_CONFIG: Kind = Kind::Object("v1.PluginConfig", &[("name", TEXT), ("args", Kind::Raw)]);
const PROFILE: Kind = Kind::Object(
    "v1.KubeSchedulerProfile",
    &[
        ("schedulerName", TEXT),
        ("percentageOfNodesToScore", Kind::Int32),
        ("plugins", Kind::Object("v1.Plugins", SETS)),
        ("pluginConfig", Kind::List(&PLUGIN_CONFIG)),
    ],
);

const BYTES: Kind = Kind::Text("[]uint8");
const TLS: &[Field] = &[
    ("insecure", Kind::Bool),
    ("serverName", TEXT),
    ("certFile", TEXT),
    ("keyFile", TEXT),
    ("caFile", TEXT),
    ("certData", BYTES),
    ("keyData", BYTES),
    ("caData", BYTES),
];
const MANAGED_RESOURCE: Kind =
    Kind::Object("v1.ExtenderManagedResource", &[("name", TEXT), ("ignoredByScheduler", Kind::Bool)]);
const EXTENDER: Kind = Kind::Object(
    "v1.Extender",
    &[
        ("urlPrefix", TEXT),
        ("filterVerb", TEXT),
        ("preemptVerb", TEXT),
        ("prioritizeVerb", TEXT),
        ("weight", Kind::Int64),
        ("bindVerb", TEXT),
        ("enableHTTPS", Kind::Bool),
        ("tlsConfig", Kind::Object("v1.ExtenderTLSConfig", TLS)),
        ("httpTimeout", Kind::Duration),
        ("nodeCacheCapable", Kind::Bool),
        ("managedResources", Kind::List(&MANAGED_RESOURCE)),
        ("ignorable", Kind::Bool),
    ],
);

const CONFIGURATION: &[Field] = &[
    ("parallelism", Kind::Int32),
    ("leaderElection", Kind::Object("v1alpha1.LeaderElectionConfiguration", LEADER_ELECTION)),
    ("clientConnection", Kind::Object("v1alpha1.ClientConnectionConfiguration", CLIENT_CONNECTION)),
    ("enableProfiling", Kind::Bool),
    ("enableContentionProfiling", Kind::Bool),
    ("percentageOfNodesToScore", Kind::Int32),
    ("podInitialBackoffSeconds", Kind::Int64),
    ("podMaxBackoffSeconds", Kind::Int64),
    ("profiles", Kind::List(&PROFILE)),
    ("extenders", Kind::List(&EXTENDER)),
    ("delayCacheUntilActive", Kind::Bool),
];

/// Checks the fields of a configuration, and those of the arguments of its plugins.
///
/// # Errors
/// Upstream's text of what its decoder minds.
pub fn check(raw: &Value) -> Result<(), String> {
    let mut errors = strict::check(raw, KIND, CONFIGURATION)?;
    for (profile, raw) in items(&raw["profiles"]).enumerate() {
        for (config, raw) in items(&raw["pluginConfig"]).enumerate() {
            let within =
                |error: String| format!("decoding .profiles[{profile}].pluginConfig[{config}]: {error}");
            errors.extend(arguments(raw).map_err(within)?.map(within));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(strict::text(&errors)) }
}

/// What strict decoding minds in the arguments of a plugin, if it is one that takes any.
fn arguments(config: &Value) -> Result<Option<String>, String> {
    let name = text(config, "name");
    let Some(fields) = fields_of(name) else { return Ok(None) };
    let (args, wanted) = (&config["args"], format!("{name}Args"));
    let TypeMeta { api_version, kind } = TypeMeta::of(args);
    let api_version = if api_version.is_empty() { VERSION } else { api_version };
    let kind = if kind.is_empty() { wanted.as_str() } else { kind };
    let within = |error: String| format!("decoding args for plugin {name}: {error}");
    let registered = kind == KIND || kind.strip_suffix("Args").is_some_and(|name| fields_of(name).is_some());
    if !registered || api_version != VERSION {
        return Err(within(TypeMeta { api_version, kind }.unregistered().to_string()));
    }
    if kind != wanted {
        return Err(format!("args for plugin {name} were not of type {wanted}.{GROUP}, got {kind}.{GROUP}"));
    }
    let minded = strict::check(args, &wanted, fields).map_err(within)?;
    if minded.is_empty() {
        return Ok(None);
    }
    Ok(Some(strict::text(&[within(strict::text(&minded))])))
}

/// The fields of a plugin's arguments.
fn fields_of(plugin: &str) -> Option<&'static [Field]> {
    let entry = PLUGINS.iter().find(|entry| entry.name == plugin)?;
    entry.arguments.as_ref().map(|arguments| arguments.fields)
}
