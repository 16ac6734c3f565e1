//! The expressions of an `AuthenticationConfiguration`, in CEL: claim mappings, and validation rules of claims and
//! users. Source, also of the texts: upstream's `pkg/authentication/cel` and `plugin/pkg/authenticator/token/oidc`.
//!
//! Invariants:
//! - An expression that fails refuses the token; nothing about a user is left out because of one.
//! - What an evaluation costs is bounded ([`PER_CALL_LIMIT`]).

use super::AuthenticationError;
use kaji_cel::{CompileError, Decl, Env, ListKind, PER_CALL_LIMIT, Program, Type, Value as Cel};
use kaji_resource::UserInfo;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

static CLAIMS: LazyLock<Env> = LazyLock::new(|| Env::new().variable("claims", Decl::map(Decl::any(), None)));
static USER: LazyLock<Env> = LazyLock::new(|| {
    let text = || Decl::string("", None, None);
    let texts = || Decl::list(text(), ListKind::Atomic, None);
    let user = Decl::object([
        ("username".to_owned(), text(), false),
        ("uid".to_owned(), text(), false),
        ("groups".to_owned(), texts(), false),
        ("extra".to_owned(), Decl::map(texts(), None), false),
    ]);
    Env::new().variable("user", user)
});
/// Both variables as values of an expression.
static LOOSE: LazyLock<Arc<Decl>> = LazyLock::new(|| Arc::new(Decl::loose()));

const NO_TEXTS: &str = "expression must return a string or a list of strings";

/// A compiled expression.
#[derive(Debug)]
pub struct Expression {
    text: String,
    program: Program,
}

impl Expression {
    /// Over `claims`, of any type.
    ///
    /// # Errors
    /// Why it is no program, as [`Expression::claims_rule`] and [`Expression::user_rule`] say it too.
    pub(super) fn claims(text: &str) -> Result<Expression, String> {
        Expression::compile(&CLAIMS, text)
    }

    /// Over `claims`, true or false.
    pub(super) fn claims_rule(text: &str) -> Result<Expression, String> {
        Expression::compile(&CLAIMS, text)?.rule()
    }

    /// Over `user`, true or false.
    pub(super) fn user_rule(text: &str) -> Result<Expression, String> {
        Expression::compile(&USER, text)?.rule()
    }

    fn compile(env: &Env, text: &str) -> Result<Expression, String> {
        let program = env.compile(text).map_err(|why| match why {
            CompileError::Issues(issues) => format!("compilation failed: {issues}"),
            CompileError::Program(why) => format!("program instantiation failed: {why}"),
        })?;
        Ok(Expression { text: text.to_owned(), program })
    }

    fn rule(self) -> Result<Expression, String> {
        if *self.program.ty() == Type::Bool { Ok(self) } else { Err("must evaluate to bool".into()) }
    }

    /// Whether it selects a field of a variable.
    pub(super) fn selects(&self, variable: &str, field: &str) -> bool {
        self.program.selects(variable, field)
    }

    fn eval<'a>(&self, data: &'a Value) -> Result<Cel<'a>, String> {
        let loose: &'static Decl = &LOOSE;
        let value = Cel::of_json(data, loose).map_err(|e| e.to_string())?;
        let (result, _) = self.program.eval(&[Some(value)], PER_CALL_LIMIT);
        result.map_err(|why| format!("expression '{}' resulted in error: {why}", self.text))
    }
}

/// Those of one issuer. What is mapped without an expression has none here.
#[derive(Debug, Default)]
pub struct Expressions {
    /// The user's name.
    pub(super) username: Option<Expression>,
    /// Groups.
    pub(super) groups: Option<Expression>,
    /// Uid.
    pub(super) uid: Option<Expression>,
    /// Further attributes, by key.
    pub(super) extra: Vec<(String, Expression)>,
    /// What has to be true of claims, each with what to say if it is not.
    pub(super) claim_rules: Vec<(Expression, String)>,
    /// The same of users.
    pub(super) user_rules: Vec<(Expression, String)>,
}

fn refusal(context: &str) -> impl Fn(String) -> AuthenticationError + '_ {
    move |why| AuthenticationError(format!("oidc: error evaluating {context}: {why}"))
}

impl Expressions {
    /// The name, if an expression says it.
    pub(super) fn username(&self, claims: &Value) -> Result<Option<String>, AuthenticationError> {
        let Some(expression) = &self.username else { return Ok(None) };
        let bad = refusal("username claim expression");
        match expression.eval(claims).map_err(&bad)? {
            Cel::String(name) if name.is_empty() => {
                Err(AuthenticationError::new("oidc: empty username via CEL expression is not allowed"))
            }
            Cel::String(name) => Ok(Some(name.to_string())),
            _ => Err(bad("username claim expression must return a string".into())),
        }
    }

    /// The groups, if an expression says them.
    pub(super) fn groups(&self, claims: &Value) -> Result<Option<Vec<String>>, AuthenticationError> {
        let Some(expression) = &self.groups else { return Ok(None) };
        expression.eval(claims).and_then(|v| texts(&v)).map(Some).map_err(refusal("group claim expression"))
    }

    /// The uid, if an expression says it.
    pub(super) fn uid(&self, claims: &Value) -> Result<Option<String>, AuthenticationError> {
        let Some(expression) = &self.uid else { return Ok(None) };
        let bad = refusal("uid claim expression");
        match expression.eval(claims).map_err(&bad)? {
            Cel::String(uid) => Ok(Some(uid.to_string())),
            _ => Err(bad("uid claim expression must return a string".into())),
        }
    }

