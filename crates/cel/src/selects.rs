//! Which fields an expression selects of which names, for callers with rules about that.

use crate::ast::{Expr, Kind, Literal};
use std::collections::BTreeSet;

/// Pairs of a name and a field: of `a.b`, `has(a.b)` and `a.?b`, macros expanded. `a["b"]` selects nothing.
pub(crate) type Selects = BTreeSet<(String, String)>;

/// Those of an expression. Recursion is as deep as the tree, which is bounded.
pub(crate) fn of(expr: &Expr) -> Selects {
    let mut found = Selects::new();
    walk(expr, &mut found);
    found
}

fn walk(expr: &Expr, found: &mut Selects) {
    let mut note = |operand: &Expr, field: &str| {
        if let Kind::Ident(name) = &operand.kind {
            found.insert((name.clone(), field.to_owned()));
        }
    };
    match &expr.kind {
        Kind::Literal(_) | Kind::Ident(_) => {}
        Kind::Select { operand, field, .. } => {
            note(operand, field);
            walk(operand, found);
        }
        Kind::Call { target, function, args } => {
            if let ("_?._", [operand, Expr { kind: Kind::Literal(Literal::String(field)), .. }]) =
                (function.as_str(), args.as_slice())
            {
                note(operand, field);
            }
            target.iter().for_each(|t| walk(t, found));
            args.iter().for_each(|a| walk(a, found));
        }
        Kind::List { elements, .. } => elements.iter().for_each(|e| walk(e, found)),
        Kind::Map { entries } => entries.iter().for_each(|e| {
            walk(&e.key, found);
            walk(&e.value, found);
        }),
        Kind::Struct { fields, .. } => fields.iter().for_each(|f| walk(&f.value, found)),
        Kind::Comprehension(c) => {
            [&c.range, &c.init, &c.condition, &c.step, &c.result].into_iter().for_each(|e| walk(e, found));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Decl, Env};

    #[test]
    fn finds_the_fields_that_are_selected() {
        let env = Env::new().variable("a", Decl::map(Decl::any(), None));
        let selects = |text: &str| env.compile(text).unwrap().selects("a", "b");
        for yes in
            ["a.b", "a.b.c == 1", "has(a.b)", "a.?b.orValue(1)", "[{'x': a.b}]", "[1].all(x, x == a.b)"]
        {
            assert!(selects(yes), "{yes}");
        }
        for no in ["a['b']", "a.c.b", "'a.b'", "[a].all(b, true)"] {
            assert!(!selects(no), "{no}");
        }
    }
}
