//! `ValidatingAdmissionPolicy`: expressions that accept or refuse requests. Source: apiserver `admission/plugin/policy/validating`.
//!
//! Invariant: the first denial, policies and bindings taken by name, is the answer; audit annotations and warnings of all
//! are recorded.

pub(crate) mod type_checking;

use crate::{
    Deps,
    match_conditions::{
        Activation, ConditionMetrics, Exhausted, Expression, MatchConditions, MatchResult, MetricLabels,
        Needs, RequestAuthority,
    },
    matching::Matched,
    policies::{Binding, Evaluator, Hook, Policies, PolicyMetrics, environment, namespace, params},
    versioned::versioned,
};
use kaji_auth::Authorizer;
use kaji_cel::{
    NamedExpressions, Value as Cel,
    admission::{self, MAX_MESSAGE, Returns},
};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Cause, Status, status::Reason};
use kaji_resource::BoxFuture;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The annotation of what would have been refused.
const FAILURE: &str = "validation.policy.admission.k8s.io/validation_failure";
/// How much of an annotation is kept, in bytes.
const MAX_ANNOTATION: usize = 10 * 1024;

/// The plugin.
pub(crate) struct ValidatingAdmissionPolicy {
    policies: Policies<Validator>,
    authorizer: Arc<dyn Authorizer>,
    metrics: Arc<PolicyMetrics>,
    conditions: Arc<ConditionMetrics>,
}

struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: Reason,
}

/// The expressions of one policy.
pub(crate) struct Validator {
    conditions: MatchConditions,
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
    named: NamedExpressions,
    needs: Needs,
}

impl Evaluator for Validator {
    const RESOURCES: (&'static str, &'static str) =
        ("validatingadmissionpolicies", "validatingadmissionpolicybindings");

    fn compile(policy: &Value) -> Validator {
        let spec = &policy["spec"];
        let list = |key: &str| spec[key].as_array().map_or(&[][..], Vec::as_slice);
        let text = |of: &Value, key: &str| of[key].as_str().unwrap_or("").to_owned();
        let (env, conditions) = environment(spec);
        let messages = admission::without_authorizer(&env);
        let validations: Vec<Validation> = list("validations")
            .iter()
            .map(|v| Validation {
                expression: Expression::new(&env, &text(v, "expression"), Returns::Bool),
                message: text(v, "message").trim().to_owned(),
                message_expression: Some(text(v, "messageExpression"))
                    .filter(|text| !text.is_empty())
                    .map(|text| Expression::new(&messages, &text, Returns::String)),
                reason: v["reason"].as_str().map_or(Reason::Invalid, Reason::parse),
            })
            .collect();
        let annotations: Vec<(String, Expression)> = list("auditAnnotations")
            .iter()
            .map(|a| {
                (text(a, "key"), Expression::new(&env, &text(a, "valueExpression"), Returns::StringOrNull))
            })
            .collect();
        let named = env.named();
        let all =
            validations.iter().flat_map(|v| std::iter::once(&v.expression).chain(&v.message_expression));
        let needs = Needs::of(all.chain(annotations.iter().map(|(_, e)| e)), &named);
        Validator { conditions, validations, annotations, named, needs }
    }
}

/// What a validation led to.
#[derive(Debug)]
enum Action {
    Admit,
    /// An error, where errors are ignored.
    Ignore(String),
    Deny(String, Reason),
}

/// The same, of which validation, and how long it took.
#[derive(Debug)]
struct Decision {
    index: usize,
    action: Action,
    elapsed: Duration,
}

/// What became of the annotations of one evaluation.
#[derive(Debug)]
enum Annotation {
    Publish(String, String),
    Error(String),
}

type Outcome = (Vec<Decision>, Vec<Annotation>);

