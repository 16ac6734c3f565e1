//! Every rule at its edges; the texts are upstream's.

use super::*;
use crate::field::{Path, aggregate};
use expect_test::{Expect, expect};
use serde_json::json;

type Rule = fn(&str) -> Vec<String>;

fn check(rule: Rule, good: &[&str], bad: &[&str]) {
    for v in good {
        assert_eq!(rule(v), Vec::<String>::new(), "{v}");
    }
    for v in bad {
        assert!(!rule(v).is_empty(), "{v}");
    }
}

#[test]
fn accepts_and_rejects_names_by_shape() {
    let (l63, l64) = ("a".repeat(63), "a".repeat(64));
    let (s253, s254) = (format!("{}a", "a.".repeat(126)), format!("{}aa", "a.".repeat(126)));
    check(
        is_dns1123_label,
        &["a", "1", "a-b", "0--9", &l63],
        &["", "A", "-a", "a-", "a.b", "a_b", &l64, "é"],
    );
    check(is_dns1035_label, &["a", "a1", "a-1"], &["", "1", "1a", "-a", "a-", "A", &l64]);
    check(
        is_dns1123_subdomain,
        &["a", "a.b", "1.2-3", &s253],
        &["", ".", "a.", ".a", "a..b", "A", "a.-b", &s254],
    );
    check(is_dns1123_subdomain_with_underscore, &["_a.b_c", "a"], &["__a", "a_", "_", "A"]);
    check(is_dns1123_subdomain_caseless, &["A.b"], &["a_b", ""]);
    check(is_wildcard_dns1123_subdomain, &["*.a", "*.a.b"], &["*", "a.b", "*a.b", "*.*.a", "*."]);
    let key = format!("{s253}/{l63}");
    check(
        is_qualified_name,
        &["a", "A_b.c-1", "x.y/Z", &key],
        &["", "/a", "a/", "a/b/c", "X/a", "-a", "a b", &l64],
    );
    check(is_valid_label_value, &["", "a", "A_b.c-1", &l63], &["-", "a-", "a b", "a/b", &l64]);
    check(is_valid_port_name, &["a", "a-b", "1a"], &["", "1", "-a", "a-", "a--b", "A", "abcdefghijklmnop"]);
    check(is_cidentifier, &["a", "_", "A1"], &["", "1", "a-b"]);
    check(is_env_var_name, &["a", "A.b-c_1", ".a", "-"], &["", "1a", ".", "..", "..a", "a b"]);
    check(is_relaxed_env_var_name, &["1a", "a b", "a:b"], &["", "a=b", "é", "a\n"]);
    check(is_config_map_key, &["a", ".a", "A_b-1", &s253], &["", ".", "..", "..a", "a/b", &s254]);
    check(is_valid_percent, &["0%", "100%"], &["", "%", "1", "-1%", "1.5%"]);
    check(is_http_header_name, &["X-A"], &["", "X A", "X_A"]);
    check(is_http_path, &["/a", "a%20b", "(;"], &["", "a b", "a?b", "a#b"]);
    check(is_decimal_integer, &["0", "-1", "10"], &["", "-", "-0", "01", "+1", "1.0"]);
    check(is_domain_prefixed_path, &["acme.io/foo", "a/b/c"], &["", "a", "/a", "a/", "A/b", "a/b c"]);
    check(is_fully_qualified_name, &["a.b.c"], &["", "a.b", "a..b"]);
    assert!(is_valid_port_num(1).is_empty() && is_valid_port_num(65535).is_empty());
    assert_eq!(is_valid_port_num(0), ["must be between 1 and 65535, inclusive"]);
    assert_eq!(is_valid_user_id(-1), ["must be between 0 and 2147483647, inclusive"]);
}

