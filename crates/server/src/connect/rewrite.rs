//! Links in what a proxied server answers: `Location` headers, and attributes of HTML that hold URLs. Those that lead to the
//! server itself get the prefix of the proxy, so that the client's next request comes here again.
//!
//! Invariants:
//! - Only the beginning of a URL is changed (scheme, host, path); everything else of a page is passed on byte by byte, as it
//!   comes. A page is never gathered: what is held back is at most one tag, and a tag that is too long is left as it is.
//! - Whatever a page says, nothing is followed here.
//!
//! Source: apimachinery's `proxy.Transport`.

use kaji_meta::text::clean_path;

/// Which attributes of which elements hold URLs.
const ATTRIBUTES: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];
/// Elements with contents that are no markup.
const RAW: [&str; 8] = ["iframe", "noembed", "noframes", "script", "style", "textarea", "title", "xmp"];
/// Bytes of the longest tag that is looked into.
const MAX_TAG: usize = 64 << 10;

/// How links are changed.
#[derive(Clone, Debug)]
pub struct Links {
    /// Stands before the proxied path, escaped and without a slash at its end.
    pub prefix: String,
    /// `host:port` of the proxied server.
    pub server: String,
    /// The host that the client named.
    pub requested: String,
}

/// A URL taken apart as far as it matters; `None` for one without a path of its own (`mailto:a@b`).
struct Url<'a> {
    scheme: &'a str,
    host: &'a str,
    path: &'a str,
    /// Query and fragment, with their marks.
    rest: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Option<Url<'a>> {
        let is_scheme = |s: &str| {
            s.starts_with(|c: char| c.is_ascii_alphabetic())
                && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        };
        let (scheme, after) = match text.split_once(':') {
            Some((scheme, after)) if is_scheme(scheme) => (scheme, after),
            _ => ("", text),
        };
        let (host, after) = match after.strip_prefix("//") {
            Some(after) => after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len())),
            None => ("", after),
        };
        if !scheme.is_empty() && host.is_empty() {
            return None;
        }
        let (path, rest) = after.split_at(after.find(['?', '#']).unwrap_or(after.len()));
        Some(Url { scheme, host, path, rest })
    }
}

impl Links {
    /// The URL as the client has to ask for it; `None` if it stays as it is.
    pub fn rewritten(&self, url: &str) -> Option<String> {
        let Url { scheme, host, path, rest } = Url::parse(url)?;
        let other_host = !host.is_empty() && host != self.server && host != self.requested;
        if other_host || !path.starts_with('/') {
            return None;
        }
        let begin = match host == self.requested && !host.is_empty() {
            true if scheme.is_empty() => format!("//{host}"),
            true => format!("{scheme}://{host}"),
            false => String::new(),
        };
        let there = path.strip_prefix(&self.prefix).is_some_and(|p| p.is_empty() || p.starts_with('/'));
        let prefix = if there { "" } else { &self.prefix };
        // A browser that resolved `..` later would leave the prefix.
        let made = format!("{begin}{prefix}{}{rest}", clean_path(path));
        (made != url).then_some(made)
    }
}

/// What the bytes that come next belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    Comment,
    /// Contents of an element that has no markup in it.
    Raw(&'static str),
}

/// Rewrites a page while it passes.
pub struct Page {
    links: Links,
    state: State,
    pending: Vec<u8>,
}

impl Page {
    /// At the beginning of a page.
    pub fn new(links: Links) -> Page {
        Page { links, state: State::Text, pending: vec![] }
    }

    /// The next piece; what may be the beginning of a tag is held back.
    pub fn push(&mut self, piece: &[u8]) -> Vec<u8> {
        self.pending.extend_from_slice(piece);
        let pending = std::mem::take(&mut self.pending);
        let (mut rest, mut out) = (&pending[..], Vec::with_capacity(pending.len()));
        while let Some(taken) = self.step(rest, &mut out) {
            rest = &rest[taken..];
        }
        self.pending = rest.to_vec();
        out
    }

