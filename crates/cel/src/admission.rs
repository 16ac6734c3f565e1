//! The variables of admission expressions: `object`, `oldObject`, `namespaceObject`, `request`, and in some places `params`,
//! `authorizer` and `variables`. Source: apiserver `admission/plugin/cel/compile.go`.
//!
//! Invariant: every environment has the same slots for values, whatever of them it declares.

use crate::{CompileError, Decl, Env, ListKind, Program, Type, types::Named};
use std::{fmt, sync::LazyLock};

/// How many values an evaluation is given.
pub const SLOTS: usize = 7;
/// `object`
pub const OBJECT: usize = 0;
/// `oldObject`
pub const OLD_OBJECT: usize = 1;
/// `namespaceObject`
pub const NAMESPACE: usize = 2;
/// `request`
pub const REQUEST: usize = 3;
/// `params`
pub const PARAMS: usize = 4;
/// `authorizer`
pub const AUTHORIZER: usize = 5;
/// `authorizer.requestResource`
pub const REQUEST_RESOURCE: usize = 6;

/// What match conditions of one request may cost altogether (upstream's `RuntimeCELCostBudgetMatchConditions`).
pub const CONDITIONS_BUDGET: u64 = 2_500_000;
/// The longest message that an expression makes, in bytes (upstream's `MaxEvaluatedMessageExpressionSizeBytes`).
pub const MAX_MESSAGE: usize = 5 * 1024;

/// What an environment declares besides what all of them do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// `params`
    pub params: bool,
    /// `authorizer`
    pub authorizer: bool,
    /// `variables`
    pub variables: bool,
    /// `Object{...}` and `JSONPatch{...}`
    pub making_objects: bool,
}

/// An environment in which objects and parameters may be anything.
pub fn env(setting: Setting) -> Env {
    env_of(setting, Decl::any(), Decl::any())
}

/// An environment in which more is known of objects and parameters; for finding mistakes.
pub fn env_of(setting: Setting, object: Decl, params: Decl) -> Env {
    static NAMESPACES: LazyLock<std::sync::Arc<Decl>> = LazyLock::new(|| namespace().into());
    static REQUESTS: LazyLock<std::sync::Arc<Decl>> = LazyLock::new(|| request().into());
    let object = std::sync::Arc::new(object);
    let mut env = Env::new()
        .variable("object", object.clone())
        .variable("oldObject", object)
        .variable("namespaceObject", NAMESPACES.clone())
        .variable("request", REQUESTS.clone());
    env = if setting.params { env.variable("params", params) } else { env.absent() };
    env = match setting.authorizer {
        true => env
            .library("authorizer", Named::Authorizer)
            .library("authorizer.requestResource", Named::ResourceCheck),
        false => env.absent().absent(),
    };
    if setting.variables {
        env = env.composed();
    }
    if setting.making_objects {
        env = env.making_objects();
    }
    env
}

/// The same environment, without the authorizer.
pub fn without_authorizer(env: &Env) -> Env {
    env.clone().without("authorizer").without("authorizer.requestResource")
}

/// What an expression must result in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// `bool`
    Bool,
    /// `string`
    String,
    /// `string` or `null`
    StringOrNull,
    /// `Object`
    Object,
    /// `list(JSONPatch)`
    Patches,
    /// Anything.
    Any,
}

impl Returns {
    fn types(self) -> Vec<Type> {
        match self {
            Returns::Bool => vec![Type::Bool],
            Returns::String => vec![Type::String],
            Returns::StringOrNull => vec![Type::String, Type::Null],
            Returns::Object => vec![Type::Part("Object".into())],
            Returns::Patches => vec![Type::list(Type::Named(Named::JsonPatch))],
            Returns::Any => vec![],
        }
    }

    /// Refuses a program of another type; the text is upstream's.
    fn check(self, program: &Program) -> Result<(), ExpressionError> {
        let types = self.types();
        if types.is_empty() || types.contains(program.ty()) {
            return Ok(());
        }
        let shown: Vec<String> = types.iter().map(Type::declared).collect();
        let found = program.ty().declared();
        Err(ExpressionError::invalid(match shown.as_slice() {
            [one] => format!("must evaluate to {one} but got {found}"),
            list => format!("must evaluate to one of [{}] but got {found}", list.join(" ")),
        }))
    }
}

