//! What callers use: an environment that knows the variables, and programs compiled in it.

use crate::{
    Error, Issues,
    check::{self, Checked, Variables},
    decl::Decl,
    estimate,
    eval::Evaluator,
    parser,
    plan::{self, Node},
    selects::{self, Selects},
    types::Type,
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

/// Runs what recurses deep on a stack of its own.
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

    fn typed(mut self, name: &str, decl: Arc<Decl>, ty: Type) -> Env {
        self.names.push(name.to_owned());
        self.types.insert(name.to_owned(), ty);
        self.decls.insert(name.to_owned(), decl);
        self
    }

    /// Compiles an expression, or says what is wrong with it as cel-go does.
    pub fn compile(&self, text: &str) -> Result<Program, CompileError> {
        if text.len() <= SHALLOW_TEXT {
            return self.compile_here(text);
        }
        deeply(|| self.compile_here(text)).unwrap_or_else(|why| Err(CompileError::Program(why)))
    }

    fn compile_here(&self, text: &str) -> Result<Program, CompileError> {
        let checked = check::check(parser::parse(text)?, &self.types)?;
        self.program(&checked).map_err(CompileError::Program)
    }

    fn program(&self, checked: &Checked) -> Result<Program, String> {
        let (node, used) = plan::plan(checked, &self.names)?;
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
        let here = || {
            let mut evaluator = Evaluator::new(vars, limit);
            let result = evaluator.eval(&self.node);
            (result, evaluator.budget.spent())
        };
        if self.depth <= SHALLOW {
            return here();
        }
        deeply(here).unwrap_or_else(|why| (Err(Error::eval(why)), 0))
    }
}
