//! Permitted impersonations, the authorization requests of each, and the texts of refusals.

use super::*;
use kaji_auth::Rules;
use kaji_resource::BoxFuture;

/// Allows what is listed as `verb resource[/subresource] name`, and notes what it was asked.
#[derive(Default)]
struct Rbac {
    allows: Vec<&'static str>,
    asked: Mutex<Vec<String>>,
}

impl Authorizer for Rbac {
    fn authorize<'a>(&'a self, a: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let slash = if a.subresource.is_empty() { "" } else { "/" };
        let question = format!("{} {}{slash}{} {}", a.verb, a.resource, a.subresource, a.name);
        let allowed = self.allows.iter().any(|allow| {
            allow.strip_suffix('*').map_or(*allow == question, |start| question.starts_with(start))
        });
        let scope = [a.group, a.namespace].join("|");
        self.asked
            .lock()
            .unwrap()
            .push(format!("{question} ({scope}) {}", if allowed { "yes" } else { "no" }));
        Box::pin(std::future::ready(if allowed { Outcome::allow("") } else { Outcome::default() }))
    }

    fn rules<'a>(&'a self, _: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(std::future::ready(Rules::default()))
    }
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(HeaderName::try_from(*name).unwrap(), http::HeaderValue::from_str(value).unwrap());
    }
    map
}

fn act(rbac: &Rbac, requestor: &UserInfo, pairs: &[(&str, &str)]) -> String {
    let request = Attributes { namespace: "ns", ..Attributes::resource(requestor, "list", "", "pods") };
    let impersonation = Impersonation::default();
    let map = headers(pairs);
    let answer = impersonation.act_as(rbac, &map, &request);
    match futures_util::FutureExt::now_or_never(answer).unwrap() {
        Ok(None) => "no user".into(),
        Ok(Some((u, by))) => {
            let by = if by.is_empty() { by } else { format!(" by {by}") };
            format!("{} {} {:?} {:?}{by}", u.name, u.uid, u.groups, u.extra)
        }
        Err(status) => format!("{} {}", status.code, status.message),
    }
}

fn alice() -> UserInfo {
    UserInfo { name: "alice".into(), ..UserInfo::default() }
}

