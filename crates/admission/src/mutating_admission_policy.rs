//! `MutatingAdmissionPolicy`: expressions that change what is written. Source: apiserver `policy/mutating`.
//!
//! Invariants:
//! - Which policies are about a request is decided by the object as it came; each mutation sees what those before it did.
//! - In the second round only policies with `reinvocationPolicy: IfNeeded` run again, if the object changed after them.

mod patch;

use crate::{
    Deps,
    match_conditions::{
        Activation, ConditionMetrics, Expression, MatchConditions, MatchResult, MetricLabels, Needs,
        RequestAuthority,
    },
    matching::Matched,
    policies::{Evaluator, Hook, Policies, PolicyMetrics, environment, namespace, params},
    versioned::{replace, versioned},
};
use kaji_auth::Authorizer;
use kaji_cel::{NamedExpressions, admission::Returns};
use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Cause, GroupVersionKind, Status, object, semantic_equal, status::Reason, text::quote};
use kaji_resource::BoxFuture;
use patch::Failure;
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc, time::Instant};

const NAME: &str = "MutatingAdmissionPolicy";

/// The plugin.
pub(crate) struct MutatingAdmissionPolicy {
    policies: Policies<Mutator>,
    authorizer: Arc<dyn Authorizer>,
    metrics: Arc<PolicyMetrics>,
    conditions: Arc<ConditionMetrics>,
}

enum Mutation {
    Patch(Expression),
    Configuration(Expression),
}

impl Mutation {
    fn expression(&self) -> &Expression {
        match self {
            Mutation::Patch(expression) | Mutation::Configuration(expression) => expression,
        }
    }
}

/// The expressions of one policy.
pub(crate) struct Mutator {
    conditions: MatchConditions,
    mutations: Vec<Mutation>,
    named: NamedExpressions,
    needs: Needs,
    /// `reinvocationPolicy: IfNeeded`: it runs again if the object changes after it.
    again: bool,
}

impl Evaluator for Mutator {
    const RESOURCES: (&'static str, &'static str) =
        ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings");

    fn compile(policy: &Value) -> Mutator {
        let spec = &policy["spec"];
        let list = |key: &str| spec[key].as_array().map_or(&[][..], Vec::as_slice);
        let text = |of: &Value, key: &str| of[key].as_str().unwrap_or("").to_owned();
        let (env, conditions) = environment(spec);
        let env = env.making_objects();
        let mutations = list("mutations").iter().filter_map(|m| {
            let make = |key: &str, returns| Expression::new(&env, &text(&m[key], "expression"), returns);
            match m["patchType"].as_str()? {
                "JSONPatch" => Some(Mutation::Patch(make("jsonPatch", Returns::Patches))),
                "ApplyConfiguration" => {
                    Some(Mutation::Configuration(make("applyConfiguration", Returns::Object)))
                }
                _ => None,
            }
        });
        let mutations: Vec<Mutation> = mutations.collect();
        let named = env.named();
        let needs = Needs::of(mutations.iter().map(Mutation::expression), &named);
        Mutator { conditions, mutations, named, needs, again: spec["reinvocationPolicy"] == "IfNeeded" }
    }
}

/// One evaluation: a policy by a binding with a parameter.
struct Invocation {
    hook: Arc<Hook<Mutator>>,
    binding: usize,
    matched: Matched,
    param: Option<Arc<Value>>,
}

/// Names an invocation: policy, binding, and namespace and name of the parameter.
type Key = (String, String, String, String);

impl Invocation {
    fn binding(&self) -> &str {
        self.hook.bindings.get(self.binding).map_or("", |b| &b.name)
    }

    fn key(&self) -> Key {
        let of = |get: fn(&Value) -> &str| self.param.as_deref().map_or("", get).to_owned();
        (self.hook.name.clone(), self.binding().to_owned(), of(object::namespace), of(object::name))
    }
}

/// What is remembered from the first round to the second.
#[derive(Default)]
struct Rounds {
    /// Invocations that want to be made again if something changes after them.
    made: BTreeSet<Key>,
    /// Those for which something did.
    again: BTreeSet<Key>,
    /// What they left.
    left: Option<Value>,
}

fn rounds<'r>(a: &'r mut Attributes<'_>) -> Option<&'r mut Rounds> {
    a.reinvocation.get_or_insert_default().note(NAME)
}

/// What refuses the request, in words.
#[derive(Default)]
struct Errors(Vec<(String, Option<Reason>)>);

impl Errors {
    fn policy(&mut self, hook: &Hook<Mutator>, error: &str) {
        if hook.fail {
            let text =
                format!("policy {} denied request: failed to configure policy: {error}", quote(&hook.name));
            self.0.push((text, None));
        }
    }

