//! `ringway man`: manual pages, one a command, from the tables that arguments are read by.
//!
//! `clap_mangen` writes the sections that follow from arguments. The text after them is ours: it is laid out by hand for
//! terminals, and would be run together there.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::args::visible;
use crate::exit::ExitCode;
use crate::output;

/// Print the manual page, or write those of all commands
#[derive(Debug, Args)]
#[command(
    max_term_width = 80,
    after_help = "Without --out the page of ringway itself goes to standard output.

Examples:
  ringway man | man -l -
  ringway man --out /usr/local/share/man/man1    then: man ringway-perf"
)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this folder, which is made
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let pages = pages()?;
    let Some(folder) = &args.out else {
        let own = pages.first().map_or(&[][..], |page| &page.text);
        output::stdout_bytes(own)?;
        return Ok(ExitCode::SUCCESS);
    };
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    for page in &pages {
        let path = folder.join(&page.file);
        fs::write(&path, &page.text).with_context(|| format!("{}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One page, and the name of its file.
struct Page {
    file: String,
    text: Vec<u8>,
}

/// All pages, that of the whole command first.
fn pages() -> io::Result<Vec<Page>> {
    let mut root = visible().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    collect(&root, None, &mut pages)?;
    Ok(pages)
}

fn collect(command: &Command, above: Option<&str>, pages: &mut Vec<Page>) -> io::Result<()> {
    let man = Man::new(command.clone())
        .source(concat!("Ringway ", env!("CARGO_PKG_VERSION")))
        .manual("Ringway's manual");
    let mut text = Vec::new();
    render(&man, command, above, &mut text)?;
    pages.push(Page { file: man.get_filename(), text });
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    for below in command.get_subcommands() {
        collect(below, Some(name), pages)?;
    }
    Ok(())
}

fn render(
    man: &Man,
    command: &Command,
    above: Option<&str>,
    out: &mut impl Write,
) -> io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    let mut roff = Roff::default();
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        closing(&mut roff, &after.to_string());
    }
    if let Some(above) = above {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([roman(format!("{above}(1)"))]);
    }
    roff.to_writer(out)
}

/// What help says at its end, paragraph by paragraph. Lines of a paragraph in which one is indented stay as they are.
fn closing(roff: &mut Roff, text: &str) {
    let mut heading = "";
    for paragraph in text.split("\n\n").map(|one| one.trim_matches('\n')) {
        let (name, lines) = match paragraph.strip_prefix("Examples:\n") {
            Some(lines) => ("EXAMPLES", lines),
            None if paragraph.starts_with("Exits with") => ("EXIT STATUS", paragraph),
            None => ("NOTES", paragraph),
        };
        if name == heading {
            roff.control("PP", []);
        } else {
            roff.control("SH", [name]);
            heading = name;
        }
        let is_laid_out = lines.lines().any(|line| line.starts_with(' '));
        if is_laid_out {
            roff.control("nf", []);
        }
        for line in lines.lines() {
            let line =
                if name == "EXAMPLES" { line.strip_prefix("  ").unwrap_or(line) } else { line };
            roff.text([roman(line)]);
        }
        if is_laid_out {
            roff.control("fi", []);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines_and_prose_flows() {
        let mut roff = Roff::default();
        closing(&mut roff, "One\ntwo.\n\nExamples:\n  a\n    .b\n\nExits with 0.");
        let text = roff.to_roff();
        let wanted = ".SH NOTES\nOne\ntwo.\n.SH EXAMPLES\n.nf\na\n  .b\n.fi\n.SH \"EXIT STATUS\"\nExits with 0.\n";
        assert_eq!(text, wanted);
    }

    /// What has no text, of a command and of all below it. Hidden arguments are there for nccl-tests' sake.
    fn unexplained(command: &Command, found: &mut Vec<String>) {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        if command.get_about().is_none() {
            found.push(name.to_owned());
        }
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        let silent = shown.filter(|argument| argument.get_help().is_none());
        found.extend(silent.map(|argument| format!("{name}: {}", argument.get_id())));
        for below in command.get_subcommands() {
            unexplained(below, found);
        }
    }

    #[test]
    fn every_command_and_argument_has_a_text() {
        let mut root = visible();
        root.build();
        let mut found = Vec::new();
        unexplained(&root, &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let pages = pages().expect("writing to memory works");
        let names: Vec<&str> = pages.iter().map(|page| page.file.as_str()).collect();
        assert_eq!(names[0], "ringway.1");
        for name in ["ringway-perf.1", "ringway-env-lint.1", "ringway-k8s-gen.1", "ringway-man.1"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        let hidden = |name: &&str| name.contains("rank-exec") || name.contains("help");
        assert_eq!(names.iter().copied().find(hidden), None);
        let mut root = visible();
        root.build();
        for command in root.get_subcommands().filter(|one| one.get_name() != "help") {
            let wanted = format!("ringway-{}.1", command.get_name());
            let page = pages.iter().find(|page| page.file == wanted).expect(&wanted);
            let text = String::from_utf8_lossy(&page.text);
            assert!(text.contains("\n.SH EXAMPLES\n"), "{wanted} has no examples:\n{text}");
        }
    }
}
