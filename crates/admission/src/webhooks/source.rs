//! The configured webhooks, parsed once for each version of their configurations.
//!
//! Invariant: a list is as new as the cache at the call; while nothing changes, a call compares one number.

use super::auth::Auth;
use crate::{
    match_conditions::MatchConditions,
    matching::{Rule, Selectors},
};
use arc_swap::ArcSwap;
use base64::{Engine, prelude::BASE64_STANDARD};
use kaji_meta::{GroupResource, object};
use kaji_outbound::{ClientConfig, Target};
use kaji_resource::Api;
use serde_json::Value;
use std::{borrow::Cow, sync::Arc, time::Duration};

/// A version of `AdmissionReview` that this server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReviewVersion {
    V1,
    V1beta1,
}

impl ReviewVersion {
    /// `v1`
    pub fn as_str(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "v1",
            ReviewVersion::V1beta1 => "v1beta1",
        }
    }
}

/// What a webhook says it does besides answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SideEffects {
    /// Nothing, at least on dry run.
    Safe,
    /// Something.
    Some,
    /// It does not say.
    Unsaid,
}

/// One webhook.
pub(crate) struct Hook {
    /// Configuration, name, and a number for those of the same name.
    pub uid: String,
    pub configuration: String,
    /// The resource of the configuration.
    pub resource: &'static str,
    /// The resourceVersion of the configuration.
    version: String,
    pub name: String,
    pub rules: Vec<Rule>,
    pub equivalent: bool,
    pub selectors: Selectors,
    pub conditions: MatchConditions,
    /// Failures to call it do not count.
    pub ignore: bool,
    pub side_effects: SideEffects,
    pub timeout: Duration,
    /// The first that both sides speak.
    pub review: Option<ReviewVersion>,
    pub reinvoke: bool,
    /// Where it is; or why it cannot be called.
    client: Result<ClientConfig, String>,
    auth: Auth,
}

impl Hook {
    /// How it is called, as what this server is to it now.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn client(&self) -> Result<Cow<'_, ClientConfig>, String> {
        self.auth.apply(self.client.as_ref().map_err(String::clone)?)
    }

    fn parse(
        resource: &'static str,
        configuration: &Value,
        (hook, number): (&Value, usize),
        auth: &Auth,
    ) -> Hook {
        let text = |key: &str| hook[key].as_str().unwrap_or("");
        let (owner, name) = (object::name(configuration), text("name"));
        let review = hook["admissionReviewVersions"].as_array().into_iter().flatten();
        let seconds = hook["timeoutSeconds"].as_u64().unwrap_or(10);
        Hook {
            uid: format!("{owner}/{name}/{number}"),
            configuration: owner.to_owned(),
            resource,
            version: object::resource_version(configuration).to_owned(),
            name: name.to_owned(),
            rules: Rule::list(&hook["rules"]),
            equivalent: text("matchPolicy") == "Equivalent",
            selectors: Selectors::parse(hook),
            conditions: MatchConditions::of_webhook(hook),
            ignore: text("failurePolicy") == "Ignore",
            side_effects: match text("sideEffects") {
                "None" | "NoneOnDryRun" => SideEffects::Safe,
                "" => SideEffects::Unsaid,
                _ => SideEffects::Some,
            },
            timeout: Duration::from_secs(seconds),
            review: review.filter_map(Value::as_str).find_map(|version| match version {
                "v1" => Some(ReviewVersion::V1),
                "v1beta1" => Some(ReviewVersion::V1beta1),
                _ => None,
            }),
            reinvoke: text("reinvocationPolicy") == "IfNeeded",
            client: client(&hook["clientConfig"]),
            auth: auth.clone(),
        }
    }
}

/// Where a webhook is.
fn client(config: &Value) -> Result<ClientConfig, String> {
    let bundle =
        BASE64_STANDARD.decode(config["caBundle"].as_str().unwrap_or("")).map_err(|e| e.to_string())?;
    let service = &config["service"];
    let text = |key: &str| service[key].as_str().unwrap_or("").to_owned();
    let target = if service.is_object() {
        let port = service["port"].as_u64().and_then(|p| u16::try_from(p).ok()).unwrap_or(443);
        Target::Service { namespace: text("namespace"), name: text("name"), path: text("path"), port }
    } else {
        let url = config["url"].as_str().filter(|url| !url.is_empty());
        Target::Url(url.ok_or("webhook configuration must have either service or URL")?.to_owned())
    };
    Ok(ClientConfig::new(target, bundle))
}

#[derive(Default)]
struct Kept {
    /// What the cache's last change was when this was made.
    changed: u64,
    hooks: Arc<[Arc<Hook>]>,
}

/// The webhooks of one kind of configurations.
pub(crate) struct Source {
    resource: GroupResource,
    plural: &'static str,
    auth: Auth,
    kept: ArcSwap<Kept>,
}

impl Source {
    pub fn new(mutating: bool, auth: Auth) -> Source {
        let plural =
            if mutating { "mutatingwebhookconfigurations" } else { "validatingwebhookconfigurations" };
        Source {
            resource: GroupResource::new("admissionregistration.k8s.io", plural),
            plural,
            auth,
            kept: ArcSwap::default(),
        }
    }

    /// All of them, in the order in which they are called.
    pub fn hooks(&self, api: &dyn Api) -> Arc<[Arc<Hook>]> {
        let changed = api.changed(&self.resource);
        let kept = self.kept.load();
        if kept.changed == changed {
            return kept.hooks.clone();
        }
        // The list may be newer than `changed` says; then it is made once more.
        let hooks = self.read(api, &kept.hooks);
        self.kept.store(Arc::new(Kept { changed, hooks: hooks.clone() }));
        hooks
    }

    fn read(&self, api: &dyn Api, old: &[Arc<Hook>]) -> Arc<[Arc<Hook>]> {
        let mut configurations = api.list(&self.resource, None);
        configurations.sort_by(|a, b| object::name(a).cmp(object::name(b)));
        let mut hooks: Vec<Arc<Hook>> = vec![];
        for configuration in &configurations {
            let (name, version) = (object::name(configuration), object::resource_version(configuration));
            let same = |hook: &&Arc<Hook>| hook.configuration == name && hook.version == version;
            if !version.is_empty() && old.iter().any(|hook| same(&hook)) {
                hooks.extend(old.iter().filter(same).cloned());
                continue;
            }
            let list = configuration["webhooks"].as_array().map(Vec::as_slice).unwrap_or_default();
            for (i, hook) in list.iter().enumerate() {
                let number = list[..i].iter().filter(|other| other["name"] == hook["name"]).count();
                hooks.push(Arc::new(Hook::parse(self.plural, configuration, (hook, number), &self.auth)));
            }
        }
        hooks.into()
    }
}