    /// What was held back at the end of the page.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.pending)
    }

    /// Takes some bytes; `None` when more are needed.
    fn step(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if rest.is_empty() {
            return None;
        }
        let (taken, next) = match self.state {
            State::Text if rest[0] != b'<' => (memchr::memchr(b'<', rest).unwrap_or(rest.len()), State::Text),
            State::Text => return self.markup(rest, out),
            State::Comment => match memchr::memmem::find(rest, b"-->") {
                Some(at) => (at + 3, State::Text),
                None => (rest.len().saturating_sub(2), State::Comment),
            },
            State::Raw(name) => match end_of_raw(rest, name) {
                Some(at) => (at, State::Text),
                None => (rest.len().saturating_sub(name.len() + 1), State::Raw(name)),
            },
        };
        let moved = self.state != next;
        self.state = next;
        out.extend_from_slice(&rest[..taken]);
        (taken > 0 || moved).then_some(taken)
    }

    /// What begins with `<`.
    fn markup(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        const COMMENT: &[u8] = b"<!--";
        if rest.len() < COMMENT.len() && (COMMENT.starts_with(rest) || rest.len() < 2) {
            return None;
        }
        if rest.starts_with(COMMENT) {
            self.state = State::Comment;
            out.extend_from_slice(COMMENT);
            return Some(COMMENT.len());
        }
        if !rest[1].is_ascii_alphabetic() {
            out.push(b'<');
            return Some(1);
        }
        match end_of_tag(rest) {
            Some(end) => {
                self.tag(&rest[..end], out);
                Some(end)
            }
            None if rest.len() > MAX_TAG => {
                out.extend_from_slice(rest);
                Some(rest.len())
            }
            None => None,
        }
    }

    /// A whole tag, from `<` to `>`.
    fn tag(&mut self, tag: &[u8], out: &mut Vec<u8>) {
        let is_name = |b: &&u8| !b.is_ascii_whitespace() && !b"/>".contains(b);
        let length = tag[1..].iter().take_while(is_name).count();
        let name = tag[1..=length].to_ascii_lowercase();
        let known = |list: &str| list.as_bytes() == name;
        if let Some(raw) = RAW.iter().find(|raw| known(raw)) {
            self.state = State::Raw(raw);
        }
        let Some((_, wanted)) = ATTRIBUTES.iter().find(|(element, _)| known(element)) else {
            return out.extend_from_slice(tag);
        };
        let mut copied = 0;
        for (attribute, value) in attributes(tag, 1 + length) {
            let attribute = tag[attribute].to_ascii_lowercase();
            if !wanted.iter().any(|w| w.as_bytes() == attribute) {
                continue;
            }
            let text = std::str::from_utf8(&tag[value.clone()]).ok();
            if let Some(made) = text.and_then(|text| self.links.rewritten(text)) {
                out.extend_from_slice(&tag[copied..value.start]);
                out.extend_from_slice(made.as_bytes());
                copied = value.end;
            }
        }
        out.extend_from_slice(&tag[copied..]);
    }
}

/// Where the contents of such an element end.
fn end_of_raw(rest: &[u8], name: &str) -> Option<usize> {
    let ends = |at: &usize| {
        let after = rest.get(at + 2..at + 2 + name.len());
        after.is_some_and(|after| after.eq_ignore_ascii_case(name.as_bytes()))
    };
    memchr::memmem::find_iter(rest, b"</").find(ends)
}

