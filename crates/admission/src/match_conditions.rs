//! Expressions over one request: their variables, authorization checks and cost limits. Webhooks and policies share it.
//!
//! Usage by a webhook: `MatchConditions::of_webhook` once for each configuration, a [`RequestAuthority`]
//! and [`Activation`] for each request, `conditions.matches(&activation, None, &metric_labels)`.
//!
//! Invariants:
//! - Evaluation never waits. A check that the authorizer has not answered yet ends it; it starts again with the answer.
//! - Each expression costs at most [`PER_CALL_LIMIT`], all of one evaluation together at most their budget, and a check
//!   is made once a request.
//!
//! Sources: apiserver `admission/plugin/cel` and `admission/plugin/webhook/matchconditions`.

mod metrics;

use kaji_auth::{Attributes as Access, Authorizer};
use kaji_cel::{
    Authority, Decision, Env, Error, NamedExpressions, PER_CALL_LIMIT, Program, Question, Session,
    Value as Cel,
    admission::{self, Returns, Setting},
};
use kaji_engine::Attributes;
use kaji_meta::{GroupVersionKind, GroupVersionResource, fields, labels};
use kaji_resource::UserInfo;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};

pub(crate) use metrics::{ConditionMetrics, MetricLabels};

/// What ends an evaluation that has used up its budget.
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// Expressions that do not compile are kept with the reason, which is the error of their evaluation.
#[derive(Debug)]
pub(crate) struct Expression {
    text: String,
    program: Result<Program, String>,
}

impl Expression {
    /// Compiles one.
    pub(crate) fn new(env: &Env, text: &str, returns: Returns) -> Expression {
        let program = admission::compile(env, text, returns).map_err(|e| e.to_string());
        Expression { text: text.to_owned(), program }
    }

    /// Whether it looks at a variable.
    pub(crate) fn uses(&self, variable: &str) -> bool {
        self.program.as_ref().is_ok_and(|program| program.uses(variable))
    }

    /// As it was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Why it does not compile.
    pub(crate) fn refusal(&self) -> Option<&str> {
        self.program.as_ref().err().map(String::as_str)
    }
}

/// Which variables a group of expressions looks at, of those that take time to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    request: bool,
    namespace: bool,
}

impl Needs {
    /// What these expressions need, and those that they may name.
    pub(crate) fn of<'e>(list: impl IntoIterator<Item = &'e Expression>, named: &NamedExpressions) -> Needs {
        let mut needs = Needs { request: named.uses("request"), namespace: named.uses("namespaceObject") };
        for expression in list {
            needs.request |= expression.uses("request");
            needs.namespace |= expression.uses("namespaceObject");
        }
        needs
    }
}

/// An evaluation that may not go on; in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl Exhausted {
    /// What failed.
    pub(crate) fn text(&self) -> &'static str {
        OUT_OF_BUDGET
    }
}

/// What one evaluation gave; the error is upstream's text.
pub(crate) type Evaluated<'a> = Result<Cel<'a>, String>;

/// The answers to the questions of one request.
#[derive(Debug, Default)]
struct Answers {
    known: Mutex<BTreeMap<Question, Decision>>,
    open: Mutex<Option<Question>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Authority for Answers {
    fn answer(&self, question: &Question) -> Option<Decision> {
        let known = lock(&self.known).get(question).cloned();
        if known.is_none() {
            *lock(&self.open) = Some(question.clone());
        }
        known
    }
}

/// Calls the authorizer on behalf of one request. Make one for each request and share it: decisions are kept.
pub(crate) struct RequestAuthority<'a> {
    user: &'a UserInfo,
    authorizer: &'a dyn Authorizer,
    answers: Arc<Answers>,
}

impl<'a> RequestAuthority<'a> {
    /// For the user of the request.
    pub(crate) fn new(user: &'a UserInfo, authorizer: &'a dyn Authorizer) -> RequestAuthority<'a> {
        RequestAuthority { user, authorizer, answers: Arc::default() }
    }

    /// Answers the question at which an evaluation ended.
    async fn settle(&self) {
        let Some(question) = lock(&self.answers.open).take() else { return };
        let decision = self.decide(&question).await;
        lock(&self.answers.known).insert(question, decision);
    }

    async fn decide(&self, q: &Question) -> Decision {
        // Upstream's `serviceaccount.UserInfo`: no `system:authenticated` among the groups.
        let account = q.account.as_ref().map(|(namespace, name)| UserInfo {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")],
            ..UserInfo::default()
        });
        let user = account.as_ref().unwrap_or(self.user);
        let (fields, labels) = (&q.field_selector, &q.label_selector);
        let fields = (!fields.is_empty()).then(|| fields::Selector::parse(fields).ok()).flatten();
        let labels = (!labels.is_empty()).then(|| labels::Selector::parse(labels).ok()).flatten();
        let access = match q.path.is_empty() {
            false => Access::path(user, &q.verb, &q.path),
            true => Access {
                subresource: &q.subresource,
                namespace: &q.namespace,
                name: &q.name,
                field_selector: fields.as_ref(),
                label_selector: labels.as_ref(),
                ..Access::resource(user, &q.verb, &q.group, &q.resource)
            },
        };
        let outcome = self.authorizer.authorize(&access).await;
        Decision { allowed: outcome.allowed(), reason: outcome.reason.into_owned(), error: outcome.error }
    }
}

