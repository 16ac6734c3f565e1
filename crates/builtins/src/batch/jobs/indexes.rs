//! Lists of indexes of an Indexed job, such as `0,2-5`.

use kaji_meta::text::quote;

/// One interval, both ends included.
fn interval(text: &str, completions: i64) -> Result<(i64, i64), String> {
    let parts: Vec<&str> = text.split('-').collect();
    if parts.len() > 2 {
        let text = quote(text);
        return Err(format!(
            "the fragment {text} violates the requirement that an index interval can have at most two parts separated \
             by '-'"
        ));
    }
    let number = |t: &str| -> Result<i64, String> {
        let n = t.parse().map_err(|_| format!("cannot convert string to integer for index: {}", quote(t)))?;
        if n >= completions { Err(format!("too large index: {}", quote(t))) } else { Ok(n) }
    };
    let first = number(parts.first().copied().unwrap_or(""))?;
    match parts.get(1) {
        None => Ok((first, first)),
        Some(t) => {
            let last = number(t)?;
            if first >= last {
                return Err(format!("non-increasing order, previous: {first}, current: {last}"));
            }
            Ok((first, last))
        }
    }
}

/// How many indexes a list names, or what is wrong with it.
pub fn count(list: &str, completions: i64) -> Result<i64, String> {
    let mut total = 0;
    let mut previous: Option<i64> = None;
    for part in list.split(',').filter(|_| !list.is_empty()) {
        let (first, last) = interval(part, completions)?;
        if let Some(p) = previous.filter(|p| *p >= first) {
            return Err(format!("non-increasing order, previous: {p}, current: {first}"));
        }
        total += last - first + 1;
        previous = Some(last);
    }
    Ok(total)
}

/// The first index that is in both lists. Malformed intervals are skipped.
pub fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    let parse = |list: &str| -> Vec<(i64, i64)> {
        list.split(',').filter_map(|p| interval(p, completions).ok()).collect()
    };
    let (a, b) = (parse(completed), parse(failed));
    let (mut i, mut j) = (0, 0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        if x.0 <= y.1 && y.0 <= x.1 {
            return Some(x.0.max(y.0));
        }
        if x.0 <= y.0 { i += 1 } else { j += 1 }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_indexes_of_a_list() {
        assert_eq!(count("", 3), Ok(0));
        assert_eq!(count("0,2-4", 5), Ok(4));
        assert_eq!(count("0,2-4", 4), Err("too large index: \"4\"".into()));
        assert_eq!(count("2,1", 4), Err("non-increasing order, previous: 2, current: 1".into()));
        assert_eq!(count("a", 4), Err("cannot convert string to integer for index: \"a\"".into()));
        assert_eq!(overlap("0-2,5", "3,5", 9), Some(5));
        assert_eq!(overlap("0-2", "3", 9), None);
    }
}
