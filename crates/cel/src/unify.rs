//! Assignability of types, and the substitution of type variables.
//!
//! Invariant: a failed attempt leaves no trace; what a successful one learned can be taken back by its mark.

use crate::types::Type;
use std::collections::HashMap;

/// What is known of type variables.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    bound: HashMap<u32, Type>,
    /// What was bound before, newest last.
    trail: Vec<(u32, Option<Type>)>,
}

impl Mapping {
    fn bind(&mut self, param: u32, ty: Type) {
        let before = self.bound.insert(param, ty);
        self.trail.push((param, before));
    }

    fn undo(&mut self, mark: usize) {
        for (param, before) in self.trail.drain(mark..).rev() {
            match before {
                Some(ty) => self.bound.insert(param, ty),
                None => self.bound.remove(&param),
            };
        }
    }

    /// Whether every type of `from` may stand for the one at its place in `to`; if so, variables are bound.
    pub(crate) fn all_assignable(&mut self, from: &[Type], to: &[Type]) -> bool {
        let mark = self.trail.len();
        let fits = from.len() == to.len() && from.iter().zip(to).all(|(a, b)| self.fits(a, b));
        if !fits {
            self.undo(mark);
        }
        fits
    }

    /// Whether `from` may stand for `to`; if so, variables are bound.
    pub(crate) fn assignable(&mut self, from: &Type, to: &Type) -> bool {
        self.all_assignable(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    fn fits(&mut self, a: &Type, b: &Type) -> bool {
        if let Type::Param(param) = b {
            match self.substitutes(a, *param) {
                (true, _) => return true,
                (false, true) => return false,
                _ => {}
            }
        }
        if let Type::Param(param) = a {
            return self.substitutes(b, *param).0;
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Null
                    | Type::Object(..)
                    | Type::Part(_)
                    | Type::Named(_)
                    | Type::Optional(_)
                    | Type::Duration
                    | Type::Timestamp
            ),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.fits(a, b),
            (Type::Map(a), Type::Map(b)) => self.fits(&a.0, &b.0) && self.fits(&a.1, &b.1),
            (a, b) => a == b,
        }
    }

    /// Whether `ty` may be what `param` stands for, and whether that was bound already.
    fn substitutes(&mut self, ty: &Type, param: u32) -> (bool, bool) {
        if *ty == Type::Param(param) {
            return (true, true);
        }
        if let Some(bound) = self.bound.get(&param).cloned() {
            if *ty == bound {
                return (true, true);
            }
            if self.fits(ty, &bound) {
                let general = most_general(ty, &bound);
                if self.absent(param, &general) {
                    self.bind(param, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.absent(param, ty) {
            self.bind(param, ty.clone());
            return (true, false);
        }
        (false, false)
    }

    /// Whether `param` does not occur in `ty`.
    fn absent(&self, param: u32, ty: &Type) -> bool {
        match ty {
            Type::Param(p) if *p == param => false,
            Type::Param(p) => self.bound.get(p).is_none_or(|t| self.absent(param, t)),
            Type::List(of) | Type::Optional(of) | Type::Type(Some(of)) => self.absent(param, of),
            Type::Map(of) => self.absent(param, &of.0) && self.absent(param, &of.1),
            _ => true,
        }
    }

    /// `ty` with bound variables replaced; unbound ones become dyn if `close`.
    pub(crate) fn substitute(&self, ty: &Type, close: bool) -> Type {
        match ty {
            Type::Param(p) => match self.bound.get(p) {
                Some(bound) => self.substitute(bound, close),
                None if close => Type::Dyn,
                None => ty.clone(),
            },
            Type::List(of) => Type::list(self.substitute(of, close)),
            Type::Optional(of) => Type::optional(self.substitute(of, close)),
            Type::Map(of) => Type::map(self.substitute(&of.0, close), self.substitute(&of.1, close)),
            Type::Type(Some(of)) => Type::Type(Some(self.substitute(of, close).into())),
            other => other.clone(),
        }
    }
}

/// The more general of two types that fit.
pub(crate) fn most_general(a: &Type, b: &Type) -> Type {
    if less_specific(a, b) { a.clone() } else { b.clone() }
}

fn less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Param(_), _) => true,
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => less_specific(a, b),
        (Type::Map(a), Type::Map(b)) => less_specific(&a.0, &b.0) && less_specific(&a.1, &b.1),
        (Type::Type(_), Type::Type(_)) => true,
        (a, b) => a == b,
    }
}