#[test]
fn reports_upstreams_texts() {
    let rules: [(Rule, &str); 17] = [
        (is_dns1123_label, "A.b"),
        (is_dns1123_label, "a.b"),
        (is_dns1035_label, "1"),
        (is_dns1123_subdomain, "A"),
        (is_wildcard_dns1123_subdomain, "a"),
        (is_qualified_name, "a/b/c"),
        (is_qualified_name, "/"),
        (is_qualified_name, "X/y"),
        (is_valid_label_value, "-"),
        (is_cidentifier, "1"),
        (is_env_var_name, ".."),
        (is_relaxed_env_var_name, ""),
        (is_config_map_key, "."),
        (is_http_path, ""),
        (is_valid_percent, ""),
        (is_http_header_name, ""),
        (is_valid_port_name, ""),
    ];
    let text: Vec<String> = rules.iter().flat_map(|(rule, v)| rule(v)).collect();
    expect![[r#"
        a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
        must not contain dots
        a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')
        a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')
        prefix part must be non-empty
        name part must be non-empty
        name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
        a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
        a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')
        must not be '..'
        environment variable name must be non-empty
        must not be '.'
        Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')
        a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')
        a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')
        must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)
        must contain at least one letter (a-z)"#]].assert_eq(&text.join("\n"));
    let long = [is_dns1123_label(&"a".repeat(64)), is_valid_label_value(&"a".repeat(64))].concat();
    assert_eq!(long, ["must be no more than 63 characters", "must be no more than 63 bytes"]);
}

#[test]
fn allows_prefixes_that_end_in_a_hyphen() {
    assert!(name_is_dns_subdomain("web-", true).is_empty());
    assert!(!name_is_dns_subdomain("web-", false).is_empty());
    assert!(!name_is_dns_label("-", true).is_empty());
    assert!(name_is_dns_label("a--", true).is_empty());
    assert!(name_is_dns1035_label("a-", true).is_empty());
    assert_eq!(path_segment_name("..", false), ["may not be '..'"]);
    assert!(path_segment_name("..", true).is_empty());
    assert_eq!(path_segment_name("a/b%", false), ["may not contain '/'", "may not contain '%'"]);
}

#[test]
fn accepts_and_rejects_addresses() {
    check(
        is_valid_ip,
        &["1.2.3.4", "::", "fe80::1", "2001:db8::ffff"],
        &["", "1.2.3", "1.2.3.256", "1.2.3.4.5", "g::"],
    );
    check(
        is_valid_cidr,
        &["10.0.0.0/8", "::/0", "0.0.0.0/0", "1.2.3.4/32", "fe80::/64"],
        &["10.0.0.0", "10.0.0.0/33", "::/129"],
    );
    let ips = ["x", "010.0.0.1", "::ffff:1.2.3.4", "FE80::1", "fe80:0:0::1", "::ffff:01.2.3.4"];
    let cidrs =
        ["x", "10.0.0.0/08", "010.0.0.0/8", "::ffff:1.2.3.0/120", "10.0.0.1/8", "FE80::/64", "::1/64"];
    let text: Vec<String> =
        ips.iter().flat_map(|v| is_valid_ip(v)).chain(cidrs.iter().flat_map(|v| is_valid_cidr(v))).collect();
    expect![[r#"
        must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)
        must not have leading 0s
        must not be an IPv4-mapped IPv6 address
        must be in canonical form ("fe80::1")
        must be in canonical form ("fe80::1")
        must not have leading 0s
        must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)
        must not have leading 0s in IP or prefix length
        must not have leading 0s in IP or prefix length
        must not have an IPv4-mapped IPv6 address
        must not have bits set beyond the prefix length
        must be in canonical form ("fe80::/64")
        must not have bits set beyond the prefix length"#]]
    .assert_eq(&text.join("\n"));
    let p = Path::new("ip");
    assert!(validate_ip_legacy(&p, "010.0.0.1", false, &[]).is_empty());
    assert!(validate_ip_legacy(&p, "FE80::1", true, &[]).is_empty());
    assert!(validate_ip_legacy(&p, "bad", true, &["bad"]).is_empty());
    assert!(validate_cidr_legacy(&p, "10.0.0.1/08", false, &[]).is_empty());
    assert!(validate_interface_address(&p, "10.0.0.1/8").is_empty());
    assert_eq!(
        aggregate(&validate_interface_address(&p, "::ffff:1.2.3.4/120")),
        r#"ip: Invalid value: "::ffff:1.2.3.4/120": must be in canonical form ("1.2.3.4/24")"#
    );
}

fn expect_errors(errors: &[crate::field::Error], want: &Expect) {
    want.assert_eq(&errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn rejects_invalid_labels_and_annotations() {
    let p = Path::new("metadata");
    let mut errors = validate_labels(&json!({"a b": "ok", "ok": "a b"}), &p.child("labels"));
    errors.extend(validate_annotations(&json!({"Example.com/A": "x", "_": "y"}), &p.child("annotations")));
    errors.extend(validate_annotations(&json!({"a": "x".repeat(256 * 1024)}), &p.child("annotations")));
    errors.extend(validate_labels(&json!(null), &p));
    expect_errors(
        &errors,
        &expect![[r#"
        metadata.labels: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        metadata.labels: Invalid value: "a b": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
        metadata.annotations: Invalid value: "_": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
        metadata.annotations: Too long: may not be more than 262144 bytes"#]],
    );
    assert!(validate_annotations(&json!({"a": "x".repeat(256 * 1024 - 1)}), &p).is_empty());
}

#[test]
fn rejects_invalid_label_selectors() {
    let selector = json!({
        "matchLabels": {"a": "-"},
        "matchExpressions": [
            {"key": "a", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["x"]},
            {"key": "", "operator": "Like"}, {"key": "a", "operator": "NotIn", "values": ["ok", "a b"]}
        ]
    });
    expect_errors(
        &validate_label_selector(&selector, &Path::new("spec").child("selector")),
        &expect![[r#"
            spec.selector.matchLabels: Invalid value: "-": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
            spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'
            spec.selector.matchExpressions[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'
            spec.selector.matchExpressions[2].operator: Invalid value: "Like": not a valid selector operator
            spec.selector.matchExpressions[2].key: Invalid value: "": name part must be non-empty
            spec.selector.matchExpressions[2].key: Invalid value: "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            spec.selector.matchExpressions[3].values[1]: Invalid value: "a b": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"#]],
    );
    assert!(label_selector_has_invalid_label_value(&selector));
    assert!(validate_label_selector(&json!(null), &Path::new("s")).is_empty());
    let lenient = LabelSelectorOptions { allow_invalid_label_value: true, allow_unknown_operator: true };
    assert_eq!(validate_label_selector_with(&selector, lenient, &Path::new("s")).len(), 5);
}

#[test]
fn rejects_invalid_conditions() {
    let conditions = json!([
        {"type": "Ready", "status": "True", "lastTransitionTime": "2024-01-01T00:00:00Z", "reason": "Ok_1:a"},
        {"type": "Ready", "status": "Maybe", "observedGeneration": -1, "reason": "1"},
        {"type": "X", "status": "False", "lastTransitionTime": "2024-01-01T00:00:00Z"}
    ]);
    expect_errors(
        &validate_conditions(&conditions, &Path::new("status").child("conditions")),
        &expect![[r#"
            status.conditions[1].type: Duplicate value: "Ready"
            status.conditions[1].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown"
            status.conditions[1].observedGeneration: Invalid value: -1: must be greater than or equal to zero
            status.conditions[1].lastTransitionTime: Required value
            status.conditions[1].reason: Invalid value: "1": a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')
            status.conditions[2].reason: Required value"#]],
    );
}
