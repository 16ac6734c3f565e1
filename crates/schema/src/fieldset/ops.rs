//! Set operations on FieldsV1 trees. All keep the invariants of [`crate::fieldset`].

use serde_json::{Map, Value};

use super::Tree;
use super::element::{self, SELF};
use super::node::{Node, Shape};

/// The subtree of a node. Nodes are objects by the invariant; anything else reads as a bare member.
pub(crate) fn tree(node: &Value) -> &Tree {
    static EMPTY: std::sync::LazyLock<Tree> = std::sync::LazyLock::new(Map::new);
    node.as_object().unwrap_or(&EMPTY)
}

/// True if the node itself is a member.
pub(crate) fn is_member(node: &Tree) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

pub(crate) fn has_children(node: &Tree) -> bool {
    node.len() > usize::from(node.contains_key(SELF))
}

/// A node from its children; `None` if it would be neither a member nor have children.
pub(crate) fn node(mut children: Tree, member: bool) -> Option<Value> {
    if children.is_empty() {
        return member.then_some(Value::Object(children));
    }
    if member {
        children.insert(SELF.into(), Value::Object(Map::new()));
    }
    Some(Value::Object(children))
}

/// Makes the path a member. An empty path changes nothing: no manager owns the whole object.
pub(crate) fn insert<'p>(set: &mut Tree, path: impl IntoIterator<Item = &'p str>) {
    attach(set, path, Map::new());
}

/// Puts `subtree` (a node: `{}` is a bare member) at the path, united with what is there.
pub(crate) fn attach<'p>(set: &mut Tree, path: impl IntoIterator<Item = &'p str>, subtree: Tree) {
    let mut path = path.into_iter().peekable();
    let mut at = set;
    while let Some(key) = path.next() {
        if path.peek().is_none() {
            match at.get_mut(key) {
                Some(old) => union_node(old, &subtree),
                None => drop(at.insert(key.to_owned(), Value::Object(subtree))),
            }
            return;
        }
        let next = match at.get(key) {
            // A bare member gets children now: it must say that it is a member.
            Some(Value::Object(old)) if old.is_empty() => Some(Map::from_iter([(SELF.into(), empty())])),
            Some(Value::Object(_)) => None,
            _ => Some(Map::new()),
        };
        if let Some(next) = next {
            at.insert(key.to_owned(), Value::Object(next));
        }
        let Some(Value::Object(next)) = at.get_mut(key) else { return };
        at = next;
    }
}

fn empty() -> Value {
    Value::Object(Map::new())
}

/// True if the path is a member.
pub(crate) fn contains<'p>(set: &Tree, path: impl IntoIterator<Item = &'p str>) -> bool {
    let mut at = set;
    let mut any = false;
    for key in path {
        match at.get(key) {
            Some(next) => at = tree(next),
            None => return false,
        }
        any = true;
    }
    any && is_member(at)
}

/// The number of members.
pub(crate) fn len(set: &Tree) -> usize {
    let child = |(k, v): (&String, &Value)| {
        if k == SELF { 0 } else { usize::from(is_member(tree(v))) + len(tree(v)) }
    };
    set.iter().map(child).sum()
}

/// `a ∪= b`.
pub(crate) fn union(a: &mut Tree, b: &Tree) {
    for (key, theirs) in b {
        match a.get_mut(key) {
            Some(ours) => union_node(ours, tree(theirs)),
            None => drop(a.insert(key.clone(), theirs.clone())),
        }
    }
}

fn union_node(ours: &mut Value, theirs: &Tree) {
    let Value::Object(a) = ours else {
        *ours = Value::Object(theirs.clone());
        return;
    };
    if a.is_empty() && theirs.is_empty() {
        return;
    }
    let member = is_member(a) || is_member(theirs);
    union(a, theirs);
    if member {
        a.insert(SELF.into(), empty());
    }
}

/// `a ∩ b`.
pub(crate) fn intersection(a: &Tree, b: &Tree) -> Tree {
    let mut out = Map::new();
    for (key, theirs) in b {
        let (Some(ours), false) = (a.get(key), key == SELF) else { continue };
        let (ours, theirs) = (tree(ours), tree(theirs));
        if let Some(node) = node(intersection(ours, theirs), is_member(ours) && is_member(theirs)) {
            out.insert(key.clone(), node);
        }
    }
    out
}

