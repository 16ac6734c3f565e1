//! Expressions of admission: their variables, the objects that they construct, and authorization checks.

use crate::{
    Authority, Decision, Env, Question, Session, Value,
    admission::{self, Returns, Setting},
};
use expect_test::expect;
use serde_json::{Value as Json, json};
use std::sync::{Arc, Mutex};

const ALL: Setting = Setting { params: true, authorizer: true, variables: true, making_objects: true };

/// Has decisions for some questions, and records the others.
#[derive(Debug, Default)]
struct Memory {
    known: Mutex<Vec<(Question, Decision)>>,
    asked: Mutex<Vec<Question>>,
}

impl Authority for Memory {
    fn answer(&self, question: &Question) -> Option<Decision> {
        let known = self.known.lock().unwrap();
        let found = known.iter().find(|(q, _)| q == question).map(|(_, d)| d.clone());
        if found.is_none() {
            self.asked.lock().unwrap().push(question.clone());
        }
        found
    }
}

fn vars<'a>(object: &'a Json, request: &'a Json, authority: &Arc<Memory>) -> Vec<Option<Value<'a>>> {
    let asker: Arc<dyn Authority> = authority.clone();
    vec![
        Some(Value::any(object)),
        Some(Value::Null),
        Some(Value::Null),
        Some(Value::any(request)),
        Some(Value::Null),
        Some(Value::authorizer(asker.clone())),
        Some(Value::resource_check(asker, Question { resource: "pods".into(), ..Question::default() })),
    ]
}

fn shown(env: &Env, texts: &[&str]) -> String {
    let object = json!({"spec": {"replicas": 7, "names": ["a", "b"]}});
    let request = json!({"operation": "CREATE", "kind": {"kind": "Pod"}, "requestKind": {"kind": "Pod"}});
    let authority = Arc::new(Memory::default());
    let named = env.named();
    let mut out = String::new();
    for text in texts {
        let mut session = Session::new(vars(&object, &request, &authority), &named);
        let answer = match admission::compile(env, text, Returns::Any) {
            Err(e) => format!("refused: {e}"),
            Ok(program) => {
                let (result, cost) = program.eval_in(&mut session, 1_000_000);
                let result =
                    result.and_then(|v| v.to_json()).map_or_else(|e| e.to_string(), |v| v.to_string());
                format!("{result} for {cost}+{}", session.take_cost())
            }
        };
        out.push_str(&format!("{text}\n  {}\n", answer.replace('\n', "\n  ")));
    }
    out
}

