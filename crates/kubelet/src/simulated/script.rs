//! What a container's command would do, for the few commands that tests and examples of jobs consist of: `sleep`, `exit`, `true`,
//! `false`, `echo`, `test`, `touch`, `cat`, `env`, `hostname`, and `sh -c` of these with `if`, `while`, `&&`, `||` and arithmetic.
//!
//! A command that has anything else in it is not understood as a whole, so that nothing is made up about it. Pure but for the
//! files that it touches.
//!
//! Invariants: an evaluation takes at most [`MOST_STEPS`] steps and prints at most [`MOST_OUTPUT`] bytes; nothing is run.

mod arithmetic;
mod evaluate;
mod parse;
mod words;

use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

/// Commands that are evaluated at most.
const MOST_STEPS: u32 = 2_000;
/// Bytes that are kept of each stream.
const MOST_OUTPUT: usize = 4_096;
/// Characters of a command that is looked at.
const MOST_TEXT: usize = 8_192;
/// Levels of statements within statements.
const MOST_DEPTH: u32 = 32;

/// The files that a command sees.
pub trait Files {
    /// The text of a file.
    fn read(&self, path: &str) -> Option<String>;
    /// Makes or replaces a file.
    fn write(&mut self, path: &str, text: String);
    /// Removes a file.
    fn remove(&mut self, path: &str);
}

/// Where a command is evaluated.
pub struct Machine<'a> {
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// Its host's name.
    pub hostname: String,
    /// What it reads and writes.
    pub files: &'a mut dyn Files,
    /// `$RANDOM`
    pub random: &'a dyn Fn() -> u64,
}

/// What a command does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effect {
    /// How long it takes; `None` for one that does not end.
    pub takes: Option<Duration>,
    /// With which code it ends.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Why a command is not understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotUnderstood {
    /// A program that is not among those above.
    #[error("{0}: a simulated container has no such program")]
    Program(String),
    /// Something of the shell's language.
    #[error("a simulated container does not understand: {0}")]
    Syntax(String),
    /// It does not end within the bounds.
    #[error("the command is too long for a simulated container")]
    TooLong,
}