    /// Adds the further attributes that are not empty.
    pub(super) fn extend(&self, user: &mut UserInfo, claims: &Value) -> Result<(), AuthenticationError> {
        for (key, expression) in &self.extra {
            let bad = refusal("extra claim expression");
            let value = expression.eval(claims).map_err(AuthenticationError)?;
            let values = texts(&value).map_err(|why| bad(format!("{}: {why}", expression.text)))?;
            if !values.is_empty() {
                user.extra.insert(key.clone(), values);
            }
        }
        Ok(())
    }

    /// Whether the rules hold for these claims.
    pub(super) fn check_claims(&self, claims: &Value) -> Result<(), AuthenticationError> {
        hold(&self.claim_rules, claims).map_err(refusal("claim validation expression"))
    }

    /// Whether the rules hold for this user.
    pub(super) fn check_user(&self, user: &UserInfo) -> Result<(), AuthenticationError> {
        if self.user_rules.is_empty() {
            return Ok(());
        }
        let user =
            json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        hold(&self.user_rules, &user).map_err(refusal("user info validation rule"))
    }
}

/// All of them are evaluated before any counts, so that one that fails is always reported.
fn hold(rules: &[(Expression, String)], data: &Value) -> Result<(), String> {
    let results: Vec<_> = rules.iter().map(|(rule, _)| rule.eval(data)).collect::<Result<_, _>>()?;
    for ((rule, message), result) in rules.iter().zip(results) {
        match result {
            Cel::Bool(true) => {}
            Cel::Bool(false) => {
                return Err(format!("validation expression '{}' failed: {message}", rule.text));
            }
            _ => return Err("validation expression must return a boolean".into()),
        }
    }
    Ok(())
}

/// One text or several; null and empty ones are as if they were not there.
fn texts(value: &Cel<'_>) -> Result<Vec<String>, String> {
    let mut all = match value {
        Cel::Null => vec![],
        Cel::String(one) => vec![one.to_string()],
        Cel::List(list) => {
            let text = |item| match item {
                Ok(Cel::String(text)) => Ok(text.to_string()),
                _ => Err(NO_TEXTS.to_owned()),
            };
            list.iter().map(text).collect::<Result<_, _>>()?
        }
        _ => return Err(NO_TEXTS.into()),
    };
    all.retain(|text| !text.is_empty());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Value {
        json!({"sub": "alice", "n": 1_700_000_000, "list": ["a", "", "b"], "mixed": ["a", 1], "null": null,
            "example.com/role": "admin", "nested": {"a.b": [{"c-d": "deep"}]}})
    }

    fn shown(text: &str) -> String {
        let value = Expression::claims(text).and_then(|e| e.eval(&claims()).and_then(|v| texts(&v)));
        value.map_or_else(|why| why, |texts| texts.join("+"))
    }

    #[test]
    fn claims_are_what_go_makes_of_them() {
        let all = [
            "claims.sub",
            "'x:' + claims.sub",
            "claims.list",
            "claims.mixed",
            "claims.null",
            "claims.n",
            "string(claims.n)",
            "string(type(claims.n))",
            "claims.missing",
            "claims.?missing.orValue('none')",
            "claims.?missing",
            "has(claims.sub) ? 'yes' : 'no'",
            "claims['example.com/role']",
            "claims.example__dot__com__slash__role",
            "claims.nested.a__dot__b[0].c__dash__d",
            "claims.list.filter(x, x != 'a').map(x, 'g:' + x)",
            "claims.n == 1700000000 ? 'equal' : 'not'",
            "claims.n + 1 > 0 ? 'more' : 'less'",
            "[1, 2]",
            "''",
        ];
        let shown: Vec<String> = all.iter().map(|t| format!("{t} = {}", shown(t))).collect();
        expect_test::expect![[r#"
            claims.sub = alice
            'x:' + claims.sub = x:alice
            claims.list = a+b
            claims.mixed = expression must return a string or a list of strings
            claims.null = compilation failed: ERROR: <input>:1:8: Syntax error: mismatched input 'null' expecting IDENTIFIER
             | claims.null
             | .......^
            claims.n = expression must return a string or a list of strings
            string(claims.n) = 1.7e+09
            string(type(claims.n)) = compilation failed: ERROR: <input>:1:7: found no matching overload for 'string' applied to '(type(dyn))'
             | string(type(claims.n))
             | ......^
            claims.missing = expression 'claims.missing' resulted in error: no such key: missing
            claims.?missing.orValue('none') = none
            claims.?missing = expression must return a string or a list of strings
            has(claims.sub) ? 'yes' : 'no' = yes
            claims['example.com/role'] = admin
            claims.example__dot__com__slash__role = admin
            claims.nested.a__dot__b[0].c__dash__d = deep
            claims.list.filter(x, x != 'a').map(x, 'g:' + x) = g:+g:b
            claims.n == 1700000000 ? 'equal' : 'not' = equal
            claims.n + 1 > 0 ? 'more' : 'less' = expression 'claims.n + 1 > 0 ? 'more' : 'less'' resulted in error: no such overload
            [1, 2] = expression must return a string or a list of strings
            '' = "#]].assert_eq(&shown.join("\n"));
    }

    #[test]
    fn work_is_bounded() {
        let eat = "claims.list.all(a, claims.list.all(b, ".to_owned();
        let text = format!("{}true{}", eat.repeat(10), "))".repeat(10));
        let rule = Expression::claims_rule(&text).unwrap();
        assert!(rule.eval(&json!({"list": vec!["x"; 100]})).unwrap_err().contains("cost limit exceeded"));
    }
}
