//! What the debug pages say about a request, kept while it waits and runs: one piece of text, so that it costs one
//! allocation.

/// Columns of `dump_requests` that are the request's own.
pub const COLUMNS: usize = 8;

/// See the file's text.
#[derive(Clone, Debug)]
pub struct Detail {
    text: Box<str>,
    /// Where each part ends: what distinguishes its flow, then the columns.
    ends: [u32; COLUMNS + 1],
}

impl Detail {
    /// `columns`: user, verb, path, namespace, name, group/version, resource, subresource. A column may come in pieces.
    pub fn new(flow: &str, columns: [&[&str]; COLUMNS]) -> Detail {
        let length = flow.len() + columns.iter().flat_map(|c| c.iter()).map(|p| p.len()).sum::<usize>();
        let mut text = String::with_capacity(length);
        text.push_str(flow);
        let mut ends = [flow.len() as u32; COLUMNS + 1];
        for (end, column) in ends[1..].iter_mut().zip(columns) {
            column.iter().for_each(|piece| text.push_str(piece));
            *end = text.len() as u32;
        }
        Detail { text: text.into(), ends }
    }

    fn part(&self, n: usize) -> &str {
        let from = n.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(from as usize..self.ends[n] as usize).unwrap_or_default()
    }

    /// What sets its flow apart.
    pub fn flow(&self) -> &str {
        self.part(0)
    }

    /// The columns.
    pub fn columns(&self) -> [&str; COLUMNS] {
        std::array::from_fn(|n| self.part(n + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_what_it_encodes() {
        let detail =
            Detail::new("", [&["jürg"], &["get"], &["/x"], &[], &["n"], &["apps", "/", "v1"], &["d"], &[]]);
        assert_eq!(detail.flow(), "");
        assert_eq!(detail.columns(), ["jürg", "get", "/x", "", "n", "apps/v1", "d", ""]);
        assert_eq!(Detail::new("f", [&[]; COLUMNS]).flow(), "f");
    }
}
