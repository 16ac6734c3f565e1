//! Expressions of webhooks and policies, compiled as they will be when they are evaluated.
//! Source: `pkg/apis/admissionregistration/validation`.
//!
//! Invariant: what is accepted here compiles there.

use crate::shared::{check, value::Fields};
use kaji_cel::{
    Env,
    admission::{self, ExpressionError, Returns, Setting},
};
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::Value;

const MAX_CONDITIONS: usize = 64;

/// Says what is wrong with an expression that does not compile; `shown` is how it was written.
pub fn compile(errs: &mut ErrorList, path: &Path, env: &Env, (text, shown): (&str, &str), returns: Returns) {
    if let Err(refusal) = admission::compile(env, text, returns) {
        refused(errs, path, shown, &refusal);
    }
}

fn refused(errs: &mut ErrorList, path: &Path, shown: &str, refusal: &ExpressionError) {
    errs.push(match refusal.is_internal() {
        true => Error::internal(path, refusal),
        false => Error::invalid(path, shown, refusal.to_string()),
    });
}

/// The environment of a policy: with its parameters, and with its variables if it has any or `composed` says so.
/// Variables are validated as they are added.
pub fn policy_env(errs: &mut ErrorList, path: &Path, spec: &Value, composed: bool) -> Env {
    let list = spec.list("variables");
    let mut env = admission::env(Setting {
        params: spec.has("paramKind"),
        authorizer: true,
        variables: composed || !list.is_empty(),
        making_objects: false,
    });
    for (i, v) in list.iter().enumerate() {
        let (at, name, text) = (path.index(i), v.text("name"), v.text("expression"));
        if name.trim().is_empty() {
            errs.push(Error::required(&at.child("name"), "name is not specified"));
        } else if !is_identifier(name) {
            errs.push(Error::invalid(&at.child("name"), name, "must be a valid CEL identifier"));
        }
        if text.trim().is_empty() {
            errs.push(Error::required(&at.child("expression"), "expression is not specified"));
        } else if let Err(refusal) = admission::name(&mut env, name, text) {
            refused(errs, &at.child("expression"), text, &refusal);
        }
    }
    env
}

/// The match conditions of a webhook or policy; with `params` they may use parameters.
pub fn match_conditions(errs: &mut ErrorList, path: &Path, list: &[Value], params: bool) {
    if list.is_empty() {
        return;
    }
    if list.len() > MAX_CONDITIONS {
        errs.push(Error::too_many(path, list.len(), MAX_CONDITIONS));
    }
    // Upstream checks conditions without variables, though they may use them: such a policy cannot be created.
    let env = admission::env(Setting { params, authorizer: true, ..Setting::default() });
    for (i, c) in list.iter().enumerate() {
        let (at, name, text) = (path.index(i), c.text("name"), c.text("expression").trim());
        if text.is_empty() {
            errs.push(Error::required(&at.child("expression"), ""));
        } else {
            compile(errs, &at.child("expression"), &env, (text, text), Returns::Bool);
        }
        if name.is_empty() {
            errs.push(Error::required(&at.child("name"), ""));
            continue;
        }
        check::qualified_name(errs, &at.child("name"), name);
        if list[..i].iter().any(|o| o.text("name") == name) {
            errs.push(Error::duplicate(&at.child("name"), name));
        }
    }
}

/// CEL's identifiers, without its reserved words.
fn is_identifier(name: &str) -> bool {
    const RESERVED: &[&str] = &[
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "namespace",
        "null",
        "package",
        "return",
        "true",
        "var",
        "void",
        "while",
    ];
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !RESERVED.contains(&name)
}
