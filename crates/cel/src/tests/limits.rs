//! Whatever is compiled and evaluated ends, on a small stack and within its budget.

use crate::{Decl, Env, Error, MAX_DEPTH, Value};
use proptest::prelude::*;
use serde_json::json;

/// Runs on a stack as small as a server's threads have.
fn on_small_stack<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(1 << 20).spawn(run).unwrap().join().unwrap()
}

fn nested(open: &str, close: &str, times: usize) -> String {
    format!("{}1{}", open.repeat(times), close.repeat(times))
}

#[test]
fn deep_expressions_need_no_deep_stack() {
    let deepest = usize::from(MAX_DEPTH);
    let texts = move |n: usize| {
        [
            nested("(", ")", n - 1),
            nested("[", "]", n - 1),
            nested("{1: ", "}", n - 1),
            nested("dyn(", ")", n - 1),
            nested("true ? ", " : 1", n),
            nested("[1].map(x, ", ")", n),
            "!".repeat(n) + "true",
            vec!["1"; n].join(" + "),
            vec!["true"; n].join(" && "),
            "v".to_owned() + &"[0]".repeat(n),
            "v".to_owned() + &".a".repeat(n),
        ]
    };
    on_small_stack(move || {
        for text in texts(deepest) {
            let program = Env::new().variable("v", Decl::any()).compile(&text);
            if let Ok(program) = program {
                let (_, cost) = program.eval(&[Some(Value::Null)], 10_000_000);
                assert!(cost <= 10_000_000);
            }
        }
        for text in texts(5_000) {
            // Refused or evaluated; not fatal.
            drop(Env::new().variable("v", Decl::any()).compile(&text));
        }
    });
}

#[test]
fn reports_exceeded_depth() {
    let refused = |text: &str| Env::new().compile(text).unwrap_err().to_string();
    let limit = "ERROR: <input>:-1:0: expression recursion limit exceeded: 250";
    assert_eq!(refused(&nested("(", ")", 250)), limit);
    assert_eq!(refused(&vec!["1"; 252].join(" + ")), "ERROR: <input>:-1:0: max recursion depth exceeded");
    assert!(Env::new().compile(&vec!["1"; 251].join(" + ")).is_ok());
}

#[test]
fn work_is_paid_for_before_it_is_done() {
    let data = json!({"l": vec![1; 1000], "s": "a".repeat(10_000)});
    let decl = Decl::any();
    for text in [
        "v.l.all(a, v.l.all(b, v.l.all(c, v.l.all(d, a == b && c == d))))",
        "v.l.map(a, v.l.map(b, v.l)).size() > 0",
        "v.l.all(x, v.s.contains(v.s))",
        "v.l.map(x, v.s + v.s).join(v.s).size() > 0",
        "lists.range(1000000000).size() > 0",
        "v.l.all(x, v.s.matches('(a|b|ab)*' + v.s))",
        "v.s.replace('', v.s).replace('', v.s).size() > 0",
    ] {
        let program = Env::new().variable("v", decl.clone()).compile(text).unwrap();
        let (result, cost) = program.eval(&[Some(Value::of_json(&data, &decl).unwrap())], 100_000);
        assert!(matches!(result, Err(Error::Cost)), "{text}: {cost}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Any text is compiled or refused; what compiles is evaluated within its budget, and to the same again.
    #[test]
    fn random_expressions_do_not_panic(
        parts in prop::collection::vec(prop::sample::select(PARTS), 1..24), noise in ".{0,6}", at in 0_usize..24,
    ) {
        let mut parts: Vec<&str> = parts;
        parts.insert(at.min(parts.len()), &noise);
        let text = parts.join(" ");
        if let Ok(program) = Env::new().variable("v", Decl::any()).compile(&text) {
            let data = json!({"n": 3, "s": "abc", "l": [1, 2, 3], "m": {"a": 1}});
            let decl = Decl::any();
            let run = |limit| {
                let (result, cost) = program.eval(&[Some(Value::of_json(&data, &decl).unwrap())], limit);
                (result.map(|v| v.shown()), cost)
            };
            let (result, cost) = run(10_000);
            prop_assert_eq!(&run(10_000), &(result.clone(), cost));
            if result != Err(Error::Cost) {
                prop_assert!(cost <= 10_000);
                prop_assert_eq!(run(cost).0, result);
            }
        }
    }
}

/// Of what expressions are made.
const PARTS: &[&str] = &[
    "v",
    ".n",
    ".s",
    ".l",
    ".m",
    "[0]",
    "['a']",
    ".?x",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "?",
    "1",
    "-2",
    "3u",
    "1.5",
    "'a'",
    "b'b'",
    "true",
    "null",
    "+",
    "-",
    "*",
    "/",
    "%",
    "&&",
    "||",
    "!",
    "==",
    "!=",
    "<",
    ">=",
    "in",
    "x",
    "y",
    ".all(x, x > 0)",
    ".map(x, x + 1)",
    ".filter(x, x == 1)",
    ".exists_one(x, y, x == y)",
    ".size()",
    "size(",
    "has(v.n)",
    ".contains('a')",
    ".matches('a+')",
    ".split('')",
    ".join(',')",
    ".replace('a', 'b')",
    ".substring(1)",
    ".orValue(1)",
    ".optMap(x, x)",
    "optional.of(",
    "dyn(",
    "string(",
    "int(",
    "duration('1h')",
    "timestamp('2020-01-01T00:00:00Z')",
    "quantity('1k')",
    "ip('::1')",
    "cidr('10.0.0.0/8')",
    "url('http://a/b')",
    "semver('1.2.3')",
    "'%s %d'.format([1, 2])",
    "lists.range(3)",
    ".sort()",
    ".flatten()",
    ".distinct()",
    ".slice(0, 1)",
    ".sum()",
    ".max()",
    "sets.contains(v.l, [1])",
    ".transformMap(k, w, w)",
    ".sortBy(x, -x)",
    ".reverse()",
    ".first()",
    "type(",
    "//",
    "\n",
];
