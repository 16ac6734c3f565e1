//! Match conditions: CEL expressions over the review, which decide whether the service is called.
//! Source, also of the texts: upstream's `pkg/authorization/cel`, KEP-3221.
//!
//! Invariants: one condition that says no is enough, whatever the others say or fail with; what an evaluation costs is
//! bounded ([`PER_CALL_LIMIT`]).

use super::review;
use crate::authz::{Attributes, aggregate};
use kaji_cel::{CompileError, Decl, Env, ListKind, PER_CALL_LIMIT, Program, Type, Value as Cel};
use kaji_meta::field::{Error, ErrorList, Path};
use serde_json::{Value, json};
use std::{
    fmt,
    sync::{Arc, LazyLock},
};

/// Most conditions of one service.
const MOST: usize = 64;

static REQUEST: LazyLock<Arc<Decl>> = LazyLock::new(|| {
    let text = || Decl::string("", None, None);
    let texts = || Decl::list(text(), ListKind::Atomic, None);
    let object = |fields: Vec<(&str, Decl)>| {
        Decl::object(fields.into_iter().map(|(name, decl)| (name.to_owned(), decl, false)))
    };
    let selector = || {
        let requirement = object(vec![("key", text()), ("operator", text()), ("values", texts())]);
        let requirements = Decl::list(requirement, ListKind::Atomic, None);
        object(vec![("rawSelector", text()), ("requirements", requirements)])
    };
    let mut resource: Vec<_> = ["namespace", "verb", "group", "version", "resource", "subresource", "name"]
        .map(|n| (n, text()))
        .into();
    resource.extend([("fieldSelector", selector()), ("labelSelector", selector())]);
    Arc::new(object(vec![
        ("resourceAttributes", object(resource)),
        ("nonResourceAttributes", object(vec![("path", text()), ("verb", text())])),
        ("user", text()),
        ("groups", texts()),
        ("extra", Decl::map(texts(), None)),
        ("uid", text()),
    ]))
});
static ENV: LazyLock<Env> = LazyLock::new(|| Env::new().variable("request", REQUEST.clone()));

struct Compiled {
    /// By text and program.
    list: Vec<(String, Program)>,
    /// Whether selectors are looked at.
    fields: bool,
    labels: bool,
}

/// The conditions of a service. Two are equal if their texts are.
#[derive(Clone, Default)]
pub struct Conditions(Option<Arc<Compiled>>);

/// What came out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The service is called.
    Matches,
    /// It is not.
    Excluded,
    /// They could not be evaluated, and why.
    Failed(String),
}

impl Conditions {
    /// Compiles them; what is wrong with them is added to `errors`.
    pub(crate) fn compile(texts: &[&str], path: &Path, errors: &mut ErrorList) -> Conditions {
        if texts.len() > MOST {
            errors.push(Error::too_many(path, texts.len(), MOST));
            return Conditions::default();
        }
        let mut list: Vec<(String, Program)> = vec![];
        for (i, text) in texts.iter().enumerate() {
            let at = path.index(i).child("expression");
            if text.trim().is_empty() {
                errors.push(Error::required(&at, ""));
            } else if texts[..i].contains(text) {
                errors.push(Error::duplicate(&at, *text));
            } else {
                match program(text) {
                    Ok(program) => list.push(((*text).to_owned(), program)),
                    Err(why) => errors.push(Error::invalid(&at, *text, why)),
                }
            }
        }
        if list.is_empty() {
            return Conditions::default();
        }
        // A word that is no field costs a little and changes nothing.
        let names = |field: &str| list.iter().any(|(text, _)| text.contains(field));
        let (fields, labels) = (names("fieldSelector"), names("labelSelector"));
        Conditions(Some(Arc::new(Compiled { list, fields, labels })))
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether they hold, and whether any failed.
    pub(super) fn matches(&self, a: &Attributes<'_>) -> (Verdict, bool) {
        let Some(conditions) = &self.0 else { return (Verdict::Matches, false) };
        let request = request(a, conditions.fields, conditions.labels);
        let mut errors = vec![];
        for (text, program) in &conditions.list {
            let value = Cel::of_json(&request, &REQUEST);
            match value.and_then(|request| program.eval(&[Some(request)], PER_CALL_LIMIT).0) {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) => return (Verdict::Excluded, !errors.is_empty()),
                Ok(other) => {
                    let ty = other.ty().name();
                    errors.push(format!("cel evaluation error: expression '{text}' eval result type should be bool but got {ty}"));
                }
                Err(why) => {
                    errors
                        .push(format!("cel evaluation error: expression '{text}' resulted in error: {why}"));
                }
            }
        }
        if errors.is_empty() {
            (Verdict::Matches, false)
        } else {
            (Verdict::Failed(aggregate(&errors)), true)
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|c| c.list.iter().map(|(text, _)| text.as_str()))
    }
}

