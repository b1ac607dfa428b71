//! Reads the shell blocks of a Markdown page.
//!
//! HTML comments before a block state how it runs:
//!
//! | comment | effect |
//! |---|---|
//! | `<!-- not run: REASON -->` | the block is skipped |
//! | `<!-- run: background -->` | each command runs until the page ends |
//! | `<!-- run: as the node -->` | the command is a node; it replaces the running one |
//! | `<!-- run: node stopped -->` | the running node is stopped before |
//! | `<!-- run: fails -->` | each command is rejected |
//! | `<!-- run: usage only; REASON -->` | each command is stopped after half a second, and only wrong usage is a failure |
//! | `<!-- run first: COMMANDS -->` | prerequisites that the page does not show, on one or several lines |
//! | `<!-- file: NAME -->` | the block is the content of this file |
//!
//! In a `console` block, lines after a command are its output: numbers match any number, `...` matches any text. The output
//! of commands in the background, and of those that are stopped, is not compared.

/// What the runner does, in the order of the page.
#[derive(Debug, PartialEq)]
pub(super) enum PageStep {
    Run(PageCommand),
    WriteFile { name: String, text: String },
}

#[derive(Debug, PartialEq)]
pub(super) struct PageCommand {
    /// Line of the page, from 1.
    pub(super) line: usize,
    /// May have several lines.
    pub(super) text: String,
    pub(super) mode: RunMode,
    /// Empty if the page shows no output.
    pub(super) output: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum RunMode {
    WithNode,
    Background,
    AsNode,
    NodeStopped,
    Fails,
    UsageOnly,
    /// A prerequisite.
    First,
}

/// What the comments before a block state.
#[derive(Default)]
struct BlockDirectives {
    is_skipped: bool,
    mode: Option<RunMode>,
    file: Option<String>,
}

impl BlockDirectives {
    fn is_empty(&self) -> bool {
        !self.is_skipped && self.mode.is_none() && self.file.is_none()
    }

