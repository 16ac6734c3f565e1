//! Banned words: the vocabulary is the field's, and sentences have a subject that is a thing or a role.
//!
//! Comments and identifiers of Rust files, their log messages and the texts of their errors, comments of scripts and of sources in other
//! languages, and the text of Markdown files are checked; other string literals and inline code are not, since texts that upstream prints
//! are kept exactly. A unit is a crate, or another file. The units in `NOT_CLEAN` may still have findings; one that has none left is a
//! complaint, so that the list only shrinks.

use super::{comments::Text, source::Source};

/// Units with findings that are still to be mended. Only remove lines here.
pub const NOT_CLEAN: &[&str] = &[];

/// Words that appear neither in comments nor in identifiers.
const WORDS: &[&str] = &[
    "who",
    "whoever",
    "whom",
    "whose",
    "somebody",
    "someone",
    "nobody",
    "anybody",
    "anyone",
    "everybody",
    "everyone",
    "stranger",
    "strangers",
    "believe",
    "believes",
    "believed",
    "elsewhere",
];

/// Phrases that do not appear in comments.
const PHRASES: &[&str] = &[
    "one's own",
    "no one",
    "is told",
    "was told",
    "are told",
    "were told",
    "been told",
    "has told",
    "have told",
    "told to",
    "told of",
    "goes away",
    "hears",
    "learns",
    "wants",
];

/// Words and phrases that do not appear in log messages and texts of errors: an administrator searches for the field's terms.
const PICTURES: &[&str] = &["anew", "brought", "goes on", "of before", "given back"];

/// Identifiers that are pictures where the field has a term.
const NAMES: &[&str] = &[
    "Pace",
    "Doors",
    "Facing",
    "Course",
    "Together",
    "Companion",
    "Roaming",
    "make_do",
    "cramped",
    "out_of_trouble",
    "Keeper",
    "keeper",
    "judge",
    "judged",
    "Want",
    "Wishes",
    "wishes",
    "Starved",
    "obstacle",
    "sensible",
    "rough",
    "hand_down",
    "let_start",
];

/// The findings in a Rust file: lines and what is wrong with each.
pub fn rust(source: &Source) -> Vec<(usize, String)> {
    let mut findings = prose(&source.comments);
    findings.extend(prose(&source.messages));
    for (line, message) in &source.messages {
        let words = format!(" {} ", message.to_lowercase());
        let pictures = PICTURES.iter().filter(|picture| words.contains(&format!(" {picture} ")));
        findings.extend(pictures.map(|picture| (*line, (*picture).to_owned())));
    }
    for (line, name) in &source.identifiers {
        let banned = NAMES.contains(&name.as_str());
        let word = words_of(name).into_iter().find(|word| WORDS.contains(&word.as_str()));
        if banned || word.is_some() {
            findings.push((*line, name.clone()));
        }
    }
    findings
}

/// The findings in the prose of other files (`comments`).
pub fn prose(texts: &[Text]) -> Vec<(usize, String)> {
    texts.iter().flat_map(|(line, text)| banned(text).into_iter().map(|word| (*line, word))).collect()
}

/// The banned words and phrases of a text, without what is between backquotes.
fn banned(text: &str) -> Vec<String> {
    let text: Vec<&str> = text.split('`').step_by(2).collect();
    let text = text.join(" ").to_lowercase().replace('’', "'");
    let letter = |c: char| c.is_alphanumeric() || c == '\'' || c == '_';
    let words: Vec<&str> = text.split(|c| !letter(c)).filter(|word| !word.is_empty()).collect();
    let joined = format!(" {} ", words.join(" "));
    let found =
        words.iter().map(|word| word.strip_suffix("'s").unwrap_or(word)).filter(|word| WORDS.contains(word));
    let phrases = PHRASES.iter().filter(|phrase| joined.contains(&format!(" {phrase} ")));
    found.map(str::to_owned).chain(phrases.map(|phrase| (*phrase).to_owned())).collect()
}

/// `NamesLikeThis` and `names_like_this` in words, in small letters.
fn words_of(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in identifier.chars() {
        if c == '_' || c.is_uppercase() {
            words.push(String::new());
        }
        if c != '_'
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
    }
    words
}

/// Complaints about findings by unit: `findings` holds unit, file, line and word.
pub fn complaints(
    units: &[String],
    findings: &[(String, String, usize, String)],
    not_clean: &[&str],
) -> Vec<String> {
    let mut complaints = vec![];
    for (unit, file, line, word) in findings {
        if !not_clean.contains(&unit.as_str()) {
            complaints.push(format!(
                "{file}:{line} has the banned word {word:?}; CONTRIBUTING.md says what to write"
            ));
        }
    }
    for listed in not_clean {
        if !units.iter().any(|unit| unit == listed) {
            complaints.push(format!(
                "{listed} is listed in NOT_CLEAN (xtask/src/tidy/vocabulary.rs) and does not exist"
            ));
        } else if !findings.iter().any(|(unit, ..)| unit == listed) {
            complaints
                .push(format!("{listed} is clean: remove it from NOT_CLEAN (xtask/src/tidy/vocabulary.rs)"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_words_in_comments_and_identifiers_but_not_in_literals() {
        // The words are put together, so that this file has none of them.
        let (word, phrase) = (["some", "body"].concat(), ["is", "told"]);
        let text = format!(
            "//! {word} asks; it {}\n//! {} so.\nfn for_{word}() {{ f(\"{word}\", Whoami); }}",
            phrase[0], phrase[1]
        );
        let found = rust(&Source::parse(&text));
        let found: Vec<(usize, &str)> = found.iter().map(|(line, word)| (*line, word.as_str())).collect();
        assert_eq!(found, [(1, word.as_str()), (1, "is told"), (3, &*format!("for_{word}"))]);
        assert_eq!(rust(&Source::parse("// its name is `someone`\n")), []);
    }

    #[test]
    fn finds_words_and_pictures_in_messages() {
        let word = ["some", "one"].concat();
        let text = format!(
            "fn f() {{ tracing::warn!(a = \"b\", \"asked by {word}\"); warn!(\"it is made a{}\"); g(\"{word}\"); }}\n#[error(\"{word}\")]\nstruct E;\n",
            "new here"
        );
        let found = rust(&Source::parse(&text));
        let found: Vec<(usize, &str)> = found.iter().map(|(line, word)| (*line, word.as_str())).collect();
        assert_eq!(found, [(1, word.as_str()), (2, word.as_str()), (1, "anew")]);
    }

    #[test]
    fn finds_words_in_prose_but_not_between_backquotes() {
        let word = ["every", "one"].concat();
        let texts = [(1, format!("`{word}` and")), (8, format!("of {word}'s"))];
        assert_eq!(prose(&texts), [(8, word)]);
    }

    #[test]
    fn rejects_clean_units_that_are_listed() {
        let units = ["a".to_owned(), "b".to_owned()];
        let finding = ("a".to_owned(), "a/x.rs".to_owned(), 1, "word".to_owned());
        assert_eq!(complaints(&units, std::slice::from_ref(&finding), &["a"]), [""; 0]);
        assert_eq!(complaints(&units, std::slice::from_ref(&finding), &["a", "b", "c"]).len(), 2);
        assert_eq!(complaints(&units, &[finding], &[]).len(), 1);
    }
}