impl PartialEq for Conditions {
    fn eq(&self, other: &Self) -> bool {
        self.texts().eq(other.texts())
    }
}

impl Eq for Conditions {}

impl fmt::Debug for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.texts()).finish()
    }
}

fn program(text: &str) -> Result<Program, String> {
    let program = ENV.compile(text).map_err(|why| match why {
        CompileError::Issues(issues) => format!("compilation failed: {issues}"),
        CompileError::Program(why) => format!("program instantiation failed: {why}"),
    })?;
    match program.ty() {
        Type::Bool => Ok(program),
        other => Err(format!("must evaluate to bool but got {other}")),
    }
}

/// The review's specification with all its texts, also the empty ones.
fn request(a: &Attributes<'_>, fields: bool, labels: bool) -> Value {
    let mut request = json!({
        "user": a.user.name, "groups": a.user.groups, "uid": a.user.uid, "extra": a.user.extra,
    });
    if !a.is_resource() {
        request["nonResourceAttributes"] = json!({"path": a.path, "verb": a.verb});
        return request;
    }
    let mut resource = json!({
        "namespace": a.namespace, "verb": a.verb, "group": a.group, "version": a.version, "resource": a.resource,
        "subresource": a.subresource, "name": a.name,
    });
    let mut put = |key: &str, mut requirements: Vec<Value>| {
        for requirement in &mut requirements {
            if requirement.get("values").is_none() {
                requirement["values"] = json!([]);
            }
        }
        if !requirements.is_empty() {
            resource[key] = json!({"requirements": requirements});
        }
    };
    if fields {
        put("fieldSelector", review::by_field(a.field_selector));
    }
    if labels {
        put("labelSelector", review::by_label(a.label_selector));
    }
    request["resourceAttributes"] = resource;
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_resource::UserInfo;

    fn compile(texts: &[&str]) -> Result<Conditions, String> {
        let mut errors = vec![];
        let conditions = Conditions::compile(texts, &Path::new("matchConditions"), &mut errors);
        let texts: Vec<String> = errors.iter().map(Error::to_string).collect();
        if texts.is_empty() { Ok(conditions) } else { Err(texts.join("; ")) }
    }

    #[test]
    fn compiles_valid_and_rejects_invalid_conditions() {
        let all = [
            compile(&["request.user == 'a'", "has(request.resourceAttributes)"]),
            compile(&["request.user"]),
            compile(&["request.extra['x']"]),
            compile(&["request.name == 'x'"]),
            compile(&["request.resourceAttributes.selector == 'x'"]),
            compile(&["object.x", ""]),
            compile(&["true", "true", "\t"]),
            compile(&["request.groups.exists(g, g =="]),
            compile(&["x"; 65]),
        ];
        let shown: Vec<String> = all.iter().map(|c| format!("{c:?}")).collect();
        expect_test::expect![[r#"
            Ok(["request.user == 'a'", "has(request.resourceAttributes)"])
            Err("matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but got string")
            Err("matchConditions[0].expression: Invalid value: \"request.extra['x']\": must evaluate to bool but got list(string)")
            Err("matchConditions[0].expression: Invalid value: \"request.name == 'x'\": compilation failed: ERROR: <input>:1:8: undefined field 'name'\n | request.name == 'x'\n | .......^")
            Err("matchConditions[0].expression: Invalid value: \"request.resourceAttributes.selector == 'x'\": compilation failed: ERROR: <input>:1:27: undefined field 'selector'\n | request.resourceAttributes.selector == 'x'\n | ..........................^")
            Err("matchConditions[0].expression: Invalid value: \"object.x\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'object' (in container '')\n | object.x\n | ^; matchConditions[1].expression: Required value")
            Err("matchConditions[1].expression: Duplicate value: \"true\"; matchConditions[2].expression: Required value")
            Err("matchConditions[0].expression: Invalid value: \"request.groups.exists(g, g ==\": compilation failed: ERROR: <input>:1:30: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}\n | request.groups.exists(g, g ==\n | .............................^")
            Err("matchConditions: Too many: 65: must have at most 64 items")"#]].assert_eq(&shown.join("\n"));
    }

    #[test]
    fn conditions_see_the_review() {
        let user = UserInfo {
            name: "alice".into(),
            groups: vec!["devs".into()],
            extra: [("example.com/k".to_owned(), vec!["v".to_owned()])].into(),
            ..UserInfo::default()
        };
        let fields = kaji_meta::fields::Selector::parse("spec.nodeName=n1").unwrap();
        let labels = kaji_meta::labels::Selector::parse("a in (b),!c").unwrap();
        let pods = Attributes {
            namespace: "ns",
            version: "v1",
            field_selector: Some(&fields),
            label_selector: Some(&labels),
            ..Attributes::resource(&user, "list", "", "pods")
        };
        let path = Attributes::path(&user, "get", "/livez");
        let mut shown = vec![];
        for text in [
            "request.user == 'alice' && 'devs' in request.groups && request.uid == ''",
            "request.resourceAttributes.namespace == 'ns' && request.resourceAttributes.subresource == ''",
            "has(request.nonResourceAttributes) && request.nonResourceAttributes.path == '/livez'",
            "!has(request.resourceAttributes)",
            "request.resourceAttributes.verb == 'list'",
            "request.extra['example.com/k'] == ['v']",
            "request.extra['none'] == ['v']",
            "has(request.resourceAttributes.fieldSelector)",
            "request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName' && r.operator == 'In' && r.values == ['n1'])",
            "request.resourceAttributes.labelSelector.requirements.map(r, r.operator + string(r.values.size())) == ['In1', 'DoesNotExist0']",
            "has(request.resourceAttributes.labelSelector.rawSelector)",
            "request.resourceAttributes.?labelSelector.hasValue()",
        ] {
            let conditions = compile(&[text]).unwrap();
            shown.push(format!(
                "{text}\n  {:?} {:?}",
                conditions.matches(&pods).0,
                conditions.matches(&path).0
            ));
        }
        expect_test::expect![[r#"
            request.user == 'alice' && 'devs' in request.groups && request.uid == ''
              Matches Matches
            request.resourceAttributes.namespace == 'ns' && request.resourceAttributes.subresource == ''
              Matches Failed("cel evaluation error: expression 'request.resourceAttributes.namespace == 'ns' && request.resourceAttributes.subresource == ''' resulted in error: no such key: resourceAttributes")
            has(request.nonResourceAttributes) && request.nonResourceAttributes.path == '/livez'
              Excluded Matches
            !has(request.resourceAttributes)
              Excluded Matches
            request.resourceAttributes.verb == 'list'
              Matches Failed("cel evaluation error: expression 'request.resourceAttributes.verb == 'list'' resulted in error: no such key: resourceAttributes")
            request.extra['example.com/k'] == ['v']
              Matches Matches
            request.extra['none'] == ['v']
              Failed("cel evaluation error: expression 'request.extra['none'] == ['v']' resulted in error: no such key: none") Failed("cel evaluation error: expression 'request.extra['none'] == ['v']' resulted in error: no such key: none")
            has(request.resourceAttributes.fieldSelector)
              Matches Failed("cel evaluation error: expression 'has(request.resourceAttributes.fieldSelector)' resulted in error: no such key: resourceAttributes")
            request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName' && r.operator == 'In' && r.values == ['n1'])
              Matches Failed("cel evaluation error: expression 'request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName' && r.operator == 'In' && r.values == ['n1'])' resulted in error: no such key: resourceAttributes")
            request.resourceAttributes.labelSelector.requirements.map(r, r.operator + string(r.values.size())) == ['In1', 'DoesNotExist0']
              Matches Failed("cel evaluation error: expression 'request.resourceAttributes.labelSelector.requirements.map(r, r.operator + string(r.values.size())) == ['In1', 'DoesNotExist0']' resulted in error: no such key: resourceAttributes")
            has(request.resourceAttributes.labelSelector.rawSelector)
              Excluded Failed("cel evaluation error: expression 'has(request.resourceAttributes.labelSelector.rawSelector)' resulted in error: no such key: resourceAttributes")
            request.resourceAttributes.?labelSelector.hasValue()
              Matches Failed("cel evaluation error: expression 'request.resourceAttributes.?labelSelector.hasValue()' resulted in error: no such key: resourceAttributes")"#]].assert_eq(&shown.join("\n"));
    }

    #[test]
    fn one_false_condition_excludes() {
        let user = UserInfo::default();
        let path = Attributes::path(&user, "get", "/livez");
        let matches = |texts: &[&str]| compile(texts).unwrap().matches(&path);
        let broken = "request.resourceAttributes.verb == 'get'";
        assert_eq!(matches(&["true", "1 == 1"]), (Verdict::Matches, false));
        assert_eq!(matches(&["true", "false", broken]), (Verdict::Excluded, false));
        assert_eq!(matches(&[broken, "false"]), (Verdict::Excluded, true));
        let (verdict, failed) = matches(&[broken, "true"]);
        assert!(failed);
        expect_test::expect![[r#"
            Failed(
                "cel evaluation error: expression 'request.resourceAttributes.verb == 'get'' resulted in error: no such key: resourceAttributes",
            )
        "#]].assert_debug_eq(&verdict);
        assert_eq!(Conditions::default().matches(&path), (Verdict::Matches, false));
        assert!(compile(&["true"]).unwrap() == compile(&["true"]).unwrap());
        assert!(compile(&["true"]).unwrap() != compile(&["false"]).unwrap());
    }
}
