//! Conflicts of a server-side apply, from the text of the refusal.
//!
//! Source: the message of upstream's 409: `Apply failed with 1 conflict: conflict with "scaler" with subresource "scale" using
//! apps/v1: .spec.replicas`, or a line for each field below `conflicts with …:` for each manager. kubectl appends advice.
//!
//! Invariant: what does not follow the form ends the list; nothing is guessed.

use std::fmt;

/// The beginning of the message.
const BEGINNING: &str = "Apply failed with ";
/// Fields that are read; the server keeps messages of 2 KiB.
const MOST: usize = 1_000;

/// The fields that a manager holds against an apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The field manager.
    pub manager: String,
    /// `scale`; empty for the object itself.
    pub subresource: String,
    /// The version in which a create, update or patch wrote them; empty for another apply.
    pub api_version: String,
    /// As kubectl prints them: `.spec.replicas`, `.spec.template.spec.containers[name="web"].image`.
    pub fields: Vec<String>,
}

/// An apply that was refused since other managers hold its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyConflicts {
    /// At least one, in the order of the text.
    pub holders: Vec<Holder>,
}

impl ApplyConflicts {
    /// Of the text of a refusal; `None` if it is none.
    pub fn parse(text: &str) -> Option<ApplyConflicts> {
        let (_, rest) = text.split_once(BEGINNING)?;
        let (count, rest) = rest.split_once(' ')?;
        count.parse::<u32>().ok()?;
        if let Some(only) = rest.strip_prefix("conflict: conflict with ") {
            let (mut holder, field) = holder(only)?;
            holder.fields.push(line(field.strip_prefix(' ')?).to_owned());
            return Some(ApplyConflicts { holders: vec![holder] });
        }
        let mut holders: Vec<Holder> = vec![];
        for line in rest.strip_prefix("conflicts: ")?.lines().take(MOST) {
            if let Some(described) = line.strip_prefix("conflicts with ") {
                let Some((holder, "")) = holder(described.trim_end()) else { break };
                holders.push(holder);
                continue;
            }
            match (line.strip_prefix("- "), holders.last_mut()) {
                (Some(field), Some(holder)) => holder.fields.push(field.trim_end().to_owned()),
                _ => break,
            }
        }
        holders.retain(|holder| !holder.fields.is_empty());
        (!holders.is_empty()).then_some(ApplyConflicts { holders })
    }
}

fn line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_end()
}

/// `"NAME" with subresource "NAME" using VERSION:` and what follows.
fn holder(text: &str) -> Option<(Holder, &str)> {
    let (manager, mut rest) = quoted(text)?;
    let mut holder =
        Holder { manager, subresource: String::new(), api_version: String::new(), fields: vec![] };
    if let Some(after) = rest.strip_prefix(" with subresource ") {
        (holder.subresource, rest) = quoted(after)?;
    }
    if let Some(after) = rest.strip_prefix(" using ") {
        let (version, _) = after.split_once(':')?;
        version.clone_into(&mut holder.api_version);
        rest = &after[version.len()..];
    }
    Some((holder, rest.strip_prefix(':')?))
}

/// A string in quotes, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = inner.char_indices().find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    let (end, _) = end?;
    // What is escaped otherwise than in JSON stays as it is written.
    let name = serde_json::from_str(&text[..end + 2]).unwrap_or_else(|_| inner[..end].to_owned());
    Some((name, &inner[end + 1..]))
}

impl fmt::Display for Holder {
    /// `field manager "scaler" with subresource "scale"`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "field manager {}", self.manager)?;
        match self.subresource.as_str() {
            "" => Ok(()),
            subresource => write!(f, " (subresource {subresource})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        let Some(conflicts) = ApplyConflicts::parse(text) else { return "none".to_owned() };
        let line = |holder: Holder| {
            let Holder { api_version, fields, .. } = &holder;
            format!("{holder}, version '{api_version}': {}", fields.join(" "))
        };
        conflicts.holders.into_iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn reads_the_texts_of_conflicts() {
        let advice =
            "\nPlease review the fields above--they currently have other managers. Here\nare the ways";
        let one = "error: Apply failed with 1 conflict: conflict with \"kube \\\"x\\\"\" with subresource \"scale\" using apps/v1: .spec.replicas";
        let several = "Apply failed with 3 conflicts: conflicts with \"a\" using v1:\n- .data.k\n- .data.l:m\nconflicts with \"b\":\n- .x[name=\"y\"]";
        expect_test::expect![[r#"
            field manager kube "x" (subresource scale), version 'apps/v1': .spec.replicas
            field manager kube "x" (subresource scale), version 'apps/v1': .spec.replicas
            field manager a, version 'v1': .data.k .data.l:m
            field manager b, version '': .x[name="y"]
            field manager a, version 'v1': .data.k .data.l:m
            field manager b, version '': .x[name="y"]"#]]
        .assert_eq(
            &[of(one), of(&format!("{one}{advice}")), of(several), of(&format!("{several}{advice}"))]
                .join("\n"),
        );
    }

    #[test]
    fn what_is_no_conflict_is_none() {
        let whole = "Apply failed with 2 conflicts: conflicts with \"ä\" with subresource \"s\" using v1:\n- .a\n- .b";
        // Cut off anywhere it is shorter, or none.
        for (end, _) in whole.char_indices() {
            if let Some(conflicts) = ApplyConflicts::parse(&whole[..end]) {
                assert!(conflicts.holders.iter().all(|holder| !holder.fields.is_empty()), "{end}");
            }
        }
        let garbage = [
            "",
            "Apply failed with ",
            "Apply failed with x conflict: conflict with \"a\": .b",
            "Apply failed with 1 conflict: conflict with \"a: .b",
            "Apply failed with 1 conflict: conflict with a: .b",
            "Apply failed with 1 conflict: conflict with \"a\"",
            "Apply failed with 2 conflicts: - .a",
            "Apply failed with 2 conflicts: conflicts with \"a\":",
            "pods \"web\" not found",
        ];
        for text in garbage {
            assert_eq!(of(text), "none", "{text}");
        }
    }
}