    /// Other comments have no effect.
    fn read(&mut self, comment: &str) -> Result<(), String> {
        let Some((name, value)) = comment.split_once(": ") else {
            return Ok(());
        };
        match (name, value) {
            ("not run", _) => self.is_skipped = true,
            ("run", "background") => self.mode = Some(RunMode::Background),
            ("run", "as the node") => self.mode = Some(RunMode::AsNode),
            ("run", "node stopped") => self.mode = Some(RunMode::NodeStopped),
            ("run", "fails") => self.mode = Some(RunMode::Fails),
            ("run", mode) if mode.starts_with("usage only; ") => {
                self.mode = Some(RunMode::UsageOnly);
            }
            ("run", _) => {
                return Err(format!(
                    "`run: {value}`; expected `background`, `as the node`, `node stopped`, `fails` or `usage only; REASON`"
                ));
            }
            ("file", _) => self.file = Some(value.to_owned()),
            _ => {}
        }
        Ok(())
    }
}

/// The steps of a page, or the line and the mistake in its comments.
pub(super) fn steps(page: &str) -> Result<Vec<PageStep>, String> {
    let mut steps = Vec::new();
    let mut directives = BlockDirectives::default();
    let mut lines = page.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let at = |mistake: String| format!("line {number}: {mistake}");
        if let Some(start) = line.strip_prefix("<!-- ") {
            let mut comment = start.to_owned();
            while !comment.contains("-->") {
                let (next, _) = lines
                    .next()
                    .ok_or_else(|| at("comment without end".into()))?;
                comment.push('\n');
                comment.push_str(next);
            }
            let comment = comment.split("-->").next().unwrap_or_default().trim();
            match comment.strip_prefix("run first:") {
                Some(text) => steps.push(PageStep::Run(PageCommand {
                    line: number,
                    text: text.trim().to_owned(),
                    mode: RunMode::First,
                    output: Vec::new(),
                })),
                None => directives.read(comment).map_err(at)?,
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let block: Vec<(&str, usize)> = lines
                .by_ref()
                .take_while(|(line, _)| !line.starts_with("```"))
                .collect();
            let directives = std::mem::take(&mut directives);
            if let Some(name) = directives.file {
                let text = block.iter().flat_map(|(line, _)| [*line, "\n"]).collect();
                steps.push(PageStep::WriteFile { name, text });
            } else if is_shell(language) && !directives.is_skipped {
                let mode = directives.mode.unwrap_or(RunMode::WithNode);
                let commands = commands(&block, language == "console", mode).map_err(at)?;
                steps.extend(commands.into_iter().map(PageStep::Run));
            }
        } else if !line.trim().is_empty() && !directives.is_empty() {
            return Err(at(
                "a comment that applies to a block is followed by text".into()
            ));
        }
    }
    Ok(steps)
}

fn is_shell(language: &str) -> bool {
    ["sh", "bash", "shell", "console"].contains(&language)
}

/// The commands of a block. In a session (`console`) they begin with `$ ` and their output follows.
fn commands(
    block: &[(&str, usize)],
    is_session: bool,
    mode: RunMode,
) -> Result<Vec<PageCommand>, String> {
    let mut commands: Vec<PageCommand> = Vec::new();
    let mut lines = block.iter();
    while let Some(&(line, number)) = lines.next() {
        let start = if is_session {
            line.strip_prefix("$ ")
        } else if line.trim().is_empty() || line.starts_with('#') {
            continue;
        } else {
            Some(line)
        };
        let Some(start) = start else {
            let command = commands
                .last_mut()
                .ok_or("the block begins with output; expected `$ COMMAND`")?;
            command.output.push(line.to_owned());
            continue;
        };
        let mut text = start.to_owned();
        let end = heredoc_end(start);
        while text.ends_with('\\') || end.is_some_and(|end| !text.ends_with(&format!("\n{end}"))) {
            let (next, _) = lines.next().ok_or("the block ends inside a command")?;
            text.push('\n');
            text.push_str(next);
        }
        commands.push(PageCommand {
            line: number,
            text,
            mode,
            output: Vec::new(),
        });
    }
    Ok(commands)
}

/// The word that ends the here-document of a command.
fn heredoc_end(command: &str) -> Option<&str> {
    let (_, word) = command.split_once("<<")?;
    Some(word.trim().trim_matches('\''))
}

/// Whether the output of a command is what its page shows.
pub(super) fn matches_output(shown: &[String], output: &str) -> bool {
    let shown = normalized(&shown.join("\n"));
    let output = normalized(output);
    let parts: Vec<&str> = shown.split("...").map(str::trim).collect();
    let (first, last) = (parts[0], parts[parts.len() - 1]);
    if parts.len() == 1 {
        return output == shown;
    }
    let Some(mut rest) = output.strip_prefix(first) else {
        return false;
    };
    for part in &parts[1..] {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    last.is_empty() || output.ends_with(last)
}

/// Any number is the same number, and any white space one space: times, ports and column widths differ.
fn normalized(text: &str) -> String {
    let mut normal = String::new();
    for character in text.trim().chars() {
        let character = match character {
            '0'..='9' => '0',
            c if c.is_whitespace() => ' ',
            other => other,
        };
        let repeats = matches!(character, '0' | ' ') && normal.ends_with(character);
        if !repeats {
            normal.push(character);
        }
    }
    normal
}

#[test]
fn steps_follow_the_page() {
    let page = "# Page\n\n<!-- file: a.json -->\n```json\n{}\n```\n\n<!-- run first: mkdir b\ncd b -->\n\
        <!-- run: background -->\n```console\n$ sub -t \\\n  a\n```\nText\n<!-- not run: needs root -->\n\
        ```sh\nreboot\n```\n\n```console\n$ cat > c <<'END'\n$ x\nEND\n$ cat c\n$ x\n```\n";
    let command = |line, text: &str, mode, output: &[&str]| {
        let output = output.iter().map(|line| (*line).to_owned()).collect();
        let text = text.to_owned();
        PageStep::Run(PageCommand {
            line,
            text,
            mode,
            output,
        })
    };
    let file = PageStep::WriteFile {
        name: "a.json".into(),
        text: "{}\n".into(),
    };
    assert_eq!(
        steps(page).unwrap(),
        [
            file,
            command(8, "mkdir b\ncd b", RunMode::First, &[]),
            command(12, "sub -t \\\n  a", RunMode::Background, &[]),
            command(22, "cat > c <<'END'\n$ x\nEND", RunMode::WithNode, &[]),
            command(25, "cat c", RunMode::WithNode, &[]),
            command(26, "x", RunMode::WithNode, &[]),
        ]
    );
}

#[test]
fn mistakes_in_comments_are_reported() {
    let wrong = "<!-- run: later -->\n```sh\nls\n```\n";
    assert!(
        steps(wrong)
            .unwrap_err()
            .starts_with("line 1: `run: later`")
    );
    let lost = "<!-- run: background -->\nText.\n```sh\nls\n```\n";
    assert!(steps(lost).unwrap_err().starts_with("line 2: "));
}

#[test]
fn output_is_compared_without_its_numbers() {
    let shown = |text: &str| vec![text.to_owned()];
    assert!(matches_output(&shown("id  7 ok"), "id  1234   ok\n"));
    assert!(matches_output(
        &shown("{\"token\":\"...\", ...}"),
        "{\"token\":\"xY\", \"a\":1}"
    ));
    assert!(matches_output(&shown("a\n..."), "a\nb\nc"));
    assert!(!matches_output(&shown("id 7 ok"), "id 7 failed"));
    assert!(!matches_output(&shown("a ... d"), "a b c"));
}
