//! Names that are nearly the same: typing errors.

/// The edits that make one name of the other: insertions, deletions, replacements, and exchanges of neighbours.
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = least;
        }
    }
    rows[a.len()][b.len()]
}

/// The longest names that are compared: objects' names have 253 characters at most.
const LONGEST: usize = 253;

/// The name of a set that is most like the given one, if it is like it at all and not the same.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = match name.chars().count() {
        0..=3 => 1,
        4..=8 => 2,
        _ => 3,
    };
    let near =
        names.into_iter().filter(|other| *other != name && other.len() <= LONGEST && name.len() <= LONGEST);
    let near = near.map(|other| (distance(name, other), other)).filter(|(distance, _)| *distance <= most);
    near.min().map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        assert_eq!(distance("web", "web"), 0);
        assert_eq!(distance("web", "wbe"), 1);
        assert_eq!(distance("pods", "pod"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn finds_the_nearest_name() {
        assert_eq!(
            nearest("nginx-confg", ["nginx-config", "nginx-cert", "nginx-confg"]),
            Some("nginx-config")
        );
        assert_eq!(nearest("db", ["web", "api"]), None);
    }
}