#[test]
fn variables_are_typed_lazy_and_kept() {
    let mut env = admission::env(ALL);
    admission::name(&mut env, "replicas", "object.spec.replicas").unwrap();
    admission::name(&mut env, "many", "variables.replicas > 5").unwrap();
    admission::name(&mut env, "names", "['x', 'y']").unwrap();
    admission::name(&mut env, "missing", "object.spec.nothing").unwrap();
    let refused = admission::name(&mut env, "broken", "object.").unwrap_err();
    assert!(
        refused.to_string().starts_with("compilation failed: ERROR: <input>:1:8: Syntax error"),
        "{refused}"
    );
    expect![[r#"
        variables.many
          true for 2+6
        variables.many && variables.many
          true for 4+6
        variables.names.exists(n, n == 'y')
          true for 15+0
        has(variables.many) && !has(variables.?nothing.foo)
          refused: compilation failed: ERROR: <input>:1:38: undefined field 'nothing'
           | has(variables.many) && !has(variables.?nothing.foo)
           | .....................................^
        variables.many + 1
          refused: compilation failed: ERROR: <input>:1:16: found no matching overload for '_+_' applied to '(bool, int)'
           | variables.many + 1
           | ...............^
        variables.later
          refused: compilation failed: ERROR: <input>:1:10: undefined field 'later'
           | variables.later
           | .........^
        variables.missing
          composited variable "missing" fails to evaluate: no such key: nothing for 2+3
        variables.missing == 1 || true
          true for 3+3
        variables.broken
          composited variable "broken" fails to compile: compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'
           | object.
           | .......^ for 2+0
        request.kind == request.requestKind && request.operation == 'CREATE'
          true for 8+0
        request.object
          refused: compilation failed: ERROR: <input>:1:8: undefined field 'object'
           | request.object
           | .......^
        [1, 2].map(variables, variables + 1)
          [2,3] for 29+0
    "#]]
    .assert_eq(&shown(
        &env,
        &[
            "variables.many",
            "variables.many && variables.many",
            "variables.names.exists(n, n == 'y')",
            "has(variables.many) && !has(variables.?nothing.foo)",
            "variables.many + 1",
            "variables.later",
            "variables.missing",
            "variables.missing == 1 || true",
            "variables.broken",
            "request.kind == request.requestKind && request.operation == 'CREATE'",
            "request.object",
            "[1, 2].map(variables, variables + 1)",
        ],
    ));
}

/// However long the chain, the stack holds, and what nests too deep is refused rather than tried.
#[test]
fn chains_of_variables_are_bounded() {
    let mut env = admission::env(ALL);
    admission::name(&mut env, "v0", "1").unwrap();
    for i in 1..2_000 {
        admission::name(&mut env, &format!("v{i}"), &format!("variables.v{} + 1", i - 1)).unwrap();
    }
    let object = json!({});
    let authority = Arc::new(Memory::default());
    let named = env.named();
    let eval = |text: &str| {
        let mut session = Session::new(vars(&object, &object, &authority), &named);
        let (result, _) = env.compile(text).unwrap().eval_in(&mut session, 1_000_000);
        result.map_or_else(|e| e.to_string(), |v| v.to_json().unwrap().to_string())
    };
    assert_eq!(eval("variables.v900"), "901");
    assert!(eval("variables.v1999").contains("variables nest too deep"));
}

#[test]
fn constructs_objects() {
    let env = admission::env(ALL);
    expect![[r#"
        Object{spec: Object.spec{replicas: object.spec.replicas + 1, ?paused: optional.none()}}
          {"spec":{"replicas":8}} for 85+0
        [JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('k8s.io/my~label'), value: {'a': 1}}]
          [{"op":"add","path":"/metadata/labels/k8s.io~1my~0label","value":{"a":1}}] for 56+0
        JSONPatch{op: 1}
          refused: compilation failed: ERROR: <input>:1:13: expected type of field 'op' is 'string' but provided type is 'int'
           | JSONPatch{op: 1}
           | ............^
        JSONPatch{operation: 'add'}
          refused: compilation failed: ERROR: <input>:1:20: undefined field 'operation'
           | JSONPatch{operation: 'add'}
           | ...................^
        JSONPatch{op: 'add'}.op
          "add" for 42+0
        Objects{a: 1}
          refused: compilation failed: ERROR: <input>:1:8: undeclared reference to 'Objects' (in container '')
           | Objects{a: 1}
           | .......^
        Object{a: 1} == Object{a: 1}
          true for 81+0
        Object.metadata{finalizers: ['a.b/c']}.finalizers
          ["a.b/c"] for 42+0
        Object{spec: Object.spec{replicas: 3}}.spec.replicas
          3 for 83+0
        Object.metadata{name: 'a'}.labels
          null for 42+0
        has(Object.metadata{name: 'a'}.labels)
          false for 41+0
        Object.metadata{name: 'a'}.?labels.orValue('none')
          "none" for 41+0
    "#]]
    .assert_eq(&shown(
        &env,
        &[
            "Object{spec: Object.spec{replicas: object.spec.replicas + 1, ?paused: optional.none()}}",
            "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('k8s.io/my~label'), value: {'a': 1}}]",
            "JSONPatch{op: 1}",
            "JSONPatch{operation: 'add'}",
            "JSONPatch{op: 'add'}.op",
            "Objects{a: 1}",
            "Object{a: 1} == Object{a: 1}",
            "Object.metadata{finalizers: ['a.b/c']}.finalizers",
            "Object{spec: Object.spec{replicas: 3}}.spec.replicas",
            "Object.metadata{name: 'a'}.labels",
            "has(Object.metadata{name: 'a'}.labels)",
            "Object.metadata{name: 'a'}.?labels.orValue('none')",
        ],
    ));
    // Nothing is made where expressions only judge.
    let judging = admission::env(Setting { making_objects: false, ..ALL });
    for text in ["Object{}", "JSONPatch{}", "jsonpatch.escapeKey('a')"] {
        let refused = admission::compile(&judging, text, Returns::Any).unwrap_err().to_string();
        assert!(refused.contains("undeclared reference"), "{refused}");
    }
}

/// A field exists by the type of its object, by the keys of a map that is reached through a field, and not at all where an
/// object's type is hidden.
#[test]
fn fields_of_constructed_objects_exist_by_their_type() {
    let env = admission::env(ALL);
    expect![[r#"
        Object{spec: Object.spec{replicas: 3}}.spec.paused
          no such key: paused for 83+0
        dyn(Object{a: 1}).a
          no such key: a for 43+0
        dyn(Object{a: 1}).b
          no such key: b for 43+0
        has(dyn(Object{a: 1}).a)
          false for 42+0
        Object{a: 1}.b
          null for 42+0
    "#]]
    .assert_eq(&shown(
        &env,
        &[
            "Object{spec: Object.spec{replicas: 3}}.spec.paused",
            "dyn(Object{a: 1}).a",
            "dyn(Object{a: 1}).b",
            "has(dyn(Object{a: 1}).a)",
            "Object{a: 1}.b",
        ],
    ));
}

#[test]
fn parts_are_named_after_their_place() {
    let env = admission::env(ALL);
    let names = |text: &str| {
        let object = json!({});
        let authority = Arc::new(Memory::default());
        let (result, _) = env.compile(text).unwrap().eval(&vars(&object, &object, &authority), 10_000);
        match result.unwrap() {
            Value::Struct(constructed) => constructed.misnamed(),
            other => panic!("{other:?}"),
        }
    };
    assert!(names("Object{spec: Object.spec{containers: [Object.spec.containers{name: 'a'}]}}").is_empty());
    assert_eq!(
        names("Object{spec: Object.status{}}"),
        [
            "unexpected type name \"Object.status\", expected \"Object.spec\", which matches field name path from root Object type"
        ]
    );
}

#[test]
fn results_must_be_of_the_type_that_is_wanted() {
    let env = admission::env(ALL);
    let refused = |text, returns| admission::compile(&env, text, returns).unwrap_err().to_string();
    assert_eq!(refused("object.spec", Returns::Bool), "must evaluate to bool but got dyn");
    assert_eq!(refused("1", Returns::StringOrNull), "must evaluate to one of [string null_type] but got int");
    assert_eq!(refused("Object.spec{}", Returns::Object), "must evaluate to Object but got Object.spec");
    assert_eq!(refused("[1]", Returns::Patches), "must evaluate to list(JSONPatch) but got list(int)");
    admission::compile(&env, "[JSONPatch{}]", Returns::Patches).unwrap();
    admission::compile(&env, "null", Returns::StringOrNull).unwrap();
}

/// Evaluation ends at a question without an answer, whatever stands around it, and goes on with one.
#[test]
fn questions_end_evaluation_until_they_are_answered() {
    let env = admission::env(ALL);
    let object = json!({});
    let authority = Arc::new(Memory::default());
    let text = "authorizer.serviceAccount('ns', 'sa').group('apps').resource('deployments').subresource('scale')\
                .namespace('n').name('x').fieldSelector('a=b').labelSelector('c').check('create').allowed() || \
                (authorizer.path('/healthz').check('get').reason() == 'so' && \
                 authorizer.requestResource.check('delete').errored()) || true";
    let program = env.compile(text).unwrap();
    let mut seen = vec![];
    for _ in 0..3 {
        let (result, cost) = program.eval(&vars(&object, &object, &authority), 2_000_000);
        let Some(question) = authority.asked.lock().unwrap().pop() else {
            seen.push(format!("{:?} for {cost}", result.unwrap().to_json().unwrap()));
            break;
        };
        assert_eq!(result.unwrap_err(), crate::Error::Unanswered);
        seen.push(format!("{question:?}"));
        let decision = Decision { allowed: false, reason: "no".into(), error: None };
        authority.known.lock().unwrap().push((question, decision));
    }
    expect![[r#"
        Question { account: Some(("ns", "sa")), path: "", group: "apps", resource: "deployments", subresource: "scale", namespace: "n", name: "x", field_selector: "a=b", label_selector: "c", verb: "create" }
        Question { account: None, path: "/healthz", group: "", resource: "", subresource: "", namespace: "", name: "", field_selector: "", label_selector: "", verb: "get" }
        Bool(true) for 700184"#]]
    .assert_eq(&seen.join("\n"));
    // Three checks cost more than an expression may.
    let thrice = "[1, 2, 3].all(i, !authorizer.path('/healthz').check('get').allowed())";
    let (result, _) = env.compile(thrice).unwrap().eval(&vars(&object, &object, &authority), 1_000_000);
    assert_eq!(result.unwrap_err(), crate::Error::Cost);
}
