//! Parsing, printing and matching; the error texts are upstream's.

use super::*;
use expect_test::expect;
use proptest::prelude::*;
use serde_json::json;

fn parse(s: &str) -> Selector {
    Selector::parse(s).unwrap()
}

#[test]
fn prints_normalised() {
    for (input, want) in [
        ("x=a,y=b,z=c", "x=a,y=b,z=c"),
        ("", ""),
        ("x= ,z= ", "x=,z="),
        ("!x", "!x"),
        ("x>1,z<5", "x>1,z<5"),
        ("z,a", "a,z"),
        ("x in (foo,,baz),y,z notin ()", "x in (,baz,foo),y,z notin ()"),
        ("x==a", "x==a"),
        ("x\tin\n( b , a )", "x in (a,b)"),
        ("notin=in", "notin=in"),
        ("x in (,)", "x in ()"),
        ("x in (a,)", "x in (,a)"),
        ("x in (in,notin)", "x in (in,notin)"),
        ("in in (in)", "in in (in)"),
        (" , ", ""),
        ("example.com/x!=1", "example.com/x!=1"),
    ] {
        match Selector::parse(input) {
            Ok(s) => assert_eq!(s.to_string(), want, "{input}"),
            Err(e) => assert_eq!(
                (input, e.as_str()),
                (" , ", "found ',', expected: !, identifier, or 'end of string'")
            ),
        }
    }
}

