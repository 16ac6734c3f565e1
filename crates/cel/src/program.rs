//! The interface of the crate: an environment that declares variables, and programs compiled in it.

use crate::{
    Error, Issues, MAX_DEPTH,
    check::{self, Checked, Variables},
    decl::{Decl, DeclKind, Field},
    estimate,
    eval::Evaluator,
    parser,
    plan::{self, Node},
    selects::{self, Selects},
    types::{Named, Type},
    value::Value,
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// Texts up to this length, in bytes, cannot nest so deep that the caller's stack might not do.
const SHALLOW_TEXT: usize = 256;
/// The same for trees.
const SHALLOW: u16 = 64;
/// Enough for the deepest tree, in an unoptimized build, too; in bytes. What is not touched costs no memory.
const STACK: usize = 32 << 20;

/// Runs what recurses deep on a separate stack.
fn deeply<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, String> {
    let failed = |e: &dyn std::fmt::Display| format!("no stack for a deep expression: {e}");
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        thread.map_err(|e| failed(&e))?.join().map_err(|_| failed(&"evaluation broke off"))
    })
}

/// The variables that expressions may use.
#[derive(Clone, Debug, Default)]
pub struct Env {
    names: Vec<String>,
    types: Variables,
    decls: HashMap<String, Arc<Decl>>,
    makes: bool,
    bindings: bool,
    named: NamedExpressions,
}

/// The name under which variables that are expressions are found.
pub(crate) const VARIABLES: &str = "variables";
/// The name of its type.
const VARIABLES_TYPE: &str = "kubernetes.variables";

/// Expressions that others use as `variables.name`: evaluated when they are looked at, and once.
/// Source: apiserver `admission/plugin/cel/composition.go`.
#[derive(Clone, Debug, Default)]
pub struct NamedExpressions {
    pub(crate) list: Vec<Arc<Lazy>>,
    pub(crate) places: HashMap<String, usize>,
}

impl NamedExpressions {
    /// Whether any of them refers to a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.list.iter().any(|lazy| lazy.program.as_ref().is_ok_and(|program| program.uses(variable)))
    }
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Lazy {
    pub name: String,
    /// Why it is no program, in words.
    pub program: Result<Program, String>,
}

impl Env {
    /// An environment without variables. All libraries are there.
    pub fn new() -> Env {
        Env::default()
    }

    /// Adds a variable. Values are given to [`Program::eval`] in the order in which variables were added.
    #[must_use]
    pub fn variable(self, name: &str, decl: impl Into<Arc<Decl>>) -> Env {
        let decl = decl.into();
        let ty = Type::of_decl(&decl, "selfType");
        self.typed(name, decl, ty)
    }

    /// Adds a variable that may be none.
    #[must_use]
    pub fn optional(self, name: &str, decl: impl Into<Arc<Decl>>) -> Env {
        let decl = decl.into();
        let ty = Type::optional(Type::of_decl(&decl, "selfType"));
        self.typed(name, decl, ty)
    }

    /// Adds a variable that holds a value of a library.
    #[must_use]
    pub fn library(self, name: &str, of: Named) -> Env {
        self.typed(name, Decl::any().into(), Type::Named(of))
    }

    /// Lets expressions make objects: `Object{...}` with its parts, and `JSONPatch{...}`.
    #[must_use]
    pub fn making_objects(mut self) -> Env {
        self.makes = true;
        self
    }

    /// Adds the macro `cel.bind(name, value, expression)`.
    #[must_use]
    pub fn with_bindings(mut self) -> Env {
        self.bindings = true;
        self
    }

    /// Leaves a place among the values for a variable that this environment does not know.
    #[must_use]
    pub fn absent(mut self) -> Env {
        self.names.push(String::new());
        self
    }

    /// The same environment without a variable; the variable's index among the values stays.
    #[must_use]
    pub fn without(mut self, name: &str) -> Env {
        self.types.remove(name);
        self.decls.remove(name);
        self
    }

    fn typed(mut self, name: &str, decl: Arc<Decl>, ty: Type) -> Env {
        self.names.push(name.to_owned());
        self.types.insert(name.to_owned(), ty);
        self.decls.insert(name.to_owned(), decl);
        self
    }

    /// Has expressions know `variables`, even if there are none.
    #[must_use]
    pub fn composed(mut self) -> Env {
        let none = Decl::object([]).named(VARIABLES_TYPE);
        self.types.insert(VARIABLES.into(), Type::Object(VARIABLES_TYPE.into(), none.into()));
        self
    }

    /// Adds `variables.name`, an expression over the variables there are and those named before it. One that is no program,
    /// or that `check` refuses, is an error of every expression that uses it; the text says why.
    pub fn name(
        &mut self,
        name: &str,
        text: &str,
        check: impl FnOnce(Result<&Program, &CompileError>) -> Result<(), String>,
    ) {
        let compiled = self.compile(text);
        let refused = check(compiled.as_ref()).err();
        let ty = compiled.as_ref().map_or(Type::Dyn, |program| program.ty.clone());
        let program = match (compiled, refused) {
            (Ok(program), None) => Ok(program),
            (Err(error), None) => Err(error.to_string()),
            (_, Some(why)) => Err(why),
        };
        let Some(Type::Object(_, decl)) = self.types.get_mut(VARIABLES) else { return };
        if let DeclKind::Object { fields, .. } = &mut Arc::make_mut(decl).kind {
            fields.insert(name.into(), Field { name: name.into(), decl: ty.to_decl().into() });
        }
        self.named.places.insert(name.into(), self.named.list.len());
        self.named.list.push(Lazy { name: name.into(), program }.into());
    }