/// The variables of expressions about a request, in one version.
pub(crate) struct Activation<'a> {
    attributes: &'a Attributes<'a>,
    /// What the request is taken for.
    kind: &'a GroupVersionKind,
    resource: &'a GroupVersionResource,
    object: &'a Value,
    old: &'a Value,
    namespace: Option<&'a Value>,
    authority: &'a RequestAuthority<'a>,
    request: OnceLock<Value>,
    shown_namespace: OnceLock<Value>,
}

impl<'a> Activation<'a> {
    /// `object` and `old` (null if there is none) are those of `kind`; `namespace` is given to policies only.
    pub(crate) fn new(
        attributes: &'a Attributes<'a>,
        (kind, resource): (&'a GroupVersionKind, &'a GroupVersionResource),
        (object, old): (&'a Value, &'a Value),
        namespace: Option<&'a Value>,
        authority: &'a RequestAuthority<'a>,
    ) -> Activation<'a> {
        let (request, shown_namespace) = (OnceLock::new(), OnceLock::new());
        Activation { attributes, kind, resource, object, old, namespace, authority, request, shown_namespace }
    }

    /// The variables of an evaluation; without the authorizer where expressions may not use it.
    pub(crate) fn session<'s, 'e>(
        &'s self,
        params: &'s Value,
        authorizer: bool,
        (named, needs): (&'e NamedExpressions, Needs),
    ) -> Session<'e, 's> {
        let mut vars = vec![None; admission::SLOTS];
        vars[admission::OBJECT] = Some(Cel::any(self.object));
        vars[admission::OLD_OBJECT] = Some(Cel::any(self.old));
        if needs.namespace {
            let namespace = || self.namespace.map_or(Value::Null, exposed);
            vars[admission::NAMESPACE] = Some(Cel::any(self.shown_namespace.get_or_init(namespace)));
        }
        if needs.request {
            let request = || request(self.attributes, self.kind, self.resource);
            vars[admission::REQUEST] = Some(Cel::any(self.request.get_or_init(request)));
        }
        vars[admission::PARAMS] = Some(Cel::any(params));
        if authorizer {
            let a = self.attributes;
            let about = Question {
                group: a.resource.group.clone(),
                resource: a.resource.resource.clone(),
                subresource: a.subresource.to_owned(),
                namespace: a.namespace.to_owned(),
                name: a.name.to_owned(),
                ..Question::default()
            };
            let authority: Arc<dyn Authority> = self.authority.answers.clone();
            vars[admission::AUTHORIZER] = Some(Cel::authorizer(authority.clone()));
            vars[admission::REQUEST_RESOURCE] = Some(Cel::resource_check(authority, about));
        }
        Session::new(vars, named)
    }

    /// Evaluates one expression and takes what it cost from the budget.
    ///
    /// # Errors
    /// The budget is used up: nothing else may be evaluated.
    pub(crate) async fn evaluate<'s>(
        &self,
        expression: &Expression,
        session: &mut Session<'_, 's>,
        budget: &mut u64,
    ) -> Result<Evaluated<'s>, Exhausted> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        loop {
            let (result, cost) = program.eval_in(session, PER_CALL_LIMIT);
            if matches!(result, Err(Error::Unanswered)) {
                self.authority.settle().await;
                continue;
            }
            let cost = cost.saturating_add(session.take_cost());
            *budget = budget.checked_sub(cost).ok_or(Exhausted)?;
            let text = &expression.text;
            return Ok(result.map_err(|e| format!("expression '{text}' resulted in error: {e}")));
        }
    }
}

/// A namespace without what expressions are not shown. Source: upstream's `CreateNamespaceObject`.
fn exposed(namespace: &Value) -> Value {
    let mut shown = Map::new();
    for (key, value) in namespace.as_object().into_iter().flatten() {
        let value = match (key.as_str(), value) {
            ("metadata", Value::Object(metadata)) => {
                let kept = metadata
                    .iter()
                    .filter(|(k, _)| !matches!(k.as_str(), "managedFields" | "ownerReferences" | "selfLink"));
                Value::Object(kept.map(|(k, v)| (k.clone(), v.clone())).collect())
            }
            ("spec" | "status", value) => value.clone(),
            _ => continue,
        };
        shown.insert(key.clone(), value);
    }
    Value::Object(shown)
}

