//! The language itself.

use crate::{Decl, Env, Value};
use expect_test::expect;
use serde_json::json;

pub(super) fn shown(text: &str) -> String {
    let decl = Decl::any();
    let data = json!({"n": 3, "s": "abc", "l": [1, 2, 3], "m": {"a": 1, "b": null}, "d": 1.5});
    let program = match Env::new().variable("v", decl.clone()).compile(text) {
        Ok(program) => program,
        Err(issues) => return issues.to_string(),
    };
    let value = Value::of_json(&data, &decl).unwrap();
    let (result, cost) = program.eval(&[Some(value)], 1_000_000);
    match result {
        Ok(value) => format!("{} ({cost})", show(&value)),
        Err(e) => format!("error: {e} ({cost})"),
    }
}

fn show(value: &Value<'_>) -> String {
    match value {
        Value::String(s) => format!("{:?}", &**s),
        Value::List(list) => {
            let parts: Vec<String> = list.iter().map(|e| show(&e.unwrap())).collect();
            format!("[{}]", parts.join(", "))
        }
        Value::Map(map) => {
            let parts: Vec<String> = map
                .keys()
                .iter()
                .map(|k| format!("{}: {}", show(k), map.get(k).unwrap().map_or("none".into(), |v| show(&v))))
                .collect();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Optional(Some(v)) => format!("some({})", show(v)),
        Value::Optional(None) => "none".into(),
        Value::Timestamp(t) => t.to_string(),
        Value::Duration(d) => format!("{d}ns"),
        Value::Type(t) => t.name().into(),
        Value::Null => "null".into(),
        Value::Bytes(b) => format!("{b:?}"),
        Value::Uint(u) => format!("{u}u"),
        other => match crate::functions::convert::text(other) {
            Ok(Some(text)) => text,
            _ => format!("{other:?}"),
        },
    }
}

pub(super) fn table(expressions: &[&str]) -> String {
    expressions.iter().map(|e| format!("{e}\n    {}\n", shown(e).replace('\n', "\n    "))).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn evaluates_operators() {
    expect![[r#"
        1 + 2 * 3 - 4 / 2 % 3
            5 (5)
        -(1) + -2
            -3 (2)
        !true || !!true
            true (1)
        9223372036854775807 + 1
            error: integer overflow (1)
        1 / 0
            error: division by zero (1)
        1 % 0
            error: modulus by zero (1)
        1u - 2u
            error: unsigned integer overflow (1)
        'a' + "b" + r'\d' + '\u00e9\x41\101'
            "ab\\déAA" (3)
        b'a' + b'\xff'
            [97, 255] (1)
        1 < 2.5 && 3u > 2 && 1 == 1
            true (3)
        dyn(1) == 1.0 && dyn(1u) == 1 && dyn('1') != 1
            true (3)
        [1, 2] + [3]
            [1, 2, 3] (1)
        1 in [1, 2] && !('z' in {'a': 1})
            true (2)
        {'a': 1, 'b': 2}['b']
            2 (2)
        {'a': 1}['z']
            error: no such key: z (2)
        [1][5]
            error: index out of bounds: 5 (2)
        true ? 'yes' : 'no'
            "yes" (0)
        1 > 0 || 1 / 0 > 0
            true (1)
        1 / 0 > 0 || true
            true (2)
        1 / 0 > 0 && true
            error: division by zero (2)
        v.n == 3 && v.s == 'abc' && v.l[1] == 2 && v.d > 1
            true (13)
        has(v.n) && !has(v.x)
            true (3)
        v.m.b == null
            true (4)
        v.x.y
            error: no such key: x (2)
        type(1) == int && type(v.s) == string && type([]) == list && type(type(1)) == type
            true (7)
        size('héllo') + size([1]) + {'a': 1}.size()
            7 (5)
    "#]]
    .assert_eq(&table(&[
        "1 + 2 * 3 - 4 / 2 % 3",
        "-(1) + -2",
        "!true || !!true",
        "9223372036854775807 + 1",
        "1 / 0",
        "1 % 0",
        "1u - 2u",
        "'a' + \"b\" + r'\\d' + '\\u00e9\\x41\\101'",
        "b'a' + b'\\xff'",
        "1 < 2.5 && 3u > 2 && 1 == 1",
        "dyn(1) == 1.0 && dyn(1u) == 1 && dyn('1') != 1",
        "[1, 2] + [3]",
        "1 in [1, 2] && !('z' in {'a': 1})",
        "{'a': 1, 'b': 2}['b']",
        "{'a': 1}['z']",
        "[1][5]",
        "true ? 'yes' : 'no'",
        "1 > 0 || 1 / 0 > 0",
        "1 / 0 > 0 || true",
        "1 / 0 > 0 && true",
        "v.n == 3 && v.s == 'abc' && v.l[1] == 2 && v.d > 1",
        "has(v.n) && !has(v.x)",
        "v.m.b == null",
        "v.x.y",
        "type(1) == int && type(v.s) == string && type([]) == list && type(type(1)) == type",
        "size('héllo') + size([1]) + {'a': 1}.size()",
    ]));
}

#[test]
fn evaluates_comprehensions() {
    expect![[r#"
        [1, 2, 3].all(x, x > 0)
            true (16)
        [1, 2, 3].exists(x, x > 2)
            true (19)
        [1, 2, 3].exists_one(x, x > 2)
            true (10)
        [1, 2, 3].map(x, x * 2)
            [2, 4, 6] (43)
        [1, 2, 3].map(x, x > 1, x * 2)
            [4, 6] (35)
        [1, 2, 3].filter(x, x % 2 == 1)
            [1, 3] (36)
        {'a': 1, 'b': 2}.map(k, k)
            ["a", "b"] (27)
        [0, 1].all(x, 1 / x > 0)
            error: division by zero (13)
        [0, 1].exists(x, 1 / x > 0)
            true (15)
        [3, 4].all(i, x, i < x)
            true (13)
        ['a', 'b'].transformList(i, x, string(i) + x)
            ["0a", "1b"] (33)
        ['a', 'b'].transformMap(i, x, x + '!')
            {0: "a!", 1: "b!"} (11)
        {'a': 'x'}.transformMapEntry(k, x, {x: k})
            {"x": "a"} (35)
        {'a': 'x', 'b': 'x'}.transformMapEntry(k, x, {x: k})
            error: insert failed: key x already exists (69)
        v.l.map(x, v.l.map(y, x * y))
            [[1, 2, 3], [2, 4, 6], [3, 6, 9]] (183)
        [3, 1, 2].sortBy(x, -x)
            [3, 2, 1] (74)
    "#]]
    .assert_eq(&table(&[
        "[1, 2, 3].all(x, x > 0)",
        "[1, 2, 3].exists(x, x > 2)",
        "[1, 2, 3].exists_one(x, x > 2)",
        "[1, 2, 3].map(x, x * 2)",
        "[1, 2, 3].map(x, x > 1, x * 2)",
        "[1, 2, 3].filter(x, x % 2 == 1)",
        "{'a': 1, 'b': 2}.map(k, k)",
        "[0, 1].all(x, 1 / x > 0)",
        "[0, 1].exists(x, 1 / x > 0)",
        "[3, 4].all(i, x, i < x)",
        "['a', 'b'].transformList(i, x, string(i) + x)",
        "['a', 'b'].transformMap(i, x, x + '!')",
        "{'a': 'x'}.transformMapEntry(k, x, {x: k})",
        "{'a': 'x', 'b': 'x'}.transformMapEntry(k, x, {x: k})",
        "v.l.map(x, v.l.map(y, x * y))",
        "[3, 1, 2].sortBy(x, -x)",
    ]));
}

#[test]
fn evaluates_optionals() {
    expect![[r#"
        v.?n.orValue(0)
            3 (2)
        v.?x.orValue(0)
            0 (1)
        v.?x.y.z.hasValue()
            false (2)
        optional.of(1).or(optional.none()).value()
            1 (2)
        optional.none().value()
            error: optional.none() dereference (2)
        v.?n.optMap(n, n + 1)
            some(4) (9)
        v.?x.optMap(n, n + 1)
            none (3)
        v.?m.optFlatMap(m, m.?a)
            some(1) (8)
        v.l[?7].hasValue()
            false (3)
        [?v.?n, ?v.?x]
            [3] (13)
        {?'a': v.?n, ?'b': v.?x}
            {"a": 3} (33)
        [1, 2].last().value() + [1, 2].first().value()
            3 (5)
        [optional.of(1), optional.none()].unwrapOpt()
            [1] (13)
    "#]]
    .assert_eq(&table(&[
        "v.?n.orValue(0)",
        "v.?x.orValue(0)",
        "v.?x.y.z.hasValue()",
        "optional.of(1).or(optional.none()).value()",
        "optional.none().value()",
        "v.?n.optMap(n, n + 1)",
        "v.?x.optMap(n, n + 1)",
        "v.?m.optFlatMap(m, m.?a)",
        "v.l[?7].hasValue()",
        "[?v.?n, ?v.?x]",
        "{?'a': v.?n, ?'b': v.?x}",
        "[1, 2].last().value() + [1, 2].first().value()",
        "[optional.of(1), optional.none()].unwrapOpt()",
    ]));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn rejects_invalid_expressions() {
    expect![[r#"

            ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
        1 +
            ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
             | 1 +
             | ...^
        1 + + 2
            ERROR: <input>:1:5: Syntax error: extraneous input '+' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
             | 1 + + 2
             | ....^
        foo
            ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')
             | foo
             | ^
        v.n ==
            ERROR: <input>:1:7: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
             | v.n ==
             | ......^
        'abc
            ERROR: <input>:1:1: Syntax error: token recognition error at: ''abc'
             | 'abc
             | ^
            ERROR: <input>:1:5: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
             | 'abc
             | ....^
        (1
            ERROR: <input>:1:3: Syntax error: missing ')' at '<EOF>'
             | (1
             | ..^
        [1, 2
            ERROR: <input>:1:6: Syntax error: missing ']' at '<EOF>'
             | [1, 2
             | .....^
        1 2
            ERROR: <input>:1:3: Syntax error: extraneous input '2' expecting <EOF>
             | 1 2
             | ..^
        1 2 3
            ERROR: <input>:1:3: Syntax error: mismatched input '2' expecting <EOF>
             | 1 2 3
             | ..^
        a.b.c
            ERROR: <input>:1:1: undeclared reference to 'a' (in container '')
             | a.b.c
             | ^
        1 + 'a'
            ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'
             | 1 + 'a'
             | ..^
        1 == 'a'
            ERROR: <input>:1:3: found no matching overload for '_==_' applied to '(int, string)'
             | 1 == 'a'
             | ..^
        size(1)
            ERROR: <input>:1:5: found no matching overload for 'size' applied to '(int)'
             | size(1)
             | ....^
        'a'.nope()
            ERROR: <input>:1:9: undeclared reference to 'nope' (in container '')
             | 'a'.nope()
             | ........^
        nope(1)
            ERROR: <input>:1:5: undeclared reference to 'nope' (in container '')
             | nope(1)
             | ....^
        'a'.startsWith(1)
            ERROR: <input>:1:15: found no matching overload for 'startsWith' applied to 'string.(int)'
             | 'a'.startsWith(1)
             | ..............^
        [1, 'a']
            ERROR: <input>:1:5: expected type 'int' but found 'string'
             | [1, 'a']
             | ....^
        {'a': 1, 'b': 'c'}
            ERROR: <input>:1:15: expected type 'int' but found 'string'
             | {'a': 1, 'b': 'c'}
             | ..............^
        !1
            ERROR: <input>:1:1: found no matching overload for '!_' applied to '(int)'
             | !1
             | ^
        1 && true
            ERROR: <input>:1:1: expected type 'bool' but found 'int'
             | 1 && true
             | ^
        1 ? 2 : 3
            ERROR: <input>:1:3: found no matching overload for '_?_:_' applied to '(int, int, int)'
             | 1 ? 2 : 3
             | ..^
        5.all(x, x)
            ERROR: <input>:1:1: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)
             | 5.all(x, x)
             | ^
        [1].all(x.y, true)
            ERROR: <input>:1:10: argument must be a simple name
             | [1].all(x.y, true)
             | .........^
        [1].map(1, 2)
            ERROR: <input>:1:9: argument is not an identifier
             | [1].map(1, 2)
             | ........^
        has(v)
            ERROR: <input>:1:5: invalid argument to has() macro
             | has(v)
             | ....^
        for
            ERROR: <input>:1:1: reserved identifier: for
             | for
             | ^
        99999999999999999999
            ERROR: <input>:1:1: invalid int literal
             | 99999999999999999999
             | ^
        é
            ERROR: <input>:1:1: Syntax error: token recognition error at: 'é'
             | é
             | ＾
            ERROR: <input>:1:2: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
             | é
             | ．^
        'é' + 1
            ERROR: <input>:1:5: found no matching overload for '_+_' applied to '(string, int)'
             | 'é' + 1
             | .．..^
        v.f{a: 1}
            ERROR: <input>:1:4: undeclared reference to 'v.f' (in container '')
             | v.f{a: 1}
             | ...^
        'a'.b
            ERROR: <input>:1:4: type 'string' does not support field selection
             | 'a'.b
             | ...^
        1 +
          foo
            ERROR: <input>:2:3: undeclared reference to 'foo' (in container '')
             |   foo
             | ..^
    "#]].assert_eq(&table(&[
        "",
        "1 +",
        "1 + + 2",
        "foo",
        "v.n ==",
        "'abc",
        "(1",
        "[1, 2",
        "1 2",
        "1 2 3",
        "a.b.c",
        "1 + 'a'",
        "1 == 'a'",
        "size(1)",
        "'a'.nope()",
        "nope(1)",
        "'a'.startsWith(1)",
        "[1, 'a']",
        "{'a': 1, 'b': 'c'}",
        "!1",
        "1 && true",
        "1 ? 2 : 3",
        "5.all(x, x)",
        "[1].all(x.y, true)",
        "[1].map(1, 2)",
        "has(v)",
        "for",
        "99999999999999999999",
        "é",
        "'é' + 1",
        "v.f{a: 1}",
        "'a'.b",
        "1 +\n  foo",
    ]));
}

#[test]
fn nesting_is_bounded() {
    for (text, count) in
        [("(", 99_000), ("[", 5_000), ("1+", 40_000), ("a.", 40_000), ("-(", 40_000), ("{1:", 300)]
    {
        let text = text.repeat(count) + "1";
        assert!(Env::new().compile(&text).is_err(), "{}", &text[..10]);
    }
    for (text, end) in [("(", ")"), ("!", ""), ("[", "]"), ("-", ""), ("size([", "])")] {
        let count = if text.len() > 1 { 100 } else { 240 };
        let text = text.repeat(count) + "true" + &end.repeat(count);
        drop(Env::new().compile(&text).map(|p| p.eval(&[], 1_000_000).0));
    }
}

#[test]
fn long_chains_are_shallow() {
    let text = "true && ".repeat(10_000) + "true";
    let program = Env::new().compile(&text).unwrap();
    assert!(matches!(program.eval(&[], 1_000_000).0, Ok(Value::Bool(true))));
}

#[test]
fn macros_nest() {
    let deep = (0..40).fold("1".to_owned(), |e, i| format!("[1].map(x{i}, {e})"));
    let program = Env::new().compile(&deep).unwrap();
    assert!(program.eval(&[], 1_000_000).0.is_ok());
}

#[test]
fn copies_are_bounded() {
    let copies = "optional.of(1)".to_owned() + &".optMap(x, x)".repeat(100);
    assert!(Env::new().compile(&copies).is_err());
}
