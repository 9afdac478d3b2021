//! The text, written.

use std::fmt::{Display, Write as _};

/// A label's name and its value.
pub type Label<'a> = (&'a str, &'a dyn Display);

/// A text in the making.
///
/// ```
/// use ringway::exposition::Page;
/// let mut page = Page::default();
/// page.metric("answers_total", "counter", "Questions answered.");
/// page.sample("answers_total", &[("to", &"a \"friend\"")], 3);
/// assert!(page.into_text().ends_with("answers_total{to=\"a \\\"friend\\\"\"} 3\n"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Page(String);

impl Page {
    /// Begins a metric; all its samples follow, before any other metric.
    pub fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _infallible = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// One sample of the metric begun last.
    pub fn sample(&mut self, name: &str, labels: &[Label<'_>], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, of)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let escaped = of.to_string();
            let escaped = escaped.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _infallible = write!(self.0, "{before}{label}=\"{escaped}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _infallible = writeln!(self.0, "{end} {value}");
    }

    /// The text.
    #[must_use]
    pub fn into_text(self) -> String {
        self.0
    }
}
