//! What callers use: an environment that knows the variables, and programs compiled in it.

use crate::{
    Error, Issues,
    check::{self, Checked, Variables},
    decl::Decl,
    eval::Evaluator,
    parser,
    plan::{self, Node},
    types::Type,
    value::Value,
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

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
    pub fn compile(&self, text: &str) -> Result<Program, Issues> {
        let checked = check::check(parser::parse(text)?, &self.types)?;
        Ok(self.program(&checked))
    }

    fn program(&self, checked: &Checked) -> Program {
        let (node, used) = plan::plan(checked, &self.names);
        let ty = checked.types.get(checked.root.id as usize).cloned().unwrap_or(Type::Dyn);
        let used = used.into_iter().filter_map(|i| self.names.get(i).cloned()).collect();
        Program { node, ty, used }
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    node: Node,
    ty: Type,
    used: BTreeSet<String>,
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

    /// Evaluates with the environment's variables, in their order, for at most `limit`; also answers what it cost.
    pub fn eval<'a>(&self, vars: &[Option<Value<'a>>], limit: u64) -> (Result<Value<'a>, Error>, u64) {
        let mut evaluator = Evaluator::new(vars, limit);
        let result = evaluator.eval(&self.node);
        (result, evaluator.budget.spent())
    }
}
