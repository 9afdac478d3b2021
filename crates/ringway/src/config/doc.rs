//! `docs/env.md`, made from the table.

use super::{Config, names};

const HEAD: &str = "\
# Settings

This page is made from the table in the code. Do not edit it: change the table, then run
`RINGWAY_BLESS=1 cargo test -p ringway config::`. `ringway env` shows the values in force and where
each comes from.

A setting is an environment variable. The process environment wins; then the file that
`NCCL_CONF_FILE` names, or `~/.nccl.conf`; then `/etc/nccl.conf`. Files hold `NAME=value` lines and
`#` comments; a line that is neither is reported with file and line. An empty value is the same as
none. Names that start with `NCCL_` mean what they mean to NCCL, except where this page says
otherwise.

A wrong value never stops a job by itself: it is reported, with what is used instead. A name that
is not known is reported with the nearest one that is. What contradicts itself (a rank beyond the
size, a requirement that cannot be met, a secret that cannot be read) is an error when a
communicator starts.

Sizes are bytes, or end in K, M or G (1024 each: `64K`, `16M`). Durations end in `us`, `ms`, `s`,
`m` or `h`; a bare number is seconds. Times in the log are in UTC.
";

/// The text of `docs/env.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    let mut section = "";
    for setting in Config::default().settings() {
        if setting.section != section {
            section = setting.section;
            text.push_str(&format!(
                "\n## {section}\n\n| Name | Values | Default | Meaning |\n|---|---|---|---|\n"
            ));
        }
        text.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            setting.name, setting.kind, setting.default, setting.meaning
        ));
    }
    text.push_str(
        "\n## Names of NCCL's without effect\n\nringway knows these names; where one is set, it \
         says once, at `NCCL_DEBUG=INFO`, that it\nhas no effect.\n\n",
    );
    let mut line = String::new();
    for name in names::without_effect() {
        if !line.is_empty() && line.len() + name.len() + 3 > 100 {
            text.push_str(line.trim_end());
            text.push('\n');
            line.clear();
        }
        line.push_str(&format!("`{name}` "));
    }
    text.push_str(line.trim_end());
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_page_is_the_generated_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/env.md");
        let generated = markdown();
        if Config::from_env().bless {
            std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap();
            std::fs::write(path, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == generated,
            "docs/env.md differs from the table of settings; \
             run RINGWAY_BLESS=1 cargo test -p ringway config::"
        );
    }

    #[test]
    fn every_name_is_on_the_page_and_no_cell_breaks_its_table() {
        let page = markdown();
        for setting in Config::default().settings() {
            assert!(page.contains(&format!("| `{}` |", setting.name)), "{}", setting.name);
            for cell in [setting.kind, setting.meaning, &setting.default] {
                assert!(!cell.contains('|') && !cell.contains('\n'), "{}: {cell}", setting.name);
            }
        }
    }
}