impl Validator {
    /// Evaluates the policy for a request with one parameter.
    async fn validate(
        &self,
        conditions: &Activation<'_>,
        activation: &Activation<'_>,
        params: Option<&Value>,
        (fail, metric_labels): (bool, &MetricLabels<'_>),
    ) -> Outcome {
        let failed = |message: String| {
            let action = failure(message, fail);
            (vec![Decision { index: 0, action, elapsed: Duration::ZERO }], vec![])
        };
        match self.conditions.matches(conditions, params, metric_labels).await {
            MatchResult::Matches => {}
            MatchResult::Excluded(_) => return (vec![], vec![]),
            MatchResult::Failed(error) => return failed(error),
        }
        let params = params.unwrap_or(&Value::Null);
        let decisions = match self.run_validations(activation, params, fail).await {
            Ok(decisions) => decisions,
            Err(exhausted) => return failed(exhausted.text().to_owned()),
        };
        match self.annotate(activation, params, fail).await {
            Ok(annotations) => (decisions, annotations),
            Err(exhausted) => failed(exhausted.text().to_owned()),
        }
    }

    async fn run_validations(
        &self,
        activation: &Activation<'_>,
        params: &Value,
        fail: bool,
    ) -> Result<Vec<Decision>, Exhausted> {
        let mut budget = kaji_cel::REQUEST_BUDGET;
        let mut session = activation.session(params, true, (&self.named, self.needs));
        let mut results = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let began = Instant::now();
            let result = activation.evaluate(&validation.expression, &mut session, &mut budget).await?;
            results.push((result.map(|value| matches!(value, Cel::Bool(true))), began.elapsed()));
        }
        // What is not refused needs no message, but pays for it: whether the budget suffices must not depend on results.
        let messages = self.messages(activation, params, &mut budget).await;
        let mut decisions = Vec::with_capacity(results.len());
        for (index, ((result, elapsed), validation)) in results.into_iter().zip(&self.validations).enumerate()
        {
            let action = match (result, &messages) {
                (Err(error), _) => failure(error, fail),
                (Ok(_), Err(exhausted)) => {
                    failure(format!("failed messageExpression: {}", exhausted.text()), fail)
                }
                (Ok(true), Ok(_)) => Action::Admit,
                (Ok(false), Ok(messages)) => {
                    Action::Deny(validation.explain(messages.get(index)), validation.reason.clone())
                }
            };
            decisions.push(Decision { index, action, elapsed });
        }
        Ok(decisions)
    }

    async fn messages(
        &self,
        activation: &Activation<'_>,
        params: &Value,
        budget: &mut u64,
    ) -> Result<Vec<Option<String>>, Exhausted> {
        if self.validations.iter().all(|v| v.message_expression.is_none()) {
            return Ok(vec![]);
        }
        let mut session = activation.session(params, false, (&self.named, self.needs));
        let mut messages = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let Some(expression) = &validation.message_expression else {
                messages.push(None);
                continue;
            };
            messages.push(match activation.evaluate(expression, &mut session, budget).await? {
                Ok(Cel::String(text)) => Some(text.to_string()),
                _ => None,
            });
        }
        Ok(messages)
    }

    async fn annotate(
        &self,
        activation: &Activation<'_>,
        params: &Value,
        fail: bool,
    ) -> Result<Vec<Annotation>, Exhausted> {
        if self.annotations.is_empty() {
            return Ok(vec![]);
        }
        let mut budget = kaji_cel::REQUEST_BUDGET;
        // Upstream lets annotations compile with the authorizer and evaluates them without.
        let mut session = activation.session(params, false, (&self.named, self.needs));
        let mut annotations = vec![];
        for (key, expression) in &self.annotations {
            match activation.evaluate(expression, &mut session, &mut budget).await? {
                Ok(Cel::String(text)) if !text.trim().is_empty() => {
                    annotations.push(Annotation::Publish(key.clone(), text.trim().to_owned()));
                }
                Ok(Cel::String(_) | Cel::Null) => {}
                Ok(other) => annotations.push(Annotation::Error(format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                    expression.text(),
                    other.ty().name()
                ))),
                Err(error) if fail => annotations.push(Annotation::Error(error)),
                Err(_) => {}
            }
        }
        Ok(annotations)
    }
}

impl Validation {
    /// Why the request is refused: what the expression says, else the message, else the expression itself.
    fn explain(&self, evaluated: Option<&Option<String>>) -> String {
        let said = evaluated.and_then(Option::as_deref).map(str::trim);
        match said.filter(|text| text.len() <= MAX_MESSAGE && !text.contains('\n') && !text.is_empty()) {
            Some(text) => text.to_owned(),
            None if !self.message.is_empty() => self.message.clone(),
            None => format!("failed expression: {}", self.expression.text().trim()),
        }
    }
}

/// An error, by the policy's failure policy.
fn failure(message: String, fail: bool) -> Action {
    if fail { Action::Deny(message, Reason::Invalid) } else { Action::Ignore(message) }
}