#[test]
fn rejects_invalid_selectors() {
    let bad = [
        "x=a||y=b",
        "x==a==b",
        "!x=a",
        "x<a",
        "x,",
        ",x",
        "x in",
        "x in a",
        "x in (a",
        "x in (a b)",
        "x in (a,",
        "x in (=)",
        "x y",
        "x !",
        "!",
        "!!x",
        "=",
        "x=(",
        "x@y",
        "a/b/c=d",
        "x=@",
        "x in (@,_)",
        "x>a",
        "x>1.5",
        "x=,)",
        "x~y",
        "(",
    ];
    let text: Vec<String> =
        bad.iter().map(|s| format!("{s:10} {}", Selector::parse(s).unwrap_err())).collect();
    expect![[r#"
        x=a||y=b   unable to parse requirement: values[0][x]: Invalid value: "a||y": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
        x==a==b    found '==', expected: ',' or 'end of string'
        !x=a       found '=', expected: ',' or 'end of string'
        x<a        unable to parse requirement: values[0]: Invalid value: "a": for 'Gt', 'Lt' operators, the value must be an integer
        x,         found '', expected: identifier after ','
        ,x         found ',', expected: !, identifier, or 'end of string'
        x in       unable to parse requirement: found '' expected: '('
        x in a     unable to parse requirement: found 'a' expected: '('
        x in (a    unable to parse requirement: found '', expected: ',' or ')'
        x in (a b) unable to parse requirement: found 'b', expected: ',' or ')'
        x in (a,   unable to parse requirement: found '', expected: ',', or identifier
        x in (=)   unable to parse requirement: found '=', expected: ',', ')' or identifier
        x y        unable to parse requirement: found 'y', expected: in, notin, =, ==, !=, gt, lt
        x !        unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt
        !          unable to parse requirement: found '', expected: identifier
        !!x        unable to parse requirement: found '!', expected: identifier
        =          found '=', expected: !, identifier, or 'end of string'
        x=(        unable to parse requirement: found '(', expected: identifier
        x@y        unable to parse requirement: <nil>: Invalid value: "x@y": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        a/b/c=d    unable to parse requirement: <nil>: Invalid value: "a/b/c": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')
        x=@        unable to parse requirement: values[0][x]: Invalid value: "@": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
        x in (@,_) unable to parse requirement: [values[0][x]: Invalid value: "@": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?'), values[1][x]: Invalid value: "_": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')]
        x>a        unable to parse requirement: values[0]: Invalid value: "a": for 'Gt', 'Lt' operators, the value must be an integer
        x>1.5      unable to parse requirement: values[0]: Invalid value: "1.5": for 'Gt', 'Lt' operators, the value must be an integer
        x=,)       found ')', expected: identifier after ','
        x~y        unable to parse requirement: <nil>: Invalid value: "x~y": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        (          found '(', expected: !, identifier, or 'end of string'"#]].assert_eq(&text.join("\n"));
}

#[test]
fn matches_labels() {
    let labels = json!({"foo": "bar", "n": "2", "empty": ""});
    for yes in [
        "",
        "foo=bar",
        "foo==bar,n",
        "foo in (x,bar)",
        "foo notin (x)",
        "none notin (x)",
        "none!=x",
        "!none",
        "empty",
        "empty=",
        "n>1,n<3",
        "foo!=x",
    ] {
        assert!(parse(yes).matches_value(&labels), "{yes}");
    }
    for no in [
        "foo=x",
        "none",
        "!foo",
        "none=",
        "none in (x)",
        "foo notin (bar)",
        "foo!=bar",
        "n>2",
        "n<2",
        "foo>1",
        "none<9",
    ] {
        assert!(!parse(no).matches_value(&labels), "{no}");
    }
    assert!(!Selector::nothing().matches_value(&labels));
    assert!(Selector::everything().matches_value(&Value::Null));
    assert!(parse("!a").matches_object(&json!({"metadata": {}})));
    assert!(parse("a=b").matches_object(&json!({"metadata": {"labels": {"a": "b"}}})));
}

#[test]
fn reads_label_selector_objects() {
    let of = |v: Value| Selector::from_label_selector(&v);
    assert_eq!(of(Value::Null), Ok(Selector::nothing()));
    assert_eq!(of(json!({})), Ok(Selector::everything()));
    let selector = json!({
        "matchLabels": {"b": "1"},
        "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "c", "operator": "DoesNotExist"},
            {"key": "d", "operator": "Exists"}, {"key": "e", "operator": "NotIn", "values": ["z"]}
        ]
    });
    let selector = of(selector).unwrap();
    assert_eq!(selector.to_string(), "a in (x,y),b=1,!c,d,e notin (z)");
    assert_eq!((selector.requires_exact("b"), selector.requires_exact("a")), (Some("1"), None));
    let errors = [
        of(json!({"matchExpressions": [{"key": "a", "operator": "Like"}]})).unwrap_err(),
        of(json!({"matchExpressions": [{"key": "a", "operator": "In"}]})).unwrap_err(),
        of(json!({"matchExpressions": [{"key": "", "operator": "Exists", "values": ["x"]}]})).unwrap_err(),
    ];
    expect![[r#"
        "Like" is not a valid label selector operator
        values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty
        [key: Invalid value: "": name part must be non-empty; name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'), values: Invalid value: ["x"]: values set must be empty for exists and does not exist]"#]].assert_eq(&errors.join("\n"));
    assert_eq!(Selector::from_map([("b", "2"), ("a", "1")]).to_string(), "a=1,b=2");
    assert!(Selector::from_map([]).is_everything());
}

fn requirement() -> impl Strategy<Value = Requirement> {
    use Operator as O;
    let value = || "([a-c]([-a-c._]{0,3}[a-c0-9])?)?";
    let set = || prop::collection::btree_set(value(), 1..4).prop_map(|s| s.into_iter().collect::<Vec<_>>());
    let one = || value().prop_map(|v| vec![v]);
    let number = || any::<i64>().prop_map(|n| vec![n.unsigned_abs().min(i64::MAX as u64).to_string()]);
    let shape = prop_oneof![
        one().prop_map(|v| (O::Equals, v)),
        one().prop_map(|v| (O::DoubleEquals, v)),
        one().prop_map(|v| (O::NotEquals, v)),
        set().prop_map(|v| (O::In, v)),
        set().prop_map(|v| (O::NotIn, v)),
        number().prop_map(|v| (O::GreaterThan, v)),
        number().prop_map(|v| (O::LessThan, v)),
        Just((O::Exists, vec![])),
        Just((O::DoesNotExist, vec![])),
    ];
    ("(x\\.y/)?(in|notin|[a-c]{1,2})", shape)
        .prop_map(|(key, (op, values))| Requirement::new(&key, op, values).unwrap())
}

proptest! {
    #[test]
    fn parses_what_it_prints(requirements in prop::collection::vec(requirement(), 0..5)) {
        // A key that is a keyword only parses in front of nothing that makes it an operator; keys never do.
        let selector = Selector::new(requirements);
        prop_assert_eq!(parse(&selector.to_string()), selector);
    }

    #[test]
    fn matches_when_each_requirement_matches(requirements in prop::collection::vec(requirement(), 0..4), labels in prop::collection::btree_map("[a-c]{1,2}", "[a-c0-9]{0,2}", 0..5)) {
        let get = |key: &str| labels.get(key).map(String::as_str);
        let each = requirements.iter().all(|r| r.matches(get(r.key())));
        prop_assert_eq!(Selector::new(requirements).matches(get), each);
    }

    #[test]
    fn opposite_operators_match_opposite_labels(r in requirement(), value in prop::option::of("[a-c0-9]{0,2}")) {
        use Operator as O;
        let flipped = match r.operator() {
            O::Equals | O::DoubleEquals => O::NotEquals,
            O::NotEquals => O::Equals,
            O::In => O::NotIn,
            O::NotIn => O::In,
            O::Exists => O::DoesNotExist,
            O::DoesNotExist => O::Exists,
            O::GreaterThan | O::LessThan => return Ok(()),
        };
        let other = Requirement::new(r.key(), flipped, r.values().to_vec()).unwrap();
        prop_assert_ne!(r.matches(value.as_deref()), other.matches(value.as_deref()));
    }

    #[test]
    fn never_panics(s in "[a-c=!<>(), \t\u{0}é]{0,16}") {
        let _ = Selector::parse(&s);
    }
}
