//! Tests of selectors: upstream's cases, with the costs that it estimates.

use super::*;

fn cost(text: &str) -> u64 {
    compile(text).unwrap_or_else(|e| panic!("{text}: {e}")).max_cost()
}

#[test]
fn estimates_the_costs_of_upstream() {
    for (text, expected) in [
        ("true", 0),
        (r#"device.attributes["no-such-domain"].noSuchAttr.isGreaterThan(quantity("0"))"#, 6),
        (r#"device.attributes["no-such-domain"]["noSuchAttr"].isGreaterThan(quantity("0"))"#, 6),
        (r#""dra.example.com" in device.attributes"#, 3),
        (r#"device.driver == """#, 2),
        (r#"device.driver == "dra.example.com""#, 4),
        (r#"device.attributes["dra.example.com"].name"#, 4),
        (r#"device.attributes["dra.example.com"]["name"]"#, 4),
        (r#"cel.bind(dra, device.attributes["dra.example.com"], dra.name)"#, 15),
        (r#"device.attributes["dra.example.com"].name > 0"#, 5),
        (r#"device.attributes["dra.example.com"].name == "fish""#, 5),
        (r#"device.attributes["dra.example.com"].name.isGreaterThan(semver("0.0.1"))"#, 6),
        (
            r#"device.attributes["dra.example.com"].name.isGreaterThan(semver("v0.0.1", true)) && isSemver("v1.0.0", true)"#,
            7,
        ),
        (r#"device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#, 6),
        (
            r#""name" in device.capacity["dra.example.com"] && device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
            10,
        ),
        (
            r#"!("name" in device.capacity["dra.example.com"]) || device.capacity["dra.example.com"].name.isGreaterThan(quantity("1Ki"))"#,
            11,
        ),
        (
            r#"device.attributes["dra.example.com"].a && device.attributes["dra.example.com"].b && device.attributes["dra.example.com"].c"#,
            12,
        ),
        (r#"device.attributes.exists_one(x, x == "dra.example.com")"#, 164),
        (r#"device.attributes["dra.example.com"].exists_one(x, x == "services")"#, 133),
        (r#"device.attributes["dra.example.com"].services.split("example").size() >= 2"#, 19),
        (r#"device.attributes["dra.example.com"].services.matches("[^a]?sym")"#, 18),
        (r#"device.capacity.exists_one(x, x == "dra.example.com")"#, 164),
        (r#"device.capacity["dra.example.com"].exists_one(x, x == "memory")"#, 133),
        ("device.allowMultipleAllocations == true", 3),
    ] {
        assert_eq!(cost(text), expected, "{text}");
    }
}

#[test]
fn estimates_nested_loops_beyond_the_limit() {
    let list = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    let mut text = "int('1'.find('[0-9]*')) < 100".to_owned();
    for name in ["z5", "z4", "z3", "z2", "z", "y", "x"] {
        text = format!("{list}.all({name}, {text})");
    }
    assert_eq!(cost(&text), 85_555_551);
}

#[test]
fn refuses_with_the_texts_of_upstream() {
    let refused = |text: &str| compile(text).unwrap_err().to_string();
    assert_eq!(refused("1"), "must evaluate to bool or the unknown type, not int");
    assert!(refused("?!").starts_with("compilation failed: ERROR: <input>:1:1: Syntax error"));
    let includes = refused(r#"device.attributes["dra.example.com"].name.includes("fish")"#);
    assert!(includes.contains("undeclared reference to 'includes'"), "{includes}");
    assert!(refused("device.nope").contains("undefined field 'nope'"));
}

#[test]
fn evaluates_selectors_of_devices() {
    let memory = Quantity::parse("40Gi").unwrap();
    let device = DeviceValue::new(
        "dra.example.com",
        true,
        [
            ("model", Attribute::String("a100")),
            ("other.example.com/numa", Attribute::Int(1)),
            ("healthy", Attribute::Bool(true)),
            ("version", Attribute::Version("1.2.3")),
        ],
        [("memory", &memory)],
    )
    .unwrap();
    let shown = |text: &str| match device.matches(&compile(text).unwrap()) {
        Ok(result) => result.to_string(),
        Err(error) => error.to_string(),
    };
    for text in [
        r#"device.driver == "dra.example.com""#,
        r#"device.attributes["dra.example.com"].model == "a100""#,
        r#"device.attributes["other.example.com"].numa == 1"#,
        r#"device.attributes["dra.example.com"].healthy"#,
        r#"device.attributes["dra.example.com"].version.isGreaterThan(semver("1.0.0"))"#,
        r#"device.capacity["dra.example.com"].memory.isGreaterThan(quantity("20Gi"))"#,
        r#"cel.bind(dra, device.attributes["dra.example.com"], dra.model == "a100" && !("serial" in dra))"#,
        r#"!("unknown" in device.attributes)"#,
        r#"!("name" in device.attributes["unknown"])"#,
        "device.allowMultipleAllocations",
    ] {
        assert_eq!(shown(text), "true", "{text}");
    }
    assert_eq!(shown(r#"device.attributes["unknown"].name == 1"#), "no such key: name");
    assert_eq!(
        shown(r#"device.attributes["dra.example.com"].model"#),
        "CEL result of type string could not be converted to bool: type conversion error from 'string' to 'bool'"
    );
}
