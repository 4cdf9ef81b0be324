//! The text format of Prometheus, version 0.0.4.

use std::fmt::{Display, Write as _};

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl MetricType {
    fn name(self) -> &'static str {
        match self {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        }
    }
}

/// What is written for one who fetches.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
    family: &'static str,
}

impl Text {
    /// Begins a metric: all its samples follow before the next one begins.
    pub fn family(&mut self, name: &'static str, kind: MetricType, help: &str) {
        self.family = name;
        // Writing into a string does not fail.
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    /// A sample of the metric that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.sample_of("", labels, value);
    }

    /// A sample of a part of a histogram: `suffix` is `_bucket`, `_sum` or `_count`.
    pub fn sample_of(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.out.push_str(self.family);
        self.out.push_str(suffix);
        for (at, (name, text)) in labels.iter().enumerate() {
            self.out.push(if at == 0 { '{' } else { ',' });
            let _ = write!(self.out, "{name}=\"");
            for letter in text.chars() {
                match letter {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    other => self.out.push(other),
                }
            }
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    /// A metric with one sample and no label.
    pub fn single(&mut self, name: &'static str, kind: MetricType, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(&[], value);
    }

    /// What was written.
    pub fn finish(self) -> String {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_with_odd_characters_is_escaped() {
        let mut text = Text::default();
        text.family("ashlar_x", MetricType::Gauge, "What it is.");
        text.sample(&[("path", "a\"b\\c\nd"), ("b", "")], 1.5);
        text.single("ashlar_y_total", MetricType::Counter, "More.", 7);
        let shown = "# HELP ashlar_x What it is.\n# TYPE ashlar_x gauge\n\
                     ashlar_x{path=\"a\\\"b\\\\c\\nd\",b=\"\"} 1.5\n\
                     # HELP ashlar_y_total More.\n# TYPE ashlar_y_total counter\nashlar_y_total 7\n";
        assert_eq!(text.finish(), shown);
    }
}