/// Where a tag ends: behind the first `>` that is in no quoted value.
fn end_of_tag(rest: &[u8]) -> Option<usize> {
    let mut quote = None;
    let mut before = b' ';
    for (at, byte) in rest.iter().enumerate().skip(1) {
        match (quote, *byte) {
            (None, b'>') => return Some(at + 1),
            // A quote opens a value only right after the equals sign.
            (None, b'"' | b'\'') if before == b'=' => quote = Some(*byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            before = *byte;
        }
    }
    None
}

type Span = std::ops::Range<usize>;

/// The names and values of a tag's attributes, those with a value.
fn attributes(tag: &[u8], mut at: usize) -> Vec<(Span, Span)> {
    let mut found = vec![];
    let end = tag.len() - 1;
    let run = |from: usize, wanted: &dyn Fn(u8) -> bool| {
        from + tag[from..end].iter().take_while(|b| wanted(**b)).count()
    };
    while at < end {
        at = run(at, &|b| b.is_ascii_whitespace() || b == b'/');
        let name = at..run(at, &|b| !b.is_ascii_whitespace() && b != b'=' && b != b'/');
        at = run(name.end, &|b| b.is_ascii_whitespace());
        if at >= end || tag[at] != b'=' {
            // Without progress this is a byte that belongs to nothing.
            at = at.max(name.start + 1);
            continue;
        }
        at = run(at + 1, &|b| b.is_ascii_whitespace());
        let quote = tag.get(at).copied().filter(|b| at < end && (*b == b'"' || *b == b'\''));
        let value = match quote {
            Some(quote) => at + 1..run(at + 1, &|b| b != quote),
            None => at..run(at, &|b| !b.is_ascii_whitespace()),
        };
        at = value.end + usize::from(quote.is_some());
        if !name.is_empty() {
            found.push((name, value));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;

    fn links() -> Links {
        Links { prefix: "/p/proxy".into(), server: "10.0.0.1:80".into(), requested: "api:6443".into() }
    }

    fn rewritten(page: &[u8], sizes: &[usize]) -> Vec<u8> {
        let (mut rewriter, mut rest, mut out) = (Page::new(links()), page, vec![]);
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, after) = rest.split_at((*size).clamp(1, rest.len()));
            out.extend(rewriter.push(piece));
            rest = after;
        }
        out.extend(rewriter.finish());
        out
    }

    #[test]
    fn links_to_the_server_get_the_prefix() {
        let urls = [
            "/",
            "/a/b?c=/d#e",
            "a/b",
            "",
            "#x",
            "?x",
            "http://10.0.0.1:80/a",
            "https://10.0.0.1:80",
            "//10.0.0.1:80/a/",
            "http://api:6443/a",
            "//api:6443/a",
            "http://other/a",
            "//other/a",
            "mailto:a@b",
            "javascript:/x/",
            "/p/proxy/a",
            "/p/proxy",
            "/p/proxyother",
            "/../../secret",
            "/a/%2e%2e/b",
            "data:text/html,/x",
        ];
        let seen: Vec<String> = urls
            .iter()
            .map(|url| format!("{url} -> {}", links().rewritten(url).as_deref().unwrap_or("=")))
            .collect();
        expect![[r#"
            / -> /p/proxy/
            /a/b?c=/d#e -> /p/proxy/a/b?c=/d#e
            a/b -> =
             -> =
            #x -> =
            ?x -> =
            http://10.0.0.1:80/a -> /p/proxy/a
            https://10.0.0.1:80 -> =
            //10.0.0.1:80/a/ -> /p/proxy/a/
            http://api:6443/a -> http://api:6443/p/proxy/a
            //api:6443/a -> //api:6443/p/proxy/a
            http://other/a -> =
            //other/a -> =
            mailto:a@b -> =
            javascript:/x/ -> =
            /p/proxy/a -> =
            /p/proxy -> =
            /p/proxyother -> /p/proxy/p/proxyother
            /../../secret -> /p/proxy/secret
            /a/%2e%2e/b -> /p/proxy/a/%2e%2e/b
            data:text/html,/x -> ="#]]
        .assert_eq(&seen.join("\n"));
    }

    const PAGE: &str = r##"<!DOCTYPE html><HTML><head><title><a href="/t"></title><script src=/s.js>if (a < b) "<a href='/no'>"</script>
<!-- <a href="/no"> --><a class=x HREF = '/a>b?x="1"' title="/no">x</a><img src=/i.png><img alt="a>b" src="/j.png" />
<a href="http://other/x">y</a> 3 < 4 <p data-href="/no"><form action="/f"><a href>z</a><a href="/é&amp;">z</a></HTML> <a href="/open"##;

    #[test]
    fn pages_are_changed_in_their_links_alone() {
        let seen = String::from_utf8(rewritten(PAGE.as_bytes(), &[usize::MAX])).unwrap();
        expect![[r#"
            <!DOCTYPE html><HTML><head><title><a href="/t"></title><script src=/p/proxy/s.js>if (a < b) "<a href='/no'>"</script>
            <!-- <a href="/no"> --><a class=x HREF = '/p/proxy/a>b?x="1"' title="/no">x</a><img src=/p/proxy/i.png><img alt="a>b" src="/p/proxy/j.png" />
            <a href="http://other/x">y</a> 3 < 4 <p data-href="/no"><form action="/p/proxy/f"><a href>z</a><a href="/p/proxy/é&amp;">z</a></HTML> <a href="/open"#]].assert_eq(&seen);
    }

    #[test]
    fn a_tag_without_end_is_not_held_back() {
        let mut page = b"<a href=\"/x".to_vec();
        page.resize(3 * MAX_TAG, b'y');
        let mut rewriter = Page::new(links());
        let passed: usize = page.chunks(1000).map(|piece| rewriter.push(piece).len()).sum();
        assert!(passed + MAX_TAG + 1000 >= page.len());
        assert_eq!(rewritten(&page, &[1000]), page);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(sizes in prop::collection::vec(1_usize..40, 1..20)) {
            let whole = rewritten(PAGE.as_bytes(), &[usize::MAX]);
            prop_assert_eq!(rewritten(PAGE.as_bytes(), &sizes), whole);
        }

        #[test]
        fn any_bytes_pass(page in "([<>/='\" -]|!--|-->|a|href|script|</script|/x|é){0,80}", size in 1_usize..20) {
            let whole = rewritten(page.as_bytes(), &[usize::MAX]);
            prop_assert_eq!(&rewritten(page.as_bytes(), &[size]), &whole);
            let without = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("/p/proxy", "").replace('/', "");
            prop_assert_eq!(without(&whole), without(page.as_bytes()));
        }
    }
}
