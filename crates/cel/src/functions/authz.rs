//! Authorization checks, answered by the caller of the evaluation. Source: apiserver `cel/library/authz.go`.
//!
//! Answers may take time, and evaluation never waits: an [`Authority`] that has no answer yet says so, evaluation ends
//! with [`Error::Unanswered`], and the caller evaluates again once it knows. The price of a check lets an expression ask
//! twice at most, so that is done at most three times.

use super::{Called, Native, no_overload};
use crate::{
    error::Error,
    value::{Ext, Value},
};
use kaji_meta::validation;
use std::{fmt, sync::Arc};

pub(super) const DECLARATIONS: &str = "\
path authorizer_path .authorizer,string path-check
group authorizer_group .authorizer,string group-check
serviceAccount authorizer_serviceaccount .authorizer,string,string authorizer
resource groupcheck_resource .group-check,string resource-check
subresource resourcecheck_subresource .resource-check,string resource-check
namespace resourcecheck_namespace .resource-check,string resource-check
name resourcecheck_name .resource-check,string resource-check
fieldSelector authorizer_fieldselector .resource-check,string resource-check
labelSelector authorizer_labelselector .resource-check,string resource-check
check pathcheck_check .path-check,string decision
check resourcecheck_check .resource-check,string decision
errored decision_errored .decision bool
error decision_error .decision string
allowed decision_allowed .decision bool
reason decision_reason .decision string
";

/// One question of an expression. Texts that were not given are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Question {
    /// Namespace and name of a service account; none for the user of the request.
    pub account: Option<(String, String)>,
    /// A path; then there is no resource.
    pub path: String,
    /// API group.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// `status` and its like.
    pub subresource: String,
    /// Namespace of the resource.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// As it was given.
    pub field_selector: String,
    /// As it was given.
    pub label_selector: String,
    /// API verb, or method of HTTP.
    pub verb: String,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Why.
    pub reason: String,
    /// What went wrong.
    pub error: Option<String>,
}

/// Answers authorization checks.
pub trait Authority: fmt::Debug + Send + Sync {
    /// The answer, if it is known. Otherwise the question is remembered, and evaluation ends.
    fn answer(&self, question: &Question) -> Option<Decision>;
}

/// A check that is being built, and the authority that answers it.
#[derive(Clone, Debug)]
pub struct Check {
    authority: Arc<dyn Authority>,
    question: Question,
}

impl Check {
    fn with(&self, change: impl FnOnce(&mut Question)) -> Arc<Check> {
        let mut check = self.clone();
        change(&mut check.question);
        Arc::new(check)
    }

    /// Whether two checks ask the same.
    pub(crate) fn same(&self, other: &Check) -> bool {
        Arc::ptr_eq(&self.authority, &other.authority) && self.question == other.question
    }
}

impl Value<'_> {
    /// The variable `authorizer`.
    pub fn authorizer(authority: Arc<dyn Authority>) -> Value<'static> {
        Value::Ext(Ext::Authorizer(Check { authority, question: Question::default() }.into()))
    }

    /// The variable `authorizer.requestResource`: a check of what a request is about.
    pub fn resource_check(authority: Arc<dyn Authority>, question: Question) -> Value<'static> {
        Value::Ext(Ext::ResourceCheck(Check { authority, question }.into()))
    }
}

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "path" => |args| match args {
            [Value::Ext(Ext::Authorizer(_)), Value::String(path)] if path.trim().is_empty() => {
                Err(Error::eval("path must not be empty"))
            }
            [Value::Ext(Ext::Authorizer(a)), Value::String(path)] => {
                Ok(Value::Ext(Ext::PathCheck(a.with(|q| q.path = path.to_string()))))
            }
            _ => no_overload(),
        },
        "group" => |args| match args {
            [Value::Ext(Ext::Authorizer(a)), Value::String(group)] => {
                Ok(Value::Ext(Ext::GroupCheck(a.with(|q| q.group = group.to_string()))))
            }
            _ => no_overload(),
        },
        "serviceAccount" => service_account,
        "resource" => |args| match args {
            [Value::Ext(Ext::GroupCheck(_)), Value::String(resource)] if resource.trim().is_empty() => {
                Err(Error::eval("resource must not be empty"))
            }
            [Value::Ext(Ext::GroupCheck(g)), Value::String(resource)] => {
                Ok(Value::Ext(Ext::ResourceCheck(g.with(|q| q.resource = resource.to_string()))))
            }
            _ => no_overload(),
        },
        "subresource" => |args| narrow(args, |q, text| q.subresource = text),
        "namespace" => |args| narrow(args, |q, text| q.namespace = text),
        "name" => |args| narrow(args, |q, text| q.name = text),
        "fieldSelector" => |args| narrow(args, |q, text| q.field_selector = text),
        "labelSelector" => |args| narrow(args, |q, text| q.label_selector = text),
        "check" => check,
        "errored" => |args| decision(args, |d| Value::Bool(d.error.is_some())),
        "error" => |args| decision(args, |d| Value::text(d.error.as_deref().unwrap_or(""))),
        "allowed" => |args| decision(args, |d| Value::Bool(d.allowed)),
        "reason" => |args| decision(args, |d| Value::text(d.reason.as_str())),
        _ => return None,
    })
}

fn service_account<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::Ext(Ext::Authorizer(a)), Value::String(namespace), Value::String(name)] = args else {
        return no_overload();
    };
    if !validation::is_dns1123_subdomain(name).is_empty() {
        return Err(Error::eval("Invalid service account name"));
    }
    if !validation::is_dns1123_label(namespace).is_empty() {
        return Err(Error::eval("Invalid service account namespace"));
    }
    let account = (namespace.to_string(), name.to_string());
    Ok(Value::Ext(Ext::Authorizer(a.with(|q| q.account = Some(account)))))
}

fn narrow<'a>(args: &[Value<'a>], set: fn(&mut Question, String)) -> Called<'a> {
    match args {
        [Value::Ext(Ext::ResourceCheck(check)), Value::String(text)] => {
            Ok(Value::Ext(Ext::ResourceCheck(check.with(|q| set(q, text.to_string())))))
        }
        _ => no_overload(),
    }
}

fn check<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::Ext(Ext::PathCheck(check) | Ext::ResourceCheck(check)), Value::String(verb)] = args else {
        return no_overload();
    };
    let question = Question { verb: verb.to_string(), ..check.question.clone() };
    match check.authority.answer(&question) {
        Some(decision) => Ok(Value::Ext(Ext::Decision(decision.into()))),
        None => Err(Error::Unanswered),
    }
}

fn decision<'a>(args: &[Value<'a>], of: fn(&Decision) -> Value<'a>) -> Called<'a> {
    match args {
        [Value::Ext(Ext::Decision(decision))] => Ok(of(decision)),
        _ => no_overload(),
    }
}