#[test]
fn legacy_asks_for_each_part() {
    let rbac = Rbac { allows: vec!["impersonate *"], ..Rbac::default() };
    let answer = act(
        &rbac,
        &alice(),
        &[
            ("Impersonate-User", "bob"),
            ("Impersonate-Group", "devs"),
            ("Impersonate-Group", "system:masters"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Extra-Example.com%2fScope", "a"),
        ],
    );
    assert_eq!(
        answer,
        r#"bob 7 ["devs", "system:masters", "system:authenticated"] {"example.com/scope": ["a"]}"#
    );
    expect_test::expect![[r#"
        impersonate-on:user-info:list pods  (|ns) no
        impersonate users bob (|) yes
        impersonate uids 7 (authentication.k8s.io|) yes
        impersonate groups devs (|) yes
        impersonate groups system:masters (|) yes
        impersonate userextras/example.com/scope a (authentication.k8s.io|) yes"#]]
    .assert_eq(&rbac.asked.lock().unwrap().join("\n"));
}

#[test]
fn groups_are_completed() {
    let rbac = Rbac { allows: vec!["impersonate *"], ..Rbac::default() };
    let act = |pairs: &[(&str, &str)]| act(&rbac, &alice(), pairs);
    let account = ("impersonate-user", "system:serviceaccount:ns:sa");
    assert_eq!(
        act(&[account]),
        r#"system:serviceaccount:ns:sa  ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"] {}"#
    );
    assert_eq!(
        act(&[account, ("impersonate-group", "g")]),
        r#"system:serviceaccount:ns:sa  ["g", "system:authenticated"] {}"#
    );
    assert_eq!(
        act(&[("impersonate-user", "system:anonymous")]),
        r#"system:anonymous  ["system:unauthenticated"] {}"#
    );
    assert_eq!(
        act(&[("impersonate-user", "x"), ("impersonate-group", "system:unauthenticated")]),
        r#"x  ["system:unauthenticated"] {}"#
    );
    assert_eq!(
        act(&[("impersonate-user", "system:node:n")]),
        r#"system:node:n  ["system:authenticated"] {}"#
    );
    assert_eq!(act(&[("accept", "*/*")]), "no user");
}

#[test]
fn rejects_impersonation_without_permission() {
    let refused = |pairs: &[(&str, &str)]| act(&Rbac::default(), &alice(), pairs);
    expect_test::expect![[r#"403 pods is forbidden: User "alice" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "ns""#]]
        .assert_eq(&refused(&[("impersonate-user", "bob")]));
    expect_test::expect![[r#"400 requested &user.DefaultInfo{Name:"", UID:"u", Groups:[]string{"g"}, Extra:map[string][]string{"k":[]string{"v"}}} without impersonating a user name"#]]
        .assert_eq(&refused(&[("impersonate-group", "g"), ("impersonate-uid", "u"), ("impersonate-extra-k", "v")]));
    let some = Rbac {
        allows: vec!["impersonate-on:user-info:list pods *", "impersonate:user-info users bob"],
        ..Rbac::default()
    };
    expect_test::expect![[r#"403 groups.authentication.k8s.io "devs" is forbidden: User "alice" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope"#]]
        .assert_eq(&act(&some, &alice(), &[("impersonate-user", "bob"), ("impersonate-group", "devs")]));
}

#[test]
fn checks_the_permission_of_each_mode() {
    let rbac = Rbac { allows: vec!["impersonate-on:*", "impersonate:*"], ..Rbac::default() };
    let act = |requestor: &UserInfo, pairs: &[(&str, &str)]| act(&rbac, requestor, pairs);
    let node = [("impersonate-user", "system:node:n")];
    assert_eq!(
        act(&alice(), &node),
        r#"system:node:n  ["system:nodes", "system:authenticated"] {} by impersonate:arbitrary-node"#
    );
    let extra = BTreeMap::from([("authentication.kubernetes.io/node-name".to_owned(), vec!["n".to_owned()])]);
    let agent = UserInfo { name: "system:serviceaccount:ns:agent".into(), extra, ..UserInfo::default() };
    assert_eq!(
        act(&agent, &node),
        r#"system:node:n  ["system:nodes", "system:authenticated"] {} by impersonate:associated-node"#
    );
    let last = rbac.asked.lock().unwrap().last().cloned().unwrap();
    assert_eq!(last, "impersonate:associated-node nodes * (authentication.k8s.io|) yes");
    for (pairs, why) in [
        (
            vec![("impersonate-group", "system:masters")],
            "impersonating the system:masters group is not allowed",
        ),
        (vec![("impersonate-group", "")], "impersonating the empty string group is not allowed"),
        (vec![("impersonate-extra-", "v")], "impersonating the empty string key in extra is not allowed"),
        (
            vec![("impersonate-extra-a%2fb", "")],
            "impersonating the empty string value in extra is not allowed",
        ),
        (vec![("impersonate-extra-plain", "v")], "impersonating an invalid key in extra is not allowed"),
    ] {
        let pairs = [vec![("impersonate-user", "bob")], pairs].concat();
        let answer = act(&alice(), &pairs);
        assert!(answer.starts_with("403") && answer.contains(why), "{answer}");
    }
    let many: Vec<(&str, &str)> =
        [("impersonate-user", "bob")].into_iter().chain([("impersonate-group", "g"); 4]).collect();
    act(&alice(), &many);
    let last = rbac.asked.lock().unwrap().last().cloned().unwrap();
    assert_eq!(last, "impersonate:user-info groups * (authentication.k8s.io|) yes");
}

#[test]
fn the_mode_that_worked_is_tried_first() {
    let rbac = Rbac { allows: vec!["impersonate *"], ..Rbac::default() };
    let (impersonation, alice) = (Impersonation::default(), alice());
    let request = Attributes::resource(&alice, "list", "", "pods");
    let map = headers(&[("impersonate-user", "bob")]);
    for _ in 0..2 {
        let answer = impersonation.act_as(&rbac, &map, &request);
        assert!(futures_util::FutureExt::now_or_never(answer).unwrap().unwrap().is_some());
    }
    assert_eq!(
        *rbac.asked.lock().unwrap(),
        [
            "impersonate-on:user-info:list pods  (|) no",
            "impersonate users bob (|) yes",
            "impersonate users bob (|) yes",
        ]
    );
}

#[test]
fn headers_go_no_further() {
    let mut map = headers(&[
        ("impersonate-user", "a"),
        ("impersonate-extra-x", "b"),
        ("impersonate-uid", "c"),
        ("impersonate-group", "d"),
        ("accept", "*/*"),
    ]);
    strip(&mut map);
    assert_eq!(map, headers(&[("accept", "*/*")]));
}
