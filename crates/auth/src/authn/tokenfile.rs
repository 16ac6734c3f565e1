//! Tokens from a file (`--token-auth-file`): lines of token, user, uid and, in quotes, groups.
//! Source: Kubernetes, "Static token file".
//!
//! Invariant: tokens are kept as hashes; looking one up takes a time that says nothing about them.

use super::{Identity, TokenAuthenticator, Verdict};
use kaji_resource::{BoxFuture, UserInfo};
use ring::digest;
use std::{collections::HashMap, path::Path};

/// Why a file is not usable.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It could not be read.
    #[error("{0}: {1}")]
    Read(String, std::io::Error),
    /// A line with too few columns.
    #[error("token file '{0}' must have at least 3 columns (token, user name, user uid), found {1}")]
    Columns(String, usize),
    /// Quotes that do not close, or stand in the middle of a field.
    #[error("token file '{0}': record {1}: bare or unclosed quote")]
    Quotes(String, usize),
}

/// Knows the tokens of a file.
pub struct TokenFile(HashMap<Vec<u8>, UserInfo>);

impl TokenFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<TokenFile, TokenFileError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| TokenFileError::Read(name.clone(), e))?;
        TokenFile::parse(&name, &text)
    }

    fn parse(name: &str, text: &str) -> Result<TokenFile, TokenFileError> {
        let mut tokens = HashMap::new();
        let records = records(text).map_err(|record| TokenFileError::Quotes(name.to_owned(), record))?;
        for (number, record) in records.into_iter().enumerate() {
            let [token, user, uid, rest @ ..] = record.as_slice() else {
                return Err(TokenFileError::Columns(name.to_owned(), record.len()));
            };
            if token.is_empty() {
                tracing::warn!(file = name, record = number + 1, "an empty token is ignored");
                continue;
            }
            let groups = rest.first().map(|g| g.split(',').map(str::to_owned).collect()).unwrap_or_default();
            let user = UserInfo { name: user.clone(), uid: uid.clone(), groups, ..UserInfo::default() };
            if tokens.insert(hash(token), user).is_some() {
                tracing::warn!(
                    file = name,
                    record = number + 1,
                    "a token is duplicated; the last entry is used"
                );
            }
        }
        Ok(TokenFile(tokens))
    }
}

impl TokenAuthenticator for TokenFile {
    fn authenticate<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
        let found = self.0.get(&hash(token)).cloned();
        Box::pin(std::future::ready(Ok(found.map(|user| Identity { user, ..Identity::default() }))))
    }
}

fn hash(token: &str) -> Vec<u8> {
    digest::digest(&digest::SHA256, token.as_bytes()).as_ref().to_vec()
}

/// The records of a CSV text (RFC 4180, as Go reads it); empty lines are left out. `Err` is the number of a bad record.
fn records(text: &str) -> Result<Vec<Vec<String>>, usize> {
    let (mut records, mut record, mut field) = (vec![], vec![], String::new());
    let mut chars = text.chars().peekable();
    // Whether the field began with a quote, and whether that quote is still open.
    let (mut quoted, mut open) = (false, false);
    loop {
        let next = chars.next();
        match next {
            Some('"') if open && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            Some('"') if open => open = false,
            None if open => return Err(records.len() + 1),
            Some(c) if open => field.push(c),
            Some('"') if field.is_empty() && !quoted => (quoted, open) = (true, true),
            Some(',') => {
                record.push(std::mem::take(&mut field));
                quoted = false;
            }
            Some('\r') if matches!(chars.peek(), Some('\n') | None) => {}
            Some('\n') | None => {
                if quoted || !field.is_empty() || !record.is_empty() {
                    record.push(std::mem::take(&mut field));
                    records.push(std::mem::take(&mut record));
                }
                quoted = false;
                if next.is_none() {
                    return Ok(records);
                }
            }
            Some(c) if c == '"' || quoted => return Err(records.len() + 1),
            Some(c) => field.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::testing::now_or_never;
    use proptest::prelude::*;

    #[test]
    fn reads_the_users_of_a_file() {
        let text = "t1,alice,1\r\n\nt2,bob,2,\"devs,ops\"\n,mallory,3\nt3,\"c \"\"d\"\"\",4,solo";
        let file = TokenFile::parse("f", text).unwrap();
        let ask = |token: &str| {
            let user = now_or_never(file.authenticate(token, &[])).unwrap()?.user;
            Some(format!("{} {} {:?}", user.name, user.uid, user.groups))
        };
        assert_eq!(ask("t1").as_deref(), Some("alice 1 []"));
        assert_eq!(ask("t2").as_deref(), Some(r#"bob 2 ["devs", "ops"]"#));
        assert_eq!(ask("t3").as_deref(), Some(r#"c "d" 4 ["solo"]"#));
        assert_eq!((ask(""), ask("t")), (None, None));
    }

    #[test]
    fn rejects_malformed_files() {
        let refused = |text: &str| TokenFile::parse("f", text).err().unwrap().to_string();
        assert_eq!(
            refused("a,b\n"),
            "token file 'f' must have at least 3 columns (token, user name, user uid), found 2"
        );
        for text in ["a,b,c\na,\"b,c", "a,b,c\na,b\"x,c", "a,b,c\na,\"b\"x,c"] {
            assert_eq!(refused(text), "token file 'f': record 2: bare or unclosed quote");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_file_or_refused(text in "[a\",\r\n]{0,40}") {
            let _ = TokenFile::parse("f", &text);
        }
    }
}