    fn binding(&mut self, hook: &Hook<Mutator>, binding: &str, error: &str, reason: Option<Reason>) {
        if hook.fail {
            let text = format!("policy '{}' with binding '{binding}' denied request: {error}", hook.name);
            self.0.push((text, reason));
        }
    }

    fn finish(self, a: &Attributes<'_>) -> Result<(), Status> {
        let Some((message, reason)) = self.0.first().cloned() else { return Ok(()) };
        let mut status = a.forbidden("admission request denied by policy");
        status.message = message;
        // Upstream changes the reason, and leaves the code.
        status.reason = reason.unwrap_or(status.reason);
        if let Some(details) = &mut status.details {
            let causes = self.0.into_iter().map(|(message, _)| Cause { message, ..Cause::default() });
            details.causes.extend(causes);
        }
        Err(status)
    }
}

/// Everything that is to be evaluated for a request.
async fn invocations(
    hooks: &[Arc<Hook<Mutator>>],
    a: &Attributes<'_>,
    errors: &mut Errors,
) -> Vec<Invocation> {
    let mut list = vec![];
    for hook in hooks {
        let matched = match hook.matches(a).await {
            Ok(Some(matched)) => matched,
            Ok(None) => continue,
            Err(error) => {
                errors.policy(hook, &error.message);
                continue;
            }
        };
        if let Some(Err(error)) = hook.params.as_ref().map(|kind| params::resource(a, kind)) {
            errors.policy(hook, &error);
            continue;
        }
        for (index, binding) in hook.bindings.iter().enumerate() {
            let params = match binding.matches(a).await {
                Ok(false) => continue,
                Ok(true) => params::collect(a, hook.params.as_ref(), binding.params.as_ref()).await,
                Err(error) => Err(error.message),
            };
            match params {
                Ok(params) => list.extend(params.into_iter().map(|param| Invocation {
                    hook: hook.clone(),
                    binding: index,
                    matched: matched.clone(),
                    param,
                })),
                Err(error) => {
                    let text = format!("failed to configure binding: {error}");
                    errors.binding(hook, &binding.name, &text, None);
                }
            }
        }
    }
    list
}

/// What one invocation made of the object, and what went wrong on the way.
struct Mutated {
    object: Value,
    /// Something was done, whether it changed anything or not.
    dirty: bool,
    errors: Vec<String>,
}

/// Evaluates one invocation; `None` if it is not to be made.
async fn invoke(
    invocation: &Invocation,
    a: &Attributes<'_>,
    authority: &RequestAuthority<'_>,
    namespace: Option<&Value>,
    (wanted, metrics, conditions): (bool, &PolicyMetrics, &ConditionMetrics),
) -> Result<Option<Mutated>, Status> {
    let (kind, evaluator) = (&invocation.matched.kind, &invocation.hook.evaluator);
    let null = Value::Null;
    let present = a.new_object().unwrap_or(&null);
    let object = versioned(a.api, present, kind).await?;
    let old = versioned(a.api, a.old.unwrap_or(&null), kind).await?;
    let params = invocation.param.as_deref();
    {
        // Match conditions see no namespace, and the resource of the request.
        let activation = Activation::new(a, (kind, a.resource), (&object, &old), None, authority);
        let name = &invocation.hook.name;
        let metric_labels = MetricLabels { metrics: conditions, name, kind: "policy", step: "validate" };
        match evaluator.conditions.matches(&activation, params, &metric_labels).await {
            MatchResult::Matches => {}
            MatchResult::Excluded(_) => return Ok(None),
            MatchResult::Failed(error) => {
                return Ok(Some(Mutated { object: Value::Null, dirty: false, errors: vec![error] }));
            }
        }
    }
    if !wanted {
        return Ok(None);
    }
    let mut made = Mutated { object: object.into_owned(), dirty: false, errors: vec![] };
    if made.object.is_null() {
        return Ok(Some(made));
    }
    for mutation in &evaluator.mutations {
        let began = Instant::now();
        let result = {
            let about = (kind, &invocation.matched.resource);
            let activation = Activation::new(a, about, (&made.object, &old), namespace, authority);
            mutate(mutation, evaluator, a, &activation, (kind, &made.object, params)).await
        };
        let error = match &result {
            Ok(_) => None,
            Err(Failure::Policy(error)) => Some(error.as_str()),
            Err(Failure::Request(status)) => Some(status.message.as_str()),
        };
        metrics.mutated((&invocation.hook.name, invocation.binding()), error, began.elapsed());
        match result {
            Ok(object) => (made.object, made.dirty) = (object, true),
            Err(Failure::Policy(error)) => made.errors.push(error),
            Err(Failure::Request(status)) => return Err(status),
        }
    }
    Ok(Some(made))
}