    /// The expressions that were named, for [`Session`]s.
    pub fn named(&self) -> NamedExpressions {
        self.named.clone()
    }

    /// Compiles an expression, or says what is wrong with it as cel-go does.
    pub fn compile(&self, text: &str) -> Result<Program, CompileError> {
        if text.len() <= SHALLOW_TEXT {
            return self.compile_here(text);
        }
        deeply(|| self.compile_here(text)).unwrap_or_else(|why| Err(CompileError::Program(why)))
    }

    fn compile_here(&self, text: &str) -> Result<Program, CompileError> {
        let checked = check::check(parser::parse(text, self.bindings)?, &self.types, self.makes)?;
        self.program(&checked).map_err(CompileError::Program)
    }

    fn program(&self, checked: &Checked) -> Result<Program, String> {
        let (node, used) =
            plan::plan(checked, &self.names, self.types.contains_key(VARIABLES).then_some(&self.named))?;
        let ty = checked.types.get(checked.root.id as usize).cloned().unwrap_or(Type::Dyn);
        let used = used.into_iter().filter_map(|i| self.names.get(i).cloned()).collect();
        let root = self.names.first().and_then(|name| self.decls.get(name)).map(|d| &**d);
        let max_cost = estimate::estimate(checked, &self.decls, root).max;
        let selects = selects::of(&checked.root);
        Ok(Program { node, ty, used, selects, max_cost, depth: checked.root.depth })
    }
}

/// Why an expression is no program. Its `Display` form is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is not well-formed or not well-typed.
    #[error(transparent)]
    Issues(#[from] Issues),
    /// It could never run: a pattern in it does not parse.
    #[error("{0}")]
    Program(String),
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    node: Node,
    ty: Type,
    used: BTreeSet<String>,
    selects: Selects,
    max_cost: u64,
    depth: u16,
}

impl Program {
    /// The type of its result.
    pub fn ty(&self) -> &Type {
        &self.ty
    }

    /// Whether it refers to a variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.used.contains(variable)
    }

    /// Whether it selects a field of a name: `name.field`, `has(name.field)` or `name.?field`.
    pub fn selects(&self, name: &str, field: &str) -> bool {
        self.selects.iter().any(|(n, f)| n == name && f == field)
    }

    /// What an evaluation costs at most, if the sizes of data are what declarations allow; `u64::MAX` for no bound.
    pub fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Evaluates with the environment's variables, in their order, for at most `limit`; also answers what it cost.
    pub fn eval<'a>(&self, vars: &[Option<Value<'a>>], limit: u64) -> (Result<Value<'a>, Error>, u64) {
        self.run(vars, &[], &mut Known::default(), limit)
    }

    /// Evaluates where named expressions are known. The cost is that of this expression alone: what was spent on named
    /// ones is the session's.
    pub fn eval_in<'a>(&self, session: &mut Session<'_, 'a>, limit: u64) -> (Result<Value<'a>, Error>, u64) {
        self.run(&session.vars, &session.named.list, &mut session.known, limit)
    }

    /// Evaluates on this stack if there is room, else on a separate one.
    pub(crate) fn run<'a>(
        &self,
        vars: &[Option<Value<'a>>],
        named: &[Arc<Lazy>],
        known: &mut Known<'a>,
        limit: u64,
    ) -> (Result<Value<'a>, Error>, u64) {
        let (used, room, total) = (known.used, known.room, known.total);
        let depth = u32::from(self.depth) + 1;
        if total + depth > MAX_TOTAL {
            return (Err(Error::eval("variables nest too deep")), 0);
        }
        known.total = total + depth;
        let fits = used + depth <= room;
        (known.used, known.room) =
            if fits { (used + depth, room) } else { (depth, u32::from(MAX_DEPTH) + 2) };
        let here = |known: &mut Known<'a>| {
            let mut evaluator = Evaluator::new(vars, named, known, limit);
            let result = evaluator.eval(&self.node);
            (result, evaluator.budget.spent())
        };
        let done = match fits {
            true => here(known),
            false => deeply(|| here(known)).unwrap_or_else(|why| (Err(Error::eval(why)), 0)),
        };
        (known.used, known.room, known.total) = (used, room, total);
        done
    }
}

/// How deep named expressions that look at each other may nest altogether.
const MAX_TOTAL: u32 = 4_000;

/// What is known of named expressions in one session, and how deep evaluation is.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub values: Vec<Option<Result<Value<'a>, Error>>>,
    pub cost: u64,
    used: u32,
    room: u32,
    total: u32,
}

impl Default for Known<'_> {
    fn default() -> Self {
        Known { values: vec![], cost: 0, used: 0, room: u32::from(SHALLOW) + 1, total: 0 }
    }
}

/// Evaluations over the same variables: named expressions are evaluated once for all of them.
#[derive(Debug)]
pub struct Session<'e, 'a> {
    vars: Vec<Option<Value<'a>>>,
    named: &'e NamedExpressions,
    known: Known<'a>,
}

impl<'e, 'a> Session<'e, 'a> {
    /// With the environment's variables, in their order.
    pub fn new(vars: Vec<Option<Value<'a>>>, named: &'e NamedExpressions) -> Session<'e, 'a> {
        Session { vars, named, known: Known::default() }
    }

    /// Forgets the values of named expressions.
    pub fn forget(&mut self) {
        self.known = Known::default();
    }

    /// What was spent on named expressions since the last call.
    pub fn take_cost(&mut self) -> u64 {
        std::mem::take(&mut self.known.cost)
    }
}
