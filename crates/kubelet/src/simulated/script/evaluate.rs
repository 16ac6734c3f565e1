//! What statements do: how long they take, what they print, with which code they end.

use super::parse::{Command, Link, List, Redirect};
use super::words::{Part, Word};
use super::{Effect, MOST_DEPTH, MOST_OUTPUT, MOST_STEPS, Machine, NotUnderstood, arithmetic, base, parse};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longer than this is for ever.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How a statement ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// The next one follows.
    Next,
    /// The script ends with its code.
    Exit,
    /// It does not end.
    Forever,
    /// `break`
    Break,
    /// `continue`
    Continue,
}

/// One evaluation.
pub(super) struct Evaluation<'m, 'a> {
    machine: &'m mut Machine<'a>,
    variables: BTreeMap<String, String>,
    takes: Duration,
    code: i32,
    stdout: String,
    stderr: String,
    steps: u32,
    depth: u32,
    /// `set -e`
    ends_at_failure: bool,
}

fn append(to: &mut String, text: &str) {
    let mut room = MOST_OUTPUT.saturating_sub(to.len()).min(text.len());
    while !text.is_char_boundary(room) {
        room -= 1;
    }
    to.push_str(&text[..room]);
}

fn unknown(program: &str) -> NotUnderstood {
    NotUnderstood::Program(program.to_owned())
}

/// `10`, `0.5`, `2m`, `infinity`
fn sleep_time(text: &str) -> Option<Duration> {
    if matches!(text, "inf" | "infinity") {
        return Some(FOREVER);
    }
    let (number, unit) = match text.char_indices().next_back()? {
        (at, 's') => (&text[..at], 1.0),
        (at, 'm') => (&text[..at], 60.0),
        (at, 'h') => (&text[..at], 3_600.0),
        (at, 'd') => (&text[..at], 86_400.0),
        _ => (text, 1.0),
    };
    let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let seconds: f64 = number.parse().ok().filter(|_| plain)?;
    Some(Duration::try_from_secs_f64(seconds * unit).unwrap_or(FOREVER).min(FOREVER))
}

impl<'m, 'a> Evaluation<'m, 'a> {
    pub(super) fn new(machine: &'m mut Machine<'a>) -> Evaluation<'m, 'a> {
        Evaluation {
            machine,
            variables: BTreeMap::new(),
            takes: Duration::ZERO,
            code: 0,
            stdout: String::new(),
            stderr: String::new(),
            steps: 0,
            depth: 0,
            ends_at_failure: false,
        }
    }

    fn effect(&mut self, flow: Flow) -> Effect {
        let forever = flow == Flow::Forever || self.takes >= FOREVER;
        Effect {
            takes: (!forever).then_some(self.takes),
            code: self.code,
            stdout: std::mem::take(&mut self.stdout),
            stderr: std::mem::take(&mut self.stderr),
        }
    }

    /// A whole script.
    pub(super) fn script(&mut self, list: &List) -> Result<Effect, NotUnderstood> {
        let flow = self.list(list)?;
        Ok(self.effect(flow))
    }

    /// One program.
    pub(super) fn program(&mut self, words: &[String]) -> Result<Effect, NotUnderstood> {
        let flow = self.simple(words)?;
        Ok(self.effect(flow))
    }

    fn step(&mut self) -> Result<(), NotUnderstood> {
        self.steps += 1;
        if self.steps > MOST_STEPS { Err(NotUnderstood::TooLong) } else { Ok(()) }
    }

    fn list(&mut self, list: &List) -> Result<Flow, NotUnderstood> {
        for (at, (link, command)) in list.iter().enumerate() {
            match link {
                Link::And if self.code != 0 => continue,
                Link::Or if self.code == 0 => continue,
                _ => {}
            }
            let flow = self.command(command)?;
            if flow != Flow::Next || self.takes >= FOREVER {
                return Ok(if flow == Flow::Next { Flow::Forever } else { flow });
            }
            let linked = list.get(at + 1).is_some_and(|(link, _)| *link != Link::Then);
            if self.ends_at_failure && self.code != 0 && !linked && matches!(command, Command::Simple(..)) {
                return Ok(Flow::Exit);
            }
        }
        Ok(Flow::Next)
    }