/// The first denial of a request.
struct Denial {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: Reason,
}

/// One request on its way through the policies.
struct Dispatch<'a> {
    attributes: &'a Attributes<'a>,
    authority: RequestAuthority<'a>,
    denied: Option<Denial>,
    metrics: &'a PolicyMetrics,
    counted: &'a ConditionMetrics,
}

impl<'a> Dispatch<'a> {
    fn deny(&mut self, policy: &str, binding: Option<&str>, message: String, reason: Reason) {
        let (policy, binding) = (policy.to_owned(), binding.map(str::to_owned));
        self.denied.get_or_insert(Denial { policy, binding, message, reason });
    }

    /// A policy or binding that cannot be evaluated as it is configured.
    fn misconfigured(&mut self, hook: &Hook<Validator>, binding: Option<&Binding>, error: &str) {
        if hook.fail {
            let what = if binding.is_some() { "binding" } else { "policy" };
            let message = format!("failed to configure {what}: {error}");
            self.deny(&hook.name, binding.map(|b| b.name.as_str()), message, Reason::Invalid);
        }
    }

    async fn policy(&mut self, hook: &Hook<Validator>) -> Result<(), Status> {
        let a = self.attributes;
        let matched = match hook.matches(a).await {
            Ok(None) => return Ok(()),
            Ok(Some(matched)) => matched,
            Err(error) => {
                self.misconfigured(hook, None, &error.message);
                return Ok(());
            }
        };
        if let Some(Err(error)) = hook.params.as_ref().map(|kind| params::resource(a, kind)) {
            self.misconfigured(hook, None, &error);
            return Ok(());
        }
        let mut published: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut done = Ok(());
        for binding in &hook.bindings {
            done = self.binding(hook, binding, &matched, &mut published).await;
            if done.is_err() {
                break;
            }
        }
        for (key, values) in published {
            a.annotations.add(format!("{}/{key}", hook.name), values.join(", "));
        }
        done
    }

