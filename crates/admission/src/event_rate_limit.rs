//! `EventRateLimit`: a server that is flooded with events refuses some. Source: KEP-383 and
//! `eventratelimit.admission.k8s.io/v1alpha1 Configuration`.
//!
//! Invariant: buckets are bounded in number; one that is forgotten starts full again.

use crate::{config::Configuration, lru::Lru};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Path, Status, field, object};
use kaji_resource::BoxFuture;
use serde::Deserialize;
use serde_json::Value;
use std::sync::{Mutex, PoisonError};

const TYPES: [&str; 4] = ["Server", "Namespace", "User", "SourceAndObject"];
const CACHE_SIZE: usize = 4096;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(default)]
    limits: Vec<Limit>,
}

/// One limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Limit {
    #[serde(rename = "type")]
    kind: String,
    qps: i32,
    burst: i32,
    cache_size: i32,
}

/// The limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config(Vec<Limit>);

impl Config {
    /// Group, versions and kind of the file.
    pub(crate) const KIND: (&str, &[&str], &str) =
        ("eventratelimit.admission.k8s.io", &["v1alpha1"], "Configuration");

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn parse(value: Value) -> Result<Config, String> {
        let file: File = serde_json::from_value(value).map_err(|e| e.to_string())?;
        let config = Config(file.limits);
        config.check().map(|()| config)
    }

    /// Upstream's validation; without any limit the plugin makes no sense.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let (path, mut errors) = (Path::new("limits"), vec![]);
        if self.0.is_empty() {
            errors.push(field::Error::invalid(&path, Value::Null, "must not be empty"));
        }
        for (i, limit) in self.0.iter().enumerate() {
            let path = path.index(i);
            if !TYPES.contains(&limit.kind.as_str()) {
                errors.push(field::Error::not_supported(&path.child("type"), limit.kind.as_str(), &TYPES));
            }
            for (name, value) in [("burst", limit.burst), ("qps", limit.qps)] {
                if value <= 0 {
                    errors.push(field::Error::invalid(&path.child(name), value, "must be positive"));
                }
            }
            if limit.kind != "Server" && limit.cache_size < 0 {
                let path = path.child("cacheSize");
                errors.push(field::Error::invalid(&path, limit.cache_size, "must not be negative"));
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(field::aggregate(&errors)) }
    }
}

/// Tokens that come back at a steady rate.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: jiff::Timestamp,
}

/// The buckets of one limit.
struct Buckets {
    limit: Limit,
    by_key: Lru<Bucket>,
}

impl Buckets {
    fn new(limit: Limit) -> Self {
        let most = usize::try_from(limit.cache_size).ok().filter(|n| *n > 0).unwrap_or(CACHE_SIZE);
        Buckets { limit, by_key: Lru::new(most) }
    }

    /// Takes a token, if there is one.
    fn accept(&mut self, key: &str, now: jiff::Timestamp) -> bool {
        let burst = f64::from(self.limit.burst);
        let mut bucket = self.by_key.take(key).unwrap_or(Bucket { tokens: burst, at: now });
        let elapsed = now.duration_since(bucket.at).as_secs_f64().max(0.0);
        bucket.tokens = (bucket.tokens + elapsed * f64::from(self.limit.qps)).min(burst);
        bucket.at = bucket.at.max(now);
        let accepted = bucket.tokens >= 1.0;
        if accepted {
            bucket.tokens -= 1.0;
        }
        self.by_key.put(key.to_owned(), bucket);
        accepted
    }
}

/// The plugin.
pub(super) struct EventRateLimit(Vec<Mutex<Buckets>>);

impl EventRateLimit {
    /// With its part of the `AdmissionConfiguration`, without which it has no limits and is invalid.
    ///
    /// # Errors
    /// What is wrong with that, in words.
    pub(super) fn configured(file: Option<Configuration<'_>>) -> Result<Self, String> {
        let config = match file {
            Some(file) => Config::parse(file.of_kind(Config::KIND)?)?,
            None => Config::default(),
        };
        config.check()?;
        Ok(EventRateLimit::new(&config))
    }

    fn new(config: &Config) -> Self {
        EventRateLimit(config.0.iter().cloned().map(|limit| Mutex::new(Buckets::new(limit))).collect())
    }
}

fn key(kind: &str, a: &Attributes<'_>) -> String {
    match kind {
        "Namespace" => a.namespace.to_owned(),
        "User" => a.user.name.clone(),
        "SourceAndObject" => a.new_object().map(source_and_object).unwrap_or_default(),
        _ => String::new(),
    }
}

fn source_and_object(event: &Value) -> String {
    let source = ["component", "host"].map(|f| object::str_at(event, &["source", f]));
    let about = ["kind", "namespace", "name", "uid", "apiVersion"]
        .map(|f| object::str_at(event, &["involvedObject", f]));
    source.iter().chain(&about).copied().collect()
}

impl Admission for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::VALIDATING.when(
            matches!(operation, Operation::Create | Operation::Update) && (group, resource) == ("", "events"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.kind.group.is_empty() && a.kind.kind == "Event" && !a.dry_run
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let mut refusals = vec![];
        for buckets in &self.0 {
            let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
            let key = key(&buckets.limit.kind, a);
            if !buckets.accept(&key, a.now) {
                refusals.push(format!("limit reached on type {} for key {key}", buckets.limit.kind));
            }
        }
        let result = match refusals.as_slice() {
            [] => Ok(()),
            [one] => Err(Status::too_many_requests(format!("Too many requests: {one}"), 0)),
            many => Err(Status::too_many_requests(format!("Too many requests: [{}]", many.join(", ")), 0)),
        };
        Box::pin(std::future::ready(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn buckets_fill_and_are_bounded() {
        let limit = Limit { kind: "User".into(), qps: 1, burst: 2, cache_size: 2 };
        let mut buckets = Buckets::new(limit);
        let mut take = |key: &str, second| buckets.accept(key, at(second));
        assert_eq!([take("a", 0), take("a", 0), take("a", 0)], [true, true, false]);
        assert_eq!([take("a", 1), take("a", 1)], [true, false]);
        // A clock that goes back gives nothing.
        assert_eq!([take("a", 0), take("b", 1), take("a", 1)], [false, true, false]);
        // `b` was used longest ago: it goes, and comes back full.
        assert_eq!([take("c", 1), take("b", 1), take("b", 1)], [true, true, true]);
    }

    #[test]
    fn rejects_invalid_limits() {
        let config = |limits: Value| Config::parse(json!({"limits": limits}));
        let texts = [
            config(json!([])),
            config(
                json!([{"type": "X", "qps": 0, "burst": 1}, {"type": "User", "qps": 1, "burst": -1, "cacheSize": -1}]),
            ),
        ];
        expect![[r#"
            limits: Invalid value: null: must not be empty
            [limits[0].type: Unsupported value: "X": supported values: "Server", "Namespace", "User", "SourceAndObject", limits[0].qps: Invalid value: 0: must be positive, limits[1].burst: Invalid value: -1: must be positive, limits[1].cacheSize: Invalid value: -1: must not be negative]"#]].assert_eq(&texts.map(|r| r.unwrap_err()).join("\n"));
        assert!(config(json!([{"type": "Server", "qps": 1, "burst": 1}])).is_ok());
    }

    #[test]
    fn keys_events_by_source_and_object() {
        let event =
            json!({"source": {"component": "c"}, "involvedObject": {"kind": "Pod", "name": "p", "uid": "1"}});
        assert_eq!(source_and_object(&event), "cPodp1");
    }
}