    /// The outcome of a condition. A failure does not end the script.
    fn condition(&mut self, list: &List) -> Result<(Flow, bool), NotUnderstood> {
        let kept = std::mem::replace(&mut self.ends_at_failure, false);
        let flow = self.list(list);
        self.ends_at_failure = kept;
        Ok((flow?, self.code == 0))
    }

    fn command(&mut self, command: &Command) -> Result<Flow, NotUnderstood> {
        self.step()?;
        match command {
            Command::Simple(words, redirects) => self.redirected(words, redirects),
            Command::Not(inner) => {
                let flow = self.command(inner)?;
                self.code = i32::from(self.code == 0);
                Ok(flow)
            }
            Command::If(branches, otherwise) => {
                for (condition, body) in branches {
                    match self.condition(condition)? {
                        (Flow::Next, true) => return self.list(body),
                        (Flow::Next, false) => {}
                        (flow, _) => return Ok(flow),
                    }
                }
                self.code = 0;
                self.list(otherwise)
            }
            Command::While { until, condition, body } => self.repeat(*until, condition, body),
            Command::For(name, words, body) => {
                for word in self.expand_all(words)? {
                    self.variables.insert(name.clone(), word);
                    match self.list(body)? {
                        Flow::Next | Flow::Continue => {}
                        Flow::Break => break,
                        flow => return Ok(flow),
                    }
                }
                Ok(Flow::Next)
            }
        }
    }

    /// A loop that is in the same state after a round in which it slept goes on for ever.
    fn repeat(&mut self, until: bool, condition: &List, body: &List) -> Result<Flow, NotUnderstood> {
        loop {
            self.step()?;
            let (variables, began) = (self.variables.clone(), self.takes);
            let (flow, holds) = self.condition(condition)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
            if holds == until {
                self.code = 0;
                return Ok(Flow::Next);
            }
            match self.list(body)? {
                Flow::Next | Flow::Continue => {}
                Flow::Break => return Ok(Flow::Next),
                flow => return Ok(flow),
            }
            if self.variables == variables && self.takes > began {
                return Ok(Flow::Forever);
            }
        }
    }

    fn redirected(&mut self, words: &[Word], redirects: &[Redirect]) -> Result<Flow, NotUnderstood> {
        let words = self.expand_all(words)?;
        if redirects.is_empty() {
            return self.simple(&words);
        }
        let kept = (std::mem::take(&mut self.stdout), std::mem::take(&mut self.stderr));
        let flow = self.simple(&words)?;
        let (mut out, mut error) =
            (std::mem::replace(&mut self.stdout, kept.0), std::mem::replace(&mut self.stderr, kept.1));
        for redirect in redirects {
            let path = self.expand(&redirect.path)?;
            let text = std::mem::take(if redirect.error { &mut error } else { &mut out });
            if path == "/dev/null" {
                continue;
            }
            if matches!(path.as_str(), "/dev/stdout" | "/dev/stderr") {
                append(if path.ends_with("stdout") { &mut self.stdout } else { &mut self.stderr }, &text);
                continue;
            }
            let mut whole =
                if redirect.append { self.machine.files.read(&path) } else { None }.unwrap_or_default();
            append(&mut whole, &text);
            self.machine.files.write(&path, whole);
        }
        append(&mut self.stdout, &out);
        append(&mut self.stderr, &error);
        Ok(flow)
    }