/// `AdmissionRequest` of admission.k8s.io/v1 without uid and objects.
fn request(a: &Attributes<'_>, kind: &GroupVersionKind, resource: &GroupVersionResource) -> Value {
    let kind_json = |k: &GroupVersionKind| json!({"group": k.group, "version": k.version, "kind": k.kind});
    let resource_json =
        |r: &GroupVersionResource| json!({"group": r.group, "version": r.version, "resource": r.resource});
    let mut user = Map::new();
    for (key, text) in [("username", &a.user.name), ("uid", &a.user.uid)] {
        if !text.is_empty() {
            user.insert(key.into(), text.as_str().into());
        }
    }
    if !a.user.groups.is_empty() {
        user.insert("groups".into(), json!(a.user.groups));
    }
    if !a.user.extra.is_empty() {
        user.insert("extra".into(), json!(a.user.extra));
    }
    let mut request = Map::new();
    request.insert("kind".into(), kind_json(kind));
    request.insert("resource".into(), resource_json(resource));
    request.insert("requestKind".into(), kind_json(a.kind));
    request.insert("requestResource".into(), resource_json(a.resource));
    let texts = [
        ("subResource", a.subresource),
        ("requestSubResource", a.subresource),
        ("name", a.name),
        ("namespace", a.namespace),
    ];
    for (key, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        request.insert(key.into(), text.into());
    }
    request.insert("operation".into(), a.operation.as_str().into());
    request.insert("userInfo".into(), Value::Object(user));
    request.insert("dryRun".into(), a.dry_run.into());
    request.insert("options".into(), a.options.to_value());
    Value::Object(request)
}

/// Whether the match conditions hold for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MatchResult {
    /// All hold.
    Matches,
    /// One does not, or failed where failures are ignored; its name, if it is known.
    Excluded(String),
    /// Some failed where failures count; in words.
    Failed(String),
}

/// Conditions that must hold for a request to be seen.
#[derive(Debug)]
pub(crate) struct MatchConditions {
    list: Vec<(String, Expression)>,
    named: NamedExpressions,
    needs: Needs,
    /// Failures count.
    fail: bool,
}

impl MatchConditions {
    /// Those of a webhook: `matchConditions` and `failurePolicy`.
    pub(crate) fn of_webhook(webhook: &Value) -> MatchConditions {
        let env = admission::env(Setting { authorizer: true, ..Setting::default() });
        MatchConditions::new(&env, &webhook["matchConditions"], webhook["failurePolicy"] != "Ignore")
    }

    /// Compiles a list of conditions in an environment.
    pub(crate) fn new(env: &Env, list: &Value, fail: bool) -> MatchConditions {
        let condition = |c: &Value| {
            let text = |key: &str| c[key].as_str().unwrap_or("");
            (text("name").to_owned(), Expression::new(env, text("expression"), Returns::Bool))
        };
        let list: Vec<_> = list.as_array().into_iter().flatten().map(condition).collect();
        let named = env.named();
        let needs = Needs::of(list.iter().map(|(_, e)| e), &named);
        MatchConditions { list, named, needs, fail }
    }

    /// Whether there are none: everything matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Evaluates them. One that does not hold excludes the request, whatever failed before.
    pub(crate) async fn matches(
        &self,
        activation: &Activation<'_>,
        params: Option<&Value>,
        metric_labels: &MetricLabels<'_>,
    ) -> MatchResult {
        if self.list.is_empty() {
            return MatchResult::Matches;
        }
        let (began, operation) = (Instant::now(), activation.attributes.operation);
        let (verdict, errors) = self.evaluate(activation, params).await;
        metric_labels.evaluated(operation, errors, began.elapsed());
        verdict
    }

    /// Also how many of them failed.
    async fn evaluate(&self, activation: &Activation<'_>, params: Option<&Value>) -> (MatchResult, usize) {
        let mut session = activation.session(params.unwrap_or(&Value::Null), true, (&self.named, self.needs));
        let mut budget = admission::CONDITIONS_BUDGET;
        let (mut errors, mut excluded) = (vec![], None);
        for (name, expression) in &self.list {
            match activation.evaluate(expression, &mut session, &mut budget).await {
                // Upstream evaluates all before it looks at any.
                Err(exhausted) => return (self.failure(exhausted.text().to_owned()), 0),
                Ok(Err(error)) if excluded.is_none() => errors.push(error),
                Ok(Ok(Cel::Bool(false))) if excluded.is_none() => excluded = Some(name.clone()),
                Ok(_) => {}
            }
        }
        let verdict = match (excluded, aggregate(&errors)) {
            (Some(name), _) => MatchResult::Excluded(name),
            (None, None) => MatchResult::Matches,
            (None, Some(error)) => self.failure(error),
        };
        (verdict, errors.len())
    }

    fn failure(&self, error: String) -> MatchResult {
        if self.fail { MatchResult::Failed(error) } else { MatchResult::Excluded(String::new()) }
    }
}

/// Several errors in one text, each once. Source: upstream's `utilerrors.Aggregate`.
pub(crate) fn aggregate(errors: &[String]) -> Option<String> {
    let mut different: Vec<&str> = vec![];
    for error in errors {
        if !different.contains(&error.as_str()) {
            different.push(error);
        }
    }
    match different.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        list => Some(format!("[{}]", list.join(", "))),
    }
}

#[cfg(test)]
mod tests;
