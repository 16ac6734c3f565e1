//! Files that are good, and what is wrong with others.

use super::*;
use serde_json::{Value, json};

fn check(change: impl Fn(&mut Value)) -> String {
    let mut file = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": "https://i", "audiences": ["a"]},
            "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
        }],
    });
    change(&mut file);
    match serde_json::from_value::<AuthenticationConfiguration>(file) {
        Ok(file) => file.validate(&["https://own".into()]).err().map(|e| e.0).unwrap_or_default(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn accepts_valid_and_rejects_invalid_files() {
    assert_eq!(check(|_| {}), "");
    let issuer =
        |key: &'static str, value: Value| move |f: &mut Value| f["jwt"][0]["issuer"][key] = value.clone();
    let mapping = |key: &'static str, value: Value| {
        move |f: &mut Value| f["jwt"][0]["claimMappings"][key] = value.clone()
    };
    let texts = [
        check(issuer("url", json!("http://i"))),
        check(issuer("url", json!(""))),
        check(issuer("url", json!("https://u@i?q"))),
        check(issuer("url", json!("https://own"))),
        check(issuer("discoveryURL", json!("https://i"))),
        check(issuer("audiences", json!([]))),
        check(issuer("audiences", json!(["a", "b"]))),
        check(issuer("audience", json!("a"))),
        check(mapping("username", json!({"claim": "sub"}))),
        check(mapping("groups", json!({"claim": "groups"}))),
        check(|f| f["jwt"] = json!([f["jwt"][0], f["jwt"][0]])),
        check(|f| f["anonymous"] = json!({"enabled": false, "conditions": [{"path": "/livez"}]})),
        check(|f| f["apiVersion"] = "v1".into()),
        check(issuer("certificateAuthority", json!("x"))),
        check(issuer("egressSelectorType", json!("cluster"))),
        check(issuer("egressSelectorType", json!("x"))),
        check(issuer("audiences", json!(["a", "a", ""]))),
        check(mapping("username", json!({"claim": "sub", "expression": "claims.sub"}))),
        check(|f| {
            f["jwt"][0]["claimValidationRules"] = json!([{"claim": "a", "message": "m"}, {"claim": "a"}, {}])
        }),
        check(|f| f["jwt"] = Value::Array(vec![f["jwt"][0].clone(); 65])),
    ];
    expect_test::expect![[r#"
        jwt[0].issuer.url: Invalid value: "http://i": URL scheme must be https
        jwt[0].issuer.url: Required value
        [jwt[0].issuer.url: Invalid value: "https://u@i?q": URL must not contain a username or password, jwt[0].issuer.url: Invalid value: "https://u@i?q": URL must not contain a query]
        jwt[0].issuer.url: Invalid value: "https://own": URL must not overlap with disallowed issuers: [https://own]
        jwt[0].issuer.discoveryURL: Invalid value: "https://i": discoveryURL must be different from URL
        jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required
        jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences
        unknown field `audience`, expected one of `url`, `discoveryURL`, `certificateAuthority`, `audiences`, `audienceMatchPolicy`, `egressSelectorType`
        jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing
        jwt[0].claimMappings.groups.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing
        jwt[1].issuer.url: Duplicate value: "https://i"
        anonymous.conditions: Invalid value: "conditions": enabled should be set to true when conditions are defined
        no kind "AuthenticationConfiguration" is registered for version "v1"
        jwt[0].issuer.certificateAuthority: Invalid value: "<omitted>": data does not contain any valid RSA or ECDSA certificates
        jwt[0].issuer.egressSelectorType: Invalid value: "cluster": egress selectors are not supported by this server
        jwt[0].issuer.egressSelectorType: Invalid value: "x": egress selector must be either controlplane or cluster
        [jwt[0].issuer.audiences[1]: Duplicate value: "a", jwt[0].issuer.audiences[2]: Required value, jwt[0].issuer.audienceMatchPolicy: Invalid value: "": audienceMatchPolicy must be MatchAny for multiple audiences]
        jwt[0].claimMappings.username: Invalid value: "": claim and expression can't both be set
        [jwt[0].claimValidationRules[0].message: Invalid value: "m": may not be specified when claim is set, jwt[0].claimValidationRules[1].claim: Duplicate value: "a", jwt[0].claimValidationRules[2]: Required value: claim or expression is required]
        jwt: Too many: 65: must have at most 64 items"#]].assert_eq(&texts.join("\n"));
}

#[test]
fn builds_configuration_from_flags() {
    let flags = |claim: Option<&str>, prefix: &str| {
        let flags = OidcFlags {
            issuer_url: "https://i".into(),
            client_id: "c".into(),
            username_claim: claim.map(str::to_owned),
            username_prefix: prefix.into(),
            ..OidcFlags::default()
        };
        let configuration = flags.configuration();
        configuration.validate(&[]).unwrap();
        let username = configuration.jwt[0].claim_mappings.username.clone();
        (username.claim, username.prefix.unwrap())
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(flags(None, ""), pair("sub", "https://i#"));
    assert_eq!(flags(Some("email"), ""), pair("email", ""));
    assert_eq!(flags(Some("name"), "-"), pair("name", ""));
    assert_eq!(flags(Some("name"), "x:"), pair("name", "x:"));
}

/// A file; its first issuer has these mappings and rules.
fn with(mappings: Value, claim_rules: Value, user_rules: Value) -> String {
    check(|f| {
        f["jwt"][0]["claimMappings"] = mappings.clone();
        f["jwt"][0]["claimValidationRules"] = claim_rules.clone();
        f["jwt"][0]["userValidationRules"] = user_rules.clone();
    })
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn rejects_invalid_expressions() {
    let none = || json!([]);
    let mapped = |mappings: Value| with(mappings, none(), none());
    let name = |text: &str| json!({"username": {"expression": text}});
    let extra = |list: Value| mapped(json!({"username": {"expression": "claims.sub"}, "extra": list}));
    let one = |key: &str| extra(json!([{"key": key, "valueExpression": "claims.x"}]));
    let everything = json!({
        "username": {"expression": "claims.email"},
        "groups": {"expression": "claims.?groups.orValue([])"},
        "uid": {"expression": "claims.sub"},
        "extra": [{"key": "example.com/x", "valueExpression": "has(claims.email_verified) ? 'y' : 'n'"}],
    });
    let texts = [
        with(
            everything,
            json!([{"expression": "claims.sub != ''", "message": "m"}]),
            json!([{"expression": "user.username != '' && user.extra.size() < 3"}]),
        ),
        mapped(name("claims.sub +")),
        mapped(name("user.username")),
        mapped(json!({"username": {"expression": "claims.sub", "prefix": ""}})),
        mapped(
            json!({"username": {"expression": "claims.sub", "claim": "sub"}, "groups": {"expression": "1", "claim": "g"}, "uid": {"expression": "1", "claim": "u"}}),
        ),
        mapped(json!({"username": {"expression": "claims.sub"}, "uid": {"expression": "claims.("}})),
        mapped(name("claims.email")),
        mapped(name("claims.?email.orValue('')")),
        mapped(name("claims['email']")),
        with(
            name("claims.email"),
            json!([{"expression": "claims.?email_verified.orValue(true) == true"}]),
            none(),
        ),
        one("x"),
        one("example.com/X"),
        one("kubernetes.io/x"),
        one("a.k8s.io/x"),
        one("notk8s.io/x"),
        extra(
            json!([{"key": "a.b/x", "valueExpression": "1"}, {"key": "a.b/x", "valueExpression": "2"}, {"key": "a.b/y"}]),
        ),
        with(
            name("claims.sub"),
            json!([{"expression": "claims.sub"}, {"expression": "true", "requiredValue": "x"}, {"expression": "true"}, {"expression": "true", "claim": "c"}]),
            none(),
        ),
        with(
            name("claims.sub"),
            none(),
            json!([{}, {"expression": "user.name == ''"}, {"expression": "user.username"}, {"expression": "true"}, {"expression": "true"}]),
        ),
        with(name("claims.sub"), none(), json!([{"expression": "claims.sub == ''"}])),
    ];
    expect_test::expect![[r#"

        jwt[0].claimMappings.username.expression: Invalid value: "claims.sub +": compilation failed: ERROR: <input>:1:13: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}
         | claims.sub +
         | ............^
        jwt[0].claimMappings.username.expression: Invalid value: "user.username": compilation failed: ERROR: <input>:1:1: undeclared reference to 'user' (in container '')
         | user.username
         | ^
        jwt[0].claimMappings.username.prefix: Invalid value: "": may not be specified when expression is set
        [jwt[0].claimMappings.username: Invalid value: "": claim and expression can't both be set, jwt[0].claimMappings.groups: Invalid value: "": claim and expression can't both be set, jwt[0].claimMappings.uid: Invalid value: "": claim and expression can't both be set]
        jwt[0].claimMappings.uid.expression: Invalid value: "claims.(": compilation failed: ERROR: <input>:1:8: Syntax error: no viable alternative at input '.('
         | claims.(
         | .......^
        jwt[0].claimMappings.username.expression: Invalid value: "claims.email": claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression
        jwt[0].claimMappings.username.expression: Invalid value: "claims.?email.orValue('')": claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression


        jwt[0].claimMappings.extra[0].key: Invalid value: "x": must be a domain-prefixed path (such as "acme.io/foo")
        jwt[0].claimMappings.extra[0].key: Invalid value: "example.com/X": must be lowercase
        jwt[0].claimMappings.extra[0].key: Invalid value: "kubernetes.io/x": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use
        jwt[0].claimMappings.extra[0].key: Invalid value: "a.k8s.io/x": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use

        [jwt[0].claimMappings.extra[1].key: Duplicate value: "a.b/x", jwt[0].claimMappings.extra[2].valueExpression: Required value]
        [jwt[0].claimValidationRules[0].expression: Invalid value: "claims.sub": must evaluate to bool, jwt[0].claimValidationRules[1].requiredValue: Invalid value: "x": may not be specified when expression is set, jwt[0].claimValidationRules[2].expression: Duplicate value: "true", jwt[0].claimValidationRules[3]: Invalid value: "c": claim and expression can't both be set]
        [jwt[0].userValidationRules[0].expression: Required value, jwt[0].userValidationRules[1].expression: Invalid value: "user.name == ''": compilation failed: ERROR: <input>:1:5: undefined field 'name'
         | user.name == ''
         | ....^, jwt[0].userValidationRules[2].expression: Invalid value: "user.username": must evaluate to bool, jwt[0].userValidationRules[4].expression: Duplicate value: "true"]
        jwt[0].userValidationRules[0].expression: Invalid value: "claims.sub == ''": compilation failed: ERROR: <input>:1:1: undeclared reference to 'claims' (in container '')
         | claims.sub == ''
         | ^"#]].assert_eq(&texts.join("\n"));
}
