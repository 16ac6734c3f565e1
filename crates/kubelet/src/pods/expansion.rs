//! References `$(NAME)` in commands, arguments and values. Source: `third_party/forked/golang/expansion`.

/// Replaces references by what `value` gives; those that it does not know stay. `$$` is a dollar sign.
#[must_use]
pub fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('(') {
            match after.find(')') {
                Some(end) => {
                    let name = &after[..end];
                    match value(name) {
                        Some(value) => out.push_str(&value),
                        None => {
                            out.push_str("$(");
                            out.push_str(name);
                            out.push(')');
                        }
                    }
                    rest = &after[end + 1..];
                }
                None => {
                    out.push_str("$(");
                    rest = after;
                }
            }
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn replaces_what_is_known() {
        let value = |name: &str| (name == "A").then(|| "1".to_owned());
        let all =
            ["$(A)", "$$(A)", "$(B)$(A)", "$A", "$(A", "$", "a$$b", "$($(A))"].map(|t| expand(t, value));
        expect_test::expect!["1 $(A) $(B)1 $A $(A $ a$b $($(A))"].assert_eq(&all.join(" "));
    }
}