/// `a −= b`, member by member: children of a removed member stay.
pub(crate) fn subtract(a: &mut Tree, b: &Tree) {
    for (key, theirs) in b {
        let (Some(Value::Object(ours)), false) = (a.get_mut(key), key == SELF) else { continue };
        let theirs = tree(theirs);
        let (member, gone) = (is_member(ours), is_member(theirs));
        subtract(ours, theirs);
        settle(a, key, member && !gone);
    }
}

/// `a −= b`, where a member of `b` removes everything below it, too.
pub(crate) fn subtract_recursively(a: &mut Tree, b: &Tree) {
    for (key, theirs) in b {
        let (Some(Value::Object(ours)), false) = (a.get_mut(key), key == SELF) else { continue };
        let theirs = tree(theirs);
        if is_member(theirs) {
            a.remove(key);
        } else {
            let member = is_member(ours);
            subtract_recursively(ours, theirs);
            settle(a, key, member);
        }
    }
}

/// Restores the invariants of the node at `key` after its children changed: it is a member or not.
fn settle(a: &mut Tree, key: &str, member: bool) {
    let Some(Value::Object(node)) = a.get_mut(key) else { return };
    if !has_children(node) {
        if member {
            node.clear();
        } else {
            a.remove(key);
        }
    } else if member {
        node.insert(SELF.into(), empty());
    } else {
        node.remove(SELF);
    }
}

/// Reads a tree in any spelling.
pub(crate) fn parse(json: &Value) -> Result<Tree, String> {
    let map = match json {
        Value::Null => return Ok(Map::new()),
        Value::Object(map) => map,
        other => return Err(format!("expected an object of fields, got {other}")),
    };
    let mut out = Map::new();
    for (key, value) in map {
        if key == SELF {
            continue;
        }
        let Some(element) = element::normalise(key)? else { continue };
        let children = parse(value)?;
        // A node without any children left reads as a member, as upstream reads it.
        let member = children.is_empty() || value.get(SELF).is_some();
        let subtree = match node(children, member) {
            Some(Value::Object(subtree)) => subtree,
            _ => Map::new(),
        };
        attach(&mut out, [element.as_str()], subtree);
    }
    Ok(out)
}

/// Every member's path, members of a level before their children, in upstream's order.
pub(crate) fn members(set: &Tree) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    walk(set, &mut Vec::new(), &mut out);
    out
}

fn walk(set: &Tree, prefix: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    let mut keys: Vec<(&String, &Tree)> =
        set.iter().filter(|(k, _)| *k != SELF).map(|(k, v)| (k, tree(v))).collect();
    keys.sort_by(|a, b| element::compare(a.0, b.0));
    for (key, node) in &keys {
        if is_member(node) {
            let mut path = prefix.clone();
            path.push((*key).clone());
            out.push(path);
        }
    }
    for (key, node) in keys {
        if has_children(node) {
            prefix.push(key.clone());
            walk(node, prefix, out);
            prefix.pop();
        }
    }
}

/// A path as upstream prints it.
pub(crate) fn display(path: &[String]) -> String {
    path.iter().map(|e| element::display(e)).collect()
}

/// The set, and in addition every declared field that has members below it.
pub(crate) fn with_named_fields(node: Option<Node<'_>>, set: &Tree) -> Tree {
    let shape = node.map(|n| n.static_shape().0);
    let mut out = Map::new();
    for (key, below) in set {
        if key == SELF {
            continue;
        }
        let (mut child, mut declared) = (None, false);
        match (&shape, key.split_at_checked(2)) {
            (Some(Shape::Map(map)), Some(("f:", name))) => {
                if let Some(c) = map.child(name) {
                    (child, declared) = (Some(c.node), c.declared);
                }
            }
            (Some(Shape::List(list)), Some(("k:", _))) => child = Some(list.items),
            _ => {}
        }
        let below = tree(below);
        let member = is_member(below) || (declared && has_children(below));
        if let Some(n) = self::node(with_named_fields(child, below), member) {
            out.insert(key.clone(), n);
        }
    }
    out
}
