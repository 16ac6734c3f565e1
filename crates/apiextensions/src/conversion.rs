//! Conversion of custom resources by a webhook.
//!
//! Source: apiextensions.k8s.io/v1 `CustomResourceConversion`; KEP-598.
//!
//! Invariants: an answer is used only if [`review`] accepts it; a call has an end in time and an answer
//! an end in size; nothing is kept of a call that failed.

mod metadata;
mod metrics;
mod review;

pub use metrics::ConversionMetrics;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kaji_meta::{
    Random, Reason, Status, SystemRandom,
    object::{self, str_at, strs_at},
    random,
};
use kaji_outbound::{ClientCache, ClientConfig, Target};
use kaji_resource::{BoxFuture, Conversion, Converter, VersionDef};
use kaji_schema::{SchemaRef, defaulting, prune::prune_custom};
use prometheus_client::registry::Registry;
use review::{Failure, Review};
use serde_json::Value;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a call may take. Upstream's client has the same.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer: room for any one object, and for objects that grow to several times what they were.
const LEAST_ANSWER: usize = 4 << 20;
const GROWTH: usize = 4;

/// What conversions need of the process.
#[derive(Clone, Default)]
pub struct Conversions {
    /// Calls webhooks.
    pub callers: Arc<ClientCache>,
    /// Where it is counted.
    pub metrics: ConversionMetrics,
}

impl Conversions {
    /// Conversions by these clients of webhooks, counted in a registry.
    pub fn new(callers: &Arc<ClientCache>, registry: &mut Registry) -> Conversions {
        let metrics = ConversionMetrics::default();
        metrics.register(registry);
        Conversions { callers: callers.clone(), metrics }
    }
}

/// The webhook of one definition.
struct Webhook {
    definition: String,
    list_kind: String,
    config: ClientConfig,
    /// Versions of ConversionReview that it speaks, in its order.
    reviews: Vec<String>,
    schemas: Vec<(String, SchemaRef)>,
    with: Conversions,
    random: SystemRandom,
}

/// How the objects of a definition are converted.
pub fn of(definition: &Value, versions: &[VersionDef], with: &Conversions) -> Conversion {
    if str_at(definition, &["spec", "conversion", "strategy"]) != "Webhook" {
        return Conversion::Direct;
    }
    let group = str_at(definition, &["spec", "group"]);
    let schemas = versions.iter().map(|v| (format!("{group}/{}", v.name), v.schema.clone())).collect();
    let reviews = strs_at(definition, &["spec", "conversion", "webhook", "conversionReviewVersions"]);
    let client = definition.pointer("/spec/conversion/webhook/clientConfig").unwrap_or(&Value::Null);
    let list_kind = match str_at(definition, &["status", "acceptedNames", "listKind"]) {
        "" => format!("{}List", str_at(definition, &["status", "acceptedNames", "kind"])),
        name => name.to_owned(),
    };
    Conversion::Webhook(Arc::new(Webhook {
        definition: object::name(definition).to_owned(),
        list_kind,
        config: config(client),
        reviews: reviews.map(str::to_owned).collect(),
        schemas,
        with: with.clone(),
        random: SystemRandom,
    }))
}

/// A `WebhookClientConfig`.
fn config(client: &Value) -> ClientConfig {
    let target = match client.get("url").and_then(Value::as_str) {
        Some(url) => Target::Url(url.to_owned()),
        None => Target::Service {
            namespace: str_at(client, &["service", "namespace"]).to_owned(),
            name: str_at(client, &["service", "name"]).to_owned(),
            path: str_at(client, &["service", "path"]).to_owned(),
            port: object::i64_at(client, &["service", "port"])
                .and_then(|p| u16::try_from(p).ok())
                .unwrap_or(443),
        },
    };
    let bundle = BASE64_STANDARD.decode(str_at(client, &["caBundle"])).unwrap_or_default();
    // Nothing but white space is nothing.
    let bundle = if bundle.trim_ascii().is_empty() { vec![] } else { bundle };
    ClientConfig::new(target, bundle)
}

impl Webhook {
    async fn call(&self, objects: &[Value], api_version: &str) -> Result<Vec<Value>, Failure> {
        let Some(version) = review::version(&self.reviews) else {
            let text = "no supported conversion review versions".to_owned();
            return Err(Failure { text, kind: review::CALL });
        };
        let uid = random::uid(&self.random as &dyn Random);
        let review = Review { version, uid: &uid, api_version, list_kind: &self.list_kind };
        let body = review.request(objects);
        let limit = LEAST_ANSWER.max(body.len().saturating_mul(GROWTH));
        let answer = self.with.callers.post_json(&self.config, body.into(), TIMEOUT, limit).await;
        let answer = answer.map_err(|e| review.unanswered(objects, &e))?;
        review.answer(objects, &answer)
    }
}

fn version_of(api_version: &str) -> &str {
    api_version.rsplit('/').next().unwrap_or_default()
}

impl Converter for Webhook {
    fn convert<'a>(
        &'a self,
        objects: Vec<Value>,
        api_version: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, Status>> {
        Box::pin(async move {
            let schema = self.schemas.iter().find(|(version, _)| version == api_version);
            let (_, schema) = schema.ok_or_else(|| {
                plain(format!("request to convert CR to an invalid group/version: {api_version}"))
            })?;
            let unknown =
                objects.iter().map(object::api_version).find(|v| !self.schemas.iter().any(|(s, _)| s == v));
            if let Some(version) = unknown {
                return Err(plain(format!("request to convert CR from an invalid group/version: {version}")));
            }
            let began = Instant::now();
            let outcome = self.call(&objects, api_version).await;
            let took = began.elapsed();
            self.with.metrics.called(outcome.as_ref().map_or_else(|f| f.kind, |_| ""), took);
            let from = objects.first().map_or("", |o| version_of(object::api_version(o)));
            let to = version_of(api_version);
            self.with.metrics.converted(&self.definition, from, to, outcome.is_ok(), took);
            let mut converted = outcome.map_err(|failure| plain(failure.text))?;
            for object in &mut converted {
                prune_custom(schema.get(), object);
                defaulting::prune_nulls(schema.get(), object);
            }
            Ok(converted)
        })
    }
}

/// An error that upstream passes on as it is: 500 without a reason. Bounded, for the webhook may have worded it.
fn plain(text: String) -> Status {
    Status::new(500, Reason::Unknown, review::shortened(&text))
}