/// The program's name without its directory.
fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// What a command with these words does.
///
/// # Errors
/// When it is not understood.
pub fn run(words: &[String], machine: &mut Machine<'_>) -> Result<Effect, NotUnderstood> {
    let Some(program) = words.first() else { return Err(NotUnderstood::Program(String::new())) };
    let shell = matches!(base(program), "sh" | "bash" | "ash" | "dash");
    let mut evaluation = evaluate::Evaluation::new(machine);
    match words {
        [_, flag, text, ..] if shell && matches!(flag.as_str(), "-c" | "-ec" | "-xc" | "-exc") => {
            if text.len() > MOST_TEXT {
                return Err(NotUnderstood::TooLong);
            }
            evaluation.script(&parse::script(text)?)
        }
        _ if shell => Err(NotUnderstood::Program(words.join(" "))),
        _ => evaluation.program(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Memory(BTreeMap<String, String>);

    impl Files for Memory {
        fn read(&self, path: &str) -> Option<String> {
            self.0.get(path).cloned()
        }
        fn write(&mut self, path: &str, text: String) {
            self.0.insert(path.to_owned(), text);
        }
        fn remove(&mut self, path: &str) {
            self.0.remove(path);
        }
    }

    fn shown(files: &mut Memory, words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let env = [("JOB_COMPLETION_INDEX", "3"), ("WORD", "a b")];
        let mut machine = Machine {
            env: env.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            hostname: "p".into(),
            files,
            random: &|| 20_000,
        };
        match run(&words, &mut machine) {
            Ok(Effect { takes, code, stdout, stderr }) => {
                let takes = takes.map_or("runs on".to_owned(), |t| format!("{t:?}, code {code}"));
                let (stdout, stderr) = (stdout.replace('\n', "\\n"), stderr.replace('\n', "\\n"));
                format!("{takes} [{stdout}] [{stderr}]")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn commands_of_jobs_and_examples() {
        let mut files = Memory::default();
        let once = "if [[ -r /data/foo-$JOB_COMPLETION_INDEX ]]\nthen\n exit 0\nelse\n touch /data/foo-$JOB_COMPLETION_INDEX\n exit 42\nfi\n";
        let odd = "\n if [ $(expr ${JOB_COMPLETION_INDEX} % 2) -ne 0 ]; then\n exit 1\n else\n exit 0\n fi\n";
        let commands: &[&[&str]] = &[
            &["true"],
            &["/bin/false"],
            &["sleep", "90"],
            &["sleep", "1m", "0.5"],
            &["sleep", "infinity"],
            &["sh", "-c", "exit 7"],
            &["/bin/sh", "-c", "sleep 2; exit 3"],
            &["/bin/sh", "-c", once],
            &["/bin/sh", "-c", once],
            &["sh", "-c", odd],
            &["/bin/sh", "-c", "exit $(( $RANDOM / 16384 ))"],
            &["sh", "-c", "echo \"$WORD\" ${NONE:-x} 'a  b' && sleep 1 || echo no"],
            &["sh", "-c", "false || echo -n DONE > /dev/termination-log; cat /dev/termination-log"],
            &["sh", "-c", "while true; do echo tick; sleep 5; done"],
            &["sh", "-c", "trap exit TERM; while true; do sleep 1; done"],
            &["sh", "-c", "i=0; while [ $i -lt 3 ]; do i=$((i+1)); sleep 1; done; echo $i"],
            &["sh", "-c", "for x in a b; do echo $x; done; test -e /none"],
            &["sh", "-c", "set -e; false; echo never"],
            &["hostname"],
            &["cat", "/none"],
            &["nginx", "-g", "daemon off;"],
            &["sh", "-c", "nginx & wait"],
            &["sh", "-c", "if true"],
            &["sh", "-c", "while true; do true; done"],
            &["sh"],
            &[],
        ];
        let lines: Vec<String> = commands.iter().map(|words| shown(&mut files, words)).collect();
        expect_test::expect![[r#"
            0ns, code 0 [] []
            0ns, code 1 [] []
            90s, code 0 [] []
            60.5s, code 0 [] []
            runs on [] []
            0ns, code 7 [] []
            2s, code 3 [] []
            0ns, code 42 [] []
            0ns, code 0 [] []
            0ns, code 1 [] []
            0ns, code 1 [] []
            1s, code 0 [a b x a  b\n] []
            0ns, code 0 [DONE] []
            runs on [tick\n] []
            runs on [] []
            3s, code 0 [3\n] []
            0ns, code 1 [a\nb\n] []
            0ns, code 1 [] []
            0ns, code 0 [p\n] []
            0ns, code 1 [] [cat: can't open '/none': No such file or directory\n]
            nginx: a simulated container has no such program
            a simulated container does not understand: &
            a simulated container does not understand: the end of the text
            the command is too long for a simulated container
            sh: a simulated container has no such program
            : a simulated container has no such program"#]]
        .assert_eq(&lines.join("\n"));
    }

    proptest! {
        #[test]
        fn any_text_is_evaluated_within_bounds(text in "[a-z0-9 ;&|$(){}\\[\\]\"'\n<>=+*/%!-]{0,80}") {
            let shown = shown(&mut Memory::default(), &["sh", "-c", &text]);
            prop_assert!(shown.len() < 20_000);
        }

        #[test]
        fn adds_up_sleeps(seconds in prop::collection::vec(0..1000_u64, 1..6), code in 0..256_i32) {
            let sleeps: String = seconds.iter().map(|s| format!("sleep {s}; ")).collect();
            let text = format!("{sleeps}exit {code}");
            let sum: u64 = seconds.iter().sum();
            let expected = format!("{:?}, code {code} [] []", Duration::from_secs(sum));
            prop_assert_eq!(shown(&mut Memory::default(), &["sh", "-c", &text]), expected);
        }
    }
}