    /// A builtin or a program.
    fn simple(&mut self, words: &[String]) -> Result<Flow, NotUnderstood> {
        let Some((program, rest)) = words.split_first() else {
            self.code = 0;
            return Ok(Flow::Next);
        };
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        if let Some((name, value)) = program.split_once('=').filter(|(name, _)| super::words::is_name(name)) {
            let former = self.variables.insert(name.to_owned(), value.to_owned());
            self.code = 0;
            if rest.is_empty() {
                return Ok(Flow::Next);
            }
            // For this command alone.
            self.deeper()?;
            let flow = self.simple(&words[1..])?;
            self.depth -= 1;
            match former {
                Some(former) => self.variables.insert(name.to_owned(), former),
                None => self.variables.remove(name),
            };
            return Ok(flow);
        }
        self.code = match (base(program), &rest[..]) {
            ("true" | ":" | "sync" | "wait", _) => 0,
            ("false", _) => 1,
            ("exit", arguments) => {
                if let Some(code) = arguments.first() {
                    self.code = code.parse::<i32>().map_or(2, |c| c & 0xff);
                }
                return Ok(Flow::Exit);
            }
            ("break", []) => return Ok(Flow::Break),
            ("continue", []) => return Ok(Flow::Continue),
            ("set", flags) => {
                self.ends_at_failure |= flags.iter().any(|f| f.starts_with('-') && f.contains('e'));
                0
            }
            ("export", pairs) => self.export(pairs),
            // Nothing sends it a signal before it is stopped.
            ("trap", _) => 0,
            ("sleep", times) if !times.is_empty() => {
                for time in times {
                    let time = sleep_time(time).ok_or_else(|| NotUnderstood::Syntax(words.join(" ")))?;
                    self.takes = self.takes.saturating_add(time).min(FOREVER);
                }
                0
            }
            ("sh" | "bash" | "ash" | "dash", ["-c", text, ..]) => return self.nested(text),
            ("exec", [_, ..]) => {
                self.deeper()?;
                let flow = self.simple(&words[1..])?;
                return Ok(if flow == Flow::Next { Flow::Exit } else { flow });
            }
            (name, rest) => self.tool(name, rest).ok_or_else(|| unknown(program))??,
        };
        Ok(Flow::Next)
    }

    fn export(&mut self, pairs: &[&str]) -> i32 {
        for (name, value) in pairs.iter().filter_map(|pair| pair.split_once('=')) {
            self.variables.insert(name.to_owned(), value.to_owned());
        }
        0
    }

    fn nested(&mut self, text: &str) -> Result<Flow, NotUnderstood> {
        self.deeper()?;
        let list = parse::script(text)?;
        let flow = self.list(&list)?;
        self.depth -= 1;
        Ok(if flow == Flow::Exit { Flow::Next } else { flow })
    }

    fn deeper(&mut self) -> Result<(), NotUnderstood> {
        self.depth += 1;
        if self.depth > MOST_DEPTH { Err(NotUnderstood::TooLong) } else { Ok(()) }
    }

    /// The exit code of a tool; `None` for one that is not there.
    fn tool(&mut self, name: &str, rest: &[&str]) -> Option<Result<i32, NotUnderstood>> {
        Some(Ok(match (name, rest) {
            ("echo", rest) => {
                let (end, rest) = match rest {
                    ["-n", rest @ ..] => ("", rest),
                    ["-e", rest @ ..] => ("\n", rest),
                    rest => ("\n", rest),
                };
                append(&mut self.stdout, &format!("{}{end}", rest.join(" ")));
                0
            }
            ("printf", [text]) if !text.contains('%') => {
                append(&mut self.stdout, &text.replace("\\n", "\n"));
                0
            }
            ("hostname", []) => {
                let name = format!("{}\n", self.machine.hostname);
                append(&mut self.stdout, &name);
                0
            }
            ("env" | "printenv", []) => {
                let env: String = self.machine.env.iter().map(|(k, v)| format!("{k}={v}\n")).collect();
                append(&mut self.stdout, &env);
                0
            }
            ("printenv", [name]) => {
                let found = self.machine.env.get(*name).map(|value| format!("{value}\n"));
                append(&mut self.stdout, found.as_deref().unwrap_or_default());
                i32::from(found.is_none())
            }
            ("cat", paths) if !paths.is_empty() && !paths.iter().any(|p| p.starts_with('-')) => {
                self.cat(paths)
            }
            ("touch", paths) => {
                for path in paths {
                    let text = self.machine.files.read(path).unwrap_or_default();
                    self.machine.files.write(path, text);
                }
                0
            }
            ("mkdir", paths) => {
                for path in paths.iter().filter(|p| !p.starts_with('-')) {
                    self.machine.files.write(path, String::new());
                }
                0
            }
            ("rm", paths) => {
                for path in paths.iter().filter(|p| !p.starts_with('-')) {
                    self.machine.files.remove(path);
                }
                0
            }
            ("expr", words) => return Some(self.expr(words)),
            ("test", words) => return Some(self.test(words)),
            ("[", [words @ .., "]"]) | ("[[", [words @ .., "]]"]) => return Some(self.test(words)),
            _ => return None,
        }))
    }