    async fn binding(
        &mut self,
        hook: &Hook<Validator>,
        binding: &Binding,
        matched: &Matched,
        published: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<(), Status> {
        let a = self.attributes;
        let params = match binding.matches(a).await {
            Ok(false) => return Ok(()),
            Ok(true) => params::collect(a, hook.params.as_ref(), binding.params.as_ref()).await,
            Err(error) => Err(error.message),
        };
        let params = match params {
            Ok(params) => params,
            Err(error) => {
                self.misconfigured(hook, Some(binding), &error);
                return Ok(());
            }
        };
        if params.is_empty() {
            return Ok(());
        }
        let null = Value::Null;
        let object = versioned(a.api, a.new_object().unwrap_or(&null), &matched.kind).await;
        let old = versioned(a.api, a.old.unwrap_or(&null), &matched.kind).await;
        let (object, old) = match (object, old) {
            (Ok(object), Ok(old)) => (object, old),
            (Err(error), _) | (_, Err(error)) => {
                let text = format!("failed to convert object version: {}", error.message);
                self.misconfigured(hook, Some(binding), &text);
                return Ok(());
            }
        };
        let namespace = namespace(a).await?;
        let mut outcomes = Vec::with_capacity(params.len());
        {
            let objects = (&*object, &*old);
            // Match conditions see no namespace, and the resource of the request.
            let conditions = Activation::new(a, (&matched.kind, a.resource), objects, None, &self.authority);
            let activation = Activation::new(
                a,
                (&matched.kind, &matched.resource),
                objects,
                namespace.as_deref(),
                &self.authority,
            );
            let (metrics, name) = (self.counted, hook.name.as_str());
            let metric_labels = MetricLabels { metrics, name, kind: "policy", step: "validate" };
            for param in &params {
                let fail = (hook.fail, &metric_labels);
                let outcome = hook.evaluator.validate(&conditions, &activation, param.as_deref(), fail);
                outcomes.push(outcome.await);
            }
        }
        for outcome in outcomes {
            self.record(hook, binding, outcome, published);
        }
        Ok(())
    }

    /// Takes the actions of a binding for one evaluation, and keeps its annotations.
    fn record(
        &mut self,
        hook: &Hook<Validator>,
        binding: &Binding,
        (decisions, annotations): Outcome,
        published: &mut BTreeMap<String, Vec<String>>,
    ) {
        for decision in decisions {
            let Decision { index, action, elapsed } = decision;
            match action {
                Action::Admit => {}
                Action::Ignore(error) => {
                    let names = (hook.name.as_str(), binding.name.as_str());
                    self.metrics.checked(names, Some(&error), "allow", elapsed);
                }
                Action::Deny(message, reason) => {
                    self.act(hook, binding, (index, message, reason), elapsed);
                }
            }
        }
        for annotation in annotations {
            match annotation {
                Annotation::Publish(key, value) => publish(published, key, &value),
                Annotation::Error(error) => {
                    let names = (hook.name.as_str(), binding.name.as_str());
                    self.metrics.checked(names, Some(&error), "deny", Duration::ZERO);
                    self.deny(&hook.name, Some(&binding.name), error, Reason::Invalid);
                }
            }
        }
    }

    /// Takes the validation actions of the binding for a failed validation.
    fn act(
        &mut self,
        hook: &Hook<Validator>,
        binding: &Binding,
        (index, message, reason): (usize, String, Reason),
        elapsed: Duration,
    ) {
        for action in &binding.actions {
            let done = match action.as_str() {
                "Deny" => "deny",
                "Warn" => "warn",
                "Audit" => "audit",
                _ => continue,
            };
            self.metrics.checked((&hook.name, &binding.name), Some(&message), done, elapsed);
            match action.as_str() {
                "Deny" => self.deny(&hook.name, Some(&binding.name), message.clone(), reason.clone()),
                "Warn" => self.attributes.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                    hook.name, binding.name
                )),
                "Audit" => {
                    // The order of fields is upstream's.
                    let texts = [&message, &hook.name, &binding.name].map(|text| json!(text));
                    let actions = json!(binding.actions);
                    let value = format!(
                        r#"[{{"message":{},"policy":{},"binding":{},"expressionIndex":{index},"validationActions":{actions}}}]"#,
                        texts[0], texts[1], texts[2]
                    );
                    self.attributes.annotations.add(FAILURE, value);
                }
                _ => {}
            }
        }
    }

    fn finish(self) -> Result<(), Status> {
        let Some(denial) = self.denied else { return Ok(()) };
        let with = denial.binding.map(|binding| format!(" with binding '{binding}'")).unwrap_or_default();
        let (policy, why) = (&denial.policy, &denial.message);
        let message = format!("ValidatingAdmissionPolicy '{policy}'{with} denied request: {why}");
        let mut status = self.attributes.forbidden(&message);
        status.code = match denial.reason {
            Reason::Forbidden => 403,
            Reason::Unauthorized => 401,
            Reason::RequestEntityTooLarge => 413,
            _ => 422,
        };
        status.reason = denial.reason;
        if let Some(details) = &mut status.details {
            details.causes.push(Cause { message, ..Cause::default() });
        }
        Err(status)
    }
}

/// Several bindings may give the same key different values; all of them are recorded, each once.
fn publish(published: &mut BTreeMap<String, Vec<String>>, key: String, value: &str) {
    let end = (0..=value.len().min(MAX_ANNOTATION)).rev().find(|i| value.is_char_boundary(*i));
    let value = &value[..end.unwrap_or_default()];
    let values = published.entry(key).or_default();
    if !values.iter().any(|known| known == value) {
        values.push(value.to_owned());
    }
}

impl ValidatingAdmissionPolicy {
    pub(crate) fn new(deps: &Deps) -> ValidatingAdmissionPolicy {
        let (authorizer, metrics) = (deps.authorizer.clone(), deps.policies.clone());
        let conditions = deps.metrics.conditions.clone();
        ValidatingAdmissionPolicy { policies: Policies::new(), authorizer, metrics, conditions }
    }
}

impl Admission for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource, operation);
        Phases::VALIDATING
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        self.policies.concerned(a)
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let hooks = self.policies.hooks(a.api);
            let authority = RequestAuthority::new(a.user, &*self.authorizer);
            let (metrics, counted) = (&*self.metrics, &*self.conditions);
            let mut dispatch = Dispatch { attributes: a, authority, denied: None, metrics, counted };
            for hook in hooks.iter() {
                a.deadline.check()?;
                dispatch.policy(hook).await?;
            }
            dispatch.finish()
        })
    }
}
