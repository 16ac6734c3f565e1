//! `extenders` of a `KubeSchedulerConfiguration`, validated with upstream's texts.
//!
//! Invariant: files of certificates and keys are read when the configuration is; data count before files.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kaji_meta::{duration, resource_name::is_extended, validation::is_qualified_name};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

/// Upstream's `DefaultExtenderTimeout`.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An extender.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtenderConfig {
    /// Verbs follow it.
    pub url_prefix: String,
    /// Filters nodes.
    pub filter: Option<String>,
    /// Chooses victims.
    pub preempt: Option<String>,
    /// Scores nodes.
    pub prioritize: Option<String>,
    /// Binds pods.
    pub bind: Option<String>,
    /// The factor of its scores.
    pub weight: i64,
    /// Of HTTPS.
    pub tls: ExtenderTls,
    /// The longest time of a call.
    pub timeout: Duration,
    /// Nodes and pods are named, not sent.
    pub node_cache_capable: bool,
    /// It is asked about pods alone that request one of these; about all if there is none.
    pub managed: BTreeSet<String>,
    /// The managed resources that the scheduler does not look at.
    pub ignored: Vec<String>,
    /// Its failures do not keep pods from being scheduled.
    pub ignorable: bool,
}

/// TLS of an extender.
#[derive(Clone, Default, PartialEq)]
pub struct ExtenderTls {
    /// The server's certificate is not verified.
    pub insecure: bool,
    /// The name in the server's certificate, if it is not the host's.
    pub server_name: Option<String>,
    /// Authorities, PEM; the machine's if empty.
    pub authorities: Vec<u8>,
    /// Certificate chain and key of this side, PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// The key stays out of logs.
impl std::fmt::Debug for ExtenderTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtenderTls").field("insecure", &self.insecure).finish_non_exhaustive()
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawExtender {
    url_prefix: String,
    filter_verb: String,
    preempt_verb: String,
    prioritize_verb: String,
    weight: i64,
    bind_verb: String,
    #[serde(rename = "enableHTTPS")]
    enable_https: bool,
    tls_config: Option<RawTls>,
    http_timeout: Option<String>,
    node_cache_capable: bool,
    managed_resources: Option<Vec<RawResource>>,
    ignorable: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawResource {
    name: String,
    ignored_by_scheduler: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawTls {
    insecure: bool,
    server_name: String,
    cert_file: String,
    key_file: String,
    ca_file: String,
    cert_data: String,
    key_data: String,
    ca_data: String,
}

/// The extenders of a configuration, of which unknown fields have been refused before.
///
/// # Errors
/// Upstream's texts of validation, and files that cannot be read.
pub fn parse(raw: &Value) -> Result<Vec<ExtenderConfig>, String> {
    let list = match raw {
        Value::Null => return Ok(vec![]),
        Value::Array(list) => list,
        _ => return Err("extenders: must be a list".to_owned()),
    };
    let mut managed = HashSet::new();
    let mut all = vec![];
    for (place, raw) in list.iter().enumerate() {
        let path = format!("extenders[{place}]");
        let raw = RawExtender::deserialize(raw).map_err(|error| format!("{path}: {error}"))?;
        all.push(one(&path, raw, &mut managed)?);
    }
    let binders = all.iter().filter(|extender| extender.bind.is_some()).count();
    if binders > 1 {
        return Err(format!(
            "extenders: Invalid value: \"found {binders} extenders implementing bind\": only one extender can implement bind"
        ));
    }
    Ok(all)
}

fn one(path: &str, raw: RawExtender, known: &mut HashSet<String>) -> Result<ExtenderConfig, String> {
    if !raw.prioritize_verb.is_empty() && raw.weight <= 0 {
        return Err(format!(
            "{path}.weight: Invalid value: {}: must have a positive weight applied to it",
            raw.weight
        ));
    }
    let (mut managed, mut ignored) = (BTreeSet::new(), vec![]);
    for (place, resource) in raw.managed_resources.unwrap_or_default().into_iter().enumerate() {
        let name = resource.name;
        let wrong =
            |why: &str| Err(format!("{path}.managedResources[{place}].name: Invalid value: {name:?}: {why}"));
        if let Some(why) = is_qualified_name(&name).first() {
            return wrong(why);
        }
        if !is_extended(&name) {
            return wrong("is an invalid extended resource name");
        }
        if !known.insert(name.clone()) {
            return wrong("duplicate extender managed resource name");
        }
        ignored.extend(resource.ignored_by_scheduler.then(|| name.clone()));
        managed.insert(name);
    }
    let verb = |verb: String| Some(verb).filter(|verb| !verb.is_empty());
    Ok(ExtenderConfig {
        tls: tls(path, raw.tls_config.unwrap_or_default(), raw.enable_https)?,
        timeout: timeout(path, raw.http_timeout.as_deref())?,
        url_prefix: raw.url_prefix,
        filter: verb(raw.filter_verb),
        preempt: verb(raw.preempt_verb),
        prioritize: verb(raw.prioritize_verb),
        bind: verb(raw.bind_verb),
        weight: raw.weight,
        node_cache_capable: raw.node_cache_capable,
        managed,
        ignored,
        ignorable: raw.ignorable,
    })
}

fn timeout(path: &str, text: Option<&str>) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(TIMEOUT) };
    let nanos = duration::parse(text).map_err(|error| format!("{path}.httpTimeout: {error}"))?;
    match u64::try_from(nanos) {
        Ok(0) => Ok(TIMEOUT),
        Ok(nanos) => Ok(Duration::from_nanos(nanos)),
        Err(_) => Err(format!("{path}.httpTimeout: Invalid value: {text:?}: must not be negative")),
    }
}

fn tls(path: &str, raw: RawTls, https: bool) -> Result<ExtenderTls, String> {
    let read = |field: &str, data: &str, file: &str| -> Result<Vec<u8>, String> {
        if !data.is_empty() {
            let decoded = BASE64_STANDARD.decode(data);
            return decoded.map_err(|error| format!("{path}.tlsConfig.{field}Data: {error}"));
        }
        if file.is_empty() {
            return Ok(vec![]);
        }
        std::fs::read(file).map_err(|error| format!("{path}.tlsConfig.{field}File: {file}: {error}"))
    };
    let authorities = read("ca", &raw.ca_data, &raw.ca_file)?;
    let (certificate, key) =
        (read("cert", &raw.cert_data, &raw.cert_file)?, read("key", &raw.key_data, &raw.key_file)?);
    if certificate.is_empty() != key.is_empty() {
        return Err(format!("{path}.tlsConfig: a certificate and its key are needed together"));
    }
    if raw.insecure && !authorities.is_empty() {
        return Err(format!(
            "{path}.tlsConfig: specifying a root certificates file with the insecure flag is not allowed"
        ));
    }
    Ok(ExtenderTls {
        // As upstream: without authorities nothing is verified.
        insecure: raw.insecure || (https && authorities.is_empty()),
        server_name: Some(raw.server_name).filter(|name| !name.is_empty()),
        authorities,
        identity: Some((certificate, key)).filter(|(certificate, _)| !certificate.is_empty()),
    })
}