/// What one mutation makes of an object.
async fn mutate(
    mutation: &Mutation,
    evaluator: &Mutator,
    a: &Attributes<'_>,
    activation: &Activation<'_>,
    (kind, object, params): (&GroupVersionKind, &Value, Option<&Value>),
) -> Result<Value, Failure> {
    let expression = mutation.expression();
    if let Some(refusal) = expression.refusal() {
        return Err(Failure::Policy(refusal.to_owned()));
    }
    let null = Value::Null;
    let mut session = activation.session(params.unwrap_or(&null), true, (&evaluator.named, evaluator.needs));
    let mut budget = kaji_cel::REQUEST_BUDGET;
    let result = match activation.evaluate(expression, &mut session, &mut budget).await {
        Ok(result) => result.map_err(Failure::Policy)?,
        Err(exhausted) => return Err(Failure::Policy(exhausted.text().to_owned())),
    };
    match mutation {
        Mutation::Patch(_) => patch::patch(a, kind, object, &result),
        Mutation::Configuration(_) => patch::configure(a, kind, object, &result),
    }
}

impl MutatingAdmissionPolicy {
    pub(crate) fn new(deps: &Deps) -> MutatingAdmissionPolicy {
        let (authorizer, metrics) = (deps.authorizer.clone(), deps.policies.clone());
        let conditions = deps.metrics.conditions.clone();
        MutatingAdmissionPolicy { policies: Policies::new(), authorizer, metrics, conditions }
    }

    async fn mutate(&self, a: &mut Attributes<'_>) -> Result<(), Status> {
        let hooks = self.policies.hooks(a.api);
        let mut errors = Errors::default();
        let list = invocations(&hooks, a, &mut errors).await;
        if !list.is_empty() {
            self.round(a, &list, &mut errors).await?;
        }
        errors.finish(a)
    }

    /// One round of all invocations.
    async fn round(
        &self,
        a: &mut Attributes<'_>,
        list: &[Invocation],
        errors: &mut Errors,
    ) -> Result<(), Status> {
        let second = a.reinvocation.as_ref().is_some_and(|again| again.is_second());
        if second {
            let now = a.new_object().cloned();
            if let Some(rounds) = rounds(a).filter(|r| r.left != now) {
                // Others have changed it since.
                rounds.again.append(&mut rounds.made);
            }
        }
        let namespace = namespace(a).await?;
        let authority = RequestAuthority::new(a.user, &*self.authorizer);
        let mut dirty = false;
        for invocation in list {
            a.deadline.check()?;
            let key = invocation.key();
            let wanted = !second || rounds(a).is_some_and(|r| r.again.contains(&key));
            let before = a.new_object().cloned();
            let made = invoke(
                invocation,
                a,
                &authority,
                namespace.as_deref(),
                (wanted, &self.metrics, &self.conditions),
            )
            .await?;
            let Some(made) = made else { continue };
            let failed = !made.errors.is_empty() && !made.dirty && made.object.is_null();
            for error in made.errors {
                let (hook, binding) = (&invocation.hook, invocation.binding());
                errors.binding(hook, binding, &error, Some(Reason::Invalid));
            }
            if failed {
                continue;
            }
            if made.dirty {
                dirty = true;
                replace(a, made.object).await?;
                let changed = match (&before, a.new_object()) {
                    (Some(before), Some(after)) => !semantic_equal(before, after),
                    _ => false,
                };
                if changed {
                    again(a);
                }
            }
            if invocation.hook.evaluator.again
                && let Some(rounds) = rounds(a)
            {
                rounds.made.insert(key);
            }
        }
        if dirty {
            again(a);
        }
        let now = a.new_object().cloned();
        if let Some(rounds) = rounds(a) {
            rounds.left = now;
        }
        Ok(())
    }
}

/// Requests a second round, in which the policies that ran so far run again if their reinvocation policy says so.
fn again(a: &mut Attributes<'_>) {
    a.reinvocation.get_or_insert_default().want();
    if let Some(rounds) = rounds(a) {
        rounds.again.append(&mut rounds.made);
    }
}

impl Admission for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        let _ = (group, resource);
        Phases::MUTATING.when(operation != Operation::Delete)
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        self.policies.concerned(a)
    }

    fn dynamic(&self) -> bool {
        true
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.mutate(a))
    }
}