/// Why an expression cannot be used. Its `Display` form is upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    text: String,
    internal: bool,
}

impl ExpressionError {
    pub(crate) fn invalid(text: String) -> ExpressionError {
        ExpressionError { text, internal: false }
    }

    /// The expression is well-typed and can never run all the same; upstream calls that an internal error.
    pub fn is_internal(&self) -> bool {
        self.internal
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ExpressionError {}

impl From<&CompileError> for ExpressionError {
    fn from(error: &CompileError) -> ExpressionError {
        match error {
            CompileError::Issues(issues) => ExpressionError::invalid(format!("compilation failed: {issues}")),
            CompileError::Program(why) => {
                ExpressionError { text: format!("program instantiation failed: {why}"), internal: true }
            }
        }
    }
}

/// Compiles an expression that must result in `returns`.
///
/// # Errors
/// It is not well-formed, not well-typed, or of another type.
pub fn compile(env: &Env, text: &str, returns: Returns) -> Result<Program, ExpressionError> {
    let program = env.compile(text).map_err(|e| ExpressionError::from(&e))?;
    returns.check(&program)?;
    Ok(program)
}

/// Adds `variables.name` to an environment that declares `variables`, whether it compiles or not.
///
/// # Errors
/// It does not compile; expressions that use it fail with the same text.
pub fn name(env: &mut Env, name: &str, text: &str) -> Result<(), ExpressionError> {
    let mut refused = Ok(());
    env.name(name, text, |compiled| {
        refused = compiled.map(|_| ()).map_err(ExpressionError::from);
        refused.clone().map_err(|e| e.to_string())
    });
    refused
}

fn text() -> Decl {
    Decl::string("", None, None)
}

fn time() -> Decl {
    Decl::string("date-time", None, None)
}

fn texts() -> Decl {
    Decl::list(text(), ListKind::Atomic, None)
}

fn record(name: &str, fields: impl IntoIterator<Item = (&'static str, Decl)>) -> Decl {
    Decl::object(fields.into_iter().map(|(name, decl)| (name.to_owned(), decl, false))).named(name)
}

fn request() -> Decl {
    let kind = || record("kubernetes.GroupVersionKind", ["group", "version", "kind"].map(|f| (f, text())));
    let resource =
        || record("kubernetes.GroupVersionResource", ["group", "version", "resource"].map(|f| (f, text())));
    let user = record(
        "kubernetes.UserInfo",
        [("username", text()), ("uid", text()), ("groups", texts()), ("extra", Decl::map(texts(), None))],
    );
    record(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind()),
            ("resource", resource()),
            ("subResource", text()),
            ("requestKind", kind()),
            ("requestResource", resource()),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", Decl::bool()),
            ("options", Decl::any()),
        ],
    )
}

fn namespace() -> Decl {
    let labels = || Decl::map(text(), None);
    let metadata = record(
        "kubernetes.NamespaceMetadata",
        [
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", labels()),
            ("annotations", labels()),
            ("UID", text()),
            ("creationTimestamp", time()),
            ("deletionGracePeriodSeconds", Decl::int()),
            ("deletionTimestamp", time()),
            ("generation", Decl::int()),
            ("resourceVersion", text()),
            ("finalizers", texts()),
        ],
    );
    let condition = record(
        "kubernetes.NamespaceCondition",
        [
            ("status", text()),
            ("type", text()),
            ("lastTransitionTime", time()),
            ("message", text()),
            ("reason", text()),
        ],
    );
    let status = record(
        "kubernetes.NamespaceStatus",
        [("conditions", Decl::list(condition, ListKind::Atomic, None)), ("phase", text())],
    );
    record(
        "kubernetes.Namespace",
        [
            ("metadata", metadata),
            ("spec", record("kubernetes.NamespaceSpec", [("finalizers", texts())])),
            ("status", status),
        ],
    )
}