    fn cat(&mut self, paths: &[&str]) -> i32 {
        let mut code = 0;
        for path in paths {
            let text = match *path {
                "/etc/hostname" => Some(format!("{}\n", self.machine.hostname)),
                path => self.machine.files.read(path),
            };
            match text {
                Some(text) => append(&mut self.stdout, &text),
                None => {
                    append(
                        &mut self.stderr,
                        &format!("cat: can't open '{path}': No such file or directory\n"),
                    );
                    code = 1;
                }
            }
        }
        code
    }

    fn expr(&mut self, words: &[&str]) -> Result<i32, NotUnderstood> {
        let value = arithmetic::evaluate(&words.join(" "), &|_| "x".to_owned())?;
        append(&mut self.stdout, &format!("{value}\n"));
        Ok(i32::from(value == 0))
    }

    fn test(&mut self, words: &[&str]) -> Result<i32, NotUnderstood> {
        let not = words.iter().take_while(|w| **w == "!").count();
        let words = &words[not..];
        let number =
            |text: &str| text.trim().parse::<i64>().map_err(|_| NotUnderstood::Syntax(words.join(" ")));
        let holds = match words {
            [] => false,
            ["-e" | "-f" | "-r" | "-w" | "-d" | "-s", path] => self.machine.files.read(path).is_some(),
            ["-z", text] => text.is_empty(),
            ["-n", text] | [text] => !text.is_empty(),
            [a, "=" | "==", b] => a == b,
            [a, "!=", b] => a != b,
            [a, "-eq", b] => number(a)? == number(b)?,
            [a, "-ne", b] => number(a)? != number(b)?,
            [a, "-lt", b] => number(a)? < number(b)?,
            [a, "-le", b] => number(a)? <= number(b)?,
            [a, "-gt", b] => number(a)? > number(b)?,
            [a, "-ge", b] => number(a)? >= number(b)?,
            _ => return Err(NotUnderstood::Syntax(words.join(" "))),
        };
        Ok(i32::from(holds == (not % 2 == 1)))
    }

    fn variable(&self, name: &str) -> String {
        match name {
            "?" => self.code.to_string(),
            "RANDOM" => ((self.machine.random)() % 32_768).to_string(),
            "HOSTNAME" => self.machine.hostname.clone(),
            name => {
                let found = self.variables.get(name).or_else(|| self.machine.env.get(name));
                found.cloned().unwrap_or_default()
            }
        }
    }

    /// Words, without the empty ones that are not in quotes.
    fn expand_all(&mut self, words: &[Word]) -> Result<Vec<String>, NotUnderstood> {
        let mut expanded = vec![];
        for word in words {
            let text = self.expand(word)?;
            if word.quoted || !text.is_empty() {
                expanded.push(text);
            }
        }
        Ok(expanded)
    }

    fn expand(&mut self, word: &Word) -> Result<String, NotUnderstood> {
        let mut whole = String::new();
        for part in &word.parts {
            let text = match part {
                Part::Text(text) => text.clone(),
                Part::Variable(name, default) => {
                    let value = self.variable(name);
                    if value.is_empty() { default.clone() } else { value }
                }
                Part::Arithmetic(text) => {
                    arithmetic::evaluate(text, &|name| self.variable(name))?.to_string()
                }
                Part::Command(text) => self.printed(text)?,
            };
            append(&mut whole, &text);
        }
        Ok(whole)
    }

    /// What a command prints, without the last ends of lines.
    fn printed(&mut self, text: &str) -> Result<String, NotUnderstood> {
        self.step()?;
        let kept = std::mem::take(&mut self.stdout);
        let flow = self.nested(text)?;
        let printed = std::mem::replace(&mut self.stdout, kept);
        if flow != Flow::Next {
            return Err(NotUnderstood::Syntax(format!("$({text})")));
        }
        Ok(printed.trim_end_matches('\n').to_owned())
    }
}
